"""Rows and segments in few words are those of the pipeline's and the owner's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("owner", "pipeline")]
