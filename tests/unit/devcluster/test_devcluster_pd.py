"""PD in trouble, and PD's safepoints, as a client sees them: the newest PD and those of up to 8.5."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store import scheduler
from changefeed_devcluster.store.txn import Mutation, Op
from devcluster_feed import DEADLINE, Feed, failure, kv, pd, rows, until

NEVER = (1 << 63) - 1


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(min_ts_interval=0.02) as cluster:
        yield cluster


@pytest.fixture
def old() -> Iterator[DevCluster]:
    with DevCluster(stores=1, gc_barriers=False) as cluster:
        yield cluster


def put(key: bytes, value: bytes) -> Mutation:
    return Mutation(Op.PUT, key, value)


# --- frozen ---


def test_a_frozen_pd_answers_nothing_and_resolved_ts_stands_then_jumps(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with Feed(cluster) as feed, ThreadPoolExecutor(2) as pool:
        feed.register(region)
        feed.until(lambda message: message.resolved_ts.ts > 0)
        cluster.freeze_pd(DEADLINE)
        asked = pool.submit(pd, cluster, "GetAllStores")
        begun = pool.submit(cluster.oracle.next)
        frozen_at = cluster.oracle.allocate()
        cluster.store.one_pc([put(b"a", b"1")], frozen_at)
        assert not feed.hears(lambda message: message.resolved_ts.ts > frozen_at, 0.2)
        assert not asked.done()
        assert not begun.done()
        cluster.heal()
        assert len(asked.result(DEADLINE).stores) == 3
        assert begun.result(DEADLINE) > frozen_at
        messages = feed.until(lambda message: message.resolved_ts.ts > frozen_at)
    assert [row.key for row in rows(messages)] == [b"a"]
    assert all(message.resolved_ts.ts > 0 for message in messages if message.HasField("resolved_ts"))


@pytest.mark.parametrize("origin", [kvrpcpb.RequestOriginUnknown, kvrpcpb.RequestOriginTiDB])
def test_who_is_not_tidb_holds_the_workers_while_pd_is_frozen(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch, origin: kvrpcpb.RequestOrigin.ValueType
) -> None:
    monkeypatch.setattr(scheduler, "PD_PATIENCE_S", DEADLINE)
    region = cluster.regions.all()[0]
    store = cluster.schedulers[region.leader_store]
    start, now = cluster.oracle.next(), cluster.oracle.next()
    cluster.store.prewrite([put(b"a", b"1")], b"a", start, ttl_ms=60_000)
    cluster.freeze_pd(DEADLINE)

    def check() -> int:
        about = {"primary_key": b"a", "lock_ts": start, "current_ts": now}
        return int(kv(cluster, "CheckTxnStatus", region, {"request_origin": origin}, **about).lock_ttl)

    def write() -> list[object]:
        mutations = [kvrpcpb.Mutation(key=b"k", value=b"v")]
        about = {"mutations": mutations, "primary_lock": b"k", "start_version": now}
        return list(kv(cluster, "Prewrite", region, **about).errors)

    with ThreadPoolExecutor(scheduler.WORKERS + 1) as pool:
        checks = [pool.submit(check) for _ in range(scheduler.WORKERS)]
        if origin == kvrpcpb.RequestOriginUnknown:
            until(lambda: store.asked_pd == scheduler.WORKERS)
            written = pool.submit(write)
            for _ in range(20):
                assert kv(cluster, "Get", region, key=b"x", version=now).not_found
            assert not any(each.done() for each in (*checks, written))
            cluster.heal()
            assert written.result() == []
        else:
            assert write() == []
            assert store.asked_pd == 0
        assert [each.result() for each in checks] == [60_000] * scheduler.WORKERS


def test_a_store_waits_for_pd_so_long_and_goes_on(cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "PD_PATIENCE_S", 0.02)
    region = cluster.regions.all()[0]
    start, now = cluster.oracle.next(), cluster.oracle.next()
    cluster.store.prewrite([put(b"a", b"1")], b"a", start, ttl_ms=60_000)
    cluster.freeze_pd(DEADLINE)
    for _ in range(3):
        assert kv(cluster, "CheckTxnStatus", region, primary_key=b"a", lock_ts=start, current_ts=now).lock_ttl
    assert cluster.schedulers[region.leader_store].asked_pd == 3


# --- safepoints of the newest PD ---


def test_an_ordinary_service_is_told_how_far_gc_may_go(cluster: DevCluster) -> None:
    told = pd(cluster, "UpdateServiceGCSafePoint", service_id=b"feed", TTL=60, safe_point=100)
    assert (told.service_id, told.TTL, told.min_safe_point) == (b"gc_worker", NEVER, 0)
    told = pd(cluster, "UpdateServiceGCSafePoint", service_id=b"gc_worker", TTL=NEVER, safe_point=150)
    assert (told.service_id, told.min_safe_point) == (b"feed", 100)
    told = pd(cluster, "UpdateServiceGCSafePoint", service_id=b"late", TTL=60, safe_point=99)
    assert (told.service_id, told.min_safe_point, told.header.HasField("error")) == (b"gc_worker", 100, False)
    assert [barrier.barrier_id for barrier in pd(cluster, "GetGCState").gc_state.gc_barriers] == ["feed"]


@pytest.mark.parametrize(
    ("service_id", "ttl", "safe_point"), [(b"", 60, 200), (b"gc_worker", 60, 200), (b"gc_worker", NEVER, 90)]
)
def test_a_service_that_pd_does_not_take_is_an_error(
    cluster: DevCluster, service_id: bytes, ttl: int, safe_point: int
) -> None:
    pd(cluster, "AdvanceTxnSafePoint", target=100)
    about = {"service_id": service_id, "TTL": ttl, "safe_point": safe_point}
    assert failure(lambda: pd(cluster, "UpdateServiceGCSafePoint", **about))[0] is grpc.StatusCode.UNKNOWN
    assert pd(cluster, "GetGCState").gc_state.txn_safe_point == 100
    assert not pd(cluster, "GetGCState").gc_state.gc_barriers


def test_the_transaction_safepoint_stops_at_a_barrier_and_names_it(cluster: DevCluster) -> None:
    pd(cluster, "SetGCBarrier", barrier_id="feed", barrier_ts=100, ttl_seconds=60)
    moved = pd(cluster, "AdvanceTxnSafePoint", target=200)
    assert (moved.old_txn_safe_point, moved.new_txn_safe_point) == (0, 100)
    assert "'feed'" in moved.blocker_description
    assert not pd(cluster, "SetGCBarrier", barrier_id="just", barrier_ts=100, ttl_seconds=60).header.HasField("error")
    back = pd(cluster, "AdvanceTxnSafePoint", target=99).header.error
    assert (back.type, "ErrDecreasingTxnSafePoint" in back.message) == (pdpb.UNKNOWN, True)


def test_the_gc_safepoint_does_not_pass_the_transaction_safepoint(cluster: DevCluster) -> None:
    pd(cluster, "AdvanceTxnSafePoint", target=100)
    above = pd(cluster, "AdvanceGCSafePoint", target=101).header.error
    assert (above.type, "ErrGCSafePointExceedsTxnSafePoint" in above.message) == (pdpb.UNKNOWN, True)
    code, details = failure(lambda: pd(cluster, "UpdateGCSafePoint", safe_point=101))
    assert (code, "ErrGCSafePointExceedsTxnSafePoint" in details) == (grpc.StatusCode.UNKNOWN, True)
    assert pd(cluster, "AdvanceGCSafePoint", target=90).new_gc_safe_point == 90
    assert pd(cluster, "UpdateGCSafePoint", safe_point=80).new_safe_point == 90
    state = pd(cluster, "GetGCState").gc_state
    assert (state.txn_safe_point, state.gc_safe_point, pd(cluster, "GetGCSafePoint").safe_point) == (100, 90, 90)


def test_an_expired_barrier_is_listed_until_the_transaction_safepoint_moves(cluster: DevCluster) -> None:
    cluster.safepoints.update(b"feed", 1, 50, now=0)
    (barrier,) = pd(cluster, "GetGCState").gc_state.gc_barriers
    assert (barrier.barrier_id, barrier.ttl_seconds) == ("feed", 0)
    assert pd(cluster, "AdvanceTxnSafePoint", target=100).new_txn_safe_point == 100
    assert not pd(cluster, "GetGCState").gc_state.gc_barriers


# --- safepoints of PDs up to 8.5 ---


def test_every_service_of_an_old_pd_is_told_the_least_of_all(old: DevCluster) -> None:
    pd(old, "UpdateServiceGCSafePoint", service_id=b"gc_worker", TTL=NEVER, safe_point=150)
    told = pd(old, "UpdateServiceGCSafePoint", service_id=b"feed", TTL=60, safe_point=160)
    assert (told.service_id, told.min_safe_point) == (b"gc_worker", 150)
    told = pd(old, "UpdateServiceGCSafePoint", service_id=b"gc_worker", TTL=NEVER, safe_point=170)
    assert (told.service_id, told.min_safe_point) == (b"feed", 160)
    assert pd(old, "UpdateGCSafePoint", safe_point=165).new_safe_point == 165


def test_an_old_pd_knows_no_barriers(old: DevCluster) -> None:
    for method in ("GetGCState", "SetGCBarrier", "AdvanceTxnSafePoint"):
        assert failure(lambda method=method: pd(old, method))[0] is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[misc]
