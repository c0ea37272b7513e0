"""Reading keys as they stood at a ts: meta data, and what verify compares files with (facts, tikv-wire 3.4).

A read at ts must never miss a transaction that commits at or below ts: a lock is waited for, or finished.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from changefeed.errors import ProtocolViolation
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.locks import LockResolver
from changefeed.upstream.pd import PATIENCE, PdClient, Region
from changefeed.upstream.regions import RegionCalls, raw_end
from changefeed.wire import kvrpcpb_pb2


class Snapshot:
    """The cluster at `ts`. Keys are raw. Every read raises Transient after `patience` seconds without progress."""

    def __init__(self, pd: PdClient, ts: int, patience: float = PATIENCE) -> None:
        self.ts = ts
        self._patience = patience
        self._calls = RegionCalls(pd)
        self._locks = LockResolver(pd, self._calls, ts)

    async def get(self, key: bytes) -> bytes | None:
        """The value at `ts`; None: there is none."""
        attempts = Attempts(f"Reading key {key.hex()} at {self.ts}", self._patience)

        def request(_: Region) -> kvrpcpb_pb2.GetRequest:
            return kvrpcpb_pb2.GetRequest(context=self._context(), key=key, version=self.ts)

        while True:
            response, _ = await self._calls.send("KvGet", key, request, kvrpcpb_pb2.GetResponse, attempts)
            if not response.HasField("error"):
                return None if response.not_found else response.value
            await self._locks.resolve([_lock_of(response.error, key)], attempts)

    async def scan(self, start: bytes, end: bytes, batch: int = 256) -> AsyncIterator[tuple[bytes, bytes]]:
        """(key, value) of every key in `[start, end)`, in order, `batch` keys a call; `end` b"": to the last key."""
        async for page in self.pages(start, end, batch):
            for pair in page:
                yield pair.key, pair.value

    async def pages(self, start: bytes, end: bytes, batch: int) -> AsyncIterator[Sequence[kvrpcpb_pb2.KvPair]]:
        """As `scan`, with the pairs of one call at once."""
        attempts = Attempts(f"Scanning [{start.hex()}, {end.hex()}) at {self.ts}", self._patience)
        position = start

        def upper(region: Region) -> bytes:
            region_end = raw_end(region)
            return min(region_end, end) if region_end and end else region_end or end

        def request(region: Region) -> kvrpcpb_pb2.ScanRequest:
            return kvrpcpb_pb2.ScanRequest(
                context=self._context(), start_key=position, end_key=upper(region), limit=batch, version=self.ts
            )

        while not end or position < end:
            response, region = await self._calls.send("KvScan", position, request, kvrpcpb_pb2.ScanResponse, attempts)
            blocked = response.error if response.HasField("error") else None
            good = next((n for n, pair in enumerate(response.pairs) if pair.HasField("error")), len(response.pairs))
            if good < len(response.pairs):
                blocked = blocked or response.pairs[good].error
            if good:
                yield response.pairs[:good]
                position = response.pairs[good - 1].key + b"\0"
                attempts.progress()
            if blocked is not None:
                await self._locks.resolve([_lock_of(blocked, position)], attempts)
            elif len(response.pairs) < batch:
                attempts.progress()
                position = upper(region)
                if not position:
                    return

    def _context(self) -> kvrpcpb_pb2.Context:
        return kvrpcpb_pb2.Context(resolved_locks=sorted(self._locks.ignored))


def _lock_of(error: Any, key: bytes) -> kvrpcpb_pb2.LockInfo:
    # `error` is a kvrpcpb KeyError; the generated stub takes it for Python's.
    if not error.HasField("locked"):
        raise ProtocolViolation(f"Reading {key.hex()}: {str(error).strip()}")
    locked: kvrpcpb_pb2.LockInfo = error.locked
    return locked
