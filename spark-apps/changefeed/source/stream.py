"""The driver side of a streaming query: what can be read, where it is stored, and what can be deleted.

Spark owns the offsets. Pulled data is only a cache: after a crash it is pulled again from the offset that Spark passes
in, and a batch between the same two offsets has the same rows. A service safepoint at PD, whose name is part of the
offset, keeps history from the last committed offset on. Call methods from one event loop, one at a time.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

import pyarrow as pa

from changefeed.errors import InvalidSpec, SnapshotLostByGC, Transient, Unavailable, first_error
from changefeed.eventstore.run_folder import RunFolder
from changefeed.model.tso import MAX_TS, compose
from changefeed.owner.pulling.segments import Segment
from changefeed.source.admission import RowCount, end_by_bytes, pieces, split
from changefeed.source.followed_table import (
    FollowedTable,
    find_table,
    first_of,
    gc_passed,
    keep_held,
    read_schema_of,
)
from changefeed.source.offset import Offset
from changefeed.source.options import SourceOptions
from changefeed.source.pulling import Pulling
from changefeed.source.read_schema import ReadSchema
from changefeed.source.reading import DefinitionRange, StoredSlices
from changefeed.upstream.contract import WHOLE_TABLE, HistoryLease, Upstream

#: On an idle table, an empty batch this long after the last one advances the offset and the safepoint.
IDLE_TICKS = compose(60_000)
#: Raw bytes per task. Mounted and sorted, they take about three times as much memory.
PARTITION_BYTES = 32 << 20


class TableStream:
    """`wanted`: see read_schema_of. If pulling has failed, every method raises that error."""

    def __init__(self, options: SourceOptions, wanted: ReadSchema | pa.Schema) -> None:
        self._options = options
        self._wanted = wanted
        self._upstream: Upstream | None = None
        self._running: asyncio.Task[None] | None = None
        self._first: Offset | None = None
        self._begun: Offset | None = None
        self._failure: BaseException | None = None
        self._news = asyncio.Event()
        self._target_ts: int | None = None
        self._spans: set[int] = set()
        self._planned_ts = self._committed_ts = 0
        self._read: ReadSchema
        self._safepoint: HistoryLease
        self._table: FollowedTable
        self._run_folder: RunFolder
        self._pulling: Pulling

    async def initial(self) -> Offset:
        """Where a stream without a checkpoint starts. History from there on is held once this returns.

        Always the same offset: Spark asks repeatedly until there is a batch. Raises InvalidSpec, SnapshotLostByGC.
        """
        if self._first is not None:
            return self._first
        if self._options.to_ts is not None:
            raise InvalidSpec(
                "endingVersion", "not supported by a stream", "Use spark.read, or trigger(availableNow=True)."
            )
        upstream = await self._connected()
        now = await upstream.now()
        ts = now if self._options.from_ts is None else self._options.from_ts
        if ts > now:
            raise InvalidSpec(
                "startingVersion",
                f"{ts + 1} is in the future: the upstream is at {now}",
                "Set an earlier version, or leave it out.",
            )
        stream = secrets.token_hex(8)
        await self._held(stream, ts)
        table = find_table(await upstream.schema(ts), ts, self._options.table)
        self._first = Offset(ts, ts, table.id, upstream.cluster_id, stream)
        return self._first

    async def latest(self, start: Offset, max_rows: int | None = None, max_bytes: int | None = None) -> Offset:
        """The end of the batch that follows `start`, or `start` if there is none yet. Everything up to `start` has been
        read. The bounds in SourceOptions apply as well.

        Once `set_target` has set a target, waits for changes up to it. Raises SchemaChanged.
        """
        await self._opened(start)
        while True:
            self._check()
            self._table.pass_ddls(start.ts)
            self._follow_partitions(start.ts)
            upto_ts = min(self.readable_ts(), self._target_ts or MAX_TS)
            found = pieces(self._segments(), start.ts, upto_ts)
            self._planned_ts = start.ts
            self._pulling.let_write(idle=not found)
            if found:
                rows = min(max_rows or MAX_TS, self._options.max_rows or MAX_TS)
                size = min(max_bytes or self._options.max_bytes, self._options.max_bytes)
                end_ts = end_by_bytes(found, size, upto_ts)
                self._planned_ts = await self._end_by_rows(start.ts, end_ts, rows)
                return start.at(self._planned_ts)
            if self._moves_without_rows(start.ts, upto_ts):
                return start.at(upto_ts)
            if self._target_ts is None or start.ts >= self._target_ts:
                return start
            await self.next_news()

    async def reached(self) -> Offset | None:
        """The offset up to which all changes have been pulled; None if pulling has not started."""
        return None if self._begun is None else self._begun.at(self.readable_ts())

    async def set_target(self) -> None:
        """This run of the query stops at changes committed before now."""
        self._target_ts = await (await self._connected()).now()

    async def partitions(self, start: Offset, end: Offset) -> list[StoredSlices]:
        """Partitions that together hold each change in `(start, end]` once. None splits a transaction within a physical
        table.

        Waits until the changes have been pulled; after a restart they have not. The first batch takes its start from
        `end.first`: when it is rerun, Spark passes the initial offset of a new stream.
        """
        if start.stream != end.stream:
            await self._safepoint_of(await self._connected(), start.stream).remove()
            start = end.first
        await self._opened(start)
        while self.readable_ts() < end.ts:
            self._check()
            self._pulling.let_write(idle=True)
            await self.next_news()
        self._planned_ts = end.ts
        definition, found = self._table.definition, []
        for span_id in definition.physical_ids:
            for after_ts, upto_ts in split(
                pieces(self._pulling.segments([span_id]), start.ts, end.ts), PARTITION_BYTES, start.ts, end.ts
            ):
                life = DefinitionRange.of(definition, self._read, after_ts, upto_ts)
                slices = self._pulling.slices(span_id, after_ts, upto_ts)
                found.append(
                    StoredSlices(self._run_folder.state, self._run_folder.epoch, self._run_folder.nonce, life, slices)
                )
        return found

    async def commit(self, end: Offset) -> None:
        """Spark has durably processed everything up to `end`."""
        if self._running is None or end.ts <= self._committed_ts:
            return
        self._committed_ts = end.ts
        await self._pulling.release(end.ts)
        self._pulling.let_write(idle=False)

    async def close(self) -> None:
        """Leaves the safepoint to expire by itself, in case the query is restarted."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            with suppress(Unavailable, Transient):
                await asyncio.to_thread(self._run_folder.delete)
        if self._upstream is not None:
            await self._upstream.close()

    # Opening.

    async def _connected(self) -> Upstream:
        if self._upstream is None:
            self._upstream = await self._options.access.connect()
        return self._upstream

    async def _opened(self, start: Offset) -> None:
        upstream = await self._connected()
        if start.cluster_id != upstream.cluster_id:
            raise InvalidSpec(
                "pdAddresses",
                f"the checkpoint belongs to a stream from cluster {start.cluster_id}, but PD serves "
                f"{upstream.cluster_id}",
                "Set it to the PD of that cluster, or use a new checkpointLocation.",
            )
        if self._running is None:
            await self._open(start)

    def _safepoint_of(self, upstream: Upstream, stream: str) -> HistoryLease:
        return upstream.history_lease(f"changefeed-spark-{stream}", self._options.safepoint_ttl_s)

    async def _held(self, stream: str, ts: int) -> HistoryLease:
        """The stream's safepoint, set to hold history from `ts` on."""
        safepoint = self._safepoint_of(await self._connected(), stream)
        try:
            await safepoint.hold(ts)
        except SnapshotLostByGC as error:
            raise gc_passed(error) from error
        return safepoint

    async def _open(self, start: Offset) -> None:
        """Start pulling from `start`."""
        upstream, options = await self._connected(), self._options
        self._safepoint = await self._held(start.stream, start.ts)
        schema = await upstream.schema(start.ts)
        table = find_table(schema, start.ts, options.table, start.table_id)
        self._read = await read_schema_of(upstream, self._wanted, table.id)
        self._table = FollowedTable(upstream, schema, table, options.table, self._read, self._news.set, self._fail)
        # PD's clock is monotonic, so each run of the stream gets a higher epoch than the runs before it.
        self._run_folder = RunFolder(options.location(start.stream), await upstream.now(), secrets.token_hex(8))
        with suppress(Unavailable, Transient):
            await asyncio.to_thread(self._run_folder.delete_lower_epochs)
        self._pulling = Pulling(upstream, self._run_folder, self._on_report)
        self._planned_ts = self._committed_ts = start.ts
        self._follow_partitions(start.ts)
        self._running = asyncio.create_task(self._run())
        self._begun = start

    async def _run(self) -> None:
        try:
            async with self._table.ddls:
                held = keep_held(self._safepoint, lambda: self._committed_ts)
                await first_of([asyncio.create_task(self._pulling.run()), asyncio.create_task(held)])
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the query's next call must raise whatever ended the pulling
            self._fail(first_error(error))

    # What is available.

    def _segments(self) -> list[Segment]:
        return self._pulling.segments(self._table.definition.physical_ids)

    def readable_ts(self) -> int:
        """All changes up to here have been pulled and share one table definition."""
        return min(self._pulling.resolved_ts(), self._table.limit())

    def _moves_without_rows(self, start_ts: int, upto_ts: int) -> bool:
        """Whether an empty batch is due: to reach a DDL or the target, or to let the upstream's GC advance."""
        if upto_ts <= start_ts:
            return False
        waited = upto_ts - start_ts >= IDLE_TICKS
        return waited or upto_ts == self._target_ts or self._table.is_before_ddl(upto_ts)

    def _follow_partitions(self, ts: int) -> None:
        """Match the spans to the table definition that applies to rows above `ts`."""
        wanted = set(self._table.definition.physical_ids)
        for span_id in self._spans - wanted:
            self._pulling.remove(span_id)
        for span_id in sorted(wanted - self._spans):
            self._pulling.add(span_id, *WHOLE_TABLE, ts)
        self._spans = wanted

    async def _end_by_rows(self, start_ts: int, end_ts: int, most: int) -> int:
        segments = sorted(self._segments(), key=lambda segment: segment.min.commit_ts)
        if sum(segment.rows for segment in segments) <= most:
            return end_ts
        count = RowCount(start_ts, end_ts, most)
        for segment in segments:
            if segment.min.commit_ts > end_ts or count.is_enough(segment.min.commit_ts):
                break
            if segment.max.commit_ts > start_ts:
                count.add(await asyncio.to_thread(self._pulling.commit_ts, segment))
        return count.end()

    # News.

    def _on_report(self) -> None:
        readable_ts = self.readable_ts()
        has_rows = any(
            segment.min.commit_ts <= readable_ts and segment.max.commit_ts > self._planned_ts
            for segment in self._segments()
        )
        self._pulling.let_write(idle=not has_rows)
        self._news.set()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = gc_passed(error) if isinstance(error, SnapshotLostByGC) else error
        self._news.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._pulling.check()

    async def next_news(self) -> None:
        await self._news.wait()
        self._news.clear()
        self._check()
