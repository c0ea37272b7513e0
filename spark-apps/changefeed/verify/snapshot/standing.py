"""What the upstream has at one moment, in DuckDB, with the values that are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import duckdb
import polars as pl
import pyarrow as pa

from changefeed.log.state import State
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.schema.statement import Name, key_of
from changefeed.reading.scratch import KINDS
from changefeed.restore.source import text_in_utc
from changefeed.routing.routes import Routes
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.values import arrow_type, as_bytes
from changefeed.upstream.contract import Access
from changefeed.upstream.postgresql.database import PostgresqlDatabase
from changefeed.upstream.postgresql.reading.snapshot import DatabaseSnapshot
from changefeed.upstream.written_rows import NO_KEYS, MaskKeys, written_rows
from changefeed.verify.recorded import routes_of
from changefeed.verify.tables.values import of_decoded

AS_THEY_STAND = "PostgreSQL keeps no history: what the sink has was compared with the tables as they stand."


class ComparedForm(Protocol):
    """In which values are compared."""

    @property
    def time_zone(self) -> str:
        """In which times are decoded."""
        ...

    def kind(self, column: ColumnInfo) -> str:
        """DuckDB's type of them."""
        ...

    def shown(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        """Decoded values in this form."""
        ...


@dataclass(frozen=True)
class InFiles:
    """As files' values are once they are read: of an hour that clocks show twice it is the first there."""

    time_zone: str

    def kind(self, column: ColumnInfo) -> str:
        return KINDS[arrow_type(column)]

    def shown(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        if column.type == SqlType.TIMESTAMP and self.time_zone != "UTC":
            in_utc = text_in_utc(pl.Series(pl.from_arrow(values)), self.time_zone, max(column.decimal, 0))
            values = in_utc.to_arrow().cast(pa.string())
        return as_bytes(values)


@dataclass(frozen=True)
class InTables:
    """As rows of tables are compared (verify.tables.values)."""

    time_zone: str

    def kind(self, column: ColumnInfo) -> str:
        return "BLOB"

    def shown(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        return of_decoded(column, values)


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


async def standing_of(
    access: Access,
    state: State,
    db: duckdb.DuckDBPyConnection,
    form: ComparedForm,
    progress: ReadingProgress,
    mask_keys: MaskKeys,
) -> StandingTables:
    """The tables that a changefeed selects. Raises what `read_standing` does, and what reading an upstream does."""
    upstream = await access.of_cluster(state.cluster_id).connect()
    try:
        assert isinstance(upstream, PostgresqlDatabase), "who keeps no history is asked for in verify.choice"
        routes = routes_of(state)
        snapshot = upstream.snapshot(routes.selects)
        return await asyncio.to_thread(read_standing, snapshot, db, form, progress, routes, mask_keys)
    finally:
        await upstream.close()


def read_standing(
    snapshot: DatabaseSnapshot,
    db: duckdb.DuckDBPyConnection,
    form: ComparedForm,
    progress: ReadingProgress,
    routes: Routes,
    mask_keys: MaskKeys = NO_KEYS,
) -> StandingTables:
    """Enters the snapshot, and reads all of it. `routes`: to the tables that are written.

    Raises NotVerifiable where two tables are one to readers.
    """
    found: dict[Name, StandingTable] = {}
    with snapshot:
        for number, info in enumerate(snapshot.tables):
            progress.stage(f"{info.full_name}: the upstream's rows")
            written = routes.routed(info)
            if (name := key_of(written.qualified)) in found:
                raise NotVerifiable(
                    f"{info.full_name} and {'.'.join(found[name].info.upstream_name)} are written to one table, or "
                    "differ in capital letters only.",
                    "Readers take them for one table: exclude one of them by a filter rule, or route it elsewhere.",
                )
            found[name] = _read(snapshot, info, written, f"stands{number}", db, form, progress, mask_keys)
        return StandingTables(snapshot.after_ts, snapshot.before_ts, found)


def _read(
    snapshot: DatabaseSnapshot,
    info: TableInfo,
    written: TableInfo,
    table: str,
    db: duckdb.DuckDBPyConnection,
    form: ComparedForm,
    progress: ReadingProgress,
    mask_keys: MaskKeys,
) -> StandingTable:
    columns = written.output_columns
    declared = ", ".join(f"c{number} {form.kind(column)}" for number, column in enumerate(columns))
    db.execute(f"CREATE OR REPLACE TABLE {table}({declared})")
    count = 0
    for keys, values in snapshot.rows(info):
        decoded = written_rows(written, keys, values, form.time_zone, mask_keys=mask_keys)
        given = [form.shown(*pair) for pair in zip(columns, decoded, strict=True)]
        db.register("given", pa.table(given, [f"c{number}" for number in range(len(columns))]))
        try:
            db.execute(f"INSERT INTO {table} SELECT * FROM given")
        finally:
            db.unregister("given")
        count += len(keys)
        progress.advance(len(keys))
    return StandingTable(written, table, count)
