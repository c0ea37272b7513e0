"""`changefeed verify` for Iceberg tables: their newest snapshots against the upstream, as of the log's checkpoint.

A changelog is replayed first. Rows that existed at startTs and have not changed since are in no file; they are known as
long as the upstream has its history from there on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from changefeed.model.tso import MAX_TS
from changefeed.objectstore.patience import Patience
from changefeed.reading.progress import NoProgress, ReadingProgress
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.claim import identity_downstream
from changefeed.sink.iceberg.claim import iceberg_endpoint
from changefeed.sink.iceberg.driver import TRUNCATED
from changefeed.sink.iceberg.endpoint import IcebergEndpoint, told
from changefeed.sink.iceberg.marks import LOG
from changefeed.sink.iceberg.shape import COMMIT_TS_ID, OP_ID, field_id, identifier_columns
from changefeed.sink.typed import type_of
from changefeed.spec.model import Changefeed
from changefeed.upstream.decoders import decoder_of
from changefeed.verify.iceberg.reading import FileRows, parts
from changefeed.verify.result import RowsVerdict
from changefeed.verify.tables.compared import compared
from changefeed.verify.tables.oracle import TablesOracle
from changefeed.verify.tables.parquet_values import of_lake
from changefeed.verify.tables.replayed import ReplayedComparison
from changefeed.verify.tables.values import of_decoded
from changefeed.verify.upstream import expected

_FLUSHES = 3


async def verify(
    changefeed: Changefeed, secrets_dir: Path | None = None, progress: ReadingProgress | None = None
) -> RowsVerdict:
    """Raises NotVerifiable when there is no answer, also while the changefeed runs."""
    endpoint = iceberg_endpoint(changefeed, secrets_dir)
    spec = changefeed.spec.sink.iceberg
    assert spec is not None, "the sink is iceberg"
    upsert, flush_s = spec.mode == "upsert", _FLUSHES * spec.flush_interval

    async def compare(feed: TablesOracle) -> None:
        catalog = await asyncio.to_thread(Patience().call, endpoint.catalog_uri, endpoint.open)
        try:
            await _compare(feed, _Lake(endpoint, catalog, upsert))
        finally:
            catalog.close()

    progress = progress or NoProgress()
    return await compared(changefeed, secrets_dir, progress, compare, start="if it is held", flush_s=flush_s)


@dataclass(frozen=True)
class _Lake:
    endpoint: IcebergEndpoint
    catalog: Catalog
    upsert: bool

    def table(self, info: TableInfo) -> Table | None:
        with told(self.endpoint.catalog_uri):
            try:
                return self.catalog.load_table(self.endpoint.name(info))
            except NoSuchTableError:
                return None


async def _compare(feed: TablesOracle, lake: _Lake) -> None:
    if not feed.knows_start:
        feed.result.note(
            "The upstream has no history from startTs on: a row that no file has was not looked for, as it may not "
            "have changed since."
        )
    for info in await feed.tables():
        if feed.has_all_changes(info):
            await _IcebergTable(info, feed, lake).compare()


class _IcebergTable:
    def __init__(self, info: TableInfo, feed: TablesOracle, lake: _Lake) -> None:
        self._info, self._feed, self._lake = info, feed, lake
        self._columns = info.output_columns

    async def compare(self) -> None:
        info, columns, feed = self._info, self._columns, self._feed
        key = self._key()
        if not key:
            feed.result.note(f"{info.full_name} has no key that identifies its rows: it was not compared.")
            return
        table = await asyncio.to_thread(self._lake.table, info)
        if table is not None and (problem := self._problem(table)):
            feed.result.problem(problem)
            return
        rows = ReplayedComparison(feed.db, info.full_name, [column.name for column in columns], key)
        await feed.add_upstream(info, rows)
        if feed.knows_start:
            await feed.add_at_start(info, rows)
        truncated_ts = 0
        if table is not None:
            feed.progress.stage(f"{info.full_name}: the rows in the lake")
            truncated_ts = int(table.metadata.properties.get(TRUNCATED, "0"))
            found = self._parts(table, key)
            while part := await asyncio.to_thread(next, found, None):
                self._add(rows, part, key)
                feed.progress.advance(part.rows)
        is_changelog = not self._lake.upsert
        twice = rows.settle(truncated_ts, is_changelog=is_changelog, knows_start=feed.knows_start, upto_ts=feed.upto_ts)
        if twice:
            feed.result.problem(f"{info.full_name}: {twice} changes appear twice.")
        feed.judge(info, rows, was_emptied=bool(truncated_ts))

    def _key(self) -> list[int]:
        if self._lake.upsert:
            return [self._columns.index(column) for column in identifier_columns(self._info)]
        return expected.key_indexes(self._info, self._columns, split_updates=True)

    def _problem(self, table: Table) -> str | None:
        if table.metadata.properties.get(LOG) != identity_downstream(self._feed.state):
            return f"{'.'.join(table.name())} does not belong to this changefeed."
        ids = {field.field_id: field.name for field in table.schema().fields}
        lacking = [column.name for column in self._columns if ids.get(field_id(column)) != column.name]
        return f"{self._info.full_name} has no column {', '.join(lacking)}." if lacking else None

    def _parts(self, table: Table, key: list[int]) -> Iterator[FileRows]:
        ours = [] if self._lake.upsert else [OP_ID, COMMIT_TS_ID]
        fields = [field_id(column) for column in self._columns]
        with told(self._lake.endpoint.catalog_uri):
            yield from parts(table, ours + fields, [fields[number] for number in key])

    def _add(self, rows: ReplayedComparison, part: FileRows, key: list[int]) -> None:
        if part.deletes:
            keys = zip([self._columns[number] for number in key], part.columns, strict=True)
            rows.add_gone(part.sequence, [self._shown(column, found, part.rows) for column, found in keys])
            return
        ours = [None, None] if self._lake.upsert else part.columns[:2]
        values = part.columns[-len(self._columns) :]
        shown = [self._shown(column, found, part.rows) for column, found in zip(self._columns, values, strict=True)]
        # An upsert table gets no column in which rows of before have a value.
        is_whole = self._lake.upsert or self._feed.knows_defaults or all(found is not None for found in values)
        op, commit_ts = ours
        rows.add_stored(part.sequence, shown, op, commit_ts, None if is_whole else MAX_TS)

    def _shown(self, column: ColumnInfo, values: pa.Array | None, count: int) -> pa.BinaryArray:
        """Return what readers are shown: in a changelog, what older rows have upstream in a column that came later."""
        if values is not None:
            return of_lake(column, values)
        if self._lake.upsert:
            return of_lake(column, pa.nulls(count, type_of(column)))
        return of_decoded(column, pa.concat_arrays([decoder_of(self._info).absent_value(column, "UTC")] * count))
