"""The transactional calls and PD's GC calls over gRPC: messages, and region errors on every one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.pd.regions import Region
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import MAX_TS, Mutation, Op
from devcluster_feed import call, failure, pd

PUT = [kvrpcpb.Mutation(key=b"k", value=b"v")]
CALLS: dict[str, dict[str, Any]] = {
    "KvGet": {"key": b"k", "version": 5},
    "KvScan": {"start_key": b"k", "limit": 1, "version": 5},
    "KvBatchGet": {"keys": [b"k"], "version": 5},
    "KvPrewrite": {"mutations": PUT, "primary_lock": b"k", "start_version": 5},
    "KvFlush": {"mutations": PUT, "primary_key": b"k", "start_ts": 5, "generation": 1},
    "KvBufferBatchGet": {"keys": [b"k"], "version": 5},
    "KvPessimisticLock": {
        "mutations": [kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=b"k")],
        "primary_lock": b"k",
        "start_version": 5,
        "for_update_ts": 5,
    },
    "KVPessimisticRollback": {"keys": [b"k"], "start_version": 5, "for_update_ts": 5},
    "KvTxnHeartBeat": {"primary_lock": b"k", "start_version": 5, "advise_lock_ttl": 9},
    "KvCommit": {"keys": [b"k"], "start_version": 5, "commit_version": 6},
    "KvBatchRollback": {"keys": [b"k"], "start_version": 5},
    "KvCleanup": {"key": b"k", "start_version": 5},
    "KvCheckTxnStatus": {"primary_key": b"k", "lock_ts": 5},
    "KvCheckSecondaryLocks": {"keys": [b"k"], "start_version": 5},
    "KvScanLock": {"start_key": b"k", "max_version": 5},
    "KvResolveLock": {"keys": [b"k"], "start_version": 5},
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
    left, right = shared.regions.all()[:2]
    old = metapb.RegionEpoch(version=right.version - 1, conf_ver=right.conf_ver)
    elsewhere = next(peer for peer in right.message.peers if peer.store_id != right.leader_store)
    wrong: dict[str, dict[str, Any]] = {
        "store_not_match": {"peer": metapb.Peer(id=right.leader.id, store_id=99)},
        "region_not_found": {"region_id": 1},
        "mismatch_peer_id": {"peer": metapb.Peer(id=1, store_id=right.leader_store)},
        "epoch_not_match": {"region_epoch": old},
    }
    for name, context in wrong.items():
        assert ask(shared, method, right, context, **CALLS[method]).region_error.HasField(name), name
    outside = ask(shared, method, left, **CALLS[method])
    if method in ("KvGet", "KvScan"):
        assert "out of region" in outside.error.abort
    else:
        assert outside.region_error.HasField("key_not_in_region")
    follower = next(store for store in shared.store_addresses if store != right.leader_store)
    name = method.removeprefix("Kv").removeprefix("KV")
    context = kvrpcpb.Context(region_id=right.id, region_epoch=right.message.region_epoch, peer=elsewhere)
    request = getattr(kvrpcpb, f"{name}Request")(context=context, **CALLS[method])
    address = shared.store_addresses[follower]
    answer = call(address, f"/tikvpb.Tikv/{method}", request, getattr(kvrpcpb, f"{name}Response"))
    assert answer.region_error.not_leader.leader == right.leader


def test_an_old_epoch_is_answered_with_the_regions_of_now(shared: DevCluster) -> None:
    left, right = shared.regions.all()[:2]
    old = {"region_epoch": metapb.RegionEpoch(version=1, conf_ver=1)}
    current = ask(shared, "KvGet", right, old, **CALLS["KvGet"]).region_error.epoch_not_match.current_regions
    assert list(current) == [right.message, left.message]


# --- transactions ---


def test_a_pessimistic_transaction_over_grpc(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    start = cluster.oracle.next()
    about = {"start_version": start, "primary_lock": b"a"}
    wanted = [mutation(kvrpcpb.PessimisticLock, b"a"), mutation(kvrpcpb.PessimisticLock, b"b")]
    locked = ask(
        cluster, "KvPessimisticLock", region, mutations=wanted, for_update_ts=start, return_values=True, **about
    )
    assert (list(locked.errors), list(locked.values), list(locked.not_founds)) == ([], [b"", b""], [True, True])
    later = {"start_version": cluster.oracle.next(), "primary_lock": b"a", "for_update_ts": start + 1}
    other = ask(cluster, "KvPessimisticLock", region, mutations=wanted, **later)
    assert other.errors[0].locked.lock_type == kvrpcpb.PessimisticLock
    assert other.errors[0].locked.lock_for_update_ts == start
    puts = [mutation(kvrpcpb.Put, b"a", b"1"), mutation(kvrpcpb.Put, b"b", b"1")]
    done = ask(cluster, "KvPrewrite", region, mutations=puts, pessimistic_actions=[1, 1], for_update_ts=start, **about)
    assert not done.errors
    nothing = {"keys": [b"a"], "start_version": start, "for_update_ts": start}
    assert not ask(cluster, "KVPessimisticRollback", region, **nothing).errors
    commit_ts = cluster.oracle.next()
    answer = ask(cluster, "KvCommit", region, keys=[b"a", b"b"], start_version=start, commit_version=commit_ts)
    assert answer.commit_version == commit_ts
    assert ask(cluster, "KvGet", region, key=b"b", version=cluster.oracle.next()).value == b"1"


def test_a_lost_pessimistic_lock_aborts(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    start = cluster.oracle.next()
    cluster.store.pessimistic_lock([b"a"], b"a", cluster.oracle.next(), cluster.oracle.next())
    puts = [mutation(kvrpcpb.Put, b"a", b"1")]
    about = {"primary_lock": b"a", "for_update_ts": start, "start_version": start}
    lost = ask(cluster, "KvPrewrite", region, mutations=puts, pessimistic_actions=[1], **about)
    assert "no pessimistic lock" in lost.errors[0].abort


def test_an_async_commit_is_resolved_by_its_secondaries(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    start = cluster.oracle.next()
    about = {"primary_lock": b"a", "start_version": start, "use_async_commit": True}
    reader = cluster.oracle.next()
    assert ask(cluster, "KvGet", region, key=b"b", version=reader).not_found
    first = ask(
        cluster, "KvPrewrite", region, mutations=[mutation(kvrpcpb.Put, b"a", b"1")], secondaries=[b"b"], **about
    )
    second = ask(cluster, "KvPrewrite", region, mutations=[mutation(kvrpcpb.Put, b"b", b"1")], **about)
    assert second.min_commit_ts >= first.min_commit_ts > reader
    fate = ask(cluster, "KvCheckTxnStatus", region, primary_key=b"a", lock_ts=start, current_ts=MAX_TS)
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
    region = cluster.regions.all()[0]
    start = cluster.oracle.next()
    cluster.store.get(b"x", cluster.oracle.next())
    done = ask(
        cluster, "KvPrewrite", region, mutations=[mutation(kvrpcpb.Put, b"a", b"1")], primary_lock=b"a",
        start_version=start, try_one_pc=True, use_async_commit=True, max_commit_ts=start + 1,
    )  # fmt: skip
    assert (list(done.errors), done.one_pc_commit_ts, done.min_commit_ts) == ([], 0, 0)
    assert [lock.async_commit for lock in cluster.store.scan_locks(cluster.oracle.next())] == [False]


def test_cleanup_and_a_failed_assertion_say_what_they_met(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
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
    region = cluster.regions.all()[0]
    answer = ask(cluster, "SplitRegion", region, split_keys=[b"m", b"c"])
    parts = cluster.regions.all()[:3]
    regions = [part.message for part in parts]
    assert [part.start for part in parts] == [b"", b"c", b"m"]
    assert {part.leader_store for part in parts} == {region.leader_store}
    assert (list(answer.regions), answer.left, answer.right) == (regions, regions[0], regions[-1])


# --- PD ---


def test_gc_state_and_barriers(cluster: DevCluster) -> None:
    cluster.safepoints.update(b"gc_worker", 1 << 40, 100, 0)
    made = pd(cluster, "SetGCBarrier", barrier_id="feed", barrier_ts=150, ttl_seconds=60)
    assert (made.new_barrier_info.barrier_id, made.new_barrier_info.barrier_ts) == ("feed", 150)
    late = pd(cluster, "SetGCBarrier", barrier_id="late", barrier_ts=50, ttl_seconds=60)
    assert late.header.error.type == pdpb.UNKNOWN
    assert "ErrGCBarrierTSBehindTxnSafePoint" in late.header.error.message
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
    pd(cluster, "AdvanceTxnSafePoint", target=second)
    assert pd(cluster, "UpdateGCSafePoint", safe_point=second).new_safe_point == second
    assert pd(cluster, "UpdateGCSafePoint", safe_point=first).new_safe_point == second
    assert cluster.store.get(b"a", first) is None
    assert cluster.store.get(b"a", second) == b"2"


def test_scatter_and_operators_are_answered(cluster: DevCluster) -> None:
    assert pd(cluster, "ScatterRegion", regions_id=[1]).finished_percentage == 100
    assert pd(cluster, "GetOperator", region_id=1).header.error.type == pdpb.REGION_NOT_FOUND


def test_a_large_transaction_flushes_reads_lives_and_commits_above_what_it_has_promised(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
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


# --- what the protocol does not mean ---


@pytest.mark.parametrize(
    ("method", "changed", "argument"),
    [
        ("KvScan", {"limit": 0}, "limit"),
        ("KvScan", {"start_key": b"m", "end_key": b"l"}, "start_key"),
        ("KvTxnHeartBeat", {"advise_lock_ttl": 0}, "advise_lock_ttl"),
        ("KvPrewrite", {"mutations": [mutation(kvrpcpb.Del, b"k", b"v")]}, "mutations"),
        ("KvPrewrite", {"mutations": [*PUT, *PUT]}, "mutations"),
        ("KvPrewrite", {"min_commit_ts": 4}, "min_commit_ts"),
        ("KvPrewrite", {"secondaries": [b"l"]}, "secondaries"),
    ],
)
def test_a_call_that_the_protocol_does_not_mean_is_refused_and_its_argument_named(
    shared: DevCluster, method: str, changed: dict[str, Any], argument: str
) -> None:
    region = shared.regions.locate(b"k")
    code, details = failure(lambda: ask(shared, method, region, **{**CALLS[method], **changed}))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(f"{method}: {argument} ")


# --- what a real store answers ---


def test_a_scan_that_leaves_the_region_is_aborted(shared: DevCluster) -> None:
    left, right = shared.regions.all()[:2]
    for region, start, end in ((left, b"a", b"kk"), (right, b"", b""), (right, b"k", right.end + b"y")):
        answer = ask(shared, "KvScan", region, start_key=start, end_key=end, limit=9, version=5)
        assert "out of region" in answer.error.abort
    for start, end, reverse in ((b"k", b"", False), (b"kk", right.end, False), (right.end, b"", True)):
        answer = ask(shared, "KvScan", right, start_key=start, end_key=end, limit=9, version=5, reverse=reverse)
        assert (answer.HasField("error"), list(answer.pairs)) == (False, [])


def test_the_epoch_of_peers_is_not_looked_at(shared: DevCluster) -> None:
    region = shared.regions.locate(b"k")
    epoch = {"region_epoch": metapb.RegionEpoch(version=region.version, conf_ver=region.conf_ver + 7)}
    assert ask(shared, "KvGet", region, epoch, **CALLS["KvGet"]).not_found


def test_a_follower_reads_when_it_is_asked_to(shared: DevCluster) -> None:
    region = shared.regions.locate(b"k")
    peer = next(peer for peer in region.message.peers if peer.store_id != region.leader_store)
    context = kvrpcpb.Context(
        region_id=region.id, region_epoch=region.message.region_epoch, peer=peer, replica_read=True
    )
    request = kvrpcpb.GetRequest(context=context, key=b"k", version=5)
    address = shared.store_addresses[peer.store_id]
    assert call(address, "/tikvpb.Tikv/KvGet", request, kvrpcpb.GetResponse).not_found


def test_locks_are_told_as_a_store_tells_them(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    start, large = cluster.oracle.next(), cluster.oracle.next()
    keys = [mutation(kvrpcpb.Put, b"a", b"1"), mutation(kvrpcpb.Put, b"b", b"1")]
    about = {"start_version": start, "primary_lock": b"a", "lock_ttl": 60_000}
    assert not ask(cluster, "KvPrewrite", region, mutations=keys, **about).errors
    flushed = {"mutations": [mutation(kvrpcpb.Put, b"c", b"1")], "primary_key": b"c", "start_ts": large}
    assert not ask(cluster, "KvFlush", region, generation=1, **flushed).errors
    now = cluster.oracle.next()
    pairs = [
        *ask(cluster, "KvScan", region, start_key=b"a", limit=9, version=now).pairs,
        *ask(cluster, "KvBatchGet", region, keys=[b"a", b"b", b"c"], version=now).pairs,
    ]
    assert [pair.key for pair in pairs] == [b""] * 6
    assert [pair.error.locked.key for pair in pairs] == [b"a", b"b", b"c"] * 2
    assert pairs[-1].error.locked.txn_size == (1 << 64) - 1
    fate = ask(cluster, "KvCheckTxnStatus", region, primary_key=b"b", lock_ts=start, current_ts=now)
    assert (fate.lock_ttl, fate.lock_info.key) == (60_000, b"a")


def test_a_conflict_can_be_told_by_old_clients_too(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    start = cluster.oracle.next()
    cluster.store.one_pc([Mutation(Op.PUT, b"a", b"1")], cluster.oracle.next())
    about = {"mutations": [mutation(kvrpcpb.Put, b"a", b"2")], "primary_lock": b"a", "start_version": start}
    (conflict,) = ask(cluster, "KvPrewrite", region, **about).errors
    assert conflict.HasField("conflict")
    assert "write conflict" in conflict.retryable
    cluster.store.rollback([b"b"], start)
    about["mutations"] = [mutation(kvrpcpb.Put, b"b", b"2")]
    (rolled_back,) = ask(cluster, "KvPrewrite", region, **about).errors
    assert rolled_back.conflict.reason == kvrpcpb.WriteConflict.SelfRolledBack
    assert "write conflict" in rolled_back.retryable


def test_one_phase_tells_its_ts_twice(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    about = {"mutations": PUT, "primary_lock": b"k", "start_version": cluster.oracle.next(), "try_one_pc": True}
    answer = ask(cluster, "KvPrewrite", region, **about)
    assert answer.min_commit_ts == answer.one_pc_commit_ts > 0
