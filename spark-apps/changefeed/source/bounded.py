"""A batch query: the changes of a table between two ts. Each task pulls its own part of the table, without the driver.

A task pulls into segments of its own, on local disk or in a bucket, until its part is complete, then reads them as a
stream would. So memory is bounded; the disk must hold the whole part.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from changefeed.errors import InvalidSpec, SnapshotLostByGC, Transient, Unavailable, first_error
from changefeed.eventstore.reader import KeptSegments, read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.slices import SegmentSlice
from changefeed.objectstore import Location
from changefeed.source.change_rows import change_rows
from changefeed.source.followed_table import (
    FollowedTable,
    find_table,
    first_of,
    gc_passed,
    keep_held,
    read_schema_of,
)
from changefeed.source.options import SourceOptions
from changefeed.source.pulling import Pulling
from changefeed.source.read_schema import ReadSchema
from changefeed.source.reading import DefinitionRange
from changefeed.upstream.contract import Access, HistoryLease, Upstream

_MOST_PARTITIONS = 32  # of a physical table
#: The safepoint of a batch query: its tasks renew it, and it is left to expire.
_TTL_S = 3600
_SPAN = 1


@dataclass(frozen=True)
class QueryHold:
    """The safepoint that keeps history after `ts` while the query runs."""

    access: Access
    service: str
    ts: int

    async def renewed(self, upstream: Upstream) -> HistoryLease:
        """Raises SnapshotLostByGC with a next step for users of this source."""
        safepoint = upstream.history_lease(self.service, _TTL_S)
        try:
            await safepoint.hold(self.ts)
        except SnapshotLostByGC as error:
            raise gc_passed(error) from error
        return safepoint


async def plan(options: SourceOptions, wanted: ReadSchema | pa.Schema) -> list[QueryPart]:
    """Parts that cover each selected change once. Raises InvalidSpec, SchemaChanged, SnapshotLostByGC."""
    if options.from_ts is None:
        raise InvalidSpec("startingVersion", "missing", "A batch query needs one: set a ts or a time.")
    upstream = await options.access.connect()
    try:
        now = await upstream.now()
        to_ts = options.to_ts or (wanted.as_of_ts if isinstance(wanted, ReadSchema) else now)
        if to_ts > now or options.from_ts >= to_ts:
            raise InvalidSpec(
                "endingVersion",
                f"{to_ts} is not between startingVersion {options.from_ts + 1} and now, {now}",
                "Correct one of them.",
            )
        access = options.access.of_cluster(upstream.cluster_id)
        hold = QueryHold(access, f"changefeed-spark-{secrets.token_hex(8)}", options.from_ts)
        await hold.renewed(upstream)
        lives = await _lives(upstream, options, wanted, options.from_ts, to_ts)
        parts = []
        for table_id in sorted({id_ for life in lives for id_ in life.table.physical_ids}):
            own = tuple(life for life in lives if table_id in life.table.physical_ids)
            for start, end in await _ranges(upstream, table_id):
                parts.append(QueryPart(hold, options.location("parts"), start, end, own))
        return parts
    finally:
        await upstream.close()


async def _lives(
    upstream: Upstream, options: SourceOptions, wanted: ReadSchema | pa.Schema, from_ts: int, to_ts: int
) -> list[DefinitionRange]:
    """Consecutive ranges, split at each DDL."""
    schema = await upstream.schema(from_ts)
    table = find_table(schema, from_ts, options.table)
    read = await read_schema_of(upstream, wanted, table.id)
    news, failures = asyncio.Event(), list[BaseException]()

    def failed(error: BaseException) -> None:
        failures.append(error)
        news.set()

    followed = FollowedTable(upstream, schema, table, options.table, read, news.set, failed, to_ts)
    async with followed.ddls:
        while followed.known_ts < to_ts:
            await news.wait()
            news.clear()
            if failures:
                raise failures[0]
    lives = [DefinitionRange.of(table, read, from_ts, followed.limit())]
    while lives[-1].upto_ts < to_ts:
        at = lives[-1].upto_ts
        followed.pass_ddls(at)
        lives.append(DefinitionRange.of(followed.definition, read, at, followed.limit()))
    return lives


async def _ranges(upstream: Upstream, table_id: int) -> list[tuple[bytes, bytes]]:
    """The key ranges of a physical table, cut as Upstream.bounds says."""
    return list(pairwise(await upstream.bounds(table_id, _MOST_PARTITIONS)))


@dataclass(frozen=True)
class QueryPart:
    """What one task pulls and reads: the key range `[start_key, end_key)` of a physical table over its `lives`."""

    hold: QueryHold
    state: Location
    start_key: bytes
    end_key: bytes
    lives: tuple[DefinitionRange, ...]

    def read(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows in the query's schema, `columns`, by commit ts. Raises what pulling raises, and NeedsHuman."""
        run_folder = RunFolder(self.state, 1, secrets.token_hex(8))
        try:
            pieces = asyncio.run(self._pull(run_folder))
            for life, slices in zip(self.lives, pieces, strict=True):
                kept = KeptSegments()
                tables = [(piece, read_slice(run_folder, piece, kept=kept)) for piece in slices]
                yield from change_rows(tables, life.table, (life.after_ts, life.upto_ts), columns, life.shown)
        finally:
            with suppress(Unavailable, Transient):
                run_folder.delete()

    async def _pull(self, run_folder: RunFolder) -> list[Sequence[SegmentSlice]]:
        """Pull the part until it is complete; returns the slices of each life."""
        upstream = await self.hold.access.connect()
        try:
            safepoint = await self.hold.renewed(upstream)
            whole = asyncio.Event()

            def on_report() -> None:
                pulling.let_write(idle=True)
                if pulling.resolved_ts() >= self.lives[-1].upto_ts:
                    whole.set()

            pulling = Pulling(upstream, run_folder, on_report)
            pulling.add(_SPAN, self.start_key, self.end_key, self.lives[0].after_ts)

            async def wait() -> None:
                await whole.wait()

            work = (pulling.run(), keep_held(safepoint, lambda: self.hold.ts), wait())
            await first_of([asyncio.create_task(each) for each in work])
            return [pulling.slices(_SPAN, life.after_ts, life.upto_ts) for life in self.lives]
        except BaseExceptionGroup as group:
            raise first_error(group) from group
        finally:
            await upstream.close()
