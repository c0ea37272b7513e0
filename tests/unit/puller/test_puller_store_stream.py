"""Silent streams, old stores, and every error event: no registration is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from changefeed.errors import ChangefeedError, InvalidRequest, InvalidSpec, ProtocolViolation, Unavailable
from changefeed.upstream.contract import Data, FeedEvent, Resolved, Stopped, SubscriptionFailed
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.upstream.tikv.feed.stopped_stores import REFUSED, StoppedStores
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import errorpb_pb2 as errorpb
from changefeed.wire import metapb_pb2 as metapb
from puller_fake_store import FakeRegion, FakeStore, FakeStream, ManualClock, row

ALL = FakeRegion(11, b"a", b"z")


class Seen:
    def __init__(self) -> None:
        self.events: list[FeedEvent] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.changed = asyncio.Event()

    async def emit(self, event: FeedEvent) -> None:
        self.events.append(event)
        self.changed.set()
        await self.gate.wait()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def first_registration(store: FakeStore) -> tuple[FakeStream, cdcpb.ChangeDataRequest]:
    await store.until(lambda: store.streams and store.streams[0].registered())
    return store.streams[0], store.streams[0].registered()[0]


# --- silence ---


async def test_stream_without_a_resolved_ts_for_twenty_seconds_is_opened_again() -> None:
    """A stalled stream brings no error and no end: nobody else would notice (flink-cdc 1631)."""
    seen, clock = Seen(), ManualClock()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        stream.initialize(request)
        stream.resolve(request, 150)
        await clock.run_until(lambda: seen.of(Resolved))
        await clock.run_until(lambda: len(store.streams) == 2 and store.streams[1].registered())
        (again,) = store.streams[1].registered()
        assert again.checkpoint_ts == 150
        assert feed.metrics.errors["stream_lost"] == 1


async def test_stream_whose_regions_are_blocked_is_not_silent() -> None:
    """A resolved-ts that stands still for a lock is told again and again."""
    seen, clock = Seen(), ManualClock()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        stream.initialize(request)
        until = clock.now + 100
        while clock.now < until:
            rows = len(seen.of(Data))
            stream.resolve(request, 150)
            stream.rows(request, row(b"b%d" % rows, 200 + rows))
            await clock.run_until(lambda rows=rows: len(seen.of(Data)) > rows)
            await clock.run(2.0)
        assert len(store.streams) == 1


async def test_rows_without_a_resolved_ts_are_silence() -> None:
    seen, clock = Seen(), ManualClock()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        stream.initialize(request)
        while len(store.streams) == 1:
            rows = len(seen.of(Data))
            assert rows < 100
            stream.rows(request, row(b"b%d" % rows, 200 + rows))
            await clock.run_until(lambda rows=rows: len(seen.of(Data)) > rows or len(store.streams) > 1)
            await clock.run(3.0)


async def test_receiver_that_waits_is_no_silence() -> None:
    seen, clock = Seen(), ManualClock()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        stream.initialize(request)
        stream.resolve(request, 140)
        await clock.run_until(lambda: seen.of(Resolved))
        seen.gate.clear()
        stream.rows(request, row(b"b", 150))
        await clock.run_until(lambda: seen.of(Data))
        await clock.run(100.0)
        seen.gate.set()
        await clock.run(10.0)
        assert len(store.streams) == 1


async def test_scan_may_wait_long_in_its_store_but_not_for_ever() -> None:
    seen, clock = Seen(), ManualClock(step=1.0)
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit, clock) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        await first_registration(store)
        await clock.run(250.0)
        assert len(store.streams) == 1
        await clock.run_until(lambda: len(store.streams) == 2)


# --- old stores ---


async def test_store_without_eventfeedv2_is_refused_and_asked_again_by_the_next_subscription() -> None:
    """`EventFeed` can't tell two pieces of one region apart: its resolved-ts name no request."""
    seen = Seen()
    async with FakeStore([ALL], old=True) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 71, b"a", b"m", 100)
        await seen.until(lambda: seen.of(SubscriptionFailed))
        (failed,) = seen.of(SubscriptionFailed)
        assert isinstance(failed.error, Unavailable)
        assert f"store 1 ({store.address}) is refused: no such method" in failed.error.message
        assert "upgrade TiKV to 7.5" in failed.error.next_step
        store.old = False  # it was upgraded
        feed.subscribe(2, 71, b"a", b"m", 100)
        stream, request = await first_registration(store)
        stream.initialize(request)
        stream.resolve(request, 200)
        await seen.until(lambda: Resolved(2, 200) in seen.events)
        assert len(seen.of(SubscriptionFailed)) == 1


# --- stores that refuse us ---


async def test_store_that_refuses_is_named_until_it_sends_again() -> None:
    """It may be mended meanwhile: nothing fails, and the reason is told instead of a lag alone."""
    seen = Seen()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, _ = await first_registration(store)
        assert feed.stopped() is None
        stream.end(grpc.StatusCode.UNAUTHENTICATED)
        await store.until(lambda: len(store.streams) == 2 and store.streams[1].registered())
        stopped = feed.stopped()
        assert stopped is not None
        assert (stopped.store_id, stopped.reason) == (1, "TikvRefuses")
        assert f"Store 1 at {store.address} does not let us in: the test says so." in stopped.message
        assert "security.cert-allowed-cn of TiKV" in stopped.message
        store.streams[1].initialize(store.streams[1].registered()[0])
        store.streams[1].resolve(store.streams[1].registered()[0], 200)
        await seen.until(lambda: Resolved(1, 200) in seen.events)
        assert feed.stopped() is None
        assert seen.of(SubscriptionFailed) == []


def test_store_that_nobody_asks_any_more_is_forgotten() -> None:
    """Its regions have other leaders; of several, the first is told."""
    stores = StoppedStores()
    one, two = (Stopped(store_id, REFUSED, "why") for store_id in (1, 2))
    stores.met(two, 10.0)
    stores.met(one, 11.0)
    assert stores.first(12.0) == one
    stores.met(two, 15.0)
    assert stores.first(31.0) == two
    assert stores.first(35.0) is None
    stores.met(one, 36.0)
    stores.sends(1)
    assert stores.first(36.0) is None


# --- our own requests ---


async def test_request_that_is_not_in_order_is_not_sent_and_ends_the_subscription() -> None:
    """A store would take it for another range than was meant; the other subscriptions go on."""
    seen = Seen()
    regions = [FakeRegion(11, b"a", b"m", version=0), FakeRegion(12, b"m", b"z")]
    async with FakeStore(regions) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 71, b"a", b"m", 100)
        feed.subscribe(2, 72, b"m", b"z", 100)
        await seen.until(lambda: seen.of(SubscriptionFailed))
        (failed,) = seen.of(SubscriptionFailed)
        assert (failed.sub_id, type(failed.error)) == (1, InvalidRequest)
        assert "version must be set, not 0" in failed.error.message
        stream, request = await first_registration(store)
        stream.initialize(request)
        stream.resolve(request, 150)
        await seen.until(lambda: Resolved(2, 150) in seen.events)
        assert [request.region_id for request in stream.registered()] == [12]


# --- errors ---


@pytest.mark.parametrize(
    "error",
    [
        {"not_leader": errorpb.NotLeader(region_id=11)},
        {"region_not_found": errorpb.RegionNotFound(region_id=11)},
        {"epoch_not_match": errorpb.EpochNotMatch()},
        {"epoch_not_match": errorpb.EpochNotMatch(current_regions=[metapb.Region(id=11), metapb.Region(id=12)])},
        {"server_is_busy": errorpb.ServerIsBusy(backoff_ms=30)},
        {"congested": cdcpb.Congested(region_id=11)},
        {},
    ],
    ids=["not_leader", "region_not_found", "merged", "split", "busy", "congested", "unknown"],
)
async def test_region_that_fails_is_registered_again_from_its_resolved_ts(error: dict[str, Any]) -> None:
    seen = Seen()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        stream.initialize(request)
        stream.resolve(request, 150)
        await seen.until(lambda: seen.of(Resolved))
        stream.error(request, **error)
        await store.until(lambda: len(stream.registered()) == 2)
        again = stream.registered()[1]
        assert again.checkpoint_ts == 150
        stream.initialize(again)
        stream.resolve(again, 160)
        await seen.until(lambda: Resolved(1, 160) in seen.events)


async def test_what_nobody_can_tell_apart_is_asked_for_again_and_the_store_told() -> None:
    """1. A large transaction writes a row again while its region is scanned. 2. It commits. 3. The next scan has it."""
    seen = Seen()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        for value in (b"new", b"old"):
            stream.rows(request, cdcpb.Event.Row(type=1, op_type=1, start_ts=150, key=b"k", value=value))
        stream.initialize(request)
        stream.resolve(request, 150)
        await seen.until(lambda: Resolved(1, 150) in seen.events)
        stream.rows(request, cdcpb.Event.Row(type=2, op_type=1, start_ts=150, commit_ts=200, key=b"k"))
        stream.resolve(request, 250)
        await store.until(lambda: len(stream.registered()) == 2 and stream.deregistered())
        again = stream.registered()[1]
        assert again.checkpoint_ts == 150
        assert again.request_id != stream.deregistered()[0].request_id == request.request_id
        stream.rows(again, row(b"k", 200, b"new"))
        stream.initialize(again)
        stream.resolve(again, 250)
        await seen.until(lambda: Resolved(1, 250) in seen.events)
        values = [value for data in seen.of(Data) for value in data.batch["value"].to_pylist()]
        assert values == [b"new"]
        assert feed.metrics.errors == {"unclear_order": 1}


async def test_region_goes_to_the_leader_that_the_error_names() -> None:
    seen = Seen()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        stream.error(request, not_leader=errorpb.NotLeader(region_id=11, leader=metapb.Peer(id=3, store_id=2)))
        await store.until(lambda: len(store.streams) == 2 and store.streams[1].registered())
        assert len(stream.registered()) == 1


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ({"duplicate_request": cdcpb.DuplicateRequest(region_id=11)}, ProtocolViolation, "registered twice"),
        ({"compatibility": cdcpb.Compatibility(required_version="9.9.9")}, Unavailable, "version 9.9.9"),
        ({"cluster_id_mismatch": cdcpb.ClusterIDMismatch(current=5, request=7)}, InvalidSpec, "cluster 5, PD said 7"),
    ],
)
async def test_error_that_trying_again_can_not_mend_fails_the_subscription(
    error: dict[str, Any], kind: type[ChangefeedError], said: str
) -> None:
    seen = Seen()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        stream.error(request, **error)
        await seen.until(lambda: seen.of(SubscriptionFailed))
        (failed,) = seen.of(SubscriptionFailed)
        assert isinstance(failed.error, kind)
        assert said in failed.error.message
        assert failed.error.next_step


async def test_merge_holds_the_resolved_ts_at_the_part_that_nobody_pulls() -> None:
    """The right half goes with the merge, the left one is still held by its old registration: no hole is passed, and
    the merged region is pulled for what is free only.
    """
    seen = Seen()
    left, right = FakeRegion(11, b"a", b"m"), FakeRegion(12, b"m", b"z")
    async with FakeStore([left, right]) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"b", b"y", 100)
        await store.until(lambda: store.streams and len(store.streams[0].registered()) == 2)
        stream = store.streams[0]
        of_left, of_right = stream.registered()
        for request, ts in ((of_left, 180), (of_right, 150)):
            stream.initialize(request)
            stream.resolve(request, ts)
        await seen.until(lambda: seen.of(Resolved))
        store.regions = [FakeRegion(11, b"a", b"z", version=2)]
        stream.error(of_right, epoch_not_match=errorpb.EpochNotMatch())
        stream.resolve(of_left, 400)
        await store.until(lambda: len(stream.registered()) == 3)
        merged = stream.registered()[2]
        assert (merged.region_id, merged.checkpoint_ts) == (11, 150)
        assert (merged.start_key, merged.end_key) == (of_right.start_key, of_right.end_key)
        assert feed.resolved() == {1: 150}
        stream.error(of_left, epoch_not_match=errorpb.EpochNotMatch())
        await store.until(lambda: len(stream.registered()) == 4)
        rest = stream.registered()[3]
        assert (rest.region_id, rest.checkpoint_ts, rest.end_key) == (11, 400, of_left.end_key)
        assert rest.request_id != merged.request_id
        stream.initialize(merged)
        stream.resolve(merged, 500)
        await seen.until(lambda: Resolved(1, 400) in seen.events)
        stream.initialize(rest)
        stream.resolve(rest, 450)
        await seen.until(lambda: Resolved(1, 450) in seen.events)
        assert [event.ts for event in seen.of(Resolved)] == [150, 400, 450]


async def test_stream_that_breaks_is_opened_again() -> None:
    seen = Seen()
    async with FakeStore([ALL]) as store, SpanFeed(store, seen.emit) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        stream, request = await first_registration(store)
        stream.initialize(request)
        stream.resolve(request, 150)
        await seen.until(lambda: seen.of(Resolved))
        stream.end(grpc.StatusCode.UNKNOWN)
        await store.until(lambda: len(store.streams) == 2 and store.streams[1].registered())
        assert store.streams[1].registered()[0].checkpoint_ts == 150
