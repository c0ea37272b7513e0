"""Stores that die and a PD that starts again, as clients see them: who goes on, who leads, and what PD knows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.cli import main
from changefeed_devcluster.pd.heartbeats import Heartbeats
from changefeed_devcluster.pd.regions import Regions
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import Mutation, Op
from devcluster_feed import DEADLINE, Feed, failure, kv, pd, rows, until


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(min_ts_interval=0.02) as cluster:
        yield cluster


def put(cluster: DevCluster, key: bytes) -> int:
    return cluster.store.one_pc([Mutation(Op.PUT, key, b"v")], cluster.oracle.next())


def leader_is_known(cluster: DevCluster) -> bool:
    try:
        return bool(pd(cluster, "GetRegion").HasField("leader"))
    except grpc.RpcError:  # PD is just being restarted
        return True


# --- a store ---


def test_a_killed_store_ends_its_streams_and_the_others_go_on(cluster: DevCluster) -> None:
    left, right = cluster.split(b"m")
    left = cluster.transfer(left.id, 2)
    with Feed(cluster, 2) as dead, Feed(cluster, right.leader_store) as alive:
        dead.register(left)
        alive.register(right)
        dead.until_initialized()
        alive.until_initialized()
        cluster.kill(2, election_s=DEADLINE)
        assert failure(lambda: dead.until(lambda message: False))[0] is grpc.StatusCode.UNAVAILABLE
        mark = put(cluster, b"r")
        assert [row.key for row in rows(alive.until(lambda message: message.resolved_ts.ts >= mark))] == [b"r"]
    assert failure(lambda: kv(cluster, "Get", left, key=b"a", version=1))[0] is grpc.StatusCode.UNAVAILABLE
    assert pd(cluster, "GetRegionByID", region_id=left.id).leader.store_id == 2, "not elected yet"
    follower = next(peer for peer in left.message.peers if peer.store_id == 3)
    at_follower = replace(left, leader_store=3)
    refused = kv(cluster, "Get", at_follower, {"peer": follower}, key=b"a", version=1).region_error.not_leader
    assert (refused.region_id, refused.HasField("leader")) == (left.id, False)
    with Feed(cluster, 3) as feed:
        feed.register(left)
        assert not feed.error().error.not_leader.HasField("leader")


def test_its_regions_get_new_leaders_which_pd_knows(cluster: DevCluster) -> None:
    left, _ = cluster.split(b"m")
    left = cluster.transfer(left.id, 2)
    cluster.kill(2, election_s=0.05)
    until(lambda: pd(cluster, "GetRegionByID", region_id=left.id).leader.store_id != 2)
    led = cluster.regions.locate(b"a")
    assert (led.id, led.version) == (left.id, left.version)
    mark = put(cluster, b"a")
    with Feed(cluster, led.leader_store) as feed:
        feed.register(led)
        assert b"a" in [row.key for row in rows(feed.until(lambda message: message.resolved_ts.ts >= mark))]
    with pytest.raises(ValueError, match="store 2 is down"):
        cluster.transfer(left.id, 2)
    assert cluster.regions.scatter(left.id).leader_store != 2


@pytest.mark.parametrize("seconds", [None, 0.05])
def test_a_killed_store_comes_back_at_its_address(cluster: DevCluster, seconds: float | None) -> None:
    led = cluster.regions.all()[0]
    cluster.kill(led.leader_store, seconds, election_s=DEADLINE)
    with pytest.raises(ValueError, match="down already"):
        cluster.kill(led.leader_store)
    if seconds is None:
        cluster.heal()
    until(lambda: not cluster.regions.down)

    def answers() -> bool:
        try:
            return bool(kv(cluster, "Get", led, key=b"a", version=1).not_found)
        except grpc.RpcError:
            return False

    until(answers)
    with Feed(cluster, led.leader_store) as feed:
        feed.register(led)
        feed.until_initialized()


def test_the_only_store_keeps_its_regions() -> None:
    with DevCluster(stores=1) as cluster:
        cluster.kill(1, election_s=0.0)
        assert pd(cluster, "GetRegion").leader.store_id == 1
        cluster.heal()


# --- PD ---


def test_a_restarted_pd_knows_a_leader_once_it_has_heard_of_it(cluster: DevCluster) -> None:
    first, second, third = cluster.regions.all()
    cluster.restart_pd(heartbeat_s=3600)
    found = pd(cluster, "ScanRegions")
    assert [region.region.id for region in found.regions] == [first.id, second.id, third.id]
    assert not any(region.HasField("leader") for region in found.regions)
    assert [leader.store_id for leader in found.leaders] == [0, 0, 0]
    alone = pd(cluster, "GetRegionByID", region_id=first.id)
    assert (alone.region.id, alone.HasField("leader")) == (first.id, False)
    cluster.transfer(first.id, 2)
    left, right = cluster.split(b"m")
    assert [pd(cluster, "GetRegionByID", region_id=region.id).leader.store_id for region in (left, right)] == [2, 2]
    assert not pd(cluster, "GetRegionByID", region_id=third.id).HasField("leader")
    cluster.restart_pd(heartbeat_s=0)
    assert all(region.HasField("leader") for region in pd(cluster, "ScanRegions").regions)


def test_leaders_are_heard_of_one_after_the_other() -> None:
    now = [0.0]
    regions = Regions(MvccStore().lock, [1, 2, 3])
    regions.bootstrap()
    heartbeats = Heartbeats(lambda: now[0])
    heartbeats.forget(regions.all())
    known = []
    for now[0] in range(61):
        known.append(sum(map(heartbeats.knows, regions.all())))
    assert (known[0], known[-1]) == (0, 3)
    assert known == sorted(known)
    assert {1, 2} < set(known)


def test_a_restart_breaks_streams_to_pd(cluster: DevCluster) -> None:
    header = pdpb.RequestHeader(cluster_id=cluster.cluster_id)
    with grpc.insecure_channel(cluster.pd_address) as channel:
        stub: grpc.StreamStreamMultiCallable[pdpb.TsoRequest, pdpb.TsoResponse] = channel.stream_stream(
            "/pdpb.PD/Tso",
            request_serializer=pdpb.TsoRequest.SerializeToString,
            response_deserializer=pdpb.TsoResponse.FromString,
        )

        def requests() -> Iterator[pdpb.TsoRequest]:
            yield pdpb.TsoRequest(header=header, count=1)
            cluster.restart_pd()
            yield pdpb.TsoRequest(header=header, count=1)

        code, _ = failure(lambda: list(stub(requests(), timeout=DEADLINE)))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert pd(cluster, "GetAllStores").stores


def test_outages_by_command(cluster: DevCluster, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--pd", cluster.pd_address]
    main(["harm", "kill", "--store", "2", "--election", "0", *at])
    assert json.loads(capsys.readouterr().out) == {"store": 2}
    assert cluster.regions.down == {2}
    main(["harm", "freeze-pd", "--seconds", "0.1", *at])
    main(["harm", "heal", *at])
    assert cluster.regions.down == set()
    main(["harm", "restart-pd", "--heartbeat", "3600", *at])
    until(lambda: not leader_is_known(cluster))
