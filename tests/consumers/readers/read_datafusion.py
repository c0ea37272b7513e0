"""iceberg-rust (pyiceberg-core), whose tables DataFusion queries."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version as version_of

from consumers_reading import APPEND, UPSERT, Part, Reading, Row
from datafusion import SessionContext
from pyiceberg_core.datafusion import IcebergDataFusionTable


def version() -> str:
    return f"{version_of('pyiceberg-core')} with DataFusion {version_of('datafusion')}"


def rows(part: Part, *meta: str) -> Iterable[Row]:
    context = SessionContext()
    table = IcebergDataFusionTable(
        identifier=("shop", "t"), metadata_location=f"file://{part.folder}", file_io_properties={}
    )
    context.register_table("t", table)
    shown = ", ".join(f'"{name}"' for name in (*meta, *(column.name for column in part.columns)))
    found = context.sql(f"SELECT {shown} FROM t").to_arrow_table()
    return zip(*(column.to_pylist() for column in found.columns), strict=True)


def append(part: Part) -> Iterable[Row]:
    return rows(part, "_op", "_commit_ts")


READINGS = [Reading(APPEND, append), Reading(UPSERT, rows)]
