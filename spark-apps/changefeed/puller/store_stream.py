"""The region request worker: one multiplexed EventFeedV2 stream to one TiKV store (source design 1, tikv-wire 2.2).

A thin shell: it registers, reads whatever has come into one chunk, has that decoded and matched in a thread, and hands
on what came out, in order. It decides nothing about a region. A stream that breaks takes all its registrations with it;
where they go on is for the feed to say. Streams are read up to a bound ahead of what has been handed on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio
import pyarrow as pa

from changefeed.clock import Clock
from changefeed.errors import ChangefeedError, ProtocolViolation, Transient, Unavailable
from changefeed.puller.range_lock import Piece
from changefeed.puller.region_events import Outcome, RegionEvents, Registration
from changefeed.wire import cdcpb_pb2, kvrpcpb_pb2, metapb_pb2

EVENT_FEED_V2 = "/cdcpb.ChangeData/EventFeedV2"
#: Bare digits: with a version that TiKV can't parse it never sends a resolved-ts (tikv-wire 2.2).
CLIENT_VERSION = "8.5.0"
#: Registrations whose scan runs; more only queue inside the store, whose own default is 6 at a time.
MAX_SCANS = 16
MAX_CHUNK_BYTES = 64 << 20
RECONNECT_SECONDS = 1.0
#: A chunk costs some ms however small it is: a small one waits this long for more, so that a trickle costs little.
LINGER_BYTES = 1 << 20
LINGER_SECONDS = 0.2

_Call = grpc.aio.StreamStreamCall[cdcpb_pb2.ChangeDataRequest, bytes]


class Addresses(Protocol):
    """What a stream asks PD for."""

    async def store_address(self, store_id: int) -> str: ...

    def forget_store(self, store_id: int) -> None: ...

    def store_channel(self, address: str) -> grpc.aio.Channel: ...


@dataclass(frozen=True)
class Ask:
    """Pull a locked piece of a subscription from a region that this store leads."""

    sub_id: int
    span_id: int
    start_ts: int
    piece: Piece
    region_id: int
    conf_ver: int
    version: int


class Receiver(Protocol):
    """Where a stream's outcome goes. Nothing more comes of an Ask after `failed` or `lost`."""

    async def data(self, sub_id: int, batch: pa.RecordBatch) -> None: ...

    async def advanced(self, advances: list[tuple[Ask, int]]) -> None: ...

    async def failed(self, ask: Ask, error: cdcpb_pb2.Error | ProtocolViolation) -> None: ...

    async def lost(self, asks: list[Ask], error: ChangefeedError) -> None: ...


class StoreStream:
    def __init__(self, store_id: int, cluster_id: int, pd: Addresses, receiver: Receiver, clock: Clock) -> None:
        self._store_id = store_id
        self._cluster_id = cluster_id
        self._pd = pd
        self._receiver = receiver
        self._clock = clock
        self._waiting: deque[Ask] = deque()
        self._released: list[int] = []
        self._asks: dict[int, Ask] = {}
        self._scanning: set[int] = set()
        self._events = RegionEvents()
        self._chunk: list[bytes] = []
        self._chunk_bytes = 0
        self.pending_rows = 0  # prewritten, not yet committed
        self._work = asyncio.Event()
        self._room = asyncio.Event()

    def register(self, ask: Ask) -> None:
        self._waiting.append(ask)
        self._work.set()

    def release(self, sub_id: int) -> None:
        """Stop what is pulled for a subscription; nothing more comes of its Asks."""
        self._released.append(sub_id)
        self._work.set()

    async def run(self) -> None:
        """Until cancelled: connect when there is something to pull, and again after a loss."""
        while True:
            await self._work.wait()
            error = await self._connected()
            self._pd.forget_store(self._store_id)
            asks = [*self._asks.values(), *self._waiting]
            self._asks, self._waiting, self._released = {}, deque(), []
            self._work.clear()
            await self._receiver.lost(asks, error)
            await self._clock.sleep(RECONNECT_SECONDS)

    async def _connected(self) -> ChangefeedError:
        """One life of the stream; gives the reason of its end."""
        self._events, self._asks, self._scanning = RegionEvents(), {}, set()
        self._chunk, self._chunk_bytes = [], 0
        self.pending_rows = 0
        try:
            address = await self._pd.store_address(self._store_id)
        except (Transient, Unavailable) as error:
            return Transient(f"Store {self._store_id} has no address: {error}", "PD is asked again.")
        method: Any = self._pd.store_channel(address).stream_stream(
            EVENT_FEED_V2, request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString
        )
        call: _Call = method(metadata=(("features", "stream-multiplexing"),))
        halves = [asyncio.create_task(self._read(call)), asyncio.create_task(self._turns(call))]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            for half in halves:
                half.cancel()
            endings = await asyncio.gather(*halves, return_exceptions=True)
        return self._reason(address, [e for e in endings if not isinstance(e, asyncio.CancelledError)])

    def _reason(self, address: str, endings: list[BaseException | None]) -> ChangefeedError:
        where = f"The change data stream of store {self._store_id} ({address})"
        for ending in endings:
            if isinstance(ending, ProtocolViolation):
                return ending
            if isinstance(ending, grpc.aio.AioRpcError):
                if ending.code() == grpc.StatusCode.UNIMPLEMENTED:
                    return Unavailable(f"{where} is refused: {ending.details()}.", "Upgrade TiKV to 7.3 or later.")
                return Transient(f"{where} broke: {ending.code().name} {ending.details()}.", "It is opened again.")
        for ending in endings:
            # A write to a call that is over: the reader, which knows why, was stopped before it said so.
            if ending is not None and not isinstance(ending, asyncio.InvalidStateError):
                raise ending
        return Transient(f"{where} was ended by the store.", "It is opened again.")

    async def _read(self, call: _Call) -> None:
        while isinstance(message := await call.read(), bytes):
            self._chunk.append(message)
            self._chunk_bytes += len(message)
            self._work.set()
            if self._chunk_bytes > MAX_CHUNK_BYTES:
                self._room.clear()
                await self._room.wait()

    async def _turns(self, call: _Call) -> None:
        """Turn by turn: what is asked for, then what has come. Only this touches the region events' state."""
        while True:
            await self._work.wait()
            self._work.clear()
            for request in self._requests():
                await call.write(request)
            if not self._chunk:
                continue
            if self._chunk_bytes < LINGER_BYTES:
                await self._clock.sleep(LINGER_SECONDS)
            chunk, self._chunk, self._chunk_bytes = self._chunk, [], 0
            self._room.set()
            outcome = await asyncio.to_thread(self._events.process, chunk)
            self.pending_rows = outcome.pending_rows
            for request in await self._hand_on(outcome):
                await call.write(request)

    def _requests(self) -> list[cdcpb_pb2.ChangeDataRequest]:
        requests = []
        released, self._released = set(self._released), []
        for sub_id in released:
            requests += [self._deregister(request_id, 0) for request_id in self._events.release(sub_id)]
        if released:
            self._asks = {reg: ask for reg, ask in self._asks.items() if ask.sub_id not in released}
            self._scanning &= self._asks.keys()
            self._waiting = deque(ask for ask in self._waiting if ask.sub_id not in released)
        while self._waiting and len(self._scanning) < MAX_SCANS:
            ask = self._waiting.popleft()
            registration = self._events.register(
                ask.sub_id, ask.span_id, ask.region_id, ask.start_ts, ask.piece.resolved_ts
            )
            self._asks[registration.reg] = ask
            self._scanning.add(registration.reg)
            requests.append(self._register(ask, registration))
        return requests

    async def _hand_on(self, outcome: Outcome) -> list[cdcpb_pb2.ChangeDataRequest]:
        """Rows before resolved-ts before failures. Gives what the store has to be told."""
        for sub_id, batch in outcome.data:
            await self._receiver.data(sub_id, batch)
        await self._receiver.advanced([(self._asks[reg], ts) for reg, ts in outcome.resolved.items()])
        self._scanning.difference_update(outcome.initialized)
        requests = []
        for failure in outcome.failed:
            registration = failure.registration
            self._scanning.discard(registration.reg)
            if isinstance(failure.error, ProtocolViolation):
                requests.append(self._deregister(registration.request_id, registration.region_id))
            await self._receiver.failed(self._asks.pop(registration.reg), failure.error)
        if self._waiting:
            self._work.set()
        return requests

    def _register(self, ask: Ask, registration: Registration) -> cdcpb_pb2.ChangeDataRequest:
        return cdcpb_pb2.ChangeDataRequest(
            header=self._header(),
            region_id=ask.region_id,
            region_epoch=metapb_pb2.RegionEpoch(conf_ver=ask.conf_ver, version=ask.version),
            checkpoint_ts=ask.piece.resolved_ts,
            start_key=ask.piece.start,
            end_key=ask.piece.end,
            request_id=registration.request_id,
            extra_op=kvrpcpb_pb2.ReadOldValue,
            register=cdcpb_pb2.ChangeDataRequest.Register(),
        )

    def _deregister(self, request_id: int, region_id: int) -> cdcpb_pb2.ChangeDataRequest:
        return cdcpb_pb2.ChangeDataRequest(
            header=self._header(),
            region_id=region_id,
            request_id=request_id,
            deregister=cdcpb_pb2.ChangeDataRequest.Deregister(),
        )

    def _header(self) -> cdcpb_pb2.Header:
        return cdcpb_pb2.Header(cluster_id=self._cluster_id, ticdc_version=CLIENT_VERSION)
