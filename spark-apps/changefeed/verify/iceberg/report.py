"""`changefeed verify` for Iceberg tables: their newest snapshots against the upstream, as of the log's checkpoint.

A changelog is replayed first. Rows that existed at startTs and have not changed since are in no file; they are known as
long as the upstream has its history from there on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from changefeed.objectstore.patience import Patience
from changefeed.owner.sinks.driven import name_of
from changefeed.owner.sinks.iceberg import place_of
from changefeed.owner.transaction_log.state import State
from changefeed.schema.row.defaults import absent_value
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.iceberg.ddl_sink import TRUNCATED
from changefeed.sink.iceberg.marks import LOG
from changefeed.sink.iceberg.place import IcebergPlace, told
from changefeed.sink.iceberg.shape import COMMIT_TS_ID, OP_ID, field_id, key_of
from changefeed.sink.typed import type_of
from changefeed.spec.model import Changefeed
from changefeed.upstream.pd import PdClient
from changefeed.verify.comparison.ledger import scratch_database
from changefeed.verify.comparison.matching import has_all_changes, matching_tables
from changefeed.verify.held import held
from changefeed.verify.iceberg.comparison import LakeComparison
from changefeed.verify.iceberg.reading import FileRows, parts
from changefeed.verify.iceberg.values import of_lake
from changefeed.verify.mysql.upstream import add_upstream
from changefeed.verify.mysql.values import of_upstream
from changefeed.verify.progress import NoProgress, VerifyProgress
from changefeed.verify.recorded import StateLog, check_cluster, check_settled, upstream_of
from changefeed.verify.result import NotVerifiable, RowsVerdict
from changefeed.verify.upstream import expected


async def verify(
    changefeed: Changefeed, secrets_dir: Path | None = None, progress: VerifyProgress | None = None
) -> RowsVerdict:
    """Raises NotVerifiable when there is no answer, also while the changefeed runs."""
    progress = progress or NoProgress()
    recorded = StateLog.of(changefeed, secrets_dir)
    place = place_of(changefeed, secrets_dir)
    spec = changefeed.spec.sink.iceberg
    assert spec is not None, "the sink is iceberg"
    progress.stage("the changefeed's log")
    async with upstream_of(changefeed, secrets_dir) as pd, recorded.at_rest(pd) as state:
        check_cluster(pd, state)
        check_settled(state)
        catalog = await asyncio.to_thread(Patience().call, place.catalog_uri, place.open)
        try:
            async with _held(pd, state) as knows_start:
                lake = _Lake(place, catalog, spec.mode == "upsert", knows_start)
                return await _compare(state, pd, lake, progress)
        finally:
            catalog.close()


@dataclass(frozen=True)
class _Lake:
    """`knows_start`: the upstream still has what stood at startTs."""

    place: IcebergPlace
    catalog: Catalog
    upsert: bool
    knows_start: bool

    def table(self, info: TableInfo) -> Table | None:
        with told(self.place.catalog_uri):
            try:
                return self.catalog.load_table(self.place.name(info))
            except NoSuchTableError:
                return None


@asynccontextmanager
async def _held(pd: PdClient, state: State) -> AsyncIterator[bool]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(held(pd, state.checkpoint_ts, "checkpoint"))
        try:
            await stack.enter_async_context(held(pd, state.from_ts, "startTs"))
            knows_start = True
        except NotVerifiable:
            knows_start = False
        yield knows_start


async def _compare(state: State, pd: PdClient, lake: _Lake, progress: VerifyProgress) -> RowsVerdict:
    result = RowsVerdict(checkpoint_ts=str(state.checkpoint_ts))
    if not lake.knows_start:
        result.note(
            "The upstream has no history from startTs on: a row that no file has was not looked for, as it may not "
            "have changed since."
        )
    with scratch_database() as db:
        for info in await matching_tables(pd, state):
            if has_all_changes(info, state, result):
                await _IcebergTable(info, state, pd, lake, db, result, progress).compare()
    return result


class _IcebergTable:
    def __init__(
        self,
        info: TableInfo,
        state: State,
        pd: PdClient,
        lake: _Lake,
        db: duckdb.DuckDBPyConnection,
        result: RowsVerdict,
        progress: VerifyProgress,
    ) -> None:
        self._info, self._state, self._pd, self._lake = info, state, pd, lake
        self._db, self._result, self._progress = db, result, progress
        self._columns = info.output_columns

    async def compare(self) -> None:
        info, columns = self._info, self._columns
        key = self._key()
        if not key:
            self._result.note(f"{info.full_name} has no key that identifies its rows: it was not compared.")
            return
        table = await asyncio.to_thread(self._lake.table, info)
        if table is not None and (problem := self._problem(table)):
            self._result.problem(problem)
            return
        rows = LakeComparison(self._db, info.full_name, [column.name for column in columns], key)
        self._progress.stage(f"{info.full_name}: the upstream's rows")
        for physical_id in info.physical_ids:
            at = self._state.flushed_ts(physical_id)
            await add_upstream(self._pd, info, physical_id, at, partial(rows.add, "upstream"), self._progress)
            if self._lake.knows_start and physical_id not in self._state.copied:
                at = self._state.from_ts
                await add_upstream(self._pd, info, physical_id, at, rows.add_at_start, self._progress)
        truncated_ts = 0
        if table is not None:
            self._progress.stage(f"{info.full_name}: the rows in the lake")
            truncated_ts = int(table.metadata.properties.get(TRUNCATED, "0"))
            found = self._parts(table, key)
            while part := await asyncio.to_thread(next, found, None):
                self._add(rows, part, key)
                self._progress.advance(part.rows)
        is_changelog = not self._lake.upsert
        twice = rows.settle(truncated_ts, is_changelog=is_changelog, knows_start=self._lake.knows_start)
        if twice:
            self._result.problem(f"{info.full_name}: {twice} changes appear twice.")
        self._result.add(rows.found())

    def _key(self) -> list[int]:
        if self._lake.upsert:
            return [self._columns.index(column) for column in key_of(self._info)]
        return expected.key_of(self._info, self._columns, split_updates=True)

    def _problem(self, table: Table) -> str | None:
        if table.metadata.properties.get(LOG) != name_of(self._state):
            return f"{'.'.join(table.name())} does not belong to this changefeed."
        ids = {field.field_id: field.name for field in table.schema().fields}
        lacking = [column.name for column in self._columns if ids.get(field_id(column)) != column.name]
        return f"{self._info.full_name} has no column {', '.join(lacking)}." if lacking else None

    def _parts(self, table: Table, key: list[int]) -> Iterator[FileRows]:
        ours = [] if self._lake.upsert else [OP_ID, COMMIT_TS_ID]
        fields = [field_id(column) for column in self._columns]
        with told(self._lake.place.catalog_uri):
            yield from parts(table, ours + fields, [fields[number] for number in key])

    def _add(self, rows: LakeComparison, part: FileRows, key: list[int]) -> None:
        if part.deletes:
            keys = zip([self._columns[number] for number in key], part.columns, strict=True)
            rows.add_gone(part.sequence, [self._shown(column, found, part.rows) for column, found in keys])
            return
        ours, values = ([None, None], part.columns) if self._lake.upsert else (part.columns[:2], part.columns[2:])
        shown = [self._shown(column, found, part.rows) for column, found in zip(self._columns, values, strict=True)]
        rows.add_stored(part.sequence, shown, *ours)

    def _shown(self, column: ColumnInfo, values: pa.Array | None, count: int) -> pa.BinaryArray:
        """Of a changelog, a column that is younger than its file has what the upstream gives to rows of before."""
        if values is not None:
            return of_lake(column, values)
        if self._lake.upsert:
            return of_lake(column, pa.nulls(count, type_of(column)))
        return of_upstream(column, pa.concat_arrays([absent_value(column, "UTC")] * count))
