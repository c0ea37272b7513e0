"""What is checked before a key may be locked: prewrites and pessimistic locks (docs/design/tikv.md, Transactions).

Functions of the records and the request; they raise or say what has to be written, and change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .mvcc import Mvcc
from .txn import (
    MAX_TS,
    AlreadyExist,
    AlreadyRolledBack,
    Assertion,
    AssertionFailed,
    ConflictReason,
    KeyIsLocked,
    Lock,
    LockTypeNotMatch,
    Mutation,
    Op,
    PessimisticCheck,
    PessimisticLockNotFound,
    PessimisticLockRolledBack,
    RowChange,
    WriteConflict,
)


@dataclass(slots=True)
class Checked:
    """A prewrite that may go on: `rows` to be written with old values; the transaction's locks that are there already,
    prewritten or pessimistic; `commit_ts` above 0 when a key is committed already."""

    rows: list[RowChange] = field(default_factory=list)
    prewritten: list[Lock] = field(default_factory=list)
    pessimistic: list[Lock] = field(default_factory=list)
    commit_ts: int = 0


def check_prewrite(
    mvcc: Mvcc, mutations: Sequence[Mutation], primary: bytes, start_ts: int, for_update_ts: int, generation: int = 0
) -> Checked:
    """Raises KeyIsLocked with all foreign locks met, or the first other refusal.

    `generation`: of a flush; what an earlier one has locked is written again.
    """
    if len({mutation.key for mutation in mutations}) != len(mutations):
        raise ValueError(f"a prewrite of transaction {start_ts} names a key twice")
    checked = Checked()
    foreign: list[Lock] = []
    for mutation in mutations:
        key = mutation.key
        lock = mvcc.locks.get(key)
        if lock is not None and lock.start_ts == start_ts:
            if lock.op is Op.PESSIMISTIC:
                checked.pessimistic.append(lock)
            elif lock.generation >= generation:
                checked.prewritten.append(lock)
                continue
        else:
            commit_ts = _check_records(mvcc, mutation, lock, primary, start_ts, for_update_ts)
            if commit_ts:
                checked.commit_ts = commit_ts
                continue
            if lock is not None:
                foreign.append(lock)
                continue
        row = _row(mvcc, mutation, start_ts, max(start_ts, for_update_ts))
        if row is not None:
            checked.rows.append(row)
    if foreign:
        raise KeyIsLocked(foreign)
    return checked


def _check_records(
    mvcc: Mvcc, mutation: Mutation, lock: Lock | None, primary: bytes, start_ts: int, for_update_ts: int
) -> int:
    """Raises when a newer record forbids the write; gives the transaction's own commit ts if that is the record."""
    key = mutation.key
    newest_ts, newest_start_ts = mvcc.newest(key)
    if newest_ts < start_ts:
        if lock is not None and for_update_ts and mutation.check is PessimisticCheck.LOCKED:
            raise PessimisticLockNotFound(key, start_ts)
        return 0
    commit_ts = mvcc.commit_of(key, start_ts)
    if commit_ts is not None:
        return commit_ts
    if mvcc.rolled_back(key, start_ts):
        raise AlreadyRolledBack(key, primary, start_ts)
    if for_update_ts and mutation.check is PessimisticCheck.LOCKED:
        raise PessimisticLockNotFound(key, start_ts)
    if newest_ts > start_ts and not (for_update_ts and mutation.check is PessimisticCheck.SKIP):
        reason = ConflictReason.LAZY_UNIQUENESS_CHECK if for_update_ts else ConflictReason.OPTIMISTIC
        raise WriteConflict(key, primary, start_ts, newest_start_ts, newest_ts, reason)
    return 0


def _row(mvcc: Mvcc, mutation: Mutation, start_ts: int, read_ts: int) -> RowChange | None:
    """Return what is to be written, None for a mere check. Raises AlreadyExist, AssertionFailed."""
    version = mvcc.version_at(mutation.key, read_ts)
    old_value = version.value if version is not None and version.op is Op.PUT else None
    if mutation.op in (Op.INSERT, Op.CHECK_NOT_EXISTS) and old_value is not None:
        raise AlreadyExist(mutation.key)
    if mutation.assertion is not Assertion.NONE and (old_value is None) is (mutation.assertion is Assertion.EXIST):
        raise AssertionFailed(mutation.key, start_ts, mutation.assertion, version)
    if mutation.op is Op.CHECK_NOT_EXISTS:
        return None
    return RowChange(mutation.key, Op.PUT if mutation.op is Op.INSERT else mutation.op, mutation.value, old_value)


def check_pessimistic_lock(
    mvcc: Mvcc, key: bytes, primary: bytes, start_ts: int, for_update_ts: int, must_not_exist: bool
) -> Lock | None:
    """The transaction's own pessimistic lock, None if the key is free for it.

    Raises KeyIsLocked, LockTypeNotMatch, PessimisticLockRolledBack, WriteConflict, AlreadyExist.
    """
    lock: Lock | None = mvcc.locks.get(key)
    if lock is not None and lock.start_ts != start_ts:
        raise KeyIsLocked([lock])
    if lock is not None and lock.op is not Op.PESSIMISTIC:
        raise LockTypeNotMatch(lock)
    if lock is None:
        if mvcc.rolled_back(key, start_ts):
            raise PessimisticLockRolledBack(key, start_ts)
        newest_ts, newest_start_ts = mvcc.newest(key)
        if newest_ts > for_update_ts:
            reason = ConflictReason.PESSIMISTIC_RETRY
            raise WriteConflict(key, primary, start_ts, newest_start_ts, newest_ts, reason)
    if must_not_exist and mvcc.value_at(key, MAX_TS) is not None:
        raise AlreadyExist(key)
    return lock
