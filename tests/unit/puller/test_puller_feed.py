"""SpanFeed against the development cluster: what was written is what comes, whatever happens to regions and streams."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from changefeed.errors import InvalidSpec, Unavailable
from changefeed.model.rows import RAW_SCHEMA
from changefeed.upstream.contract import Data, FeedEvent, Resolved, SubscriptionFailed
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.feed import store_stream
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.upstream.tikv.feed.stopped_stores import CONGESTED
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op

DEADLINE = 30.0
START, END = b"t\x80\0\0\0\0\0\0\x09_r", b"t\x80\0\0\0\0\0\0\x09_s"


def key(number: int) -> bytes:
    return START + (number | 1 << 63).to_bytes(8, "big")


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=3, min_ts_interval=0.05) as running:
        yield running


class Written:
    """What transactions committed, as the cluster's own client knows it: (key, commit_ts) -> (start_ts, op, value)."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        self.rows: dict[tuple[bytes, int], tuple[int, int, bytes]] = {}
        self.present: set[bytes] = set()

    def transaction(self, keys: list[bytes], delete: bool = False) -> int:
        """Prewrite and commit, key by key; gives the commit ts."""
        start_ts = self.cluster.oracle.next()
        value = b"%d" % start_ts
        mutations = [Mutation(Op.DELETE, k) if delete else Mutation(Op.PUT, k, value) for k in keys]
        for mutation in mutations:
            self.cluster.store.prewrite([mutation], keys[0], start_ts)
        commit_ts = self.cluster.oracle.next()
        for k in keys:
            self.cluster.store.commit([k], start_ts, commit_ts)
            self.note(k, start_ts, commit_ts, delete, value)
        return commit_ts

    def note(self, k: bytes, start_ts: int, commit_ts: int, delete: bool, value: bytes) -> None:
        op = 0 if delete else 1 if k in self.present else 2
        if not (delete and k not in self.present):
            self.rows[k, commit_ts] = (start_ts, op, b"" if delete else value)
        (self.present.discard if delete else self.present.add)(k)


class Received:
    """What a subscription was given; a row that comes twice has to be the same."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, int], tuple[int, int, bytes]] = {}
        self.resolved: dict[int, int] = {}
        self.failed: list[SubscriptionFailed] = []
        self.changed = asyncio.Event()

    async def emit(self, event: FeedEvent) -> None:
        match event:
            case Data(sub_id, span_id, batch):
                assert batch.schema == RAW_SCHEMA
                assert set(batch.column("span_id").to_pylist()) == {span_id}
                for row in batch.to_pylist():
                    name = (row["key"], row["commit_ts"])
                    content = (row["start_ts"], row["op"], row["value"])
                    assert self.rows.setdefault(name, content) == content
                    assert row["commit_ts"] > self.resolved.get(sub_id, 0) or name in self.rows
            case Resolved(sub_id, ts):
                assert ts > self.resolved.get(sub_id, 0)
                self.resolved[sub_id] = ts
            case SubscriptionFailed():
                self.failed.append(event)
        self.changed.set()

    async def until_resolved(self, sub_id: int, ts: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while self.resolved.get(sub_id, 0) < ts:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def feeding(cluster: DevCluster) -> AsyncIterator[tuple[SpanFeed, Received]]:
    pd = await PdClient.connect([cluster.pd_address])
    received = Received()
    try:
        async with SpanFeed(pd, received.emit, rng=random.Random(1)) as feed:
            yield feed, received
    finally:
        await pd.close()


def below(rows: dict[tuple[bytes, int], tuple[int, int, bytes]], ts: int) -> dict[object, object]:
    return {name: row for name, row in rows.items() if name[1] <= ts}


async def test_rows_written_before_and_after_the_subscription_come_once_resolved(cluster: DevCluster) -> None:
    written = Written(cluster)
    written.transaction([key(1), key(2)])
    start_ts = cluster.oracle.next()
    later = Written(cluster)
    later.present = written.present
    later.transaction([key(1), key(3)])
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, start_ts)
        await received.until_resolved(1, cluster.oracle.next())
        later.transaction([key(2)], delete=True)
        later.transaction([b"t\x80\0\0\0\0\0\0\x08_r-other-table"])
        await received.until_resolved(1, cluster.oracle.next())
    assert received.rows == {name: row for name, row in later.rows.items() if name[0].startswith(START)}
    assert received.failed == []


async def test_open_transaction_holds_the_resolved_ts_back(cluster: DevCluster) -> None:
    async with feeding(cluster) as (feed, received):
        start_ts = cluster.oracle.next()
        feed.subscribe(1, 77, START, END, start_ts)
        await received.until_resolved(1, cluster.oracle.next())
        open_ts = cluster.oracle.next()
        cluster.store.prewrite([Mutation(Op.PUT, key(1), b"x")], key(1), open_ts)
        other = Written(cluster)
        other.transaction([key(2)])
        async with asyncio.timeout(DEADLINE):
            while (key(2), max(ts for _, ts in other.rows)) not in received.rows:
                received.changed.clear()
                await received.changed.wait()
        assert received.resolved[1] <= open_ts
        assert (key(1), 0) not in received.rows
        commit_ts = cluster.oracle.next()
        cluster.store.commit([key(1)], open_ts, commit_ts)
        await received.until_resolved(1, commit_ts)
        assert (key(1), commit_ts) in received.rows


async def test_nothing_is_lost_while_regions_split_merge_move_and_streams_break(cluster: DevCluster) -> None:
    """Silent streams after leader changes (flink-cdc 1631), resolved-ts as a maximum over regions (SeaTunnel)."""
    rng = random.Random(7)
    written = Written(cluster)
    start_ts = cluster.oracle.next()
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, start_ts)
        feed.subscribe(2, 77, key(200), key(400), start_ts)
        for step in range(60):
            for _ in range(5):
                keys = [key(rng.randrange(600)) for _ in range(rng.randint(1, 4))]
                written.transaction(list(dict.fromkeys(keys)), delete=rng.random() < 0.3)
            harm(cluster, rng, step)
            await asyncio.sleep(0)
            if step % 10 == 0:
                await received.until_resolved(1, cluster.oracle.next())
        end = cluster.oracle.next()
        await received.until_resolved(1, end)
        await received.until_resolved(2, end)
    assert below(received.rows, end) == below(written.rows, end)
    assert received.failed == []


def harm(cluster: DevCluster, rng: random.Random, step: int) -> None:
    regions = sorted(cluster.regions.all(), key=lambda region: region.start)
    match step % 4:
        case 0:
            cluster.split(key(rng.randrange(600)))
        case 1:
            cluster.transfer(rng.choice(regions).id, rng.randint(1, 3))
        case 2 if len(regions) > 1:
            at = rng.randrange(len(regions) - 1)
            cluster.merge(regions[at].id, regions[at + 1].id)
        case 3:
            cluster.cut(rng.choice([1, 2, 3, None]))


@pytest.mark.parametrize("action", ["split", "merge", "transfer", "cut"])
async def test_one_harm_alone_leaves_no_region_silent(cluster: DevCluster, action: str) -> None:
    """flink-cdc 1755, 1282: an error event was ignored, and nothing else came to heal it."""
    left, right = cluster.split(key(5))
    written = Written(cluster)
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, cluster.oracle.next())
        await received.until_resolved(1, cluster.oracle.next())
        match action:
            case "split":
                cluster.split(key(7))
            case "merge":
                cluster.merge(left.id, right.id)
            case "transfer":
                cluster.transfer(right.id, right.leader_store % 3 + 1)
            case "cut":
                cluster.cut()
        written.transaction([key(1), key(6), key(8)])
        await received.until_resolved(1, cluster.oracle.next())
    assert received.rows == written.rows


async def test_released_subscription_is_silent_and_leaves_the_other_alone(cluster: DevCluster) -> None:
    async with feeding(cluster) as (feed, received):
        start_ts = cluster.oracle.next()
        feed.subscribe(1, 77, START, END, start_ts)
        feed.subscribe(2, 78, key(0), key(10), start_ts)
        await received.until_resolved(1, cluster.oracle.next())
        feed.release(1)
        last = received.resolved[1]
        Written(cluster).transaction([key(100)])
        await received.until_resolved(2, cluster.oracle.next())
        assert received.resolved[1] == last
        assert received.rows == {}


async def test_store_without_room_is_named_and_pulled_from_again_when_it_has_room(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_stream, "NAMED_SECONDS", 0.5)
    written = Written(cluster)
    start_ts = cluster.oracle.next()
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, start_ts)
        await received.until_resolved(1, cluster.oracle.next())
        cluster.congest()
        registered = feed.metrics.registrations
        commit_ts = written.transaction([key(1)])
        async with asyncio.timeout(DEADLINE):
            for _ in itertools.count():
                if (stopped := feed.stopped()) is not None:
                    break
                await asyncio.sleep(0.05)
        assert stopped.reason == CONGESTED
        assert "another client of its change feed does not read" in stopped.message
        assert received.resolved[1] < commit_ts
        assert feed.metrics.registrations - registered < 10
        cluster.heal()
        await received.until_resolved(1, commit_ts)
        assert feed.stopped() is None
    assert received.rows == written.rows
    assert received.failed == []


class Misled:
    """A PD that says it is of another cluster than the stores it names."""

    cluster_id = 99

    def __init__(self, pd: PdClient) -> None:
        self.scan_regions = pd.scan_regions
        self.gc_safepoint = pd.gc_safepoint
        self.store_address = pd.store_address
        self.store_channel = pd.store_channel
        self.forget_store = pd.forget_store


async def test_cluster_of_another_id_fails_the_subscription(cluster: DevCluster) -> None:
    pd = await PdClient.connect([cluster.pd_address])
    received = Received()
    async with SpanFeed(Misled(pd), received.emit) as feed:
        feed.subscribe(1, 77, START, END, cluster.oracle.next())
        async with asyncio.timeout(DEADLINE):
            while not received.failed:
                received.changed.clear()
                await received.changed.wait()
    await pd.close()
    assert isinstance(received.failed[0].error, InvalidSpec)
    assert "belong to cluster" in str(received.failed[0].error)


async def test_error_of_emit_ends_the_feed(cluster: DevCluster) -> None:
    async def emit(event: FeedEvent) -> None:
        raise Unavailable("the disk is full")

    pd = await PdClient.connect([cluster.pd_address])

    async def feed_for_ever() -> None:
        async with SpanFeed(pd, emit) as feed, asyncio.timeout(DEADLINE):
            feed.subscribe(1, 77, START, END, cluster.oracle.next())
            await asyncio.Event().wait()

    with pytest.raises(Unavailable, match="the disk is full"):
        await feed_for_ever()
    await pd.close()
