"""Pessimistic transactions in the dev cluster: locks that keep writers off, and their prewrites.

See docs/design/tikv.md, Transactions.
"""

from __future__ import annotations

import pytest
from changefeed_devcluster.pd.oracle import compose
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import (
    MAX_TS,
    AlreadyExist,
    AlreadyRolledBack,
    ChangeKind,
    ConflictReason,
    KeyIsLocked,
    LockTypeNotMatch,
    Mutation,
    Op,
    PessimisticCheck,
    PessimisticLockNotFound,
    PessimisticLockRolledBack,
    PrimaryMismatch,
    StoreChange,
    TxnLockNotFound,
    TxnStatusAction,
    WriteConflict,
)

A, B = b"a", b"b"


def put(key: bytes, value: bytes, check: PessimisticCheck = PessimisticCheck.LOCKED) -> Mutation:
    return Mutation(Op.PUT, key, value, check)


@pytest.fixture
def store() -> MvccStore:
    """Holds a=1 since ts 10."""
    store = MvccStore()
    store.one_pc([put(A, b"1")], 9)
    return store


def watch(store: MvccStore) -> list[StoreChange]:
    changes: list[StoreChange] = []
    store.observe(changes.append)
    return changes


def test_a_pessimistic_lock_keeps_writers_off_and_readers_not(store: MvccStore) -> None:
    changes = watch(store)
    assert store.pessimistic_lock([A, B], A, 20, 21) == [b"1", None]
    assert store.get(A, 30) == b"1"
    with pytest.raises(KeyIsLocked):
        store.prewrite([put(A, b"2")], A, 30)
    with pytest.raises(KeyIsLocked):
        store.pessimistic_lock([B], B, 30, 31)
    assert [lock.op for lock in store.scan_locks(99)] == [Op.PESSIMISTIC] * 2
    assert changes == [], "change data knows nothing of it"


def test_a_newer_version_wants_a_newer_for_update_ts(store: MvccStore) -> None:
    store.one_pc([put(A, b"2")], 29)
    with pytest.raises(WriteConflict) as caught:
        store.pessimistic_lock([A], A, 20, 29)
    assert (caught.value.reason, caught.value.conflict_commit_ts) == (ConflictReason.PESSIMISTIC_RETRY, 30)
    assert store.pessimistic_lock([A], A, 20, 30) == [b"2"]
    store.prewrite([put(A, b"3")], A, 20, for_update_ts=30)
    store.commit([A], 20, 40)
    assert store.get(A, 40) == b"3"


def test_the_prewrite_takes_the_lock_over_with_what_was_promised(store: MvccStore) -> None:
    changes = watch(store)
    store.one_pc([put(A, b"2")], 24)
    store.pessimistic_lock([A], A, 20, 26, ttl_ms=9000, min_commit_ts=33)
    store.prewrite([put(A, b"3")], A, 20, ttl_ms=100, for_update_ts=26)
    (lock,) = store.scan_locks(99)
    assert (lock.op, lock.ttl_ms, lock.min_commit_ts, lock.for_update_ts) == (Op.PUT, 9000, 33, 26)
    (row,) = changes[-1].rows
    assert (changes[-1].kind, row.value, row.old_value) == (ChangeKind.PREWRITE, b"3", b"2"), (
        "old value: at for_update_ts"
    )


def test_locking_again_raises_for_update_ts_only(store: MvccStore) -> None:
    store.pessimistic_lock([A], A, 20, 25, ttl_ms=500)
    store.pessimistic_lock([A], A, 20, 22, ttl_ms=100)
    (lock,) = store.scan_locks(99)
    assert (lock.for_update_ts, lock.ttl_ms) == (25, 500)
    store.prewrite([put(A, b"2")], A, 20, for_update_ts=25)
    with pytest.raises(LockTypeNotMatch):
        store.pessimistic_lock([A], A, 20, 30)


def test_a_lost_lock_is_mended_unless_others_used_the_key(store: MvccStore) -> None:
    store.prewrite([put(A, b"2")], A, 20, for_update_ts=21)
    store.rollback([A], 20)
    store.pessimistic_lock([A], A, 30, 31)
    with pytest.raises(PessimisticLockNotFound):
        store.prewrite([put(A, b"2")], A, 25, for_update_ts=26)
    store.pessimistic_rollback([A], 30, 31)
    store.one_pc([put(A, b"3")], 40)
    with pytest.raises(PessimisticLockNotFound):
        store.prewrite([put(A, b"2")], A, 35, for_update_ts=36)


def test_keys_that_need_no_lock_are_not_checked_for_conflicts(store: MvccStore) -> None:
    store.one_pc([put(B, b"other")], 30)
    with pytest.raises(WriteConflict) as caught:
        store.prewrite([put(B, b"x", PessimisticCheck.CONSTRAINT)], B, 20, for_update_ts=21)
    assert caught.value.reason is ConflictReason.LAZY_UNIQUENESS_CHECK
    store.prewrite([put(B, b"x", PessimisticCheck.SKIP)], B, 20, for_update_ts=21)
    store.rollback([B], 20)
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(B, b"x", PessimisticCheck.SKIP)], B, 20, for_update_ts=21)


def test_pessimistic_rollback_frees_what_was_locked_until_then(store: MvccStore) -> None:
    changes = watch(store)
    store.pessimistic_lock([A], A, 20, 25)
    store.pessimistic_rollback([A, B], 20, 24)
    assert len(store.scan_locks(99)) == 1
    store.pessimistic_rollback([A, B], 20, 25)
    assert store.scan_locks(99) == []
    store.pessimistic_lock([A], A, 20, 26)
    store.prewrite([put(A, b"2")], A, 20, for_update_ts=26)
    store.pessimistic_rollback([A], 20, 99)
    assert len(store.scan_locks(99)) == 1, "what is prewritten stays"
    assert [change.kind for change in changes] == [ChangeKind.PREWRITE]


def test_no_lock_after_a_rollback(store: MvccStore) -> None:
    store.pessimistic_lock([A], A, 20, 20)
    store.rollback([A], 20)
    assert store.scan_locks(99) == []
    with pytest.raises(PessimisticLockRolledBack):
        store.pessimistic_lock([A], A, 20, 30)
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(A, b"2")], A, 20, for_update_ts=30)


def test_a_failed_lock_call_locks_nothing(store: MvccStore) -> None:
    store.pessimistic_lock([B], B, 30, 30)
    with pytest.raises(KeyIsLocked):
        store.pessimistic_lock([A, B], A, 40, 40)
    assert [lock.key for lock in store.scan_locks(99)] == [B]


def test_locks_can_ask_for_existence(store: MvccStore) -> None:
    with pytest.raises(AlreadyExist):
        store.pessimistic_lock([A], A, 20, 20, must_not_exist=[A])
    assert store.pessimistic_lock([A, B], A, 20, 20, only_if_exists=True) == [b"1", None]
    assert [lock.key for lock in store.scan_locks(99)] == [A]


def test_a_forgotten_lock_goes_with_the_commit_and_leaves_no_version(store: MvccStore) -> None:
    changes = watch(store)
    store.pessimistic_lock([A, B], A, 20, 20)
    store.prewrite([put(A, b"2")], A, 20, for_update_ts=20)
    store.resolve_lock(20, 30)
    assert store.scan_locks(99) == []
    assert store.scan(b"", b"", 99) == [(A, b"2")]
    assert [(change.kind, [row.key for row in change.rows]) for change in changes] == [
        (ChangeKind.PREWRITE, [A]),
        (ChangeKind.COMMIT, [A]),
    ]
    with pytest.raises(TxnLockNotFound):
        store.commit([B], 20, 30)


def test_the_rollback_of_a_pessimistic_lock_is_told_without_a_value(store: MvccStore) -> None:
    changes = watch(store)
    store.pessimistic_lock([A], A, 20, 20)
    store.rollback([A], 20)
    assert [(change.kind, [(row.key, row.op) for row in change.rows]) for change in changes] == [
        (ChangeKind.ROLLBACK, [(A, Op.LOCK)])
    ]


def test_a_pessimistic_transaction_in_one_phase(store: MvccStore) -> None:
    store.pessimistic_lock([A, B], A, 20, 60)
    assert store.one_pc([put(A, b"2"), put(B, b"2")], 20, for_update_ts=60) == 61
    assert store.scan_locks(99) == []
    assert store.scan(b"", b"", 61) == [(A, b"2"), (B, b"2")]


def test_an_expired_pessimistic_lock_is_told_apart() -> None:
    store = MvccStore()
    start, late = compose(1000), compose(1501)
    store.pessimistic_lock([A], A, start, start, ttl_ms=500)
    alive = store.check_txn_status(A, start, compose(1500), resolving_pessimistic_lock=True)
    assert (alive.action, alive.ttl_ms) == (TxnStatusAction.NO_ACTION, 500)
    expired = store.check_txn_status(A, start, late, resolving_pessimistic_lock=True)
    assert expired.action is TxnStatusAction.TTL_EXPIRE_PESSIMISTIC_ROLLBACK
    absent = store.check_txn_status(A, start, late, rollback_if_not_exist=True, resolving_pessimistic_lock=True)
    assert absent.action is TxnStatusAction.LOCK_NOT_EXIST_DO_NOTHING
    store.prewrite([put(A, b"1")], A, start, for_update_ts=start)
    assert len(store.scan_locks(MAX_TS)) == 1, "no rollback record was left: the transaction may go on"


def test_a_lock_from_before_the_primary_changed_is_dropped() -> None:
    store = MvccStore()
    store.pessimistic_lock([A], B, 20, 20)
    with pytest.raises(PrimaryMismatch):
        store.check_txn_status(A, 20, 30, verify_is_primary=True, resolving_pessimistic_lock=True)
    status = store.check_txn_status(A, 20, 30, rollback_if_not_exist=True, verify_is_primary=True)
    assert status.action is TxnStatusAction.LOCK_NOT_EXIST_ROLLBACK
    assert store.scan_locks(99) == []
