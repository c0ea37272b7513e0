"""Percolator rules of the dev cluster's store, its codec, oracle and safepoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from changefeed_devcluster.codec import decode_bytes, encode_bytes
from changefeed_devcluster.journal import Journal, JournalRecord
from changefeed_devcluster.pd.oracle import Oracle, compose
from changefeed_devcluster.pd.safepoints import GC_WORKER, NEVER, SafePoints, ServiceSafePoints
from changefeed_devcluster.store.mvcc import LockView
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import (
    MAX_TS,
    AlreadyCommitted,
    AlreadyExist,
    AlreadyRolledBack,
    ChangeKind,
    CommitTsExpired,
    KeyIsLocked,
    Mutation,
    Op,
    PrimaryMismatch,
    RowChange,
    StoreChange,
    TxnLockNotFound,
    TxnNotFound,
    TxnStatusAction,
    WriteConflict,
)
from hypothesis import given
from hypothesis import strategies as st


def put(key: bytes, value: bytes) -> Mutation:
    return Mutation(Op.PUT, key, value)


def write(store: MvccStore, start_ts: int, commit_ts: int, *mutations: Mutation) -> None:
    store.prewrite(mutations, mutations[0].key, start_ts)
    store.commit([mutation.key for mutation in mutations], start_ts, commit_ts)


@pytest.mark.parametrize(
    ("raw", "encoded"),
    [
        ("", "0000000000000000f7"),
        ("00", "0000000000000000f8"),
        ("010203", "0102030000000000fa"),
        ("01020304050607", "0102030405060700fe"),
        ("0102030405060708", "0102030405060708ff0000000000000000f7"),
        ("010203040506070809", "0102030405060708ff0900000000000000f8"),
    ],
)
def test_encode_bytes_gives_the_vectors_of_tikv(raw: str, encoded: str) -> None:
    assert encode_bytes(bytes.fromhex(raw)).hex() == encoded
    assert decode_bytes(bytes.fromhex(encoded)).hex() == raw


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_encode_bytes_keeps_the_order(one: bytes, two: bytes) -> None:
    assert (encode_bytes(one) < encode_bytes(two)) == (one < two)
    assert decode_bytes(encode_bytes(one)) == one


@pytest.mark.parametrize("wrong", ["", "00", "0102030405060708ff", "0102030000000001fa", "0000000000000000f700"])
def test_decode_bytes_refuses_what_encode_never_makes(wrong: str) -> None:
    with pytest.raises(ValueError, match="memcomparable"):
        decode_bytes(bytes.fromhex(wrong))


def test_committed_values_are_read_at_their_ts() -> None:
    store = MvccStore()
    write(store, 10, 20, put(b"a", b"1"))
    write(store, 30, 40, Mutation(Op.DELETE, b"a"), put(b"b", b"2"))
    write(store, 41, 42, Mutation(Op.LOCK, b"b"))
    assert [store.get(b"a", ts) for ts in (19, 20, 39, 40)] == [None, b"1", b"1", None]
    assert store.scan(b"", b"", 39) == [(b"a", b"1")]
    assert store.scan(b"", b"", MAX_TS) == [(b"b", b"2")]


def test_scan_honours_bounds_limit_and_direction() -> None:
    store = MvccStore()
    store.one_pc([put(bytes([byte]), b"v") for byte in range(10, 20)], 5)
    assert [key[0] for key, _ in store.scan(b"\x0c", b"\x0f", 100)] == [12, 13, 14]
    assert [key[0] for key, _ in store.scan(b"\x0c", b"", 100, limit=2)] == [12, 13]
    assert [key[0] for key, _ in store.read_range(b"\x0c", b"\x0f", 100, 2, reverse=True)] == [14, 13]
    assert store.scan(b"\x0f", b"\x0c", 100) == []


def test_scan_is_whole_over_its_chunks() -> None:
    store = MvccStore()
    keys = [number.to_bytes(4, "big") for number in range(9000)]
    store.one_pc([put(key, b"v") for key in keys], 5)
    assert [key for key, _ in store.scan(b"", b"", 100)] == keys
    assert [key for key, _ in store.read_range(b"", b"", 100, reverse=True)] == keys[::-1]


def test_a_lock_blocks_reads_above_its_start_ts_only() -> None:
    store = MvccStore()
    write(store, 10, 20, put(b"a", b"1"))
    store.prewrite([put(b"b", b"2"), put(b"a", b"x")], b"b", 30)
    assert store.get(b"a", 29) == b"1"
    with pytest.raises(KeyIsLocked) as caught:
        store.get(b"a", 30)
    assert (caught.value.lock.start_ts, caught.value.lock.primary) == (30, b"b")
    assert store.get(b"a", 30, LockView([30])) == b"1"
    with pytest.raises(KeyIsLocked):
        store.scan(b"", b"", 31)
    assert store.get(b"b", MAX_TS) is None, "the latest read passes the lock on its primary"
    with pytest.raises(KeyIsLocked):
        store.get(b"a", MAX_TS)


def test_lock_only_mutations_block_writers_not_readers() -> None:
    store = MvccStore()
    store.prewrite([Mutation(Op.LOCK, b"a")], b"a", 10)
    assert store.get(b"a", 20) is None
    with pytest.raises(KeyIsLocked):
        store.prewrite([put(b"a", b"1")], b"a", 11)


def test_prewrite_names_all_foreign_locks_and_writes_nothing() -> None:
    store = MvccStore()
    store.prewrite([put(b"b", b"1"), put(b"c", b"1")], b"b", 10)
    with pytest.raises(KeyIsLocked) as caught:
        store.prewrite([put(b"a", b"2"), put(b"b", b"2"), put(b"c", b"2")], b"a", 11)
    assert [lock.key for lock in caught.value.locks] == [b"b", b"c"]
    assert [lock.key for lock in store.scan_locks(MAX_TS - 1)] == [b"b", b"c"]


def test_prewrite_conflicts_with_a_newer_version() -> None:
    store = MvccStore()
    write(store, 10, 20, put(b"a", b"1"))
    with pytest.raises(WriteConflict) as caught:
        store.prewrite([put(b"a", b"2")], b"a", 19)
    assert (caught.value.conflict_start_ts, caught.value.conflict_commit_ts) == (10, 20)
    store.prewrite([put(b"a", b"2")], b"a", 20)


def test_insert_and_check_not_exists_look_at_the_live_value() -> None:
    store = MvccStore()
    write(store, 10, 20, Mutation(Op.INSERT, b"a", b"1"))
    for op in (Op.INSERT, Op.CHECK_NOT_EXISTS):
        with pytest.raises(AlreadyExist):
            store.prewrite([Mutation(op, b"a", b"2")], b"a", 30)
    write(store, 31, 32, Mutation(Op.DELETE, b"a"))
    store.prewrite([Mutation(Op.CHECK_NOT_EXISTS, b"a")], b"a", 40)
    assert store.scan_locks(50) == []
    write(store, 41, 42, Mutation(Op.INSERT, b"a", b"3"))
    assert store.get(b"a", 42) == b"3"


def test_every_call_may_be_repeated_and_reports_once() -> None:
    store = MvccStore()
    changes: list[StoreChange] = []
    store.observe(changes.append)
    for _ in range(2):
        store.prewrite([put(b"a", b"1")], b"a", 10)
    for _ in range(2):
        store.commit([b"a"], 10, 20)
    for _ in range(2):
        store.rollback([b"b"], 30)
    assert store.one_pc([put(b"c", b"3")], 40) == store.one_pc([put(b"c", b"3")], 40)
    assert [change.kind for change in changes] == [
        ChangeKind.PREWRITE,
        ChangeKind.COMMIT,
        ChangeKind.ROLLBACK,
        ChangeKind.ONE_PC,
    ]


def test_changes_carry_old_values_except_commits() -> None:
    store = MvccStore()
    write(store, 10, 20, put(b"a", b"1"))
    changes: list[StoreChange] = []
    store.observe(changes.append)
    write(store, 30, 40, put(b"a", b"2"), Mutation(Op.LOCK, b"z"))
    store.one_pc([Mutation(Op.DELETE, b"a")], 50)
    assert changes == [
        StoreChange(ChangeKind.PREWRITE, 30, 0, 0, [RowChange(b"a", Op.PUT, b"2", b"1")]),
        StoreChange(ChangeKind.COMMIT, 30, 40, 0, [RowChange(b"a", Op.PUT, b"2"), RowChange(b"z", Op.LOCK)]),
        StoreChange(ChangeKind.ONE_PC, 50, 51, 0, [RowChange(b"a", Op.DELETE, b"", b"2")]),
    ]


def test_a_rolled_back_transaction_can_neither_prewrite_nor_commit() -> None:
    store = MvccStore()
    store.prewrite([put(b"a", b"1")], b"a", 10)
    store.rollback([b"a"], 10)
    assert store.scan_locks(100) == []
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(b"a", b"1")], b"a", 10)
    with pytest.raises(TxnLockNotFound):
        store.commit([b"a"], 10, 20)
    with pytest.raises(WriteConflict):
        store.prewrite([put(b"a", b"1")], b"a", 9)


def test_a_committed_transaction_cannot_be_rolled_back() -> None:
    store = MvccStore()
    write(store, 10, 20, put(b"a", b"1"))
    with pytest.raises(AlreadyCommitted):
        store.rollback([b"a"], 10)
    assert store.get(b"a", 20) == b"1"


def test_commit_is_all_or_nothing() -> None:
    store = MvccStore()
    store.prewrite([put(b"a", b"1")], b"a", 10)
    with pytest.raises(TxnLockNotFound):
        store.commit([b"a", b"b"], 10, 20)
    assert [lock.key for lock in store.scan_locks(100)] == [b"a"]


def test_commit_below_a_told_resolved_ts_is_refused() -> None:
    store = MvccStore()
    store.resolved_floor = 100
    store.prewrite([put(b"a", b"1")], b"a", 90)
    with pytest.raises(CommitTsExpired):
        store.commit([b"a"], 90, 100)
    store.commit([b"a"], 90, 101)


def test_one_pc_commits_above_reads_and_start() -> None:
    store = MvccStore()
    assert store.get(b"a", 100) is None
    assert store.one_pc([put(b"a", b"1")], 50) == 101
    assert store.one_pc([put(b"a", b"2")], 200) == 201
    assert store.one_pc([put(b"a", b"3")], 201, min_commit_ts=300) == 300
    with pytest.raises(WriteConflict):
        store.one_pc([put(b"a", b"4")], 299)


def test_check_txn_status_tells_every_fate() -> None:
    store = MvccStore()
    start = compose(1000)
    store.prewrite([put(b"a", b"1"), put(b"b", b"1")], b"a", start, ttl_ms=500)
    alive = store.check_txn_status(b"a", start, compose(1500))
    assert (alive.action, alive.ttl_ms, alive.commit_ts) == (TxnStatusAction.NO_ACTION, 500, 0)
    with pytest.raises(PrimaryMismatch):
        store.check_txn_status(b"b", start, compose(1500), verify_is_primary=True)
    assert store.txn_heart_beat(b"a", start, 900) == 900
    assert store.check_txn_status(b"a", start, compose(1900)).ttl_ms == 900
    assert store.check_txn_status(b"a", start, compose(1901)).action is TxnStatusAction.TTL_EXPIRE_ROLLBACK
    rolled_back = store.check_txn_status(b"a", start, compose(1901))
    assert (rolled_back.ttl_ms, rolled_back.commit_ts) == (0, 0)
    store.resolve_lock(start, 0)
    assert store.scan_locks(MAX_TS - 1) == []
    with pytest.raises(TxnNotFound):
        store.check_txn_status(b"c", start, compose(1901))
    absent = store.check_txn_status(b"c", start, compose(1901), rollback_if_not_exist=True)
    assert absent.action is TxnStatusAction.LOCK_NOT_EXIST_ROLLBACK
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(b"c", b"1")], b"c", start)
    write(store, compose(2000), compose(2001), put(b"d", b"1"))
    assert store.check_txn_status(b"d", compose(2000), compose(9000)).commit_ts == compose(2001)


def test_resolve_lock_commits_the_rest_of_a_transaction() -> None:
    store = MvccStore()
    store.prewrite([put(b"a", b"1"), put(b"b", b"2"), put(b"c", b"3")], b"a", 10)
    store.commit([b"a"], 10, 20)
    store.resolve_lock(10, 20, b"b", b"c")
    assert [lock.key for lock in store.scan_locks(100)] == [b"c"]
    store.resolve_lock(10, 20)
    assert store.scan(b"", b"", 20) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_incremental_scan_shows_the_moment_of_its_snapshot() -> None:
    store = MvccStore()
    write(store, 10, 20, put(b"a", b"1"), put(b"b", b"1"))
    write(store, 30, 40, put(b"a", b"2"))
    write(store, 41, 42, Mutation(Op.LOCK, b"a"))
    write(store, 50, 60, Mutation(Op.DELETE, b"a"))
    seq = store.seq
    write(store, 70, 80, put(b"b", b"9"))
    found, following = store.scan_versions(b"", b"", 20, seq, 100)
    assert following is None
    assert [(item.key, item.version.commit_ts, item.version.value, item.old_value) for item in found] == [
        (b"a", 60, b"", b"2"),
        (b"a", 40, b"2", b"1"),
    ]
    first, following = store.scan_versions(b"", b"", 0, seq, 1)
    assert {item.key for item in first} == {b"a"}
    assert following == b"a\0"
    second, following = store.scan_versions(following, b"", 0, seq, 2)
    assert [(item.key, item.version.commit_ts) for item in second] == [(b"b", 20)]
    assert following is None


def test_a_step_of_a_scan_is_bounded_where_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changefeed_devcluster.store.mvcc.STEP_KEYS", 3)
    store = MvccStore()
    write(store, 10, 20, *(put(bytes([n]), b"1") for n in range(7)))
    steps = [store.scan_versions(bytes([n]), b"", 20, store.seq, 1024) for n in (0, 3, 6)]
    assert steps == [([], bytes([2, 0])), ([], bytes([5, 0])), ([], None)]


def test_a_second_life_has_the_same_versions_locks_and_rollbacks(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert list(journal.replay()) == []
    store = MvccStore(journal)
    write(store, 10, 20, put(b"a", b"1"), put(b"b", b"1"))
    store.one_pc([Mutation(Op.DELETE, b"b"), put(b"c", b"3")], 30)
    store.prewrite([put(b"d", b"4"), put(b"e", b"5")], b"d", 40, ttl_ms=77)
    store.commit([b"d"], 40, 50)
    store.rollback([b"f"], 60)
    journal.close()
    again = Journal(tmp_path)
    restored = MvccStore(again)
    highest = max(restored.replay(kind, body) for kind, body in again.replay())
    assert highest == 60
    assert restored.scan(b"", b"", 100, limit=3) == [(b"a", b"1"), (b"c", b"3"), (b"d", b"4")]
    (lock,) = restored.scan_locks(100)
    assert (lock.key, lock.primary, lock.start_ts, lock.ttl_ms, lock.value) == (b"e", b"d", 40, 77, b"5")
    with pytest.raises(AlreadyRolledBack):
        restored.prewrite([put(b"f", b"6")], b"f", 60)
    again.close()


@pytest.mark.parametrize("damage", [1, 9, "flip", "garbage"])
def test_a_torn_tail_is_cut_and_overwritten(tmp_path: Path, damage: int | str) -> None:
    journal = Journal(tmp_path)
    store = MvccStore(journal)
    write(store, 10, 20, put(b"a", b"1"))
    whole = journal.path.read_bytes()
    write(store, 30, 40, put(b"a", b"2"))
    journal.close()
    torn = journal.path.read_bytes()
    match damage:
        case int():
            torn = torn[:-damage]
        case "flip":
            torn = torn[:-1] + bytes([torn[-1] ^ 1])
        case _:
            torn = whole + b"\xff" * 7
    journal.path.write_bytes(torn)
    again = Journal(tmp_path)
    restored = MvccStore(again)
    for kind, body in again.replay():
        restored.replay(kind, body)
    assert restored.get(b"a", 100, LockView([30])) == b"1"
    restored.one_pc([put(b"z", b"9")], 200)
    again.close()
    third = Journal(tmp_path)
    assert [kind for kind, _ in third.replay()][-1] is JournalRecord.ONE_PC
    third.close()


def test_a_data_folder_has_one_cluster(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(OSError, match="in use"):
        Journal(tmp_path)
    journal.close()


def test_oracle_never_repeats_over_a_clock_that_goes_back() -> None:
    saved: list[int] = []
    clock = iter([5.0, 5.0, 5.001, 4.0])
    oracle = Oracle(saved.append, lambda: next(clock))
    seen = [oracle.allocate(10) for _ in range(4)]
    assert seen[0] == compose(5000, 10)
    assert seen[1] == compose(5000, 20)
    assert seen[2] == compose(5001, 10)
    assert seen[3] == compose(5001, 20)
    again = Oracle(saved.append, lambda: 4.0)
    again.raise_to(compose(saved[-1]))
    assert again.next() > seen[3]


def test_oracle_goes_to_the_next_millisecond_when_one_is_used_up() -> None:
    oracle = Oracle(clock=lambda: 5.0)
    oracle.allocate(262_143)
    assert oracle.next() == compose(5001, 1)
    with pytest.raises(ValueError, match="timestamps at once"):
        oracle.allocate(0)


def test_safepoints_of_an_old_pd_answer_the_lowest_living_hold() -> None:
    points = ServiceSafePoints()
    assert points.update(GC_WORKER, NEVER, 100, now=0).safe_point == 100
    assert points.update(b"feed", 10, 90, now=0).safe_point == 100, "below the lowest: refused, and told so"
    assert points.update(b"feed", 10, 110, now=0).safe_point == 100
    assert points.update(GC_WORKER, NEVER, 200, now=1).safe_point == 110
    assert points.update(b"other", 5, 105, now=1).safe_point == 110
    assert points.lowest(11).safe_point == 200, "the feed's hold has expired"
    points.update(b"feed", 10, 210, now=12)
    assert [hold.service_id for hold in points.living(12)] == [b"feed", GC_WORKER]
    points.update(b"feed", 0, MAX_TS, now=12)
    assert [hold.service_id for hold in points.living(12)] == [GC_WORKER]


def test_safepoints_of_the_newest_pd_answer_how_far_gc_may_go() -> None:
    points = SafePoints()
    assert points.update(b"feed", 10, 90, now=0) == (GC_WORKER, NEVER, 0), "not the least of the services"
    assert points.update(GC_WORKER, NEVER, 80, now=0) == (GC_WORKER, NEVER, 80)
    assert points.update(GC_WORKER, NEVER, 200, now=1) == (b"feed", 10, 90), "what has stopped it"
    assert points.transaction_safe_point == 90
    assert points.update(b"late", 10, 89, now=1) == (GC_WORKER, NEVER, 90), "below it: refused, and told so"
    assert points.update(b"just", 10, 90, now=1) == (GC_WORKER, NEVER, 90)
    assert [hold.service_id for hold in points.living(1)] == [b"feed", GC_WORKER, b"just"]
    with pytest.raises(ValueError, match="ErrDecreasingTxnSafePoint"):
        points.update(GC_WORKER, NEVER, 89, now=1)
    assert [hold.service_id for hold in points.barriers] == [b"feed", b"just"], "expired, and known until it moves"
    assert points.update(GC_WORKER, NEVER, 150, now=12) == (GC_WORKER, NEVER, 150)
    assert points.barriers == []
    assert points.may_collect(140, now=12) == 140
    assert points.may_collect(160, now=12) == points.transaction_safe_point == 160
