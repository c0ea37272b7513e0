"""What the upstream has at one moment, in DuckDB, with the values that files have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import polars as pl
import pyarrow as pa

from changefeed.reading.failures import NotVerifiable
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.schema.statement import Name, key_of
from changefeed.reading.scratch import KINDS
from changefeed.restore.source import text_in_utc
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.values import arrow_type, as_bytes
from changefeed.upstream.decoders import decoder_of
from changefeed.upstream.postgresql.reading.snapshot import DatabaseSnapshot


@dataclass(frozen=True)
class StandingTable:
    """`rows`: the table that has them in DuckDB, in columns c0..cn as `info.output_columns`."""

    info: TableInfo
    rows: str
    count: int


@dataclass(frozen=True)
class StandingTables:
    """All changes up to `after_ts` are in the rows, and none behind `before_ts`. `tables`: as readers know them."""

    after_ts: int
    before_ts: int
    tables: Mapping[Name, StandingTable]


def read_standing(
    snapshot: DatabaseSnapshot, db: duckdb.DuckDBPyConnection, time_zone: str, progress: ReadingProgress
) -> StandingTables:
    """Enters the snapshot, and reads all of it. `time_zone`: in which files have TIMESTAMP.

    Raises NotVerifiable where two tables are one to readers.
    """
    found: dict[Name, StandingTable] = {}
    with snapshot:
        for number, info in enumerate(snapshot.tables):
            progress.stage(f"{info.full_name}: the upstream's rows")
            name = key_of((info.schema_name, info.name))
            if name in found:
                raise NotVerifiable(
                    f"{info.full_name} and {found[name].info.full_name} differ in capital letters only.",
                    "Readers of files take them for one table: exclude one of them by a filter rule.",
                )
            found[name] = _read(snapshot, info, f"stands{number}", db, time_zone, progress)
        return StandingTables(snapshot.after_ts, snapshot.before_ts, found)


def _read(
    snapshot: DatabaseSnapshot,
    info: TableInfo,
    table: str,
    db: duckdb.DuckDBPyConnection,
    time_zone: str,
    progress: ReadingProgress,
) -> StandingTable:
    columns = info.output_columns
    declared = ", ".join(f"c{number} {KINDS[arrow_type(column)]}" for number, column in enumerate(columns))
    db.execute(f"CREATE TABLE {table}({declared})")
    count = 0
    for keys, values in snapshot.rows(info):
        decoded = decoder_of(info).rows(info, keys, values, time_zone)
        given = [_as_read(*pair, time_zone) for pair in zip(columns, decoded, strict=True)]
        db.register("given", pa.table(given, [f"c{number}" for number in range(len(columns))]))
        try:
            db.execute(f"INSERT INTO {table} SELECT * FROM given")
        finally:
            db.unregister("given")
        count += len(keys)
        progress.advance(len(keys))
    return StandingTable(info, table, count)


def _as_read(column: ColumnInfo, values: pa.Array, time_zone: str) -> pa.Array:
    """As files' values are once they are read: of an hour that clocks show twice it is the first there."""
    if column.type == SqlType.TIMESTAMP and time_zone != "UTC":
        in_utc = text_in_utc(pl.Series(pl.from_arrow(values)), time_zone, max(column.decimal, 0))
        values = in_utc.to_arrow().cast(pa.string())
    return as_bytes(values)
