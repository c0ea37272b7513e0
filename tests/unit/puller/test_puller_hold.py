"""Holding a subscription back and going on with it (rule 17), whatever its streams and its receiver are doing."""

from __future__ import annotations

import asyncio

import pytest
from changefeed.upstream.contract import Data, FeedEvent, Resolved
from changefeed.upstream.tikv.feed import store_stream
from changefeed.upstream.tikv.feed.range_lock import RangeLock
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.upstream.tikv.matching import matcher, spilled
from changefeed.wire import cdcpb_pb2 as cdcpb
from puller_fake_store import FakeRegion, FakeStore, FakeStream, row
from puller_memory_scratch import MemoryFile

ONE, TWO = FakeRegion(11, b"a", b"m"), FakeRegion(12, b"m", b"z")


class Seen:
    """What a subscription was given. `gate`: an emit of Data waits for it."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, bytes]] = []
        self.resolved: list[tuple[int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.changed = asyncio.Event()

    async def emit(self, event: FeedEvent) -> None:
        match event:
            case Data(sub_id, _, batch):
                self.waiting += 1
                self.changed.set()
                await self.gate.wait()
                self.waiting -= 1
                self.keys += [(sub_id, key) for key in batch["key"].to_pylist()]
            case Resolved(sub_id, ts):
                self.resolved.append((sub_id, ts))
        self.changed.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def eventually(condition) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to be")


async def patiently(condition) -> None:
    """For what threads do."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a thread sets no event
            await asyncio.sleep(0.001)


async def started(feed: SpanFeed, store: FakeStore, sub_id: int, regions: int = 1) -> tuple[FakeStream, list]:
    """Subscribe to [a, z); gives the stream and the registrations once these have come."""
    before = sum(len(stream.registered()) for stream in store.streams)
    feed.subscribe(sub_id, 70 + sub_id, b"a", b"z", 100)
    await store.until(lambda: store.streams and len(store.streams[-1].registered()) == before + regions)
    stream = store.streams[-1]
    return stream, stream.registered()[before:]


async def test_rule_17_held_subscription_is_deregistered_and_goes_on_from_its_resolved_ts() -> None:
    seen = Seen()
    async with FakeStore([ONE, TWO]) as store, SpanFeed(store, seen.emit) as feed:
        stream, (first, second) = await started(feed, store, 1, regions=2)
        for request in (first, second):
            stream.initialize(request)
        stream.rows(first, row(b"b", 150))
        stream.resolve(first, 160)
        stream.resolve(second, 170)
        await seen.until(lambda: seen.resolved == [(1, 160)])
        feed.hold(1)
        feed.hold(1)
        await store.until(stream.deregistered)
        assert feed.resolved() == {1: 160}
        stream.rows(first, row(b"c", 180))
        stream.resolve(first, 190)
        stream.resolve(second, 190)
        feed.subscribe(2, 72, b"a", b"m", 100)
        await store.until(lambda: len(stream.registered()) == 3)
        other = stream.registered()[-1]
        stream.initialize(other)
        stream.resolve(other, 200)
        await seen.until(lambda: (2, 200) in seen.resolved)
        assert seen.resolved == [(1, 160), (2, 200)]
        assert seen.keys == [(1, b"b")]
        feed.resume(1)
        feed.resume(1)
        await store.until(lambda: len(stream.registered()) == 5)
        again = stream.registered()[3:]
        assert sorted((request.region_id, request.checkpoint_ts) for request in again) == [(11, 160), (12, 170)]
        before = {(request.region_id, request.request_id) for request in (first, second, other)}
        assert {(request.region_id, request.request_id) for request in again}.isdisjoint(before), "not acknowledged yet"
        for request in again:
            stream.initialize(request)
            stream.resolve(request, 210)
        await seen.until(lambda: (1, 210) in seen.resolved)


async def test_rule_17_hold_reaches_the_store_while_the_receiver_waits() -> None:
    """The stream is read on and asked on: holding the one that waits is what makes room."""
    seen = Seen()
    async with FakeStore([FakeRegion(11, b"a", b"z")]) as store, SpanFeed(store, seen.emit) as feed:
        stream, (request,) = await started(feed, store, 1)
        stream.initialize(request)
        seen.gate.clear()
        stream.rows(request, row(b"b", 150))
        await seen.until(lambda: seen.waiting == 1)
        stream.rows(request, row(b"c", 160, b"x" * 1000))
        await eventually(lambda: feed.backlog_bytes >= 1000)
        feed.hold(1)
        await store.until(stream.deregistered)
        feed.resume(1)
        await store.until(lambda: len(stream.registered()) == 2)
        seen.gate.set()
        again = stream.registered()[1]
        assert again.checkpoint_ts == 100
        stream.initialize(again)
        stream.rows(again, row(b"b", 150), row(b"c", 160))
        stream.resolve(again, 170)
        await seen.until(lambda: seen.resolved == [(1, 170)])
        assert {key for _, key in seen.keys} == {b"b", b"c"}
        assert feed.backlog_bytes == 0


async def test_what_a_held_registration_still_says_counts_for_nothing() -> None:
    """Its resolved-ts comes after the resume, from a chunk that was read before the hold."""
    seen = Seen()
    async with FakeStore([FakeRegion(11, b"a", b"z")]) as store, SpanFeed(store, seen.emit) as feed:
        stream, (request,) = await started(feed, store, 1)
        stream.initialize(request)
        seen.gate.clear()
        stream.rows(request, row(b"b", 150))
        await seen.until(lambda: seen.waiting == 1)
        stream.resolve(request, 400)
        feed.hold(1)
        feed.resume(1)
        await store.until(lambda: len(stream.registered()) == 2)
        seen.gate.set()
        again = stream.registered()[1]
        stream.initialize(again)
        stream.resolve(again, 170)
        await seen.until(lambda: bool(seen.resolved))
        assert seen.resolved == [(1, 170)]


async def test_backlog_has_a_last_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_stream, "MAX_BACKLOG_BYTES", 100_000)
    monkeypatch.setattr(store_stream, "MAX_CHUNK_BYTES", 10_000)
    seen = Seen()
    async with FakeStore([FakeRegion(11, b"a", b"z")]) as store, SpanFeed(store, seen.emit) as feed:
        stream, (request,) = await started(feed, store, 1)
        stream.initialize(request)
        seen.gate.clear()
        keys = [b"b%03d" % number for number in range(200)]
        for key in keys:
            stream.rows(request, row(key, 150, b"x" * 2000))
        stream.resolve(request, 200)
        await eventually(lambda: feed.backlog_bytes > 100_000)
        for _ in range(100):
            await asyncio.sleep(0)
        assert feed.backlog_bytes < 105_000
        seen.gate.set()
        await seen.until(lambda: bool(seen.resolved))
        assert sorted(key for _, key in seen.keys) == keys


async def test_hold_of_what_is_unknown_or_released_does_nothing() -> None:
    seen = Seen()
    async with FakeStore([FakeRegion(11, b"a", b"z")]) as store, SpanFeed(store, seen.emit) as feed:
        feed.hold(9)
        feed.resume(9)
        stream, _ = await started(feed, store, 1)
        feed.release(1)
        feed.resume(1)
        await store.until(stream.deregistered)
        assert feed.resolved() == {}
        assert len(stream.registered()) == 1


def test_released_ranges_are_holes_whose_old_holders_change_nothing() -> None:
    ranges = RangeLock(b"a", b"z", 10)
    (left,), (right,) = ranges.lock(b"a", b"m"), ranges.lock(b"m", b"z")
    ranges.advance(left, 20)
    ranges.advance(right, 30)
    ranges.release()
    assert ranges.holes(0.0) == [(b"a", b"z")]
    (merged,) = ranges.lock(b"a", b"z")
    ranges.advance(left, 50)
    ranges.advance(right, 50)
    ranges.unlock(left, 9.0)
    assert (ranges.resolved_ts, merged.locked, ranges.next_due()) == (20, True, None)


class Rooms:
    """What the owner of a feed says of its memory. `gate`: more of a scan, or of a large transaction, waits for it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = 0

    async def room(self) -> None:
        self.asked += 1
        await self.gate.wait()


KEYS = [b"b%03d" % number for number in range(40)]


@pytest.fixture
def tiny_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "SPILL_BYTES", 0)
    monkeypatch.setattr(spilled, "BATCH_BYTES", 2_000)


async def committed(feed: SpanFeed, stream: FakeStream, request: cdcpb.ChangeDataRequest, rooms: Rooms) -> None:
    """A large transaction, and once it is matched, a commit and a resolved-ts above it, for which there is no room."""
    rooms.gate.set()
    stream.initialize(request)
    put = {"op_type": cdcpb.Event.Row.PUT, "start_ts": 140}
    stream.rows(
        request, *(cdcpb.Event.Row(type=cdcpb.Event.PREWRITE, key=key, value=bytes(200), **put) for key in KEYS)
    )
    await patiently(lambda: feed.pending_rows == len(KEYS))
    rooms.gate.clear()
    rooms.asked = 0
    stream.rows(request, cdcpb.Event.Row(type=cdcpb.Event.COMMIT, commit_ts=150, key=KEYS[0], **put))
    stream.resolve(request, 160)


@pytest.mark.usefixtures("tiny_memory")
async def test_rule_17_a_large_transaction_comes_as_there_is_room_and_its_resolved_ts_after_it() -> None:
    seen, rooms = Seen(), Rooms()
    everywhere = [FakeRegion(11, b"a", b"z")]
    async with (
        FakeStore(everywhere) as store,
        SpanFeed(store, seen.emit, scratch=MemoryFile, room=rooms.room) as feed,
    ):
        stream, (request,) = await started(feed, store, 1)
        await committed(feed, stream, request, rooms)
        await patiently(lambda: rooms.asked)
        await started(feed, store, 2)  # asks are sent meanwhile
        assert (seen.keys, seen.resolved) == ([], [])
        rooms.gate.set()
        await seen.until(lambda: seen.resolved == [(1, 160)])
        assert sorted(key for _, key in seen.keys) == KEYS
        assert rooms.asked > 4, "before each part"


async def test_rule_17_more_of_a_scan_is_taken_in_as_there_is_room() -> None:
    seen, rooms = Seen(), Rooms()
    async with (
        FakeStore([FakeRegion(11, b"a", b"z")]) as store,
        SpanFeed(store, seen.emit, room=rooms.room) as feed,
    ):
        stream, (request,) = await started(feed, store, 1)
        found = {"op_type": cdcpb.Event.Row.PUT, "start_ts": 140, "commit_ts": 150, "value": b"v"}
        stream.rows(request, *(cdcpb.Event.Row(type=cdcpb.Event.COMMITTED, key=key, **found) for key in KEYS))
        await patiently(lambda: rooms.asked)
        assert seen.keys == []
        rooms.gate.set()
        await patiently(lambda: len(seen.keys) == len(KEYS))
        stream.initialize(request)
        await patiently(lambda: not any(each._scanning for each in feed._streams.values()))
        asked = rooms.asked
        stream.resolve(request, 160)
        await seen.until(lambda: seen.resolved == [(1, 160)])
        assert rooms.asked == asked, "what comes after the scan waits for nothing"


@pytest.mark.usefixtures("tiny_memory")
async def test_rule_17_the_rest_of_a_large_transaction_does_not_come_once_it_is_held_and_is_pulled_again() -> None:
    seen, rooms = Seen(), Rooms()
    everywhere = [FakeRegion(11, b"a", b"z")]
    async with (
        FakeStore(everywhere) as store,
        SpanFeed(store, seen.emit, scratch=MemoryFile, room=rooms.room) as feed,
    ):
        stream, (request,) = await started(feed, store, 1)
        await committed(feed, stream, request, rooms)
        await patiently(lambda: rooms.asked)
        feed.hold(1)
        await store.until(stream.deregistered)
        rooms.gate.set()
        await patiently(lambda: feed.backlog_bytes == 0)
        assert (seen.keys, seen.resolved) == ([], [])
        feed.resume(1)
        await store.until(lambda: len(stream.registered()) == 2)
        again = stream.registered()[1]
        assert again.checkpoint_ts == 100
        await committed(feed, stream, again, rooms)
        rooms.gate.set()
        await seen.until(lambda: seen.resolved == [(1, 160)])
        assert sorted(key for _, key in seen.keys) == KEYS
