"""A store that turns registrations away is asked rarely, named, and used again at once (feed/congestion)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from changefeed.upstream.contract import Data, FeedEvent, Resolved
from changefeed.upstream.tikv.feed import store_stream
from changefeed.upstream.tikv.feed.congestion import STEP_SECONDS, Congestion
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.upstream.tikv.feed.stopped_stores import BEHIND, BUSY, CONGESTED
from changefeed.upstream.tikv.feed.store_stream import MAX_SCANS
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import errorpb_pb2 as errorpb
from changefeed.wire import metapb_pb2 as metapb
from puller_fake_store import FakeRegion, FakeStore, FakeStream, ManualClock, row

FULL = {"congested": cdcpb.Congested(region_id=1)}
MANY_SCANS = {"server_is_busy": errorpb.ServerIsBusy(reason="too many pending incremental scans")}


class Store:
    """A store's congestion, and the registrations that are sent to it."""

    def __init__(self, seed: int = 1) -> None:
        self.congestion = Congestion(16, random.Random(seed))
        self.now = 100.0
        self.sent = 0

    def send(self) -> list[int]:
        """All that may go now."""
        went = []
        while len(went) < 16 and self.congestion.may_go(self.now):
            self.sent += 1
            went.append(self.sent)
            self.congestion.gone(self.sent, self.now)
        return went

    def turn_away(self, regs: list[int], at_least: float = 0.0) -> None:
        for reg in regs:
            self.congestion.turned_away(self.now, at_least)
            self.congestion.ended(reg)

    def wait(self) -> float:
        """Until the next moment at which something may go; the seconds."""
        at = self.congestion.next_look(self.now)
        assert at is not None
        waited, self.now = at - self.now, at
        return waited


# --- the scenarios of upstream/tikv/feed/congestion, by their numbers ---


def test_1_2_what_is_turned_away_together_waits_together_and_one_goes_first() -> None:
    store = Store()
    assert len(store.send()) == 16
    store.turn_away(list(range(1, 101)))
    assert store.send() == []
    assert 0.125 <= store.wait() <= 0.25
    assert len(store.send()) == 1


@pytest.mark.parametrize("seed", range(5))
def test_3_the_wait_doubles_to_half_a_minute_with_jitter(seed: int) -> None:
    store = Store(seed)
    store.turn_away(store.send())
    waits = []
    for _ in range(12):
        waits.append(store.wait())
        store.turn_away(store.send())
    wholes = [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30]
    assert all(whole / 2 <= wait <= whole for wait, whole in zip(waits, wholes, strict=True))
    assert len(set(waits[-5:])) == 5, "clients that were turned away together do not come together again"


def test_4_8_a_store_with_room_is_full_again_in_five_steps_and_the_next_wait_is_short() -> None:
    store = Store()
    for _ in range(8):
        store.turn_away(store.send())
        store.wait()
    steps = []
    while store.congestion.since is not None:
        went = store.send()
        steps.append(len(went))
        for reg in went:
            store.congestion.complete(reg, store.now)
    assert steps == [1, 2, 4, 8]
    assert len(store.send()) == 16
    store.turn_away([99])
    assert store.wait() <= 0.25


def test_5_whoever_is_turned_away_on_the_way_up_makes_the_wait_go_on_where_it_was() -> None:
    store = Store()
    for _ in range(5):
        store.turn_away(store.send())
        store.wait()
    (first,) = store.send()
    store.congestion.complete(first, store.now)
    two = store.send()
    assert len(two) == 2
    store.turn_away(two)
    assert 4 <= store.wait() <= 8
    assert len(store.send()) == 1


def test_6_the_next_goes_at_once_when_the_first_is_over_otherwise() -> None:
    store = Store()
    store.turn_away(store.send())
    store.wait()
    (first,) = store.send()
    assert store.send() == []
    store.congestion.ended(first)
    assert len(store.send()) == 1


def test_7_more_go_while_a_long_scan_is_not_turned_away() -> None:
    store = Store()
    store.turn_away(store.send())
    store.wait()
    assert len(store.send()) == 1
    assert store.wait() == STEP_SECONDS
    assert len(store.send()) == 1


def test_8_it_is_over_when_nothing_waits_any_more() -> None:
    store = Store()
    store.turn_away(store.send())
    store.congestion.nothing_waits(store.now)
    assert store.congestion.since == 100.0, "what comes back at once, as after a hold, waits still"
    store.wait()
    (first,) = store.send()
    store.congestion.nothing_waits(store.now)
    assert store.congestion.since == 100.0
    store.congestion.ended(first)
    store.congestion.nothing_waits(store.now)
    assert store.congestion.since == 100.0, "its region has moved, and is not back yet"
    (second,) = store.send()
    store.congestion.complete(second, store.now)
    store.congestion.nothing_waits(store.now)
    assert store.congestion.since is None


def test_8_it_is_over_when_nothing_was_wanted_for_a_minute() -> None:
    store = Store()
    for _ in range(8):
        store.turn_away(store.send())
        store.wait()
    store.now += 59.0
    assert len(store.send()) == 1
    store.turn_away([store.sent])
    assert store.wait() >= 15
    store.now += 61.0
    assert len(store.send()) == 16
    store.turn_away([store.sent])
    assert store.congestion.since == store.now
    assert store.wait() <= 0.25


def test_9_the_store_may_say_how_long() -> None:
    store = Store()
    store.turn_away(store.send(), at_least=7.0)
    store.turn_away([20], at_least=3.0)
    assert store.wait() == 7.0


def test_10_a_stream_that_breaks_takes_along_what_was_tried_but_not_the_wait() -> None:
    store = Store()
    store.turn_away(store.send())
    store.congestion.lost()
    assert store.send() == []
    store.wait()
    store.send()
    store.congestion.lost()
    assert len(store.send()) == 1


# --- the shell ---


class CountingStore(FakeStore):
    lookups = 0

    async def scan_regions(self, start: bytes, end: bytes, /) -> list[FakeRegion]:
        self.lookups += 1
        return await super().scan_regions(start, end)


class Seen:
    def __init__(self) -> None:
        self.resolved: dict[int, int] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def emit(self, event: FeedEvent) -> None:
        if isinstance(event, Resolved):
            self.resolved[event.sub_id] = event.ts
        await self.gate.wait()


def bounds(number: int) -> tuple[bytes, bytes]:
    return b"%03d" % number, b"%03d" % (number + 1)


REGIONS = [FakeRegion(100 + number, *bounds(number)) for number in range(40)]


async def all_registered(clock: ManualClock, store: FakeStore, count: int = 40) -> FakeStream:
    """With their scans complete and something resolved."""
    answered = 0
    while answered < count:
        await clock.run_until(lambda n=answered: store.streams and len(store.streams[0].registered()) > n)
        for request in store.streams[0].registered()[answered:]:
            store.streams[0].initialize(request)
            store.streams[0].resolve(request, 150)
            answered += 1
    return store.streams[0]


@pytest.mark.parametrize(("error", "reason"), [(FULL, CONGESTED), (MANY_SCANS, BUSY)], ids=["congested", "busy"])
async def test_store_whose_quota_another_client_holds_is_not_hammered(error: dict[str, Any], reason: str) -> None:
    """Each registration costs the store a scan, and each lookup PD a call."""
    seen, clock = Seen(), ManualClock()
    async with CountingStore(REGIONS) as store, SpanFeed(store, seen.emit, clock, random.Random(1)) as feed:
        feed.subscribe(1, 71, b"000", b"020", 100)
        feed.subscribe(2, 72, b"020", b"040", 100)
        stream = await all_registered(clock, store)
        await clock.run_until(lambda: seen.resolved == {1: 150, 2: 150})
        lookups, began = store.lookups, clock.now
        for request in stream.registered():
            stream.error(request, **error)
        tries = 0
        named_after = None
        while clock.now < began + 300:
            await clock.run(1.0)
            for request in stream.registered()[40 + tries :]:
                assert request.checkpoint_ts == 150
                stream.error(request, **error)
                tries += 1
            if named_after is None and feed.stopped():
                named_after = clock.now - began
        assert tries <= 8 + 300 / 15, "a store is tried every 15 to 30 s after the first half a minute"
        assert tries > 10
        assert store.lookups == lookups
        assert named_after is not None
        assert named_after < 60
        stopped = feed.stopped()
        assert stopped is not None
        assert (stopped.store_id, stopped.reason) == (1, reason)
        assert stopped.message.startswith("Store 1 is ")
        assert len(feed.congested()) == 1
        # There is room again: after one try all are back, as many at a time as ever.
        tried = len(stream.registered())
        await clock.run_until(lambda: len(stream.registered()) > tried)
        recovering = clock.now
        while len(seen.resolved) < 2 or min(seen.resolved.values()) < 200:
            for request in stream.registered()[tried:]:
                stream.initialize(request)
                stream.resolve(request, 200)
                tried += 1
            await clock.run(0.1)
            assert len(stream.registered()) - tried <= MAX_SCANS
        assert clock.now - recovering < 10
        assert feed.stopped() is None
        assert len(store.streams) == 1


async def test_nobody_looks_for_room_while_as_many_scans_run_as_may() -> None:
    """The probe takes the last place, and its scan is long: there is nothing to look for before one is complete."""

    class Patient(ManualClock):
        at_once = 0

        async def sleep(self, seconds: float) -> None:
            self.at_once += seconds <= 0
            await super().sleep(seconds)

    seen, clock = Seen(), Patient()
    async with FakeStore(REGIONS) as store, SpanFeed(store, seen.emit, clock, random.Random(1)) as feed:
        feed.subscribe(1, 71, b"000", b"040", 100)
        await clock.run_until(lambda: store.streams and len(store.streams[0].registered()) == MAX_SCANS)
        stream = store.streams[0]
        stream.error(stream.registered()[0], **FULL)
        await clock.run_until(lambda: len(stream.registered()) == MAX_SCANS + 1)
        before = clock.at_once
        await clock.run(8.0)
        assert clock.at_once == before
        assert len(stream.registered()) == MAX_SCANS + 1
        stream.initialize(stream.registered()[1])
        await clock.run_until(lambda: len(stream.registered()) == MAX_SCANS + 2)


async def test_regions_that_a_store_goes_on_with_are_no_part_of_it() -> None:
    seen, clock = Seen(), ManualClock()
    async with FakeStore(REGIONS[:2]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 71, *bounds(0), 100)
        feed.subscribe(2, 72, *bounds(1), 100)
        stream = await all_registered(clock, store, 2)
        first, second = sorted(stream.registered(), key=lambda request: request.region_id)
        stream.error(first, **FULL)
        stream.resolve(second, 300)
        await clock.run_until(lambda: seen.resolved.get(2) == 300)
        await clock.run(0.5)
        again = stream.registered()[2:]
        assert [request.region_id for request in again] == [first.region_id]


async def test_the_next_time_begins_with_a_short_wait_and_without_a_name() -> None:
    seen, clock = Seen(), ManualClock()
    async with FakeStore(REGIONS[:1]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 71, *bounds(0), 100)
        stream = await all_registered(clock, store, 1)
        for tried in range(1, 11):
            stream.error(stream.registered()[-1], **FULL)
            await clock.run_until(lambda n=tried: len(stream.registered()) > n)
        assert feed.stopped() is not None
        stream.initialize(stream.registered()[-1])
        stream.resolve(stream.registered()[-1], 200)
        await clock.run_until(lambda: seen.resolved == {1: 200})
        assert feed.stopped() is None
        for _ in range(6):
            stream.resolve(stream.registered()[-1], 200)
            await clock.run(10.0)
        stream.error(stream.registered()[-1], **FULL)
        before = clock.now
        await clock.run_until(lambda: len(stream.registered()) == 12)
        assert clock.now - before < 1
        assert feed.stopped() is None


async def test_region_that_moved_meanwhile_is_found_and_the_next_tried_at_once() -> None:
    seen, clock = Seen(), ManualClock()
    async with FakeStore(REGIONS[:3]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 71, b"000", b"003", 100)
        stream = await all_registered(clock, store, 3)
        for request in stream.registered():
            stream.error(request, **FULL)
        await clock.run_until(lambda: len(stream.registered()) == 4)
        moved = stream.registered()[3]
        leader = metapb.Peer(id=9, store_id=2)
        stream.error(moved, not_leader=errorpb.NotLeader(region_id=moved.region_id, leader=leader))
        before = clock.now
        await clock.run_until(lambda: len(stream.registered()) == 5 and len(store.streams) == 2)
        await clock.run_until(lambda: store.streams[1].registered())
        assert store.streams[1].registered()[0].region_id == moved.region_id
        assert stream.registered()[4].region_id != moved.region_id
        assert clock.now - before < 2


async def test_subscription_that_is_held_meanwhile_is_pulled_once_when_it_goes_on() -> None:
    seen, clock = Seen(), ManualClock()
    async with FakeStore(REGIONS[:1]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 71, *bounds(0), 100)
        stream = await all_registered(clock, store, 1)
        await clock.run_until(lambda: seen.resolved == {1: 150})
        stream.error(stream.registered()[0], **FULL)
        await clock.run_until(lambda: feed.metrics.errors["congested"])
        feed.hold(1)
        await clock.run(5.0)
        assert len(stream.registered()) == 1
        feed.resume(1)
        await clock.run_until(lambda: len(stream.registered()) == 2)
        again = stream.registered()[1]
        assert again.checkpoint_ts == 150
        stream.initialize(again)
        stream.resolve(again, 200)
        await clock.run_until(lambda: seen.resolved == {1: 200})
        await clock.run(40.0)
        assert len(stream.registered()) == 2


async def test_the_next_goes_at_once_when_the_first_is_held() -> None:
    seen, clock = Seen(), ManualClock()
    async with FakeStore(REGIONS[:2]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 71, *bounds(0), 100)
        feed.subscribe(2, 72, *bounds(1), 100)
        stream = await all_registered(clock, store, 2)
        for request in stream.registered():
            stream.error(request, **FULL)
        await clock.run_until(lambda: len(stream.registered()) == 3)
        first = stream.registered()[2]
        feed.hold(1 if first.start_key == REGIONS[0].start_key else 2)
        before = clock.now
        await clock.run_until(lambda: len(stream.registered()) == 4)
        assert stream.registered()[3].start_key != first.start_key
        assert clock.now - before < 1


async def test_registration_of_before_a_hold_is_not_made_again() -> None:
    """Its rows make the task hold the subscription, and go on with it, before the error behind them is seen."""
    clock, resolved = ManualClock(), []

    async def emit(event: FeedEvent) -> None:
        if isinstance(event, Data):
            feed.hold(1)
            feed.resume(1)
        elif isinstance(event, Resolved):
            resolved.append(event.ts)

    async with FakeStore(REGIONS[:1]) as store, SpanFeed(store, emit, clock) as feed:
        feed.subscribe(1, 71, *bounds(0), 100)
        stream = await all_registered(clock, store, 1)
        await clock.run_until(lambda: resolved == [150])
        (request,) = stream.registered()
        names = {"region_id": request.region_id, "request_id": request.request_id}
        stream.send(
            cdcpb.Event(**names, entries=cdcpb.Event.Entries(entries=[row(b"000", 200)])),
            cdcpb.Event(**names, error=cdcpb.Error(**FULL)),
        )
        await clock.run_until(lambda: len(stream.registered()) == 2)
        for tried in range(1, 5):
            for again in stream.registered()[tried:]:
                stream.initialize(again)
            await clock.run(10.0)
        assert len(stream.registered()) == 2, "the same key would be pulled twice at once"


async def test_our_own_slow_reading_is_not_blamed_on_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_stream, "MAX_BACKLOG_BYTES", 100)
    seen, clock = Seen(), ManualClock()
    async with FakeStore(REGIONS[:1]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 71, *bounds(0), 100)
        stream = await all_registered(clock, store, 1)
        await clock.run_until(lambda: seen.resolved)
        seen.gate.clear()
        for ts in range(200, 205):
            stream.rows(stream.registered()[0], row(b"000", ts, b"v" * 100))
            await clock.run(1.0)
        stream.error(stream.registered()[0], **FULL)
        seen.gate.set()
        tries = 1
        while feed.stopped() is None:
            await clock.run(0.5)
            for request in stream.registered()[tries:]:
                stream.error(request, **FULL)
                tries += 1
            assert clock.now < 60
        stopped = feed.stopped()
        assert stopped is not None
        assert stopped.reason == BEHIND
        assert "this changefeed reads what it is sent more slowly" in stopped.message
        assert "another client" not in stopped.message


async def test_locks_of_a_region_that_only_waits_are_not_swept() -> None:
    """Nothing holds its resolved-ts back but the store: to look for locks would load it more."""
    seen, clock = Seen(), ManualClock()

    class Ahead(FakeStore):
        async def tso(self) -> int:
            return 1 << 50

    async with Ahead(REGIONS[:2]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 71, b"000", b"002", 100)
        stream = await all_registered(clock, store, 2)
        for request in stream.registered():
            stream.error(request, server_is_busy=errorpb.ServerIsBusy(backoff_ms=60_000))
        await clock.run(1.0)
        before = feed.metrics.errors["lock_sweep"]
        await clock.run(50.0)
        assert feed.metrics.errors["lock_sweep"] == before
