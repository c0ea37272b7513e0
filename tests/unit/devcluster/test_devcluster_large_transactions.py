"""Large transactions in the store: flush after flush, a promise that rises, an end that keeps it.

See docs/design/tikv.md, Transactions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed_devcluster import keys
from changefeed_devcluster.journal import Journal
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import (
    AlreadyRolledBack,
    CommitTsExpired,
    KeyIsLocked,
    Mutation,
    Op,
    TxnNotFound,
    WriteConflict,
)
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb
from devcluster_rig import Rig, entries, put

Row = cdcpb.Event.Row


def flushed(store: MvccStore, key: bytes) -> tuple[bytes, int]:
    lock = store.flushed(key, 10)
    assert lock is not None
    return lock.value, lock.generation


def test_a_later_generation_takes_the_place_of_an_earlier_one_and_never_the_other_way_round() -> None:
    store = MvccStore()
    store.flush([put("a", "1"), put("b", "1")], b"a", 10, 1)
    store.flush([put("a", "3")], b"a", 10, 3)
    store.flush([put("a", "2"), put("c", "2")], b"a", 10, 2)
    assert [flushed(store, key) for key in (b"a", b"b", b"c")] == [(b"3", 3), (b"1", 1), (b"2", 2)]
    store.commit([b"a", b"b", b"c"], 10, 20)
    assert store.scan(b"", b"", 20) == [(b"a", b"3"), (b"b", b"1"), (b"c", b"2")]
    store.flush([put("a", "late")], b"a", 10, 4)
    assert store.flushed(b"a", 10) is None


def test_a_flush_meets_locks_conflicts_and_its_own_rollback_as_a_prewrite_does() -> None:
    store = MvccStore()
    store.prewrite([put("locked", "1")], b"locked", 5)
    with pytest.raises(KeyIsLocked):
        store.flush([put("locked", "2")], b"locked", 10, 1)
    store.one_pc([put("newer", "1")], 15)
    with pytest.raises(WriteConflict):
        store.flush([put("newer", "2")], b"newer", 10, 1)
    store.rollback([b"gone"], 10)
    with pytest.raises(AlreadyRolledBack):
        store.flush([put("gone", "1")], b"gone", 10, 1)
    assert store.scan_locks(20) == store.scan_locks(5)


def test_a_heartbeat_moves_the_promise_of_a_large_transaction_only_and_never_back() -> None:
    store = MvccStore()
    store.flush([put("a", "1")], b"a", 10, 1)
    store.prewrite([put("b", "1")], b"b", 11)
    store.txn_heart_beat(b"a", 10, 5000, 50)
    store.txn_heart_beat(b"a", 10, 1000, 40)
    store.txn_heart_beat(b"b", 11, 1000, 50)
    store.flush([put("a", "2")], b"a", 10, 2)
    lock = store.flushed(b"a", 10)
    assert lock is not None
    assert (lock.min_commit_ts, lock.ttl_ms) == (50, 5000)
    with pytest.raises(CommitTsExpired):
        store.commit([b"a"], 10, 49)
    store.commit([b"a"], 10, 50)
    store.commit([b"b"], 11, 49)
    with pytest.raises(TxnNotFound):
        store.txn_heart_beat(b"a", 10, 1000, 60)


def test_subscribers_are_told_of_each_flush_without_its_generation() -> None:
    rig = Rig()
    rig.store.one_pc([put("a", "0")], 5)
    rig.subscribe()
    rig.store.flush([put("a", "1"), put("b", "1")], b"a", 10, 1)
    rig.store.flush([put("a", "2"), Mutation(Op.DELETE, b"b")], b"a", 10, 2)
    about = {"start_ts": 10, "type": "PREWRITE"}
    assert entries(rig.events()) == [
        Row(op_type="PUT", key=b"a", value=b"1", old_value=b"0", **about),
        Row(op_type="PUT", key=b"b", value=b"1", **about),
        Row(op_type="PUT", key=b"a", value=b"2", old_value=b"0", **about),
        Row(op_type="DELETE", key=b"b", **about),
    ]
    rig.run_scan(rig.register(request_id=2))
    assert [(row.key, row.value, row.generation) for row in entries(rig.events())] == [
        (b"a", b"2", 0),
        (b"a", b"0", 0),
        (b"b", b"", 0),
        (b"", b"", 0),
    ]


def test_a_journal_keeps_what_was_flushed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    before = MvccStore(journal)
    before.one_pc([put("a", "0")], 5)
    before.flush([put("a", "1"), put("b", "1")], b"a", 10, 1, txn_source=3)
    before.flush([put("a", "2")], b"a", 10, 2, min_commit_ts=30, ttl_ms=7)
    journal.close()
    again = Journal(tmp_path)
    after = MvccStore()
    for kind, body in again.replay():
        after.replay(kind, body)
    again.close()
    for store in (before, after):
        for lock in store.scan_locks(10):
            lock.floor = lock.txn_source = 0
    assert after.scan_locks(10) == before.scan_locks(10)


# --- of a TiDB session ---


@pytest.fixture
def tidb() -> Tidb:
    tidb = Tidb(DevCluster())
    tidb.bootstrap()
    tidb.create_database("shop")
    return tidb


@pytest.fixture
def table(tidb: Tidb) -> NamedTable:
    return tidb.create_table("shop", "orders", [NewColumn("id", "bigint"), NewColumn("v", "int", nullable=True)])


def test_a_session_sees_what_it_has_flushed_and_others_do_not(tidb: Tidb, table: NamedTable) -> None:
    with tidb.begin() as txn:
        txn.insert(table, {"id": 1, "v": 10})
    large = tidb.begin_large()
    large.update(table, {"id": 1, "v": 11})
    large.insert(table, {"id": 2, "v": 20})
    large.flush()
    large.update(table, {"id": 2, "v": 21})
    large.insert(table, {"id": 3, "v": 30})
    large.flush()
    large.delete(table, 3)
    promised = large.heartbeat()
    assert large.get(table, 2) == {"id": 2, "v": 21}
    assert large.get(table, 3) is None
    assert tidb.snapshot(table, large.start_ts - 1) == {1: {"id": 1, "v": 10}}
    commit_ts = large.commit()
    assert commit_ts > promised
    assert tidb.snapshot(table, commit_ts) == {1: {"id": 1, "v": 11}, 2: {"id": 2, "v": 21}}
    changes = tidb.history(table, large.start_ts, commit_ts)
    assert [(change.op, change.pk) for change in changes] == [("update", 1), ("insert", 2)]


def test_one_that_is_half_sent_leaves_nothing_when_it_is_rolled_back(tidb: Tidb, table: NamedTable) -> None:
    large = tidb.begin_large()
    for number in range(3):
        large.insert(table, {"id": number})
        large.flush()
    large.rollback()
    now = tidb.now()
    assert tidb.snapshot(table, now) == {}
    with pytest.raises(TxnNotFound):
        large.heartbeat()


def test_a_flush_that_fails_rolls_it_back(tidb: Tidb, table: NamedTable) -> None:
    large = tidb.begin_large()
    large.insert(table, {"id": 1})
    large.flush()
    with tidb.begin() as txn:
        txn.insert(table, {"id": 2})
    key = keys.record_key(table.id, 2)
    value = tidb.store.get(key, tidb.now())
    assert value is not None
    large.write(key, value)
    with pytest.raises(WriteConflict):
        large.flush()
    assert set(tidb.snapshot(table, tidb.now())) == {2}


def test_it_is_committed_key_after_key_behind_its_primary(tidb: Tidb, table: NamedTable) -> None:
    large = tidb.begin_large()
    for number in range(3):
        large.insert(table, {"id": number})
    large.flush()
    commit_ts = large.commit_primary()
    assert large.commit_secondaries(1) == 1
    with pytest.raises(KeyIsLocked):
        tidb.snapshot(table, tidb.now())
    assert large.commit_secondaries(5) == 0
    assert {change.commit_ts for change in tidb.history(table, large.start_ts, tidb.now())} == {commit_ts}
