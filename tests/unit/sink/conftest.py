"""Rows as TiKV has them are made by the pipeline's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "pipeline"))
