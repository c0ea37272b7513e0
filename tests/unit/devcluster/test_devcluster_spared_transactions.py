"""What subscribers and stale readers see of an open large transaction, as TiKV does it and as it is proposed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from changefeed_devcluster.codec import encode_bytes
from changefeed_devcluster.control import do_harm
from changefeed_devcluster.pd.regions import Region
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.mvcc import LockView
from changefeed_devcluster.store.txn import Mutation, Op
from devcluster_feed import DEADLINE, kv, pd
from devcluster_rig import Rig, put

COMMIT, ROLLBACK = 2, 3


def begun(rig: Rig, *keys: str) -> int:
    start_ts = rig.oracle.next()
    rig.store.flush([put(key, "v") for key in keys], keys[0].encode(), start_ts, 1)
    return start_ts


def alive(rig: Rig, start_ts: int, primary: str) -> int:
    promised = [rig.oracle.next() for _ in range(9)][-1]
    rig.store.txn_heart_beat(primary.encode(), start_ts, 20_000, promised)
    return promised


# --- subscribers ---


@pytest.mark.parametrize("upgraded", [False, True])
def test_as_in_a_real_cluster_of_any_version_the_watermark_waits_for_the_last_key(upgraded: bool) -> None:
    rig = Rig()
    if upgraded:
        for store_id in (1, 2, 3):
            rig.gate.upgrade(store_id)
    rig.subscribe()
    start_ts = begun(rig, "a", "b")
    alive(rig, start_ts, "a")
    assert rig.later() == start_ts
    rig.store.commit([b"a"], start_ts, rig.oracle.next())
    assert rig.later() == start_ts
    rig.store.commit([b"b"], start_ts, rig.oracle.next())
    assert rig.later() > start_ts


def test_by_the_proposed_one_it_follows_the_promise_and_passes_with_the_first_commit() -> None:
    rig = Rig(proposed=3)
    rig.subscribe()
    start_ts = begun(rig, "a", "b")
    assert rig.later() == start_ts
    for _ in range(2):
        promised = alive(rig, start_ts, "a")
        assert rig.later() == promised - 1
    commit_ts = rig.oracle.next()
    rig.store.commit([b"a"], start_ts, commit_ts)
    assert rig.later() > commit_ts
    rig.store.commit([b"b"], start_ts, commit_ts)
    assert rig.rows() == [(COMMIT, "b", "v")]


def test_a_region_without_a_commit_waits_below_it_though_it_is_known() -> None:
    rig = Rig(proposed=3)
    left, right = rig.regions.split(b"m")
    rig.regions.transfer(left.id, 2)
    rig.subscribe(region_id=right.id)
    start_ts = begun(rig, "a", "x", "y")
    commit_ts = rig.oracle.next()
    rig.store.commit([b"a"], start_ts, commit_ts)
    assert rig.later() == commit_ts - 1
    rig.store.commit([b"x"], start_ts, commit_ts)
    assert rig.later() > commit_ts


def test_a_commit_elsewhere_in_the_region_decides_nothing_for_who_does_not_hear_of_it() -> None:
    rig = Rig(proposed=3)
    rig.subscribe(start_key=encode_bytes(b"m"))
    start_ts = begun(rig, "a", "x")
    commit_ts = rig.oracle.next()
    rig.store.commit([b"a"], start_ts, commit_ts)
    assert rig.later() == commit_ts - 1


def test_one_that_is_rolled_back_half_sent_is_passed_with_its_first_rollback() -> None:
    rig = Rig(proposed=3)
    rig.subscribe()
    start_ts = begun(rig, "a", "b")
    rig.store.rollback([b"b"], start_ts)
    assert rig.later() > start_ts
    rig.store.rollback([b"a"], start_ts)
    assert rig.rows() == [(ROLLBACK, "a", "p")]


def test_who_subscribes_in_the_middle_waits_for_a_commit_of_its_own() -> None:
    rig = Rig(proposed=3)
    start_ts = begun(rig, "a", "b", "c")
    commit_ts = rig.oracle.next()
    rig.store.commit([b"a"], start_ts, commit_ts)
    rig.subscribe()
    assert rig.later() == commit_ts - 1
    rig.store.commit([b"b"], start_ts, commit_ts)
    assert rig.later() > commit_ts


def test_normal_transactions_hold_it_beside_large_ones() -> None:
    rig = Rig(proposed=3)
    rig.subscribe()
    large = begun(rig, "a")
    normal = rig.oracle.next()
    rig.store.prewrite([put("n", "v")], b"n", normal)
    alive(rig, large, "a")
    assert rig.later() == normal
    rig.store.rollback([b"n"], normal)
    promised = alive(rig, large, "a")
    assert rig.later() == promised - 1


def test_a_rolling_upgrade_changes_it_at_its_end_and_nothing_that_was_told_comes_back() -> None:
    rig = Rig(proposed=1)
    rig.subscribe()
    start_ts = begun(rig, "a", "b")
    promised = alive(rig, start_ts, "a")
    assert rig.later() == start_ts
    rig.gate.upgrade(2)
    assert rig.later() == start_ts
    rig.gate.upgrade(3)
    assert rig.later() == promised - 1


def test_without_a_gate_each_store_goes_by_its_own_version() -> None:
    rig = Rig(proposed=1, gated=False)
    left, right = rig.regions.split(b"m")
    rig.regions.transfer(left.id, 1)
    rig.regions.transfer(right.id, 2)
    left = rig.regions.locate(b"a")
    start_ts = begun(rig, "a", "x")
    promised = alive(rig, start_ts, "a")
    rig.subscribe(region_id=left.id)
    assert rig.later() == promised - 1
    on_old = rig.regions.locate(b"x")
    rig.connection = rig.connect()
    rig.connection.store_id = 2
    rig.subscribe(region_id=on_old.id)
    assert rig.later() == start_ts


# --- stale reads ---


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=2, min_ts_interval=0.01, proposed_watermark=2) as cluster:
        yield cluster


def stale(cluster: DevCluster, region: Region, key: bytes, ts: int) -> Any:
    """At the peer of store 2, when it is ready."""
    follower = next(peer for peer in region.message.peers if peer.store_id == 2)
    about = {"stale_read": True, "peer": follower, "region_id": region.id, "region_epoch": region.message.region_epoch}
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        found = kv(cluster, "Get", _led_by(region, 2), context=about, key=key, version=ts)
        if not found.region_error.HasField("data_is_not_ready"):
            return found
        assert found.region_error.data_is_not_ready.safe_ts < ts
    raise AssertionError("the region is never ready")


def _led_by(region: Region, store: int) -> Region:
    """So that the call goes there."""
    return Region(region.id, region.start, region.end, region.version, region.conf_ver, store, region.peers)


def test_a_stale_read_meets_the_locks_of_a_transaction_that_is_committed_and_asks_its_primary(
    cluster: DevCluster,
) -> None:
    left, right = cluster.split(b"m")
    cluster.transfer(left.id, 1)
    cluster.transfer(right.id, 2)
    store, oracle = cluster.store, cluster.oracle
    store.one_pc([Mutation(Op.PUT, key, b"old") for key in (b"a", b"r", b"s", b"t")], oracle.next())
    start_ts = oracle.next()
    store.flush([Mutation(Op.PUT, key, b"new") for key in (b"a", b"r", b"s")], b"a", start_ts, 1)
    store.flush([Mutation(Op.PUT, b"t", b"dead")], b"t", open_ts := oracle.next(), 1)
    store.txn_heart_beat(b"t", open_ts, 0, promised := oracle.next() + (1 << 40))
    right = cluster.regions.locate(b"r")
    assert stale(cluster, right, b"r", start_ts).value == b"old"
    commit_ts = oracle.next()
    store.commit([b"a", b"r"], start_ts, commit_ts)
    found = {key: stale(cluster, right, key, commit_ts).value for key in (b"r", b"s", b"t")}
    assert found == {b"r": b"new", b"s": b"new", b"t": b"old"}
    assert promised > commit_ts
    assert stale(cluster, right, b"s", start_ts).value == b"old"
    assert cluster.watermarks.statuses.reads.total() > 0
    store.rollback([b"t"], open_ts)
    assert stale(cluster, right, b"t", oracle.next()).value == b"old"


def test_by_the_old_mechanism_a_stale_read_waits_for_the_last_key_and_looks_at_no_lock() -> None:
    with DevCluster(stores=2, min_ts_interval=0.01) as cluster:
        region = cluster.regions.all()[0]
        cluster.store.one_pc([Mutation(Op.PUT, b"a", b"old")], cluster.oracle.next())
        start_ts = cluster.oracle.next()
        cluster.store.flush([Mutation(Op.PUT, b"a", b"new")], b"a", start_ts, 1)
        assert stale(cluster, region, b"a", start_ts).value == b"old"
        found = kv(
            cluster,
            "Get",
            _led_by(region, 2),
            context={"stale_read": True, "peer": region.message.peers[1]},
            key=b"a",
            version=start_ts + 1,
        )
        assert found.region_error.data_is_not_ready.safe_ts == start_ts
        assert cluster.watermarks.safe_ts.view(region, 2, start_ts, b"", b"") == LockView(ignores_locks=True)
        assert not cluster.watermarks.statuses.reads


# --- from another process ---


def test_a_running_cluster_is_upgraded_store_by_store_and_pd_tells_so(cluster: DevCluster) -> None:
    with DevCluster(stores=2, min_ts_interval=0.01, proposed_watermark=1) as cluster:
        told = do_harm(cluster, "watermark", {})["stores"]
        assert [(store["version"], store["proposed"]) for store in told] == [("9.0.0", False), ("8.5.3", False)]
        assert do_harm(cluster, "upgrade", {"store": 2}) == {}
        told = do_harm(cluster, "watermark", {})["stores"]
        assert [(store["version"], store["proposed"], store["requests"]) for store in told] == [("9.0.0", True, 0)] * 2
        assert {store.version for store in pd(cluster, "GetAllStores").stores} == {"9.0.0"}
