"""The region request worker: one multiplexed EventFeedV2 stream to one TiKV store (docs/design/tikv.md, Streams).

A thin shell: it registers, reads whatever arrives, has it decoded and matched in a thread chunk by chunk, and passes on
the results in order. It decides nothing about a region. A stream that breaks, or is silent for too long, takes all its
registrations with it; the feed decides where they continue.

A stream is always read (rule 17), however slow the receiver, and requests are sent meanwhile: holding a subscription
stops what arrives for it. A scan arrives as fast as it is read, and a large transaction's rows are read from scratch
files part by part: before each chunk of the one, and each part of the other, the receiver may make the stream wait, for
a bounded time; a subscription that is then held returns no more parts. Only the last bound, MAX_BACKLOG_BYTES per
stream, stops the reading; the store then buffers up to its own quota and fails registrations as `congested`, and they
are made again when the store has room (upstream/tikv/feed/congestion).

A store without EventFeedV2 (TiKV before 7.3) is refused. EventFeed's resolved-ts name no request, and after a merge two
pieces of one subscription may be registered for one region: it would be unclear whose resolved-ts it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import grpc
import grpc.aio
import pyarrow as pa

from changefeed.clock import Clock, until_set
from changefeed.errors import ChangefeedError, InvalidRequest, ProtocolViolation, Refused, Transient, Unavailable
from changefeed.upstream.contract import BEHIND, GATHER_SECONDS, Stopped
from changefeed.upstream.scratch import Scratch, give_back_memory
from changefeed.upstream.tikv.client.channels import kept_out
from changefeed.upstream.tikv.client.regions import Pd
from changefeed.upstream.tikv.client.requests import change_data
from changefeed.upstream.tikv.feed.congestion import Congestion
from changefeed.upstream.tikv.feed.range_lock import LockPart
from changefeed.upstream.tikv.feed.reaction import Wait, reaction
from changefeed.upstream.tikv.feed.stopped_stores import CONGESTED, turns_away
from changefeed.upstream.tikv.matching.region_events import ChunkOutcome, RegionEvents, Registration
from changefeed.wire import cdcpb_pb2

#: Registrations whose scan runs; more only queue inside the store, whose own default is 6 at a time.
MAX_SCANS = 16
MAX_CHUNK_BYTES = 8 << 20
#: A chunk that is processed, and the one that comes meanwhile.
MAX_BACKLOG_BYTES = 2 * MAX_CHUNK_BYTES
#: Between two tries to open a stream. What is registered with a store that is away waits so long for its new leader.
RECONNECT_SECONDS = 1.0
#: A chunk costs some ms however small it is: a smaller one than this waits for more, so that a trickle costs little.
GATHER_BYTES = 1 << 20
#: The way to a thread and back costs as much as a chunk of nothing but resolved-ts does; this takes a ms on the loop.
INLINE_BYTES = 64 << 10
#: A store tells the resolved-ts about every second, blocked or not; one that does not any more has forgotten us.
SILENCE_SECONDS = 20.0
#: While all that is registered is being scanned, or waits for that inside the store, silence means less.
SCAN_SILENCE_SECONDS = 300.0
#: A store that turns registrations away for so long is named.
NAMED_SECONDS = 30.0
#: What a store says comes behind all that it had sent before, so it may be of a time when the reading was stopped.
BEHIND_SECONDS = 60.0

_Call = grpc.aio.StreamStreamCall[cdcpb_pb2.ChangeDataRequest, bytes]


@dataclass(frozen=True, eq=False)
class Ask:
    """Pull a locked piece of a subscription, after `checkpoint_ts`, from a region that this store leads."""

    sub_id: int
    span_id: int
    checkpoint_ts: int
    piece: LockPart
    region_id: int
    conf_ver: int
    version: int
    store_id: int


class Receiver(Protocol):
    """Where a stream's outcome goes. Nothing more comes of an Ask after `failed` or `lost`."""

    async def data(self, sub_id: int, batch: pa.RecordBatch) -> None: ...

    def streams(self) -> int:
        """How many streams pull for the receiver."""
        ...

    async def room(self) -> None:
        """Wait, while it gets on, until there is room for another part of a scan or of a large transaction."""
        ...

    def initialized(self, asks: list[Ask]) -> None:
        """Their scans are complete; `advanced` of them comes later."""
        ...

    async def advanced(self, advances: list[tuple[Ask, int]]) -> None: ...

    async def failed(self, ask: Ask, error: cdcpb_pb2.Error | ChangefeedError) -> None: ...

    async def lost(self, asks: list[Ask], error: ChangefeedError) -> None: ...


class StoreStream:
    def __init__(
        self,
        store_id: int,
        cluster_id: int,
        pd: Pd,
        receiver: Receiver,
        clock: Clock,
        scratch: Scratch | None = None,
        gather_s: float = GATHER_SECONDS,
        rng: Random | None = None,
    ) -> None:
        self._store_id = store_id
        self._cluster_id = cluster_id
        self._pd = pd
        self._receiver = receiver
        self._clock = clock
        self._scratch = scratch
        self._gather_s = gather_s
        self._waiting: deque[Ask] = deque()
        self._released: list[int] = []
        self._refused: list[Registration] = []
        self._asked = asyncio.Event()
        self._congestion = Congestion(MAX_SCANS, rng or Random())
        self._turned_away_for = ""
        self._read_on = float("-inf")
        self._begin()

    def _begin(self) -> None:
        """A new connection: nothing is registered, nothing has come."""
        self._events = RegionEvents(self._scratch)
        self._events_free = asyncio.Lock()  # while a chunk is processed in its thread it is not
        self._asks: dict[int, Ask] = {}
        self._scanning: set[int] = set()
        self._backlog: deque[bytes] = deque()
        self.backlog_bytes = 0  # read, not yet handed on
        self.pending_rows = 0  # prewritten, not yet committed
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._busy = False
        self._heard = self._clock.monotonic()

    @property
    def is_pulling(self) -> bool:
        return bool(self._asks)

    def waits(self) -> list[LockPart]:
        """Return the parts for which no registration is sent yet."""
        return [ask.piece for ask in self._waiting]

    def stopped(self) -> Stopped | None:
        """Why the store has taken no registrations for a while; None: it has, or none were wanted."""
        since = self._congestion.since
        wanted = self._waiting or self._scanning
        if since is None or not wanted or self._clock.monotonic() - since < NAMED_SECONDS:
            return None
        return turns_away(self._store_id, self._turned_away_for)

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        self._events.check()

    def register(self, ask: Ask) -> None:
        self._waiting.append(ask)
        self._asked.set()

    def release(self, sub_id: int) -> None:
        """Stop what is pulled for a subscription: of its Asks nothing more comes but what is being handed on."""
        self._waiting = deque(ask for ask in self._waiting if ask.sub_id != sub_id)
        self._released.append(sub_id)
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled: connect when there is something to pull, and again after a loss."""
        while True:
            await self._asked.wait()
            error = await self._connected()
            self._pd.forget_store(self._store_id)
            asks = [*self._asks.values(), *self._waiting]
            self._waiting, self._released, self._refused = deque(), [], []
            self._begin()
            self._congestion.lost()
            self._asked.clear()
            await self._receiver.lost(asks, error)
            await self._clock.sleep(RECONNECT_SECONDS)

    async def _connected(self) -> ChangefeedError:
        """One life of the stream; gives the reason of its end."""
        self._begin()
        try:
            address = await self._pd.store_address(self._store_id)
        except Refused as error:
            return error
        except (Transient, Unavailable) as error:
            return Transient(f"Store {self._store_id} can't be reached: {error}", "Retrying.")
        method: Any = self._pd.store_channel(address).stream_stream(
            change_data.METHOD,
            request_serializer=cdcpb_pb2.ChangeDataRequest.SerializeToString,
        )
        call: _Call = method(metadata=change_data.METADATA)
        parts = [
            asyncio.create_task(part)
            for part in (self._read(call), self._ask(call), self._turns(), self._until_silent())
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            for part in parts:
                part.cancel()
            endings = await asyncio.gather(*parts, return_exceptions=True)
        return self._reason(address, [e for e in endings if not isinstance(e, asyncio.CancelledError)])

    def _reason(self, address: str, endings: list[BaseException | None]) -> ChangefeedError:
        where = f"The change data stream of store {self._store_id} ({address})"
        for ending in endings:
            if isinstance(ending, ProtocolViolation):
                return ending
            if isinstance(ending, _Silence):
                return Transient(f"{where} has said nothing for {ending.seconds:.0f} s.", "It is opened again.")
            if isinstance(ending, grpc.aio.AioRpcError):
                if refused := kept_out(f"Store {self._store_id} at {address}", "TiKV", ending):
                    return refused
                if ending.code() != grpc.StatusCode.UNIMPLEMENTED:
                    return Transient(f"{where} broke: {ending.code().name} {ending.details()}.", "It is opened again.")
                return Unavailable(
                    f"{where} is refused: {ending.details()}.",
                    "It needs EventFeedV2 with stream multiplexing: upgrade TiKV to 7.5 or later.",
                )
        for ending in endings:
            # A write to a call that is over: the reader, which knows why, was stopped before it said so.
            if ending is not None and not isinstance(ending, asyncio.InvalidStateError):
                raise ending
        return Transient(f"{where} was ended by the store.", "It is opened again.")

    async def _read(self, call: _Call) -> None:
        while isinstance(message := await call.read(), bytes):
            self._backlog.append(message)
            self.backlog_bytes += len(message)
            self._arrived.set()
            while self.backlog_bytes > MAX_BACKLOG_BYTES:
                self._room.clear()
                await self._room.wait()
                self._read_on = self._clock.monotonic()

    async def _ask(self, call: _Call) -> None:
        """All that is written to the stream, whatever the receiver is busy with."""
        while True:
            await until_set(self._asked, self._clock, self._next_look())
            self._asked.clear()
            async with self._events_free:
                requests, refused = self._requests()
            for request in requests:
                await call.write(request)
            for ask, error in refused:
                await self._receiver.failed(ask, error)

    async def _turns(self) -> None:
        while True:
            await self._arrived.wait()
            if self.backlog_bytes < GATHER_BYTES:
                await self._clock.sleep(self._gather_s)
            self._arrived.clear()
            await self._turn()
            if self._backlog:
                self._arrived.set()

    async def _turn(self) -> None:
        began = self._clock.monotonic()
        self._busy = True
        if self._scanning:
            await self._receiver.room()
        chunk = self._take_chunk()
        size = sum(map(len, chunk))
        streams = self._receiver.streams()
        async with self._events_free:
            if size <= INLINE_BYTES:
                outcome = self._events.process(chunk, streams)
            else:
                outcome = await asyncio.to_thread(self._events.process, chunk, streams)
        del chunk
        await self._hand_on(outcome)
        self.backlog_bytes -= size
        self._room.set()
        self._busy = False
        now = self._clock.monotonic()
        heard = outcome.resolved_events or not self._some_initialized()
        self._heard = now if heard else self._heard + (now - began)  # what takes us long is not the store's silence

    def _take_chunk(self) -> list[bytes]:
        chunk: list[bytes] = []
        size = 0
        while self._backlog and size < MAX_CHUNK_BYTES:
            chunk.append(self._backlog.popleft())
            size += len(chunk[-1])
        return chunk

    async def _until_silent(self) -> None:
        """Raises _Silence."""
        while True:
            await self._clock.sleep(SILENCE_SECONDS / 4)
            now = self._clock.monotonic()
            if not self._asks:
                self._heard = now
            silent = now - self._heard
            if not self._busy and silent >= (SILENCE_SECONDS if self._some_initialized() else SCAN_SILENCE_SECONDS):
                raise _Silence(silent)

    def _some_initialized(self) -> bool:
        return len(self._asks) > len(self._scanning)

    def _requests(self) -> tuple[list[cdcpb_pb2.ChangeDataRequest], list[tuple[Ask, InvalidRequest]]]:
        """What is to be sent, and what must not be."""
        invalid: list[tuple[Ask, InvalidRequest]] = []
        requests = [self._deregister(refused) for refused in self._refused]
        self._refused = []
        released, self._released = set(self._released), []
        for sub_id in released:
            requests += map(self._deregister, self._events.release(sub_id))
        if released:
            for reg in [reg for reg, ask in self._asks.items() if ask.sub_id in released]:
                del self._asks[reg]
                self._congestion.ended(reg)
            self._scanning &= self._asks.keys()
        now = self._clock.monotonic()
        while self._waiting and len(self._scanning) < MAX_SCANS and self._congestion.may_go(now):
            ask = self._waiting.popleft()
            registration = self._events.register(ask.sub_id, ask.span_id, ask.region_id, ask.checkpoint_ts)
            try:
                requests.append(self._register(ask, registration))
            except InvalidRequest as error:  # it ends the subscription, and this registration with it
                invalid.append((ask, error))
                continue
            if not self._some_initialized():
                self._heard = now
            self._asks[registration.reg] = ask
            self._scanning.add(registration.reg)
            self._congestion.gone(registration.reg, now)
        return requests, invalid

    def _next_look(self) -> float | None:
        """Seconds until more of what waits may be sent, if nothing happens before; None: not before something does."""
        if not self._waiting or len(self._scanning) >= MAX_SCANS:
            return None
        now = self._clock.monotonic()
        at = self._congestion.next_look(now)
        return None if at is None else at - now

    async def _hand_on(self, outcome: ChunkOutcome) -> None:
        """Rows before resolved-ts before failures."""
        data: list[tuple[int, pa.RecordBatch]] | None = outcome.data
        while data is not None:
            while data:
                await self._receiver.data(*data.pop(0))
            data = await self._more(outcome)
        self.pending_rows = self._events.pending_rows  # a region that has ended is forgotten after the last of its rows
        now = self._clock.monotonic()
        complete = [reg for reg in outcome.initialized if reg in self._asks]
        for reg in complete:
            self._congestion.complete(reg, now)
        self._receiver.initialized([self._asks[reg] for reg in complete])
        if complete and not self._some_initialized():
            self._heard = now
        self._scanning.difference_update(complete)
        await self._receiver.advanced(
            [(self._asks[reg], ts) for reg, ts in outcome.resolved.items() if reg in self._asks]
        )
        for failure in outcome.failed:
            registration = failure.registration
            if isinstance(failure.error, ChangefeedError):
                self._refused.append(registration)
            elif isinstance(wait := reaction(failure.error), Wait):
                self._turned_away(wait)
            self._scanning.discard(registration.reg)
            self._congestion.ended(registration.reg)
            ask = self._asks.pop(registration.reg, None)
            if ask is not None:
                await self._receiver.failed(ask, failure.error)
        if self._waiting or self._refused:
            self._asked.set()
        else:
            self._congestion.nothing_waits(now)

    def _turned_away(self, wait: Wait) -> None:
        now = self._clock.monotonic()
        self._congestion.turned_away(now, wait.seconds)
        is_behind = self.backlog_bytes > MAX_BACKLOG_BYTES or now - self._read_on < BEHIND_SECONDS
        self._turned_away_for = BEHIND if wait.reason == CONGESTED and is_behind else wait.reason

    async def _more(self, outcome: ChunkOutcome) -> list[tuple[int, pa.RecordBatch]] | None:
        if not outcome.has_more:
            return None
        give_back_memory()
        await self._receiver.room()
        async with self._events_free:
            return await asyncio.to_thread(next, outcome.more, None)

    def _register(self, ask: Ask, registration: Registration) -> cdcpb_pb2.ChangeDataRequest:
        return change_data.register(
            self._cluster_id,
            registration.request_id,
            ask.region_id,
            ask.conf_ver,
            ask.version,
            ask.checkpoint_ts,
            ask.piece.start,
            ask.piece.end,
        )

    def _deregister(self, registration: Registration) -> cdcpb_pb2.ChangeDataRequest:
        return change_data.deregister(self._cluster_id, registration.request_id, registration.region_id)


class _Silence(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds
