"""A store that does what a test tells it, and the PD that names it: what no real cluster can be made to do on time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from changefeed.clock import SystemClock
from changefeed.upstream.tikv.tidb.memcomparable import encode_bytes
from changefeed.wire import cdcpb_pb2 as cdcpb

STORE = 1


@dataclass(frozen=True)
class FakeRegion:
    """Keys are raw here."""

    id: int
    start: bytes
    end: bytes
    leader_store_id: int = STORE
    conf_ver: int = 1
    version: int = 1

    @property
    def start_key(self) -> bytes:
        return encode_bytes(self.start)

    @property
    def end_key(self) -> bytes:
        return encode_bytes(self.end)


class FakeStream:
    """One stream as its store sees it."""

    def __init__(self) -> None:
        self.over = False
        self.requests: list[cdcpb.ChangeDataRequest] = []
        self.outbox: asyncio.Queue[cdcpb.ChangeDataEvent | grpc.StatusCode] = asyncio.Queue()

    def send(self, *events: cdcpb.Event) -> None:
        self.outbox.put_nowait(cdcpb.ChangeDataEvent(events=events))

    def rows(self, request: cdcpb.ChangeDataRequest, *rows: cdcpb.Event.Row) -> None:
        self.send(
            cdcpb.Event(
                region_id=request.region_id, request_id=request.request_id, entries=cdcpb.Event.Entries(entries=rows)
            )
        )

    def initialize(self, request: cdcpb.ChangeDataRequest) -> None:
        self.rows(request, cdcpb.Event.Row(type=cdcpb.Event.INITIALIZED))

    def resolve(self, request: cdcpb.ChangeDataRequest, ts: int) -> None:
        resolved = cdcpb.ResolvedTs(regions=[request.region_id], ts=ts, request_id=request.request_id)
        self.outbox.put_nowait(cdcpb.ChangeDataEvent(resolved_ts=resolved))

    def error(self, request: cdcpb.ChangeDataRequest, **error: Any) -> None:
        self.send(cdcpb.Event(region_id=request.region_id, request_id=request.request_id, error=cdcpb.Error(**error)))

    def end(self, code: grpc.StatusCode) -> None:
        self.outbox.put_nowait(code)

    def registered(self) -> list[cdcpb.ChangeDataRequest]:
        return [request for request in self.requests if request.HasField("register")]

    def deregistered(self) -> list[cdcpb.ChangeDataRequest]:
        return [request for request in self.requests if request.HasField("deregister")]


class FakeStore:
    """`async with FakeStore() as store`: is a feed's Pd as well. `old`: it knows no EventFeedV2."""

    cluster_id = 7

    def __init__(self, regions: Sequence[FakeRegion], old: bool = False) -> None:
        self.regions = list(regions)
        self.old = old
        self.safe_point = 0
        self.safe_point_reads = 0
        self.safe_point_gate = asyncio.Event()
        self.safe_point_gate.set()
        self.now = 0
        self.streams: list[FakeStream] = []
        self.changed = asyncio.Event()

    async def __aenter__(self) -> FakeStore:
        self._server = grpc.aio.server()
        handlers = {
            "EventFeedV2": grpc.stream_stream_rpc_method_handler(
                self._feed,
                request_deserializer=cdcpb.ChangeDataRequest.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("cdcpb.ChangeData", handlers)])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        self._channel = grpc.aio.insecure_channel(self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        await self._server.stop(None)

    async def _feed(self, requests: AsyncIterator[cdcpb.ChangeDataRequest], context: Any) -> AsyncIterator[Any]:
        if self.old:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        stream = FakeStream()
        self.streams.append(stream)
        listener = asyncio.create_task(self._listen(stream, requests))
        try:
            while not isinstance(message := await stream.outbox.get(), grpc.StatusCode):
                yield message
            await context.abort(message, "the test says so")
        finally:
            listener.cancel()
            stream.over = True
            self.changed.set()

    async def _listen(self, stream: FakeStream, requests: AsyncIterator[cdcpb.ChangeDataRequest]) -> None:
        async for request in requests:
            stream.requests.append(request)
            self.changed.set()

    async def until(self, condition: Any) -> None:
        """Wait for something that a request, or a read of the safepoint, changes."""
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    # What a feed asks PD for.

    async def scan_regions(self, start: bytes, end: bytes, /) -> list[FakeRegion]:
        return [region for region in self.regions if region.start < end and start < region.end]

    async def store_address(self, store_id: int) -> str:
        return self.address

    def forget_store(self, store_id: int) -> None:
        pass

    def store_channel(self, address: str) -> grpc.aio.Channel:
        return self._channel

    async def gc_safepoint(self) -> int:
        self.safe_point_reads += 1
        self.changed.set()
        read = self.safe_point
        await self.safe_point_gate.wait()
        return read

    async def tso(self) -> int:
        self.now += 1
        return self.now


def row(key: bytes, ts: int, value: bytes = b"v") -> cdcpb.Event.Row:
    """A row that a scan, or a transaction in one phase, has committed at `ts`."""
    return cdcpb.Event.Row(
        type=cdcpb.Event.COMMITTED, op_type=cdcpb.Event.Row.PUT, start_ts=ts - 1, commit_ts=ts, key=key, value=value
    )


class FastClock(SystemClock):
    """Sleeps give way only: what waits for a time of the monotonic clock sees hours pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0.001)


class ManualClock:
    """Time passes when the test says so, in small steps, between which everybody gets on."""

    def __init__(self, step: float = 0.1) -> None:
        self.now = 0.0
        self._seconds = step
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, waiter))
        await waiter

    async def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            await self._step()

    async def run_until(self, condition: Callable[[], Any]) -> None:
        for _ in range(20_000):
            if condition():
                return
            await self._step()
        raise AssertionError("it never came to be")

    async def _step(self) -> None:
        self.now += self._seconds
        due = [waiter for at, waiter in self._sleepers if at <= self.now]
        self._sleepers = [(at, waiter) for at, waiter in self._sleepers if at > self.now]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)
        await asyncio.sleep(0.001)
