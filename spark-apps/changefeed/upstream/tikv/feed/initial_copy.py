"""The rows of a span's initial copy, read from a snapshot in chunks (docs/architecture.md, Initial copy).

It must never report a chunk complete before all its rows have been passed on and GC is known not to have passed the
snapshot (rule 14). An interrupted scan restarts its chunk: its rows then come twice, identical both times (rule 4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import numpy as np
import pyarrow as pa

from changefeed.clock import Clock
from changefeed.model.position import OP_INSERT
from changefeed.model.rows import RAW_SCHEMA, raw_bytes
from changefeed.model.table_copy import CopyChunk, TableCopy
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.regions import Pd
from changefeed.upstream.tikv.client.safepoint import lost_history

AT_ONCE = 4  # chunks


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
        """`at_once`: so many chunks are scanned side by side."""
        self._at_once = at_once
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
            async for keys, values in snapshot.columns(chunk.start, chunk.end):
                batch = _inserted(span_id, chunk.ts, keys, values)
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


def _inserted(span_id: int, ts: int, keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
    count = len(keys)

    def same(value: int, type_: str) -> pa.Array:
        return pa.array(np.full(count, value, type_))

    columns = {
        "span_id": same(span_id, "u8"),
        "commit_ts": same(ts, "u8"),
        "start_ts": same(0, "u8"),
        "op": same(OP_INSERT, "u1"),
        "key": keys,
        "value": values,
        "old_value": pa.nulls(count, pa.binary()),
        "txn_source": same(0, "u8"),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in RAW_SCHEMA.names], schema=RAW_SCHEMA)
