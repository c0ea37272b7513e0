"""Worlds are small: threads of polars would only cost."""

from __future__ import annotations

import os

os.environ.setdefault("POLARS_MAX_THREADS", "1")
