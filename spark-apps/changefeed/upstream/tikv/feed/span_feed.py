"""A span's rows and resolved-ts, whatever happens to its regions: locates regions, keeps range locks, handles failures.

An asyncio shell around RangeLock and the store streams, used by the Spark task for tables and by the driver for the DDL
span. It must never report a subscription's resolved-ts before it has passed on all rows at or below it, and never leave
a hole alone: whatever fails is located again, from its own resolved-ts, until the subscription is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import TracebackType

import pyarrow as pa

from changefeed.clock import Clock, SystemClock, until_set
from changefeed.errors import (
    ChangefeedError,
    InvalidRequest,
    NeedsHuman,
    ProtocolViolation,
    Refused,
    Transient,
    Unavailable,
    first_error,
)
from changefeed.model.table_copy import TableCopy
from changefeed.model.tso import physical_ms
from changefeed.upstream.contract import (
    BEHIND,
    GATHER_SECONDS,
    BlockedRegion,
    Data,
    FeedEvent,
    FeedMetrics,
    Resolved,
    Stopped,
    SubscriptionFailed,
)
from changefeed.upstream.scratch import Scratch
from changefeed.upstream.tikv.client.lock_sweep import LockSweep
from changefeed.upstream.tikv.client.pd import LocatedRegion
from changefeed.upstream.tikv.client.regions import Pd
from changefeed.upstream.tikv.client.safepoint import lost_history
from changefeed.upstream.tikv.feed.held_history import HeldHistory
from changefeed.upstream.tikv.feed.initial_copy import AT_ONCE, CopyScan
from changefeed.upstream.tikv.feed.range_lock import RangeLock
from changefeed.upstream.tikv.feed.reaction import Fatal, Leader, Wait, backoff, reaction
from changefeed.upstream.tikv.feed.stopped_stores import READ, REFUSED, StoppedStores
from changefeed.upstream.tikv.feed.store_stream import Ask, StoreStream
from changefeed.upstream.tikv.feed.stuck_regions import LOOK_SECONDS, StuckRegions, Sweep
from changefeed.upstream.tikv.tidb.keys import table_span
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes, encode_bytes
from changefeed.wire import cdcpb_pb2

PD_DOWN_SECONDS = 2.0


@dataclass(eq=False)
class _Subscription:
    sub_id: int
    span_id: int
    ranges: RangeLock
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    copy: TableCopy | None = None  # its rows come first; None: they have come, or there is none
    leaders: dict[int, int] = field(default_factory=dict)  # region -> store, as an error event told; newer than PD
    locator: asyncio.Task[None] | None = None  # None: held


class SpanFeed:
    """`async with SpanFeed(pd, emit) as feed: feed.subscribe(...)`.

    `emit` is awaited in order for the events of one store; while it waits, that store's later events wait too.
    `scratch`: for uncommitted rows that memory has no room for; None: they stay in memory. `room` is awaited before
    more of a scan is taken in or of them is read back, and must not wait for ever. `gather_s`: see store_stream.
    `scan_rate`: bytes a second of initial copies, None: no bound.
    An error that is no single subscription's leaves the `async with` block as an exception.
    """

    def __init__(
        self,
        pd: Pd,
        emit: Callable[[FeedEvent], Awaitable[None]],
        clock: Clock | None = None,
        rng: Random | None = None,
        scratch: Scratch | None = None,
        room: Callable[[], Awaitable[None]] | None = None,
        gather_s: float = GATHER_SECONDS,
        scan_rate: float | None = None,
        chunks_at_once: int = AT_ONCE,
    ) -> None:
        self._pd = pd
        self._emit = emit
        self._clock = clock or SystemClock()
        self._rng = rng or Random()
        self._scratch = scratch
        self._room = room
        self._gather_s = gather_s
        self._copies = CopyScan(pd, self._clock, self.room, scan_rate, chunks_at_once)
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._streams: dict[int, StoreStream] = {}  # by store
        self._history = HeldHistory()
        self._to_confirm = asyncio.Event()
        self._stuck = StuckRegions()
        self._stopped = StoppedStores()
        self._locks = LockSweep(pd)
        self._subscriptions: dict[int, _Subscription] = {}
        self.metrics = FeedMetrics()

    async def __aenter__(self) -> SpanFeed:
        await self._tasks.__aenter__()
        self._start(self._confirm())
        self._start(self._unlock_stuck())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in tuple(self._running):
            task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise first_error(group) from group

    def subscribe(
        self,
        sub_id: int,
        span_id: int,
        start_key: bytes,
        end_key: bytes,
        start_ts: int,
        copy: TableCopy | None = None,
        reached_ts: int = 0,
    ) -> None:
        """As Feed.subscribe. A cluster loses nothing that was read of it."""
        first, end = table_span(span_id)
        if sub_id in self._subscriptions:
            raise ProtocolViolation(f"Subscription {sub_id} exists already.", "Give each assignment a fresh sub_id.")
        ranges = RangeLock(encode_bytes(start_key or first), encode_bytes(end_key or end), start_ts)
        subscription = _Subscription(sub_id, span_id, ranges, copy=copy)
        self._subscriptions[sub_id] = subscription
        subscription.locator = self._start(self._locate(subscription))

    def release(self, sub_id: int) -> None:
        """Stop pulling; no event of the subscription follows, but one whose `emit` is running."""
        self.hold(sub_id)
        self._subscriptions.pop(sub_id, None)

    def hold(self, sub_id: int) -> None:
        """Stop pulling until `resume` (rule 17). The subscription's resolved-ts stands, uncommitted rows are forgotten.

        An event whose `emit` is running may still come. Held already, or unknown: nothing happens.
        """
        subscription = self._subscriptions.get(sub_id)
        if subscription is None or subscription.locator is None:
            return
        subscription.locator.cancel()
        subscription.locator = None
        subscription.ranges.release()
        self._history.released(sub_id)
        for stream in self._streams.values():
            stream.release(sub_id)

    def resume(self, sub_id: int) -> None:
        """Pull again, from the subscription's resolved-ts; rows above that may repeat. Not held: nothing happens."""
        subscription = self._subscriptions.get(sub_id)
        if subscription is not None and subscription.locator is None:
            subscription.locator = self._start(self._locate(subscription))

    def resolved(self) -> dict[int, int]:
        """How far each subscription is, held ones too: sub_id -> resolved-ts."""
        return {sub_id: subscription.ranges.resolved_ts for sub_id, subscription in self._subscriptions.items()}

    def blocked(self) -> list[tuple[int, BlockedRegion]]:
        """Spans, and living transactions that hold them back, the lowest first; as the last looks found them."""
        return [
            (self._subscriptions[blocked.sub_id].span_id, blocked)
            for blocked in self._stuck.blocked()
            if blocked.sub_id in self._subscriptions
        ]

    def stopped(self) -> Stopped | None:
        """A store that sends nothing or not all, with the reason; None while no such store is known."""
        congested = sorted(self.congested(), key=lambda stopped: (stopped.reason != BEHIND, stopped.store_id))
        return self._stopped.first(self._clock.monotonic()) or next(iter(congested), None)

    def congested(self) -> list[Stopped]:
        """The stores that have taken no registrations for a while."""
        return [stopped for stream in self._streams.values() if (stopped := stream.stopped()) is not None]

    @property
    def backlog_bytes(self) -> int:
        """Bytes that stores have sent and that wait for `emit`. Holding subscriptions is what stops their growth."""
        return sum(stream.backlog_bytes for stream in self._streams.values())

    @property
    def pending_rows(self) -> int:
        """Rows that are prewritten and not yet committed, as the streams last counted them."""
        return sum(stream.pending_rows for stream in self._streams.values())

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        for subscription in self._subscriptions.values():
            subscription.ranges.check()
        for stream in self._streams.values():
            stream.check()

    async def data(self, sub_id: int, batch: pa.RecordBatch) -> None:
        """From a store stream."""
        subscription = self._subscriptions.get(sub_id)
        if subscription is not None and subscription.locator is not None:
            await self._count_and_emit(Data(sub_id, subscription.span_id, batch))

    async def _count_and_emit(self, data: Data) -> None:
        self.metrics.count(data.batch, data.bytes)
        await self._emit(data)

    def streams(self) -> int:
        """From a store stream that pulls."""
        return sum(stream.is_pulling for stream in self._streams.values()) or 1

    async def room(self) -> None:
        """From a store stream: it has more of a scan, or of a large transaction."""
        if self._room is not None:
            await self._room()

    def initialized(self, asks: list[Ask]) -> None:
        """From a store stream: these regions' scans are complete."""
        for ask in asks:
            self._history.initialized(ask)
            self._to_confirm.set()

    async def advanced(self, advances: list[tuple[Ask, int]]) -> None:
        """From a store stream: regions got on. At most one Resolved a subscription."""
        self.metrics.pending_rows = self.pending_rows
        for store_id in {ask.store_id for ask, _ in advances}:
            self._stopped.sends(store_id)
        await self._advance([(ask, ts) for ask, ts in advances if self._history.counts(ask, ts)])

    async def _advance(self, advances: list[tuple[Ask, int]]) -> None:
        touched = set()
        for ask, ts in advances:
            subscription = self._subscriptions.get(ask.sub_id)
            if subscription is not None:
                subscription.ranges.advance(ask.piece, ts)
                touched.add(subscription)
        for subscription in touched:
            resolved = subscription.ranges.take_resolved()
            if resolved is not None:
                await self._emit(Resolved(subscription.sub_id, resolved))

    async def _confirm(self) -> None:
        """What regions have resolved is believed after their scans have proved whole (rule 14)."""
        while True:
            await self._to_confirm.wait()
            self._to_confirm.clear()
            asked = self._history.waiting()
            try:
                safepoint = await self._pd.gc_safepoint()
            except (Transient, Unavailable):
                await self._clock.sleep(PD_DOWN_SECONDS)
                self._to_confirm.set()
                continue
            verdict = self._history.judge(asked, safepoint)
            for ask in verdict.lost:
                if ask.sub_id in self._subscriptions:
                    self._fail(self._subscriptions[ask.sub_id], lost_history(ask.checkpoint_ts, safepoint))
            await self._advance(verdict.advances)

    async def _unlock_stuck(self) -> None:
        """Finish what dead transactions left: nobody else does (docs/design/tikv.md, Stuck locks)."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                now_ts = await self._pd.tso()
            except (Transient, Unavailable):
                continue
            waits = {piece for stream in self._streams.values() for piece in stream.waits()}
            pieces = [
                (sub_id, piece)
                for sub_id, subscription in self._subscriptions.items()
                for piece in subscription.ranges.pieces
                if piece.locked and piece not in waits
            ]
            for sweep in self._stuck.look(pieces, self._clock.monotonic(), now_ts):
                await self._sweep(sweep)
            begun = {blocked.start_ts for blocked in self._stuck.blocked()}
            self.metrics.blocking_transactions = len(begun)
            self.metrics.blocking_s = (physical_ms(now_ts) - physical_ms(min(begun, default=now_ts))) / 1000

    async def _sweep(self, sweep: Sweep) -> None:
        start, end = decode_bytes(sweep.piece.start)[0], decode_bytes(sweep.piece.end)[0]
        try:
            swept = await self._locks.sweep(start, end, sweep.max_version)
        except (Transient, Unavailable, Refused, ProtocolViolation):
            self.metrics.errors["lock_sweep"] += 1
            return
        except (NeedsHuman, InvalidRequest) as error:
            subscription = self._subscriptions.get(sweep.sub_id)
            if subscription is not None:
                self._fail(subscription, error)
            return
        self.metrics.finished_locks += swept.finished
        resolved_ts = sweep.piece.resolved_ts
        living = [
            BlockedRegion(sweep.sub_id, resolved_ts, lock.lock_version, lock.key, lock.primary_lock, lock.lock_ttl)
            for lock in swept.living
        ]
        self._stuck.found(sweep, living)

    async def failed(self, ask: Ask, error: cdcpb_pb2.Error | ChangefeedError) -> None:
        """From a store stream: one region's registration is over."""
        self._history.over(ask)
        subscription = self._subscriptions.get(ask.sub_id)
        if subscription is None:
            return
        if isinstance(error, InvalidRequest):
            self._fail(subscription, error)
            return
        self.metrics.errors[_reason(error)] += 1
        if isinstance(error, cdcpb_pb2.Error):
            match reaction(error):
                case Fatal(fatal):
                    self._fail(subscription, fatal)
                    return
                case Leader(store_id):
                    subscription.leaders[ask.region_id] = store_id
                case Wait():  # with all others of that store, which decides when it is sent again
                    if subscription.locator is not None and subscription.ranges.has(ask.piece):
                        self._register(replace(ask, checkpoint_ts=ask.piece.resolved_ts))
                    return
        self._unlock(subscription, ask)

    async def lost(self, asks: list[Ask], error: ChangefeedError) -> None:
        """From a store stream: it broke, with all that it pulled."""
        self.metrics.errors["stream_lost"] += 1
        for store_id in {ask.store_id for ask in asks}:
            if isinstance(error, Refused):
                self._stopped.met(Stopped(store_id, REFUSED, str(error)), self._clock.monotonic())
            else:
                self._stopped.sends(store_id)
        for ask in asks:
            self._history.over(ask)
            subscription = self._subscriptions.get(ask.sub_id)
            if subscription is None:
                continue
            if isinstance(error, Transient | Refused | ProtocolViolation):
                # The stream's own pause is what spares the store. A region that waited longer with every loss would
                # be left alone for seconds when, after an election, PD knows its new leader.
                subscription.ranges.lose(ask.piece, self._clock.monotonic() + backoff(1, self._rng))
                subscription.changed.set()
            else:
                self._fail(subscription, error)

    def _fail(self, subscription: _Subscription, error: ChangefeedError) -> None:
        async def tell() -> None:
            await self._emit(SubscriptionFailed(subscription.sub_id, error))

        self.release(subscription.sub_id)
        self._start(tell())  # a task of its own: the stream that brought the error may be over with the subscription

    def _unlock(self, subscription: _Subscription, ask: Ask) -> None:
        own = backoff(ask.piece.failures + 1, self._rng)
        subscription.ranges.unlock(ask.piece, self._clock.monotonic() + own)
        subscription.changed.set()

    async def _locate(self, subscription: _Subscription) -> None:
        """Find and lock regions for every hole that is due, for as long as the subscription lives."""
        while subscription.copy is not None:
            await self._copy(subscription, subscription.copy)
        while True:
            subscription.changed.clear()
            for start, end in subscription.ranges.holes(self._clock.monotonic()):
                await self._fill(subscription, start, end)
            due = subscription.ranges.next_due()
            seconds = None if due is None else due - self._clock.monotonic()
            await until_set(subscription.changed, self._clock, seconds)

    async def _copy(self, subscription: _Subscription, copy: TableCopy) -> None:
        """Its rows as of the copy's ts; nothing else is pulled of it meanwhile."""

        async def take(batch: pa.RecordBatch) -> None:
            self._stopped.sends(READ)
            await self._count_and_emit(Data(subscription.sub_id, subscription.span_id, batch))

        async def whole(ts: int) -> None:
            pieces = subscription.ranges.pieces
            subscription.ranges = RangeLock(pieces[0].start, pieces[-1].end, ts)
            await self._emit(Resolved(subscription.sub_id, ts))

        try:
            await self._copies.run(copy, subscription.span_id, subscription.ranges.resolved_ts, take, whole)
            subscription.copy = None
        except (Transient, Unavailable, Refused) as error:
            self.metrics.errors["copy"] += 1
            if isinstance(error, Refused):
                self._stopped.met(Stopped(READ, REFUSED, str(error)), self._clock.monotonic())
            await self._clock.sleep(error.retry_after if isinstance(error, Transient) else PD_DOWN_SECONDS)
        except ChangefeedError as error:
            self._fail(subscription, error)
            await asyncio.sleep(0)  # it is released, and this task cancelled with it

    async def _fill(self, subscription: _Subscription, start: bytes, end: bytes) -> None:
        regions: Sequence[LocatedRegion] = []
        wait = 0.0
        try:
            regions = await self._pd.scan_regions(decode_bytes(start)[0], decode_bytes(end)[0])
        except Transient as error:
            wait = error.retry_after
        except Unavailable:
            # PD is down for longer: the owner, who needs it too, says when that is too long.
            wait = PD_DOWN_SECONDS
        for region in regions:
            store_id = subscription.leaders.pop(region.id, region.leader_store_id)
            until = min(region.end_key or end, end)
            if not store_id or max(start, region.start_key) >= until:
                continue
            for piece in subscription.ranges.lock(max(start, region.start_key), until):
                ask = Ask(
                    subscription.sub_id,
                    subscription.span_id,
                    piece.resolved_ts,
                    piece,
                    region.id,
                    region.conf_ver,
                    region.version,
                    store_id,
                )
                self._register(ask)
        own = backoff(subscription.ranges.failures(start, end) + 1, self._rng)
        subscription.ranges.postpone(start, end, self._clock.monotonic() + max(wait, own))

    def _register(self, ask: Ask) -> None:
        self._stream(ask.store_id).register(ask)
        self.metrics.registrations += 1

    def _stream(self, store_id: int) -> StoreStream:
        if store_id not in self._streams:
            stream = StoreStream(
                store_id, self._pd.cluster_id, self._pd, self, self._clock, self._scratch, self._gather_s, self._rng
            )
            self._streams[store_id] = stream
            self._start(stream.run())
        return self._streams[store_id]

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


def _reason(error: cdcpb_pb2.Error | ChangefeedError) -> str:
    if isinstance(error, Transient):
        return "unclear_order"
    if isinstance(error, ChangefeedError):
        return "protocol_violation"
    named = error.ListFields()
    return named[0][0].name if named else "unknown"
