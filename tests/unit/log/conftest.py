"""The log's tests take their records and stores from the owner's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "owner"))
