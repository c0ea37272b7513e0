"""The rows of a span's initial copy, read from a snapshot in chunks (docs/architecture.md, Initial copy).

It must never report a chunk complete before all its rows have been passed on and GC is known not to have passed the
snapshot (rule 14). An interrupted scan restarts its chunk: its rows then come twice, identical both times (rule 4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import numpy as np
import pyarrow as pa

from changefeed.clock import Clock
from changefeed.model.position import OP_INSERT
from changefeed.model.rows import RAW_SCHEMA, raw_bytes
from changefeed.model.table_copy import CopyChunk, TableCopy
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.regions import Pd
from changefeed.upstream.tikv.client.requests.to_store import MOST_ROWS
from changefeed.upstream.tikv.client.safepoint import lost_history

AT_ONCE = 4  # chunks of a span
MOST_AT_ONCE = 8  # of all spans of a task: each has a page or two in memory


class ScanRateLimit:
    """`rate`: bytes a second that all scans of a task may read together; None: no bound. Pure."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._free_at = 0.0

    def wait(self, now: float, size: int) -> float:
        """`size` bytes have been read: the seconds before more may be. `now`: monotonic."""
        if self._rate is None:
            return 0.0
        self._free_at = max(self._free_at, now) + size / self._rate
        return self._free_at - now


class CopyScan:
    """Scans for the spans of one task. `room` is awaited before more is taken in, and must not wait for ever."""

    def __init__(
        self,
        pd: Pd,
        clock: Clock,
        room: Callable[[], Awaitable[None]],
        rate: float | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        """`at_once`: so many chunks of a span are scanned side by side."""
        self._at_once = at_once
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._pd = pd
        self._clock = clock
        self._room = room
        self._pace = ScanRateLimit(rate)

    async def run(
        self,
        copy: TableCopy,
        span_id: int,
        after_ts: int,
        take: Callable[[pa.RecordBatch], Awaitable[None]],
        whole: Callable[[int], Awaitable[None]],
    ) -> None:
        """What a span lacks that is there up to after_ts: `take` rows, RAW_SCHEMA; `whole`: up to this ts.

        Raises Transient, SnapshotLostByGC, and what reads raise.
        """
        snapshot = Snapshot(self._pd, copy.ts)

        async def scan(chunk: CopyChunk) -> None:
            async with self._turns:
                same = _same_in_all(span_id, chunk.ts)
                async for keys, values in snapshot.columns(chunk.start, chunk.end):
                    batch = _inserted(same, keys, values)
                    await self._room()
                    await take(batch)
                    if (seconds := self._pace.wait(self._clock.monotonic(), raw_bytes(batch))) > 0:
                        await self._clock.sleep(seconds)

        async def over(chunk: CopyChunk, task: asyncio.Task[None]) -> None:
            await task
            if (safepoint := await self._pd.gc_safepoint()) > copy.ts:
                raise lost_history(copy.ts, safepoint)
            await whole(chunk.ts)

        running: deque[tuple[CopyChunk, asyncio.Task[None]]] = deque()
        try:
            for chunk in copy.chunks(after_ts):
                if len(running) == self._at_once:
                    await over(*running[0])
                    running.popleft()
                running.append((chunk, asyncio.create_task(scan(chunk))))
            while running:
                await over(*running[0])
                running.popleft()
        finally:
            for _, task in running:
                task.cancel()
            await asyncio.gather(*(task for _, task in running), return_exceptions=True)
        await whole(copy.ts)


def _same_in_all(span_id: int, ts: int) -> Mapping[str, pa.Array]:
    """What the rows of a chunk have in common, for as many as a page has at most."""
    numbers = {"span_id": span_id, "commit_ts": ts, "start_ts": 0, "op": OP_INSERT, "txn_source": 0}
    same = {name: pa.array(np.full(MOST_ROWS, number), RAW_SCHEMA.field(name).type) for name, number in numbers.items()}
    return {**same, "old_value": pa.nulls(MOST_ROWS, pa.binary())}


def _inserted(same: Mapping[str, pa.Array], keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
    columns = {"key": keys, "value": values, **{name: column.slice(0, len(keys)) for name, column in same.items()}}
    return pa.RecordBatch.from_arrays([columns[name] for name in RAW_SCHEMA.names], schema=RAW_SCHEMA)
