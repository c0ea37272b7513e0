"""Finishing the locks that dead transactions left: TiKV never does by itself, and change data waits for them
(docs/design/tikv.md, Stuck locks).

It must never touch a living transaction, nor push its commit ts: who sweeps reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from changefeed.errors import Transient
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.tikv.client.locks import LockResolver, holds_back
from changefeed.upstream.tikv.client.pd import LocatedRegion
from changefeed.upstream.tikv.client.regions import Pd, RegionCalls, raw_end
from changefeed.upstream.tikv.client.requests import to_store
from changefeed.wire import kvrpcpb_pb2

SCAN_LIMIT = to_store.MOST_LOCKS
_PATIENCE = 10.0


@dataclass
class Swept:
    """`finished`: locks of dead transactions; `living`: of each living transaction in the way one lock."""

    finished: int = 0
    living: list[kvrpcpb_pb2.LockInfo] = field(default_factory=list)


class LockSweep:
    def __init__(self, upstream: Pd) -> None:
        self._upstream = upstream
        self._calls = RegionCalls(upstream)
        self._locks = LockResolver(upstream, self._calls, read_ts=0)

    async def sweep(self, start: bytes, end: bytes, max_version: int) -> Swept:
        """Finish what is dead of the locks in the raw range `[start, end)` with start_ts <= `max_version`.

        Raises Transient, NeedsHuman (a flashback), ProtocolViolation, InvalidRequest.
        """
        attempts = Attempts(f"Sweeping the locks of [{start.hex()}, {end.hex()}) up to {max_version}", _PATIENCE)
        now = await self._upstream.tso()
        swept = Swept()
        alive: set[int] = set()  # a large transaction may have locked every key of the range: it is asked for once
        position = start

        def upper(region: LocatedRegion) -> bytes:
            return min(raw_end(region) or end, end)

        def request(region: LocatedRegion) -> to_store.StoreRequest[kvrpcpb_pb2.ScanLockResponse]:
            return to_store.scan_locks(position, upper(region), SCAN_LIMIT, max_version, now)

        while position < end:
            found, region = await self._calls.send(position, request, attempts)
            if found.HasField("error"):
                raise Transient(f"KvScanLock of {position.hex()}: {str(found.error).strip()}", retry_after=1.0)
            unknown = [lock for lock in found.locks if lock.lock_version not in alive]
            living = await self._locks.settle(unknown, attempts)
            alive |= {lock.lock_version for lock in living}
            swept.living += [lock for lock in living if holds_back(lock)]
            swept.finished += sum(lock.lock_version not in alive for lock in found.locks)
            attempts.progress()
            position = found.locks[-1].key + b"\0" if len(found.locks) == SCAN_LIMIT else upper(region)
        return swept
