"""Reading keys as they stood at a ts: meta data, and what verify compares files with.

See docs/design/tikv.md, Snapshot reads.

A read at ts must never miss a transaction that commits at or below ts: a lock is waited for, or finished.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache, cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import ProtocolViolation
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.tikv.client.leader import PATIENCE
from changefeed.upstream.tikv.client.locks import LockResolver
from changefeed.upstream.tikv.client.pd import LocatedRegion
from changefeed.upstream.tikv.client.regions import Pd, RegionCalls, raw_end
from changefeed.upstream.tikv.client.requests import to_store
from changefeed.wire import errorpb_pb2, kvrpcpb_pb2
from changefeed.wire.thinned import MessageColumns

#: Of a call that is answered in columns. TiKV takes a row count only.
_PAGE_BYTES = 1 << 22
_FIRST_ROWS = 256


class Snapshot:
    """The cluster at `ts`. Keys are raw. Every read raises Transient after `patience` seconds without progress."""

    def __init__(self, pd: Pd, ts: int, patience: float = PATIENCE) -> None:
        self.ts = ts
        self._patience = patience
        self._calls = RegionCalls(pd)
        self._locks = LockResolver(pd, self._calls, ts)
        self._pd = pd
        self._now = 0

    async def get(self, key: bytes) -> bytes | None:
        """The value at `ts`; None: there is none."""
        attempts = Attempts(f"Reading key {key.hex()} at {self.ts}", self._patience)
        now = await self._later()

        def request(_: LocatedRegion) -> to_store.StoreRequest[kvrpcpb_pb2.GetResponse]:
            return to_store.get(key, self.ts, now, self._locks.ignored)

        while True:
            response, _ = await self._calls.send(key, request, attempts)
            if not response.HasField("error"):
                return None if response.not_found else response.value
            await self._locks.resolve([_lock_of(response.error, key)], attempts)

    async def scan(self, start: bytes, end: bytes, batch: int = 256) -> AsyncIterator[tuple[bytes, bytes]]:
        """(key, value) of every key in `[start, end)`, in order, `batch` keys a call; `end` b"": to the last key."""
        async for page in self._pages(start, end, batch):
            for pair in page.message.pairs[: page.good]:
                yield pair.key, pair.value

    async def columns(self, start: bytes, end: bytes) -> AsyncIterator[tuple[pa.Array, pa.Array]]:
        """As `scan`, with the keys and the values of one call as arrays: some MiB of them, however wide rows are."""
        async for page in self._pages(start, end):
            pairs = page.pairs.slice(0, page.good)
            yield pairs.field("key"), pairs.field("value")

    async def _pages(self, start: bytes, end: bytes, batch: int | None = None) -> AsyncIterator[_ScanPage]:
        asked = limit = batch or _FIRST_ROWS
        attempts = Attempts(f"Scanning [{start.hex()}, {end.hex()}) at {self.ts}", self._patience)
        position = start
        now = await self._later()

        def upper(region: LocatedRegion) -> bytes:
            region_end = raw_end(region)
            return min(region_end, end) if region_end and end else region_end or end

        def request(region: LocatedRegion) -> to_store.StoreRequest[_ScanPage]:
            nonlocal asked, limit
            asked, limit = limit, max(1, limit // 2)  # were this answer too large, no other would come
            return to_store.scan(position, upper(region), asked, self.ts, now, _ScanPage, self._locks.ignored)

        while not end or position < end:
            page, region = await self._calls.send(position, request, attempts)
            limit = asked
            if page.good:
                yield page
                position = page.pairs.field("key")[page.good - 1].as_py() + b"\0"
                attempts.progress()
                limit = batch or max(1, min(to_store.MOST_ROWS, _PAGE_BYTES * page.good // page.size))
            if (blocked := page.blocked()) is not None:
                await self._locks.resolve([_lock_of(blocked, position)], attempts)
            elif len(page.pairs) < asked:
                attempts.progress()
                position = upper(region)
                if not position:
                    return

    async def _later(self) -> int:
        """A ts of PD's that shows `ts` to be past: what a store is read at, nobody commits at any more."""
        if not self._now:
            self._now = await self._pd.tso()
        return self._now


class _ScanPage:
    """The answer to one call: its pairs as an array of structs, and all of it as a message, made when it is wanted."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        answer = _columns().of([data])
        self._errors = [name for name in ("region_error", "error") if not answer.column(name).null_count]
        self.pairs = answer.column("pairs").flatten()
        errors = self.pairs.field("error")
        #: How many pairs come before the first that could not be read.
        self.good = (
            len(errors) if errors.null_count == len(errors) else pc.index(errors.is_valid(), pa.scalar(True)).as_py()
        )

    @cached_property
    def message(self) -> kvrpcpb_pb2.ScanResponse:
        return kvrpcpb_pb2.ScanResponse.FromString(self._data)

    @property
    def region_error(self) -> errorpb_pb2.Error:
        return self.message.region_error

    def HasField(self, field_name: Any) -> bool:
        return field_name in self._errors

    def blocked(self) -> Any:
        """The KeyError because of which rows are missing; None: there is none."""
        if self.HasField("error"):
            return self.message.error
        return self.message.pairs[self.good].error if self.good < len(self.pairs) else None

    @classmethod
    def FromString(cls, data: bytes, /) -> _ScanPage:
        return cls(data)


@cache
def _columns() -> MessageColumns:
    answer = ("region_error", "pairs", "error")
    fields = {"ScanResponse": answer, "KvPair": ("error", "key", "value"), "KeyError": (), "Error": ()}
    return MessageColumns(kvrpcpb_pb2.DESCRIPTOR, "ScanResponse", fields)


def _lock_of(error: Any, key: bytes) -> kvrpcpb_pb2.LockInfo:
    # `error` is a kvrpcpb KeyError; the generated stub takes it for Python's.
    if not error.HasField("locked"):
        raise ProtocolViolation(f"Reading {key.hex()}: {str(error).strip()}")
    locked: kvrpcpb_pb2.LockInfo = error.locked
    return locked
