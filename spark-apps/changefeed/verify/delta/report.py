"""`changefeed verify` for tables of Delta Lake: their newest versions against the upstream, as of the log's checkpoint.

A changelog is replayed first. Rows that existed at startTs and have not changed since are in no file; they are known as
long as the upstream has its history from there on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from changefeed.model.tso import MAX_TS
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.progress import NoProgress, ReadingProgress
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.claim import identity_downstream
from changefeed.sink.delta.claim import delta_endpoint
from changefeed.sink.delta.endpoint import DeltaEndpoint, told
from changefeed.sink.delta.layout import folder_of
from changefeed.sink.delta.marks import LOG, TABLE, TRUNCATED, Marks
from changefeed.sink.delta.shape import identifier_columns
from changefeed.sink.typed import COMMIT_TS, OP, type_of
from changefeed.spec.model import Changefeed
from changefeed.upstream.decoders import decoder_of
from changefeed.verify.delta.reading import DeltaRows, parts
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
    endpoint = delta_endpoint(changefeed, secrets_dir)
    spec = changefeed.spec.sink.delta
    assert spec is not None, "the sink is delta"
    upsert, flush_s = spec.mode == "upsert", _FLUSHES * spec.flush_interval

    async def compare(feed: TablesOracle) -> None:
        if not feed.knows_start:
            feed.result.note(
                "The upstream has no history from startTs on: a row that no file has was not looked for, as it may not "
                "have changed since."
            )
        for info in await feed.tables():
            if feed.has_all_changes(info):
                await _DeltaTable(info, feed, endpoint, upsert).compare()

    progress = progress or NoProgress()
    return await compared(changefeed, secrets_dir, progress, compare, start="if it is held", flush_s=flush_s)


class _DeltaTable:
    def __init__(self, info: TableInfo, feed: TablesOracle, endpoint: DeltaEndpoint, upsert: bool) -> None:
        self._info, self._feed, self._endpoint, self._upsert = info, feed, endpoint, upsert
        self._columns = info.output_columns

    async def compare(self) -> None:
        info, columns, feed = self._info, self._columns, self._feed
        key = self._key()
        if not key:
            feed.result.note(f"{info.full_name} has no key that identifies its rows: it was not compared.")
            return
        table = await asyncio.to_thread(self._endpoint.open, folder_of(info))
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
            truncated_ts = self._marks(table).of(TRUNCATED)
            found = self._parts(table)
            while part := await asyncio.to_thread(next, found, None):
                self._add(rows, part)
                feed.progress.advance(part.rows)
        is_changelog = not self._upsert
        twice = rows.settle(truncated_ts, is_changelog=is_changelog, knows_start=feed.knows_start, upto_ts=feed.upto_ts)
        if twice:
            feed.result.problem(f"{info.full_name}: {twice} changes appear twice.")
        feed.judge(info, rows, was_emptied=bool(truncated_ts))

    def _key(self) -> list[int]:
        if self._upsert:
            return [self._columns.index(column) for column in identifier_columns(self._info)]
        return expected.key_indexes(self._info, self._columns, split_updates=True)

    def _marks(self, table: DeltaTable) -> Marks:
        return Marks(table, identity_downstream(self._feed.state))

    def _problem(self, table: DeltaTable) -> str | None:
        folder = folder_of(self._info)
        if table.metadata().configuration.get(LOG) != identity_downstream(self._feed.state):
            return f"{folder} does not belong to this changefeed."
        if (id_ := self._marks(table).of(TABLE)) != self._info.id:
            return f"{folder} has the rows of another table, with the id {id_}."
        names = {field.name for field in table.schema().fields}
        lacking = [column.name for column in self._columns if column.name not in names]
        return f"{self._info.full_name} has no column {', '.join(lacking)}." if lacking else None

    def _parts(self, table: DeltaTable) -> Iterator[DeltaRows]:
        names = [column.name for column in self._columns]
        folder = folder_of(self._info)
        try:
            with told(self._endpoint.root.uri):
                files = self._endpoint.files(folder)
                yield from parts(table, files, names if self._upsert else [OP, COMMIT_TS, *names])
        except FileNotFoundError as error:
            raise NotVerifiable(
                f"{folder} lacks a file of its newest version: {error}.", "RESTORE the table."
            ) from None

    def _add(self, rows: ReplayedComparison, part: DeltaRows) -> None:
        op, commit_ts = (None, None) if self._upsert else part.columns[:2]
        values = part.columns[-len(self._columns) :]
        shown = [self._shown(column, found, part.rows) for column, found in zip(self._columns, values, strict=True)]
        is_whole = self._feed.knows_defaults or all(found is not None for found in values)
        rows.add_stored(0, shown, op, commit_ts, None if is_whole else MAX_TS)

    def _shown(self, column: ColumnInfo, values: pa.Array | None, count: int) -> pa.BinaryArray:
        """Return what readers are shown: in a changelog, what older rows have upstream in a column that came later."""
        if values is not None:
            return of_lake(column, values)
        if self._upsert:
            return of_lake(column, pa.nulls(count, type_of(column)))
        return of_decoded(column, pa.concat_arrays([decoder_of(self._info).absent_value(column, "UTC")] * count))
