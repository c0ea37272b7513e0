"""Reads what tables of rows are compared with: the upstream, as of what a changefeed at rest has written.

A stopped changefeed has written each table up to a ts of its own, at or above the checkpoint, which the log records
(`State.flushed_ts`). So each table is compared with the upstream at that ts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import duckdb
import pyarrow as pa

from changefeed.filter.selection import Selection
from changefeed.log.state import State
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.scratch import scratch_database
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.spec.model import Changefeed
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.written_rows import NO_KEYS, MaskKeys, written_rows
from changefeed.verify.held import held
from changefeed.verify.recorded import StateLog, check_cluster, check_settled, lives_of, routes_of, upstream_of
from changefeed.verify.result import RowsVerdict
from changefeed.verify.tables.comparison import RowComparison
from changefeed.verify.tables.replayed import ReplayedComparison
from changefeed.verify.tables.values import of_decoded
from changefeed.verify.upstream.definitions import Definitions, SettledSchema
from changefeed.verify.upstream.lives import Lives
from changefeed.verify.upstream.meta import read_meta
from changefeed.verify.upstream.standing import rows_at

#: Whether what stood at startTs is asked for, too.
Start = Literal["needed", "if it is held", "unused"]


@dataclass
class AtRest:
    """Implements TablesOracle, of a changefeed that does not run. `db`: for comparisons."""

    state: State
    pd: PdClient
    db: duckdb.DuckDBPyConnection
    result: RowsVerdict
    progress: ReadingProgress
    time_zone: str = "UTC"
    knows_start: bool = False
    is_at_rest: bool = True
    upto_ts: int | None = None
    knows_defaults: bool = True
    mask_keys: MaskKeys = NO_KEYS
    _lives: Lives | None = field(default=None, init=False)

    async def tables(self) -> list[TableInfo]:
        """Those that the filter's rules match, as they are downstream: after the last DDL that was executed, which is
        at most one barrier ahead of the checkpoint.
        """
        routes = routes_of(self.state)
        schema_ts = max(self.state.checkpoint_ts, self.state.last_ddl[0] if self.state.last_ddl else 0)
        schema = SettledSchema(schema_ts, Definitions(await read_meta(self.pd, schema_ts, schema_ts)), routes.routed)
        tables = [info for info in schema.tables_at(schema_ts) if not (info.is_view or info.is_sequence)]
        return [info for info in tables if routes.selects(*info.upstream_name)]

    def has_all_changes(self, info: TableInfo) -> bool:
        """Whether event filters keep all that happens to the table; if not, the result says so."""
        if Selection.of(self.state.epoch.config, info).rows.keeps_all:
            return True
        self.result.note(f"Event filters drop changes of {info.full_name}: it was not compared.")
        return False

    async def has_one_life(self, info: TableInfo) -> bool:
        if self._lives is None:
            self.progress.stage("the upstream's DDLs")
            self._lives = await lives_of(self.state, self.pd, self.state.checkpoint_ts)
        for life in self._lives.all:
            is_named_so = (life.info.schema_name, life.info.name) == info.qualified
            if is_named_so != (life.physical_id in info.physical_ids):
                self.result.note(
                    f"{info.full_name} was emptied, renamed or made anew, of which no message tells: it was not "
                    "compared."
                )
                return False
        return True

    async def add_upstream(
        self, info: TableInfo, rows: RowComparison, columns: Sequence[ColumnInfo] | None = None
    ) -> None:
        """Adds the upstream's rows, as they stood where the changefeed has got to."""
        self.progress.stage(f"{info.full_name}: the upstream's rows")
        for physical_id in info.physical_ids:
            ts = self.state.flushed_ts(physical_id)
            await self._read(info, physical_id, ts, partial(rows.add, "upstream"), columns)

    async def add_at_start(self, info: TableInfo, rows: ReplayedComparison) -> None:
        """Adds the rows that stood where the changefeed began, of which it has written nothing unless they changed."""
        for physical_id in info.physical_ids:
            if physical_id not in self.state.copied:
                await self._read(info, physical_id, self.state.from_ts, rows.add_at_start)

    def judge(self, info: TableInfo, rows: RowComparison, *, was_emptied: bool = False) -> None:
        self.result.add(rows.found())

    async def _read(
        self,
        info: TableInfo,
        physical_id: int,
        ts: int,
        add: Callable[[list[pa.BinaryArray]], None],
        columns: Sequence[ColumnInfo] | None = None,
    ) -> None:
        """Gives `add` the rows of a physical table in pieces, in a thread, while the next piece is read."""
        shown = info.output_columns if columns is None else columns

        def decode_and_add(keys: pa.Array, values: pa.Array) -> None:
            decoded = written_rows(info, keys, values, self.time_zone, shown, mask_keys=self.mask_keys)
            add([of_decoded(*pair) for pair in zip(shown, decoded, strict=True)])

        async for keys, values in rows_at(self.pd, physical_id, ts):
            await asyncio.to_thread(decode_and_add, keys, values)
            self.progress.advance(len(keys))


@asynccontextmanager
async def at_rest(
    changefeed: Changefeed, secrets_dir: Path | None, progress: ReadingProgress, start: Start
) -> AsyncIterator[AtRest]:
    """The changefeed, and its upstream, whose history is held. Raises NotVerifiable when it runs, or has meanwhile."""
    recorded = StateLog.of(changefeed, secrets_dir)
    progress.stage("the changefeed's log")
    async with upstream_of(changefeed, secrets_dir) as pd, recorded.at_rest(pd) as state:
        check_cluster(pd, state)
        check_settled(state)
        async with AsyncExitStack() as stack:
            knows_start = await _hold(stack, pd, state, start)
            db = stack.enter_context(scratch_database())
            result = RowsVerdict(checkpoint_ts=str(state.checkpoint_ts))
            mask_keys = MaskKeys(secrets_dir)
            yield AtRest(state, pd, db, result, progress, knows_start=knows_start, mask_keys=mask_keys)


async def _hold(stack: AsyncExitStack, pd: PdClient, state: State, start: Start) -> bool:
    """Whether it is held from startTs on."""
    await stack.enter_async_context(held(pd, state.checkpoint_ts, "checkpoint"))
    if start == "unused":
        return False
    try:
        await stack.enter_async_context(held(pd, state.from_ts, "startTs"))
    except NotVerifiable:
        if start == "needed":
            raise
        return False
    return True
