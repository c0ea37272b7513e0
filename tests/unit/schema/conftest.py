"""Deliberate bugs are made with what the simulations make them with."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "simulation"))
