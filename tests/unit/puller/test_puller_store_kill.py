"""A killed store's regions are followed again soon after PD knows their new leaders, however long the election took.

The clock is the test's, so that seconds are exact; stores are fakes without a network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from changefeed.upstream.contract import FeedEvent, Resolved
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import errorpb_pb2 as errorpb
from puller_fake_store import FakeRegion, ManualClock

DEAD, ALIVE, FOLLOWER = 1, 2, 3
STEP = 0.05
#: RECONNECT_SECONDS, the first back-off, and what the clock's steps round up.
SOON = 1.0 + 0.05 + 4 * STEP


class FakeCall:
    """The client's end of a stream to a store that initializes and resolves what is registered with it."""

    def __init__(self, cluster: FakeCluster, store_id: int) -> None:
        self._cluster = cluster
        self._store_id = store_id
        self._messages: asyncio.Queue[bytes | BaseException] = asyncio.Queue()
        cluster.calls.append(self)

    async def read(self) -> bytes:
        if self._store_id == DEAD and self._cluster.is_down:
            raise broken()
        message = await self._messages.get()
        if isinstance(message, BaseException):
            raise message
        return message

    async def write(self, request: cdcpb.ChangeDataRequest) -> None:
        if self._store_id == DEAD and self._cluster.is_down:
            raise broken()
        self._cluster.registered.append((self._cluster.clock.now, self._store_id))
        if self._cluster.leaders[request.region_id] != self._store_id:
            leader = {"store_id": self._cluster.leaders[request.region_id], "id": 1}
            not_leader = errorpb.NotLeader(region_id=request.region_id, leader=leader)
            self._answer(request, cdcpb.Event(error=cdcpb.Error(not_leader=not_leader)))
            return
        initialized = cdcpb.Event.Entries(entries=[cdcpb.Event.Row(type=cdcpb.Event.INITIALIZED)])
        self._answer(request, cdcpb.Event(entries=initialized))
        resolved = cdcpb.ResolvedTs(regions=[request.region_id], ts=200, request_id=request.request_id)
        self._messages.put_nowait(cdcpb.ChangeDataEvent(resolved_ts=resolved).SerializeToString())

    def _answer(self, request: cdcpb.ChangeDataRequest, event: cdcpb.Event) -> None:
        event.region_id, event.request_id = request.region_id, request.request_id
        self._messages.put_nowait(cdcpb.ChangeDataEvent(events=[event]).SerializeToString())

    def die(self) -> None:
        self._messages.put_nowait(broken())

    def cancel(self) -> None:
        pass


def broken() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "killed")


class FakeCluster:
    """Two regions, as PD names their leaders and as stores know them; is a feed's Pd."""

    cluster_id = 7

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.is_down = False
        self.leaders = {11: DEAD, 12: DEAD}
        self.known = dict(self.leaders)  # to PD
        self.calls: list[FakeCall] = []
        self.registered: list[tuple[float, int]] = []

    def kill(self) -> None:
        self.is_down = True
        for call in self.calls:
            call.die()

    async def scan_regions(self, start: bytes, end: bytes, /) -> Sequence[Any]:
        regions = (FakeRegion(11, b"a", b"m", self.known[11]), FakeRegion(12, b"m", b"z", self.known[12]))
        return [region for region in regions if region.start < end and start < region.end]

    async def store_address(self, store_id: int) -> str:
        return str(store_id)

    def forget_store(self, store_id: int) -> None:
        pass

    def store_channel(self, address: str) -> Any:
        return FakeChannel(self, int(address))

    def lock_turn(self, store_id: int) -> asyncio.Semaphore:
        return asyncio.Semaphore()

    async def gc_safepoint(self) -> int:
        return 0

    async def tso(self) -> int:
        return 1


class FakeChannel:
    def __init__(self, cluster: FakeCluster, store_id: int) -> None:
        self._cluster = cluster
        self._store_id = store_id

    def stream_stream(self, method: str, request_serializer: object) -> Callable[..., FakeCall]:
        return lambda metadata: FakeCall(self._cluster, self._store_id)


@pytest.mark.parametrize("election_s", [9.0, 9.25, 9.5, 9.75, 10.0, 10.25, 10.5, 10.75])
async def test_its_regions_are_followed_again_soon_after_pd_knows_their_leaders(
    election_s: float,
) -> None:
    """The last of many losses must not have made them wait longer than the first."""
    clock = ManualClock(STEP)
    cluster = FakeCluster(clock)
    events: list[FeedEvent] = []

    async def emit(event: FeedEvent) -> None:
        events.append(event)

    async with SpanFeed(cluster, emit, clock) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        await clock.run_until(lambda: len(cluster.registered) == 2)
        await clock.run(1.0)
        cluster.kill()
        await clock.run(election_s)
        assert {store for _, store in cluster.registered} == {DEAD}
        cluster.leaders = {11: ALIVE, 12: ALIVE}
        cluster.known = {11: ALIVE, 12: FOLLOWER}  # which knows the leader
        elected = clock.now
        await clock.run_until(lambda: [store for _, store in cluster.registered].count(ALIVE) == 2)
        assert clock.now - elected <= SOON
        await clock.run(1.0)
        assert [event for event in events if isinstance(event, Resolved)] == [Resolved(1, 200)]


async def test_a_store_that_is_away_is_tried_once_a_second() -> None:
    """That is what spares it; each try takes all that waits."""
    clock = ManualClock(STEP)
    cluster = FakeCluster(clock)

    async def emit(event: FeedEvent) -> None:
        pass

    async with SpanFeed(cluster, emit, clock) as feed:
        feed.subscribe(1, 77, b"a", b"z", 100)
        await clock.run_until(lambda: len(cluster.registered) == 2)
        cluster.kill()
        before = len(cluster.calls)
        await clock.run(30.0)
        assert 20 <= len(cluster.calls) - before <= 31
