"""The owner that tasks talk to is that of the pipeline's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "pipeline"))
