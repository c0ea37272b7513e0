"""pyiceberg's scans of Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterable

import pyiceberg
from consumers_reading import APPEND, UPSERT, Part, Reading, Row
from pyiceberg.table import StaticTable


def version() -> str:
    return str(pyiceberg.__version__)


def rows(part: Part, *names: str) -> Iterable[Row]:
    found = StaticTable.from_metadata(str(part.folder)).scan().to_arrow()
    return zip(*(found[name].to_pylist() for name in (*names, *(column.name for column in part.columns))), strict=True)


def append(part: Part) -> Iterable[Row]:
    return rows(part, "_op", "_commit_ts")


READINGS = [Reading(APPEND, append), Reading(UPSERT, rows)]
