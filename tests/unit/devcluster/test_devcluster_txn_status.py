"""Fates of transactions in the dev cluster's store: expiry by the oracle's time, heartbeats, clean-up, and races."""

from __future__ import annotations

import pytest
from changefeed_devcluster.pd.oracle import Oracle, compose
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import (
    MAX_TS,
    AlreadyCommitted,
    AlreadyRolledBack,
    Assertion,
    AssertionFailed,
    ChangeKind,
    CommitTsExpired,
    KeyIsLocked,
    Mutation,
    Op,
    StoreChange,
    TxnLockNotFound,
    TxnNotFound,
    TxnStatusAction,
)

A, B = b"a", b"b"


def put(key: bytes, value: bytes) -> Mutation:
    return Mutation(Op.PUT, key, value)


def test_a_lock_expires_by_the_oracles_physical_time() -> None:
    """The wall clock may stand still: what counts is the ts that the caller took."""
    clock = [1.0]
    oracle = Oracle(clock=lambda: clock[0])
    store = MvccStore()
    start = oracle.next()
    store.prewrite([put(A, b"1")], A, start, ttl_ms=500)
    clock[0] = 1.5
    assert store.check_txn_status(A, start, oracle.next()).action is TxnStatusAction.NO_ACTION
    clock[0] = 1.501
    assert store.check_txn_status(A, start, oracle.next()).action is TxnStatusAction.TTL_EXPIRE_ROLLBACK
    assert store.scan_locks(oracle.next()) == []


def test_a_heartbeat_comes_too_late_for_a_dead_lock() -> None:
    store = MvccStore()
    start = compose(1000)
    store.prewrite([put(A, b"1")], A, start, ttl_ms=100)
    assert store.txn_heart_beat(A, start, 50) == 100, "it never shortens"
    assert store.txn_heart_beat(A, start, 900) == 900
    store.check_txn_status(A, start, compose(1901))
    with pytest.raises(TxnNotFound):
        store.txn_heart_beat(A, start, 9000)
    with pytest.raises(TxnNotFound):
        store.txn_heart_beat(B, start, 9000)


def test_a_reader_pushes_the_commit_past_itself() -> None:
    store = MvccStore()
    start, reader, now = compose(1000), compose(1100), compose(1200)
    store.prewrite([put(A, b"1")], A, start, ttl_ms=5000, min_commit_ts=start + 1)
    pushed = store.check_txn_status(A, start, now, caller_start_ts=reader)
    assert pushed.action is TxnStatusAction.MIN_COMMIT_TS_PUSHED
    assert store.get(A, reader) is None, "the reader passes the lock"
    with pytest.raises(CommitTsExpired) as caught:
        store.commit([A], start, reader)
    assert caught.value.min_commit_ts == now
    again = store.check_txn_status(A, start, now, caller_start_ts=reader)
    assert again.action is TxnStatusAction.MIN_COMMIT_TS_PUSHED, "it is past him already"
    store.commit([A], start, now)


def test_nobody_pushes_what_has_no_min_commit_ts() -> None:
    store = MvccStore()
    start = compose(1000)
    store.prewrite([put(A, b"1")], A, start, ttl_ms=5000)
    assert (
        store.check_txn_status(A, start, compose(1200), caller_start_ts=compose(1100)).action
        is TxnStatusAction.NO_ACTION
    )
    latest = store.check_txn_status(A, start, compose(1200), caller_start_ts=MAX_TS)
    assert latest.action is TxnStatusAction.MIN_COMMIT_TS_PUSHED, "a latest read may pass: nothing is committed"
    assert [lock.min_commit_ts for lock in store.scan_locks(MAX_TS)] == [0]


def test_commit_after_rollback_and_prewrite_after_rollback_are_refused() -> None:
    store = MvccStore()
    store.prewrite([put(A, b"1"), put(B, b"1")], A, compose(1000), ttl_ms=1)
    store.check_txn_status(A, compose(1000), compose(2000))
    with pytest.raises(TxnLockNotFound):
        store.commit([A], compose(1000), compose(2001))
    store.resolve_lock(compose(1000), 0, only=[B])
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(B, b"1")], A, compose(1000))
    assert store.scan(b"", b"", MAX_TS) == []


def test_rollback_of_one_that_was_never_there_bars_it() -> None:
    store = MvccStore()
    store.resolve_lock(20, 0, only=[A])
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(A, b"1")], A, 20)


def test_a_commit_at_the_ts_of_a_rollback_leaves_both() -> None:
    """Another transaction's computed commit ts may be the start ts of one that was rolled back (overlapped)."""
    store = MvccStore()
    store.rollback([A], 31)
    store.max_ts = 30
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(A, b"x")], A, 31)
    store.one_pc([put(B, b"1")], 20)
    store.rollback([B], 31, protects=True)
    assert store.get(B, 31) == b"1"
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(B, b"x")], B, 31)
    status = store.check_txn_status(B, 31, MAX_TS)
    assert (status.ttl_ms, status.commit_ts) == (0, 0)
    assert store.check_txn_status(B, 20, MAX_TS).commit_ts == 31


def test_a_rollback_that_is_not_protected_leaves_nothing_where_a_commit_has_its_ts() -> None:
    store = MvccStore()
    changes: list[StoreChange] = []
    store.observe(changes.append)
    commit_ts = store.one_pc([put(A, b"1")], 20)
    store.rollback([A], commit_ts)
    assert [change.kind for change in changes] == [ChangeKind.ONE_PC]
    absent = store.check_txn_status(A, commit_ts, MAX_TS, rollback_if_not_exist=True)
    assert absent.action is TxnStatusAction.LOCK_NOT_EXIST_ROLLBACK
    assert [change.kind for change in changes] == [ChangeKind.ONE_PC, ChangeKind.ROLLBACK]


def test_cleanup_waits_for_the_ttl_unless_told_not_to() -> None:
    store = MvccStore()
    start = compose(1000)
    store.prewrite([put(A, b"1")], A, start, ttl_ms=500)
    with pytest.raises(KeyIsLocked):
        store.cleanup(A, start, compose(1500))
    store.cleanup(A, start, compose(1501))
    store.prewrite([put(B, b"1")], B, start, ttl_ms=500)
    store.cleanup(B, start, 0)
    assert store.scan_locks(MAX_TS) == []
    store.one_pc([put(A, b"2")], start + 1)
    with pytest.raises(AlreadyCommitted):
        store.cleanup(A, start + 1, 0)


def test_assertions_find_what_is_there_or_not() -> None:
    store = MvccStore()
    store.one_pc([put(A, b"1")], 10)
    for key, assertion in ((A, Assertion.NOT_EXIST), (B, Assertion.EXIST)):
        with pytest.raises(AssertionFailed):
            store.prewrite([Mutation(Op.PUT, key, b"2", assertion=assertion)], key, 20)
    good = [(A, Assertion.EXIST), (B, Assertion.NOT_EXIST)]
    store.prewrite([Mutation(Op.PUT, key, b"2", assertion=assertion) for key, assertion in good], A, 20)
