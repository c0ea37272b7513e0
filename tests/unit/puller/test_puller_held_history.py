"""Rule 14: what a registration has resolved counts only when its scan is known to have seen whole history."""

from __future__ import annotations

import asyncio

from changefeed.clock import SystemClock
from changefeed.errors import NeedsHuman, Transient
from changefeed.upstream.contract import Data, FeedEvent, Resolved, SubscriptionFailed
from changefeed.upstream.tikv.feed.held_history import HeldHistory
from changefeed.upstream.tikv.feed.range_lock import LockPart
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.upstream.tikv.feed.store_stream import Ask
from changefeed.wire import cdcpb_pb2 as cdcpb
from puller_fake_store import FakeRegion, FakeStore, FakeStream

START_TS = 100


class Seen:
    def __init__(self) -> None:
        self.events: list[FeedEvent] = []
        self.changed = asyncio.Event()

    async def emit(self, event: FeedEvent) -> None:
        self.events.append(event)
        self.changed.set()

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def scanning(feed: SpanFeed, store: FakeStore, sub_id: int = 1) -> tuple[FakeStream, cdcpb.ChangeDataRequest]:
    feed.subscribe(sub_id, 77, b"a", b"z", START_TS)
    await store.until(lambda: store.streams and len(store.streams[-1].registered()) == sub_id)
    return store.streams[-1], store.streams[-1].registered()[-1]


def complete(stream: FakeStream, request: cdcpb.ChangeDataRequest, ts: int) -> None:
    row = cdcpb.Event.Row(
        type=cdcpb.Event.COMMITTED,
        op_type=cdcpb.Event.Row.PUT,
        start_ts=ts - 2,
        commit_ts=ts - 1,
        key=b"k",
        value=b"v",
    )
    stream.rows(request, row)
    stream.initialize(request)
    stream.resolve(request, ts)


async def test_rule_14_safepoint_that_passed_the_start_during_the_scan_fails_the_subscription() -> None:
    seen = Seen()
    async with FakeStore([FakeRegion(11, b"a", b"z")]) as store, SpanFeed(store, seen.emit) as feed:
        stream, request = await scanning(feed, store)
        store.safe_point = START_TS + 1
        complete(stream, request, 200)
        await seen.until(lambda: seen.of(SubscriptionFailed))
        (failed,) = seen.of(SubscriptionFailed)
        assert isinstance(failed.error, NeedsHuman)
        assert failed.error.message.startswith(f"SnapshotLostByGC: the changes since {START_TS} ")
        assert str(store.safe_point) in failed.error.message
        assert "new changefeed" in failed.error.next_step
        assert seen.of(Resolved) == []
        assert feed.resolved() == {}


async def test_rule_14_nothing_is_resolved_before_a_read_that_began_after_initialized() -> None:
    """The first read began before the second region's INITIALIZED: it says nothing about that one."""
    seen = Seen()
    regions = [FakeRegion(11, b"a", b"m"), FakeRegion(12, b"m", b"z")]
    async with FakeStore(regions) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"a", b"z", START_TS)
        await store.until(lambda: store.streams and len(store.streams[-1].registered()) == 2)
        stream = store.streams[-1]
        first, second = stream.registered()
        store.safe_point = START_TS
        store.safe_point_gate.clear()
        complete(stream, first, 200)
        await store.until(lambda: store.safe_point_reads == 1)
        complete(stream, second, 300)
        await seen.until(lambda: len(seen.of(Data)) == 2)
        store.safe_point = START_TS + 1
        assert seen.of(Resolved) == []
        store.safe_point_gate.set()
        await seen.until(lambda: seen.of(SubscriptionFailed))
        assert store.safe_point_reads == 2
        assert seen.of(Resolved) == []


async def test_rule_14_one_read_confirms_many_registrations() -> None:
    seen = Seen()
    regions = [FakeRegion(number, b"%02d" % number, b"%02d" % (number + 1)) for number in range(10, 18)]
    async with FakeStore(regions) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"10", b"18", START_TS)
        await store.until(lambda: store.streams and len(store.streams[-1].registered()) == 8)
        stream = store.streams[-1]
        store.safe_point = START_TS
        for request in stream.registered():
            complete(stream, request, 200)
        await seen.until(lambda: seen.of(Resolved))
        assert seen.of(Resolved) == [Resolved(1, 200)]
        assert store.safe_point_reads < 8
        stream.resolve(stream.registered()[0], 300)
        for request in stream.registered()[1:]:
            stream.resolve(request, 400)
        reads = store.safe_point_reads
        await seen.until(lambda: Resolved(1, 300) in seen.events)
        assert store.safe_point_reads == reads


async def test_rule_14_pd_that_does_not_answer_holds_the_resolved_ts_back() -> None:
    class Down(FakeStore):
        answers = 3

        async def gc_safepoint(self) -> int:
            self.answers -= 1
            if self.answers > 0:
                raise Transient("PD is away.")
            return await super().gc_safepoint()

    class Impatient(SystemClock):
        """A real time, in which nothing is silent for long, however busy the machine."""

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0.001)

    seen = Seen()
    async with Down([FakeRegion(11, b"a", b"z")]) as store, SpanFeed(store, seen.emit, Impatient()) as feed:
        stream, request = await scanning(feed, store)
        complete(stream, request, 200)
        await seen.until(lambda: seen.of(Resolved))
        assert store.answers == 0


async def test_rule_14_each_new_registration_is_asked_about() -> None:
    """After a lost stream the scan begins again, at the resolved-ts: that is what GC must not have passed."""
    seen = Seen()
    async with FakeStore([FakeRegion(11, b"a", b"z")]) as store, SpanFeed(store, seen.emit) as feed:
        stream, request = await scanning(feed, store)
        complete(stream, request, 200)
        await seen.until(lambda: seen.of(Resolved))
        store.safe_point = 150  # above the start, below what is resolved: no harm
        stream.error(request, region_not_found={"region_id": 11})
        await store.until(lambda: len(stream.registered()) == 2)
        again = stream.registered()[-1]
        assert again.checkpoint_ts == 200
        complete(stream, again, 300)
        await seen.until(lambda: Resolved(1, 300) in seen.events)
        store.safe_point = 301
        stream.error(again, region_not_found={"region_id": 11})
        await store.until(lambda: len(stream.registered()) == 3)
        complete(stream, stream.registered()[-1], 400)
        await seen.until(lambda: seen.of(SubscriptionFailed))
        assert Resolved(1, 400) not in seen.events


def test_rule_14_all_that_is_resolved_before_the_verdict_waits_for_it() -> None:
    """The stream says 200, then 300, while the read of the safepoint is under way."""
    piece = LockPart(b"a", b"z", START_TS, locked=True)
    history, ask = HeldHistory(), Ask(1, 77, START_TS, piece, 11, 1, 1, 1)
    history.initialized(ask)
    assert not history.counts(ask, 200)
    assert not history.counts(ask, 300)
    assert history.judge([ask], START_TS).advances == [(ask, 300)]
    assert history.counts(ask, 400)
