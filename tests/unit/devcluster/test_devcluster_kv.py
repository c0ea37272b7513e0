"""The transactional calls and PD's GC calls over gRPC: messages, and region errors on every one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.pd.oracle import compose
from changefeed_devcluster.pd.regions import Region
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op
from devcluster_feed import call, pd

CALLS: dict[str, dict[str, Any]] = {
    "KvGet": {"key": b"k"},
    "KvScan": {"start_key": b"k", "limit": 1},
    "KvBatchGet": {"keys": [b"k"]},
    "KvPrewrite": {"mutations": [kvrpcpb.Mutation(key=b"k")]},
    "KvFlush": {"mutations": [kvrpcpb.Mutation(key=b"k")]},
    "KvBufferBatchGet": {"keys": [b"k"]},
    "KvPessimisticLock": {"mutations": [kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=b"k")]},
    "KVPessimisticRollback": {"keys": [b"k"]},
    "KvTxnHeartBeat": {"primary_lock": b"k"},
    "KvCommit": {"keys": [b"k"]},
    "KvBatchRollback": {"keys": [b"k"]},
    "KvCleanup": {"key": b"k"},
    "KvCheckTxnStatus": {"primary_key": b"k"},
    "KvCheckSecondaryLocks": {"keys": [b"k"]},
    "KvScanLock": {"start_key": b"k"},
    "KvResolveLock": {"keys": [b"k"]},
    "SplitRegion": {"split_keys": [b"k"]},
}


@pytest.fixture(scope="module")
def shared() -> Iterator[DevCluster]:
    """Two regions, split at k; nobody changes anything."""
    with DevCluster(stores=2) as cluster:
        cluster.split(b"k")
        yield cluster


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=1) as cluster:
        yield cluster


def ask(cluster: DevCluster, method: str, region: Region, context: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Calls the region's leader, unless `context` says otherwise."""
    name = method.removeprefix("Kv").removeprefix("KV")
    about = {"region_id": region.id, "region_epoch": region.message.region_epoch, "peer": region.leader}
    request = getattr(kvrpcpb, f"{name}Request")(context=kvrpcpb.Context(**{**about, **(context or {})}), **fields)
    address = cluster.store_addresses[region.leader_store]
    return call(address, f"/tikvpb.Tikv/{method}", request, getattr(kvrpcpb, f"{name}Response"))


def mutation(op: int, key: bytes, value: bytes = b"", **fields: Any) -> kvrpcpb.Mutation:
    return kvrpcpb.Mutation(op=op, key=key, value=value, **fields)


# --- region errors ---


@pytest.mark.parametrize("method", CALLS)
def test_every_call_looks_at_its_context(shared: DevCluster, method: str) -> None:
    left, right = shared.regions.all()
    old = metapb.RegionEpoch(version=1, conf_ver=1)
    elsewhere = next(peer for peer in right.message.peers if peer.store_id != right.leader_store)
    wrong: dict[str, dict[str, Any]] = {
        "store_not_match": {"peer": metapb.Peer(id=right.leader.id, store_id=99)},
        "region_not_found": {"region_id": 1},
        "mismatch_peer_id": {"peer": metapb.Peer(id=1, store_id=right.leader_store)},
        "epoch_not_match": {"region_epoch": old},
    }
    for name, context in wrong.items():
        assert ask(shared, method, right, context, **CALLS[method]).region_error.HasField(name), name
    assert ask(shared, method, left, **CALLS[method]).region_error.HasField("key_not_in_region")
    follower = next(store for store in shared.store_addresses if store != right.leader_store)
    name = method.removeprefix("Kv").removeprefix("KV")
    context = kvrpcpb.Context(region_id=right.id, region_epoch=right.message.region_epoch, peer=elsewhere)
    request = getattr(kvrpcpb, f"{name}Request")(context=context, **CALLS[method])
    address = shared.store_addresses[follower]
    answer = call(address, f"/tikvpb.Tikv/{method}", request, getattr(kvrpcpb, f"{name}Response"))
    assert answer.region_error.not_leader.leader == right.leader


def test_an_old_epoch_is_answered_with_the_regions_of_now(shared: DevCluster) -> None:
    left, right = shared.regions.all()
    old = {"region_epoch": metapb.RegionEpoch(version=1, conf_ver=1)}
    current = ask(shared, "KvGet", right, old, key=b"k").region_error.epoch_not_match.current_regions
    assert list(current) == [right.message, left.message]


# --- transactions ---


def test_a_pessimistic_transaction_over_grpc(cluster: DevCluster) -> None:
    (region,) = cluster.regions.all()
    start = cluster.oracle.next()
    about = {"start_version": start, "primary_lock": b"a"}
    wanted = [mutation(kvrpcpb.PessimisticLock, b"a"), mutation(kvrpcpb.PessimisticLock, b"b")]
    locked = ask(
        cluster, "KvPessimisticLock", region, mutations=wanted, for_update_ts=start, return_values=True, **about
    )
    assert (list(locked.errors), list(locked.values), list(locked.not_founds)) == ([], [b"", b""], [True, True])
    other = ask(cluster, "KvPessimisticLock", region, mutations=wanted, start_version=cluster.oracle.next())
    assert other.errors[0].locked.lock_type == kvrpcpb.PessimisticLock
    assert other.errors[0].locked.lock_for_update_ts == start
    puts = [mutation(kvrpcpb.Put, b"a", b"1"), mutation(kvrpcpb.Put, b"b", b"1")]
    done = ask(cluster, "KvPrewrite", region, mutations=puts, pessimistic_actions=[1, 1], for_update_ts=start, **about)
    assert not done.errors
    assert not ask(cluster, "KVPessimisticRollback", region, keys=[b"a"], start_version=start).errors
    commit_ts = cluster.oracle.next()
    answer = ask(cluster, "KvCommit", region, keys=[b"a", b"b"], start_version=start, commit_version=commit_ts)
    assert answer.commit_version == commit_ts
    assert ask(cluster, "KvGet", region, key=b"b", version=cluster.oracle.next()).value == b"1"


def test_a_lost_pessimistic_lock_aborts(cluster: DevCluster) -> None:
    (region,) = cluster.regions.all()
    start = cluster.oracle.next()
    cluster.store.pessimistic_lock([b"a"], b"a", cluster.oracle.next(), cluster.oracle.next())
    puts = [mutation(kvrpcpb.Put, b"a", b"1")]
    lost = ask(
        cluster, "KvPrewrite", region, mutations=puts, pessimistic_actions=[1], for_update_ts=start, start_version=start
    )
    assert "no pessimistic lock" in lost.errors[0].abort


def test_an_async_commit_is_resolved_by_its_secondaries(cluster: DevCluster) -> None:
    (region,) = cluster.regions.all()
    start = cluster.oracle.next()
    about = {"primary_lock": b"a", "start_version": start, "use_async_commit": True}
    reader = cluster.oracle.next()
    assert ask(cluster, "KvGet", region, key=b"b", version=reader).not_found
    first = ask(
        cluster, "KvPrewrite", region, mutations=[mutation(kvrpcpb.Put, b"a", b"1")], secondaries=[b"b"], **about
    )
    second = ask(cluster, "KvPrewrite", region, mutations=[mutation(kvrpcpb.Put, b"b", b"1")], **about)
    assert second.min_commit_ts >= first.min_commit_ts > reader
    fate = ask(cluster, "KvCheckTxnStatus", region, primary_key=b"a", lock_ts=start, current_ts=compose(1 << 45))
    assert (fate.lock_info.use_async_commit, list(fate.lock_info.secondaries)) == (True, [b"b"])
    found = ask(cluster, "KvCheckSecondaryLocks", region, keys=[b"b"], start_version=start)
    assert [lock.min_commit_ts for lock in found.locks] == [second.min_commit_ts]
    now = cluster.oracle.next()
    known = {"committed_locks": [start]}
    assert ask(cluster, "KvGet", region, known, key=b"b", version=now).value == b"1"
    assert ask(cluster, "KvGet", region, {"resolved_locks": [start]}, key=b"b", version=now).not_found
    assert ask(cluster, "KvGet", region, {"isolation_level": kvrpcpb.RC}, key=b"b", version=now).not_found
    infos = [kvrpcpb.TxnInfo(txn=start, status=second.min_commit_ts)]
    assert not ask(cluster, "KvResolveLock", region, txn_infos=infos).HasField("error")
    assert ask(cluster, "KvGet", region, key=b"a", version=cluster.oracle.next()).value == b"1"


def test_one_phase_falls_back_when_it_would_be_too_late(cluster: DevCluster) -> None:
    (region,) = cluster.regions.all()
    start = cluster.oracle.next()
    cluster.store.get(b"x", cluster.oracle.next())
    done = ask(
        cluster, "KvPrewrite", region, mutations=[mutation(kvrpcpb.Put, b"a", b"1")], primary_lock=b"a",
        start_version=start, try_one_pc=True, use_async_commit=True, max_commit_ts=start + 1,
    )  # fmt: skip
    assert (list(done.errors), done.one_pc_commit_ts, done.min_commit_ts) == ([], 0, 0)
    assert [lock.async_commit for lock in cluster.store.scan_locks(cluster.oracle.next())] == [False]


def test_cleanup_and_a_failed_assertion_say_what_they_met(cluster: DevCluster) -> None:
    (region,) = cluster.regions.all()
    start = cluster.oracle.next()
    puts = [mutation(kvrpcpb.Put, b"a", b"1", assertion=kvrpcpb.Exist)]
    about = {"mutations": puts, "primary_lock": b"a", "start_version": start}
    failed = ask(cluster, "KvPrewrite", region, assertion_level=kvrpcpb.Strict, **about).errors[0].assertion_failed
    assert (failed.key, failed.assertion) == (b"a", kvrpcpb.Exist)
    assert not ask(cluster, "KvPrewrite", region, **about, lock_ttl=60_000).errors
    about = {"key": b"a", "start_version": start}
    assert ask(cluster, "KvCleanup", region, current_ts=cluster.oracle.next(), **about).error.locked.key == b"a"
    commit_ts = cluster.oracle.next()
    cluster.store.commit([b"a"], start, commit_ts)
    assert ask(cluster, "KvCleanup", region, **about).commit_version == commit_ts


def test_split_region_gives_all_parts_in_order(cluster: DevCluster) -> None:
    (region,) = cluster.regions.all()
    answer = ask(cluster, "SplitRegion", region, split_keys=[b"m", b"c"])
    regions = [part.message for part in cluster.regions.all()]
    assert [part.start for part in cluster.regions.all()] == [b"", b"c", b"m"]
    assert (list(answer.regions), answer.left, answer.right) == (regions, regions[0], regions[-1])


# --- PD ---


def test_gc_state_and_barriers(cluster: DevCluster) -> None:
    cluster.safepoints.update(b"gc_worker", 1 << 40, 100, 0)
    made = pd(cluster, "SetGCBarrier", barrier_id="feed", barrier_ts=150, ttl_seconds=60)
    assert (made.new_barrier_info.barrier_id, made.new_barrier_info.barrier_ts) == ("feed", 150)
    late = pd(cluster, "SetGCBarrier", barrier_id="late", barrier_ts=50, ttl_seconds=60)
    assert late.header.error.type == pdpb.UNKNOWN
    assert cluster.collect_garbage(200) == 150
    state = pd(cluster, "GetGCState").gc_state
    assert (state.txn_safe_point, state.gc_safe_point) == (150, 150)
    assert [barrier.barrier_id for barrier in state.gc_barriers] == ["feed"]
    assert pd(cluster, "DeleteGCBarrier", barrier_id="feed").deleted_barrier_info.barrier_ts == 150
    assert not pd(cluster, "DeleteGCBarrier", barrier_id="feed").HasField("deleted_barrier_info")
    assert cluster.collect_garbage(200) == 200
    assert pd(cluster, "GetGCSafePoint").safe_point == 200


def test_updating_the_gc_safe_point_deletes_history(cluster: DevCluster) -> None:
    first = cluster.store.one_pc([Mutation(Op.PUT, b"a", b"1")], cluster.oracle.next())
    second = cluster.store.one_pc([Mutation(Op.PUT, b"a", b"2")], cluster.oracle.next())
    assert pd(cluster, "UpdateGCSafePoint", safe_point=second).new_safe_point == second
    assert pd(cluster, "UpdateGCSafePoint", safe_point=first).new_safe_point == second
    assert cluster.store.get(b"a", first) is None
    assert cluster.store.get(b"a", second) == b"2"


def test_scatter_and_operators_are_answered(cluster: DevCluster) -> None:
    assert pd(cluster, "ScatterRegion", regions_id=[1]).finished_percentage == 100
    assert pd(cluster, "GetOperator", region_id=1).header.error.type == pdpb.REGION_NOT_FOUND


def test_a_large_transaction_flushes_reads_lives_and_commits_above_what_it_has_promised(cluster: DevCluster) -> None:
    (region,) = cluster.regions.all()
    start_ts, _, promised = (cluster.oracle.next() for _ in range(3))
    about = {"primary_key": b"a", "start_ts": start_ts, "lock_ttl": 20_000, "min_commit_ts": start_ts + 1}
    for generation, value in enumerate((b"1", b"2"), start=1):
        keys = [mutation(0, b"a", value), mutation(0, b"b", value)]
        assert not ask(cluster, "KvFlush", region, mutations=keys, generation=generation, **about).errors
    again = ask(cluster, "KvFlush", region, mutations=[mutation(0, b"a", b"old")], generation=1, **about)
    assert not again.errors
    found = ask(cluster, "KvBufferBatchGet", region, keys=[b"a", b"b", b"c"], version=start_ts)
    assert [(pair.key, pair.value) for pair in found.pairs] == [(b"a", b"2"), (b"b", b"2")]
    alive = {"primary_lock": b"a", "start_version": start_ts, "advise_lock_ttl": 30_000, "min_commit_ts": promised}
    assert ask(cluster, "KvTxnHeartBeat", region, **alive).lock_ttl == 30_000
    end = {"start_version": start_ts, "keys": [b"a", b"b"]}
    refused = ask(cluster, "KvCommit", region, commit_version=promised - 1, **end).error.commit_ts_expired
    assert (refused.attempted_commit_ts, refused.min_commit_ts) == (promised - 1, promised)
    assert not ask(cluster, "KvCommit", region, commit_version=promised, **end).HasField("error")
    assert cluster.store.get(b"b", promised) == b"2"


def test_a_flush_without_a_generation_is_refused(cluster: DevCluster) -> None:
    (region,) = cluster.regions.all()
    refused = ask(cluster, "KvFlush", region, mutations=[mutation(0, b"a")], primary_key=b"a", start_ts=5)
    assert "generation 0" in refused.errors[0].abort
