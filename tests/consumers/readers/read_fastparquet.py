"""fastparquet, as pandas uses it."""

from __future__ import annotations

from collections.abc import Iterable

import fastparquet
from consumers_reading import PARQUET, Part, Reading, Row
from read_pandas import parquet


def version() -> str:
    return str(fastparquet.__version__)


def with_pandas(part: Part) -> Iterable[Row]:
    return parquet(part, engine="fastparquet")


READINGS = [Reading(PARQUET, with_pandas)]
