"""A process's client of the simulated upstream: PD, and streams to the stores, with latency and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from changefeed.errors import Transient
from changefeed.wire import cdcpb_pb2 as cdcpb
from simulated_cdc import ChangeData
from simulated_time import Loop, Mailbox
from simulated_upstream import Upstream

CLUSTER_ID = 7


class SimulatedPd:
    """A process's client of PD and the stores; implements upstream.tikv.feed.span_feed.Pd."""

    cluster_id = CLUSTER_ID

    def __init__(self, cdc: ChangeData, upstream: Upstream, loop: Loop) -> None:
        self._cdc = cdc
        self._upstream = upstream
        self._loop = loop
        self._calls: list[FeedCall] = []

    async def _answer(self) -> None:
        slow = self._cdc.happens("pd")
        await asyncio.sleep(self._cdc.rng.random() * (3.0 if slow else 0.15))
        if slow and self._cdc.rng.random() < 0.5:
            raise Transient("PD does not answer.", retry_after=0.5)

    async def scan_regions(self, start: bytes, end: bytes, /) -> list[Any]:
        await self._answer()
        known = self._cdc.stale_regions if self._cdc.happens("stale_pd") else self._upstream.regions
        return [region for region in known if (not region.end or start < region.end) and region.start < end]

    async def read(self, start: bytes, end: bytes, ts: int) -> list[tuple[bytes, bytes]]:
        """Some of the first rows as of `ts`; none: there are no more."""
        await self._answer()
        page = self._upstream.read(start, end, ts)[: self._cdc.rng.randint(1, 2)]
        await asyncio.sleep(self._cdc.rng.random() * (1.0 if self._cdc.happens("slow_scan") else 0.05))
        return page

    async def store_address(self, store_id: int) -> str:
        await self._answer()
        return str(store_id)

    def forget_store(self, store_id: int) -> None:
        pass

    def store_channel(self, address: str) -> Any:
        return _Channel(self, int(address))

    async def gc_safepoint(self) -> int:
        safepoint = self._upstream.gc_ts
        await self._answer()
        return safepoint

    async def tso(self) -> int:
        raise Transient("No locks are finished here.")

    def call(self, store: int) -> FeedCall:
        call = FeedCall(self._cdc, store, self._loop)
        self._calls.append(call)
        return call

    def die(self) -> None:
        for call in self._calls:
            call.cancel()


class _Channel:
    def __init__(self, pd: SimulatedPd, store: int) -> None:
        self._pd = pd
        self._store = store

    def stream_stream(self, path: str, request_serializer: object) -> Callable[..., FeedCall]:
        return lambda metadata: self._pd.call(self._store)


class FeedCall:
    """The client's end of a stream."""

    def __init__(self, cdc: ChangeData, store: int, loop: Loop) -> None:
        self._time = cdc.time
        self._rng = cdc.rng
        self._mailbox = Mailbox(loop)
        self._stream = cdc.open_stream(store, self._mailbox)
        self._last_arrival = 0.0

    async def read(self) -> Any:
        return await self._mailbox.get(grpc.aio.EOF)

    async def write(self, request: cdcpb.ChangeDataRequest) -> None:
        if not self._stream.open:
            raise asyncio.InvalidStateError("the stream is over")
        self._last_arrival = max(self._last_arrival, self._time.now + self._rng.random() * 0.05)
        self._time.at(self._last_arrival, lambda: self._stream.on_request(request))

    def cancel(self) -> None:
        self._stream.cut(None)


def broken(code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> grpc.aio.AioRpcError:
    """What a client sees when its connection breaks."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="simulated")
