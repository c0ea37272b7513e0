"""Harm over the control service: what a subscriber sees of each, and that it ends."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import grpc
import pytest
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed_devcluster.cdc import cdc
from changefeed_devcluster.cdc import subscriptions as core
from changefeed_devcluster.codec import encode_bytes
from changefeed_devcluster.control import HARM_METHOD
from changefeed_devcluster.harm import narrowest_pair
from changefeed_devcluster.keys import record_key
from changefeed_devcluster.pd.regions import BORDERS, Region
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import MAX_TS, Mutation, Op
from changefeed_devcluster.terminal import CommandFailed
from devcluster_feed import DEADLINE, Feed, failure, kv, pd, rows


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(min_ts_interval=0.01) as cluster:
        yield cluster


def harm(cluster: DevCluster, action: str, **arguments: Any) -> dict[str, Any]:
    with grpc.insecure_channel(cluster.pd_address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HARM_METHOD)
        body = json.dumps({"action": action, **arguments}).encode()
        answer: dict[str, Any] = json.loads(call(body, timeout=DEADLINE))
    assert answer.pop("ok"), answer
    return answer


def put(cluster: DevCluster, key: bytes, value: bytes = b"v") -> int:
    return cluster.store.one_pc([Mutation(Op.PUT, key, value)], cluster.oracle.next())


def listening(cluster: DevCluster, region: Region) -> Feed:
    feed = Feed(cluster, region.leader_store)
    feed.register(region)
    feed.until_initialized()
    return feed


def until_resolved(feed: Feed, ts: int) -> None:
    feed.until(lambda message: message.resolved_ts.ts >= ts)


def waits(feed: Feed, ts: int) -> bool:
    """Whether nothing at or above `ts` is told while twenty of another region's resolved-ts would be."""
    seen = threading.Event()
    for _ in range(20):
        message = feed.next()
        if message.resolved_ts.ts >= ts:
            seen.set()
    return not seen.is_set()


def test_a_merge_is_seen_by_pd_stores_and_subscribers(cluster: DevCluster) -> None:
    left, right = cluster.split(b"m")
    with listening(cluster, left) as one, listening(cluster, right) as other:
        (merged,) = harm(cluster, "merge", left=left.id, right=right.id)["regions"]
        for feed in (one, other):
            assert not feed.error().error.epoch_not_match.current_regions
    assert (merged["id"], merged["version"]) == (right.id, right.version + 2)
    assert (merged["start"], merged["end"]) == ("", BORDERS[0].hex())
    known = pd(cluster, "ScanRegions").regions[0]
    assert (known.region.id, known.leader.store_id) == (right.id, right.leader_store)
    assert not pd(cluster, "GetRegionByID", region_id=left.id).HasField("region")
    assert kv(cluster, "Get", left, key=b"a", version=1).region_error.HasField("region_not_found")
    stale = kv(cluster, "Get", right, key=b"z", version=1).region_error.epoch_not_match
    assert [region.id for region in stale.current_regions] == [right.id]
    assert not kv(cluster, "Get", cluster.regions.all()[0], key=b"a", version=1).HasField("region_error")


def test_a_transfer_is_seen_by_pd_stores_and_subscribers(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with listening(cluster, region) as feed:
        (moved,) = harm(cluster, "transfer", region=region.id, store=3)["regions"]
        assert feed.error().error.not_leader.leader.store_id == 3
        feed.register(region)
        assert feed.error().error.not_leader.leader.store_id == 3
    assert (moved["leader_store"], moved["version"]) == (3, region.version)
    assert pd(cluster, "GetRegionByID", region_id=region.id).leader.store_id == 3
    refused = kv(cluster, "Get", region, key=b"a", version=1).region_error.not_leader
    assert (refused.region_id, refused.leader.store_id) == (region.id, 3)
    with listening(cluster, cluster.regions.all()[0]):
        pass


def test_a_stream_is_cut_in_the_middle_and_the_store_lives_on(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    harm(cluster, "cut", store=1, messages=3)
    with Feed(cluster) as feed:
        feed.register(region)
        got = []

        def read() -> None:
            while True:
                got.append(feed.next())

        assert failure(read)[0] is grpc.StatusCode.UNAVAILABLE
        assert len(got) == 3
    with listening(cluster, region) as feed:
        until_resolved(feed, cluster.oracle.next())


def test_a_stalled_stream_is_silent_and_tells_all_when_healed(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with listening(cluster, region) as feed:
        harm(cluster, "stall", store=1)
        mark = put(cluster, b"a")
        assert not feed.hears(lambda message: message.resolved_ts.ts >= mark, 0.2)
        harm(cluster, "heal")
        assert [row.key for row in rows(feed.until(lambda message: message.resolved_ts.ts >= mark))] == [b"a"]


def test_a_stall_ends_by_itself(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with listening(cluster, region) as feed:
        harm(cluster, "stall", seconds=0.05)
        until_resolved(feed, cluster.oracle.next())


def test_one_region_stalls_and_the_other_goes_on(cluster: DevCluster) -> None:
    left, right = cluster.split(b"m")
    with listening(cluster, left) as still, listening(cluster, right) as lively:
        harm(cluster, "stall-region", region=left.id)
        mark = cluster.oracle.next()
        until_resolved(lively, mark)
        put(cluster, b"a")
        told = still.until(lambda message: bool(message.events))
        assert all(message.resolved_ts.ts < mark for message in told)
        harm(cluster, "heal")
        until_resolved(still, cluster.oracle.next())


def test_a_held_lock_holds_the_watermark_until_it_is_let_go(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    put(cluster, b"k", b"as it was")
    with listening(cluster, region) as feed:
        start_ts = int(harm(cluster, "lock", key=b"k".hex())["start_ts"])
        until_resolved(feed, start_ts)
        assert waits(feed, start_ts + 1)
        now = cluster.oracle.next()
        status = kv(cluster, "CheckTxnStatus", region, primary_key=b"k", lock_ts=start_ts, current_ts=now)
        assert status.lock_ttl > 86_400_000
        harm(cluster, "heal")
        until_resolved(feed, cluster.oracle.next())
        assert cluster.store.get(b"k", cluster.oracle.next()) == b"as it was"


def test_a_lock_is_let_go_after_its_seconds(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with listening(cluster, region) as feed:
        harm(cluster, "lock", key=b"k".hex(), seconds=0.05)
        until_resolved(feed, cluster.oracle.next())
        assert not cluster.store.scan_locks(MAX_TS)


def test_an_abandoned_lock_stays_until_a_client_rolls_it_back(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with listening(cluster, region) as feed:
        start_ts = int(harm(cluster, "abandon", key=b"k".hex())["start_ts"])
        until_resolved(feed, start_ts)
        assert waits(feed, start_ts + 1)
        now = cluster.oracle.next() + (1 << 18)
        fate = kv(cluster, "CheckTxnStatus", region, primary_key=b"k", lock_ts=start_ts, current_ts=now)
        assert (fate.lock_ttl, fate.commit_version, fate.action) == (0, 0, kvrpcpb.TTLExpireRollback)
        until_resolved(feed, cluster.oracle.next())


def test_a_secondary_of_a_committed_transaction_is_abandoned(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    for key in (b"a", b"b", b"c"):
        put(cluster, key, b"of " + key)
    answer = harm(cluster, "abandon", key=b"a5".hex(), committed=True)
    start_ts, commit_ts = int(answer["start_ts"]), int(answer["commit_ts"])
    (lock,) = kv(cluster, "ScanLock", region, max_version=commit_ts, limit=9).locks
    assert (lock.key, lock.primary_lock, lock.lock_version) == (b"c", b"b", start_ts)
    fate = kv(cluster, "CheckTxnStatus", region, primary_key=b"b", lock_ts=start_ts, current_ts=commit_ts)
    assert fate.commit_version == commit_ts
    assert cluster.store.get(b"b", commit_ts) == b"of b"


def test_a_delay_comes_before_every_message(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with listening(cluster, region) as feed:
        harm(cluster, "delay", by=0.15)
        mark = put(cluster, b"a")
        assert not feed.hears(lambda message: message.resolved_ts.ts >= mark, 0.1)
        until_resolved(feed, mark)


def test_repeats_are_told_until_healed(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    put(cluster, b"a")
    harm(cluster, "repeat")
    with Feed(cluster) as feed:
        feed.register(region, checkpoint_ts=cluster.oracle.next())
        assert [row.key for row in feed.until_initialized()] == [b"a", b""]
        feed.until(lambda message: message.HasField("resolved_ts") and message.resolved_ts.ts == 0)
        harm(cluster, "heal")
        until_resolved(feed, cluster.oracle.next())


def test_reordered_rows_of_two_regions_are_whole_and_below_no_resolved_ts(cluster: DevCluster) -> None:
    left, right = cluster.split(b"m")
    for region in (left, right):
        cluster.transfer(region.id, 1)
    left, right = cluster.regions.all()[:2]
    harm(cluster, "reorder")
    with Feed(cluster) as feed:
        feed.register(left)
        feed.register(right)
        feed.until(lambda message: len(message.resolved_ts.regions) == 2)
        for number in range(40):
            put(cluster, b"a%03d" % number)
            put(cluster, b"r%03d" % number)
        mark = cluster.oracle.next()
        told = feed.until(lambda message: message.resolved_ts.ts >= mark)
    keys = [row.key for row in rows(told)]
    assert [key for key in keys if key < b"m"] == [b"a%03d" % number for number in range(40)]
    assert [key for key in keys if key > b"m"] == [b"r%03d" % number for number in range(40)]
    assert keys != [b"%c%03d" % (letter, number) for number in range(40) for letter in b"ar"]
    resolved = 0
    for message in told:
        assert all(row.commit_ts > resolved for row in rows([message]))
        resolved = max(resolved, message.resolved_ts.ts)


# --- slow readers ---


def test_resolved_ts_does_not_pile_up_for_who_does_not_read(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with listening(cluster, region) as feed:
        harm(cluster, "stall")
        subscriptions = cluster.subscriptions
        for _ in range(10 * core.TICKS):
            subscriptions.advance()
        (connection,) = subscriptions.connections
        assert len(connection.queue) <= core.TICKS
        harm(cluster, "heal")
        until_resolved(feed, cluster.oracle.next())


def test_a_store_that_holds_too_much_for_its_readers_is_congested() -> None:
    with DevCluster(min_ts_interval=0.01, sink_quota=10_000) as cluster:
        region = cluster.regions.all()[0]
        with listening(cluster, region) as one, listening(cluster, region) as other:
            harm(cluster, "stall")
            for number in range(8):
                put(cluster, b"k%d" % number, bytes(1000))
            assert sum(connection.backlog for connection in cluster.subscriptions.connections) < 12_000
            harm(cluster, "heal")
            for feed in (one, other):
                assert feed.error().error.congested.region_id == region.id


def test_a_congested_store_ends_registrations_with_their_next_row_and_scans_until_it_is_healed(
    cluster: DevCluster,
) -> None:
    region = cluster.regions.all()[0]
    with listening(cluster, region) as feed:
        harm(cluster, "congest", store=region.leader_store)
        feed.register(region, request_id=2)
        scanning = feed.error()
        assert (scanning.request_id, scanning.error.congested.region_id) == (2, region.id)
        until_resolved(feed, cluster.oracle.next())
        put(cluster, b"a")
        listened = feed.error()
        assert (listened.request_id, listened.error.congested.region_id) == (1, region.id)
        harm(cluster, "heal")
        feed.register(region)
        feed.until_initialized()


def test_a_slow_scan_is_overtaken_by_what_is_written_meanwhile(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    start_ts = cluster.oracle.next()
    keys = (b"a", b"b")
    cluster.store.flush([Mutation(Op.PUT, key, b"first") for key in keys], b"a", start_ts, 1)
    harm(cluster, "slow-scans", bytes_per_second=1, store=region.leader_store)
    with Feed(cluster, region.leader_store) as feed:
        feed.register(region)
        until_attached(cluster)
        cluster.store.flush([Mutation(Op.PUT, b"a", b"second")], b"a", start_ts, 2)
        assert [row.value for row in rows(feed.until(lambda message: bool(message.events)))] == [b"second"]
        assert not feed.hears(lambda message: bool(message.events), 0.1)
        harm(cluster, "heal")
        told = feed.until_initialized()
        assert [(row.type, row.key, row.value, row.generation) for row in told] == [
            (1, b"a", b"first", 0),
            (1, b"b", b"first", 0),
            (5, b"", b"", 0),
        ]


def test_scans_are_as_slow_as_the_cluster_was_made_for() -> None:
    with DevCluster(min_ts_interval=0.01, scan_speed_limit=0.1) as cluster:
        region = cluster.regions.all()[0]
        put(cluster, b"a")
        with Feed(cluster, region.leader_store) as feed:
            feed.register(region)
            until_attached(cluster)
            put(cluster, b"b")
            assert [row.key for row in rows([feed.next()])] == [b"b"]


def until_attached(cluster: DevCluster) -> None:
    """Until a registration's scan has taken its snapshot."""
    gone = threading.Event()
    for _ in range(200):
        if cluster.subscriptions.by_region:
            return
        gone.wait(0.05)
    raise AssertionError("the registration is not there")


def test_a_client_that_does_not_read_for_long_is_cut(cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc, "UNREAD_SECONDS", 0.2)
    region = cluster.regions.all()[0]
    cluster.store.one_pc([Mutation(Op.PUT, b"%06d" % n, bytes(10_000)) for n in range(3000)], cluster.oracle.next())
    options = [("grpc.max_receive_message_length", 1 << 28), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(cluster.store_addresses[1], options=options) as channel:
        request = cdcpb.ChangeDataRequest(region_id=region.id, region_epoch=region.message.region_epoch, request_id=1)
        stub: Any = channel.stream_stream(
            "/cdcpb.ChangeData/EventFeedV2", request_serializer=cdcpb.ChangeDataRequest.SerializeToString
        )
        requests: queue.Queue[cdcpb.ChangeDataRequest | None] = queue.Queue()
        requests.put(request)
        stream = stub(iter(requests.get, None))
        next(stream)
        until_none_is_connected(cluster)
        assert failure(lambda: list(stream)) == (grpc.StatusCode.UNKNOWN, "connection cancelled")
        requests.put(None)


def until_none_is_connected(cluster: DevCluster) -> None:
    gone = threading.Event()
    for _ in range(200):
        if not cluster.subscriptions.connections:
            return
        gone.wait(0.05)
    raise AssertionError("the client is still connected")


# --- what the command chooses ---


def test_the_narrowest_neighbours_of_one_table_are_merged() -> None:
    borders = [record_key(5, 1), record_key(5, 90), record_key(5, 95), record_key(5, 99), record_key(6, 1)]
    found = [
        {"id": number, "start": start.hex(), "end": end.hex()} for number, (start, end) in enumerate(pairwise(borders))
    ]
    assert narrowest_pair(found) == (1, 2)
    with pytest.raises(CommandFailed, match="--left"):
        narrowest_pair(found[3:])


def test_wrong_harm_is_told_why(cluster: DevCluster) -> None:
    for action, arguments, said in (
        ("transfer", {"region": 1, "store": 9}, "there is no region 1"),
        ("merge", {"left": 1}, "right"),
        ("stall", {"store": 9}, "there is no store 9"),
        ("abandon", {"key": encode_bytes(b"x").hex(), "committed": True}, "no two rows"),
    ):
        with pytest.raises(AssertionError, match=said):
            harm(cluster, action, **arguments)
