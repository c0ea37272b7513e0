"""Garbage collection in the dev cluster: what it deletes, who holds it back, and what a late reader is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from changefeed_devcluster.pd.safepoints import GC_WORKER, NEVER, SafePoints
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.gc import collect_garbage
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import Mutation, Op, TxnLockNotFound
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.tidb.server import SnapshotTooOld
from changefeed_devcluster.tidb.tidb import Tidb

A, B, C = b"a", b"b", b"c"


def put(key: bytes, value: bytes) -> Mutation:
    return Mutation(Op.PUT, key, value)


def history() -> MvccStore:
    """a: 1 at 11, 2 at 21, 3 at 31. b: 1 at 12, deleted at 22. c: 1 at 13, locked at 23."""
    store = MvccStore()
    for start, mutation in (
        (10, put(A, b"1")),
        (11, put(B, b"1")),
        (12, put(C, b"1")),
        (20, put(A, b"2")),
        (21, Mutation(Op.DELETE, B)),
        (22, Mutation(Op.LOCK, C)),
        (30, put(A, b"3")),
    ):
        store.one_pc([mutation], start)
    return store


def test_reads_at_and_above_the_safe_point_stay_as_they_were() -> None:
    store = history()
    before = {ts: store.scan(b"", b"", ts) for ts in range(25, 40)}
    assert store.collect_garbage(25) == 4
    assert {ts: store.scan(b"", b"", ts) for ts in range(25, 40)} == before
    assert store.scan(b"", b"", 15) == [(C, b"1")], "below it the store answers with what is left, as TiKV does"
    assert store.collect_garbage(25) == 0


def test_rollback_records_go_too() -> None:
    store = MvccStore()
    store.rollback([A, B], 10)
    store.rollback([B], 30)
    store.collect_garbage(20)
    store.prewrite([put(A, b"1")], A, 10)
    assert [lock.key for lock in store.scan_locks(99)] == [A]


def test_a_hold_keeps_history_and_losing_it_does_not() -> None:
    store = history()
    points = SafePoints(collect=store.collect_garbage)
    points.update(b"feed", 60, 15, now=0)
    assert collect_garbage(store, points, 25, now=1) == 15
    assert store.get(A, 21) == b"2"
    assert store.get(A, 15) == b"1"
    assert points.remove(b"feed") is not None
    assert collect_garbage(store, points, 25, now=1) == 25
    assert store.get(A, 15) is None
    assert points.update(b"feed", 60, 15, now=2).safe_point > 15, "PD tells the feed that it is too late"


def test_a_hold_that_expires_is_lost() -> None:
    store = history()
    points = SafePoints(collect=store.collect_garbage)
    points.update(b"feed", 60, 15, now=0)
    assert collect_garbage(store, points, 25, now=60) == 15
    assert collect_garbage(store, points, 25, now=61) == 25


def test_open_transactions_below_the_safe_point_are_ended() -> None:
    store = history()
    store.prewrite([put(b"x", b"1"), put(b"y", b"1")], b"x", 40, ttl_ms=1 << 40)
    store.prewrite([put(b"z", b"1")], b"z", 60)
    points = SafePoints(collect=store.collect_garbage)
    assert collect_garbage(store, points, 50, now=0) == 50
    assert [lock.key for lock in store.scan_locks(99)] == [b"z"]
    with pytest.raises(TxnLockNotFound):
        store.commit([b"x"], 40, 55)


def test_barriers_are_holds_by_another_name() -> None:
    points = SafePoints()
    points.update(GC_WORKER, NEVER, 100, now=0)
    assert points.set_barrier(b"backup", 10, 150, now=0).safe_point == 150
    points.update(GC_WORKER, NEVER, 200, now=0)
    assert points.transaction_safe_point == 150
    for name, ttl, ts in ((b"late", 10, 149), (b"backup", 0, 160), (b"", 10, 160), (GC_WORKER, 10, 160)):
        with pytest.raises(ValueError, match="barrier"):
            points.set_barrier(name, ttl, ts, now=0)
    gone = points.remove(b"backup")
    assert gone is not None
    assert gone.safe_point == 150
    assert points.remove(b"backup") is None
    assert points.remove(GC_WORKER) is None
    points.update(GC_WORKER, NEVER, 200, now=0)
    assert points.transaction_safe_point == 200


def test_a_second_life_forgets_the_same(tmp_path: Path) -> None:
    cluster = DevCluster(stores=1, data_dir=tmp_path)
    first = cluster.store.one_pc([put(A, b"1")], cluster.oracle.next())
    second = cluster.store.one_pc([put(A, b"2")], cluster.oracle.next())
    assert cluster.collect_garbage(second) == second
    cluster.store.one_pc([put(A, b"3")], cluster.oracle.next())
    cluster.stop()
    again = DevCluster(stores=1, data_dir=tmp_path)
    assert again.safepoints.gc_safe_point == again.store.gc_safe_point == second
    assert again.store.get(A, first) is None
    assert again.store.get(A, second) == b"2"
    assert again.store.get(A, again.oracle.next()) == b"3"
    again.stop()


def test_tidb_refuses_a_snapshot_below_the_safe_point() -> None:
    cluster = DevCluster(stores=1)
    tidb = Tidb(cluster)
    tidb.bootstrap()
    tidb.create_database("shop")
    table = tidb.create_table("shop", "orders", [NewColumn("id", "bigint"), NewColumn("n", "bigint")])
    for n in range(3):
        with tidb.begin() as txn:
            txn.insert(table, {"id": n, "n": n})
    early = txn.commit_ts
    cluster.collect_garbage(tidb.now())
    with pytest.raises(SnapshotTooOld, match="GC safepoint"):
        tidb.snapshot(table, early)
    with pytest.raises(SnapshotTooOld):
        tidb.history(table, early, tidb.now())
    assert len(tidb.snapshot(table, tidb.now())) == 3
