"""A database in which rows that were read are put together: DuckDB, with a memory limit and a folder to spill to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from changefeed.reading.rows.lines import LineShape

#: Of the machine's or the container's; DuckDB spills what is beyond.
_MEMORY = "25%"
#: Of DuckDB, by what values in a file are read as.
KINDS = {
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.binary(): "BLOB",
    pa.string(): "BLOB",
}


@contextmanager
def scratch_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty one, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="changefeed-verify-") as folder, open_database(Path(folder)) as db:
        yield db


def open_database(folder: Path) -> duckdb.DuckDBPyConnection:
    """An empty one in memory. `folder`: a temporary one, for what does not fit."""
    return duckdb.connect(
        ":memory:",
        config={
            "memory_limit": _MEMORY,
            "temp_directory": str(folder / "spill"),
            "preserve_insertion_order": "true",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )


def with_bytes(changes: pa.Table, shape: LineShape) -> pa.Table:
    """Changes whose text is bytes, as the database keeps it."""
    for column in (*shape.columns, *(shape.old_columns if "has_old" in changes.column_names else ())):
        number = changes.schema.get_field_index(column)
        if changes.schema.types[number] == pa.string():
            changes = changes.set_column(number, column, changes[column].cast(pa.binary()))
    return changes
