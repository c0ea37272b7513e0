"""Garbage collection as TiDB's GC worker does it: ask the holds, end old transactions, forget.

See docs/design/tikv.md, Transactions.

The worker decides nothing of its own: how far it may go is PD's word, how a transaction ends its locks'.
"""

from __future__ import annotations

from ..pd.safepoints import SafePoints
from .store import MvccStore
from .txn import MAX_TS, Lock


def collect_garbage(store: MvccStore, safepoints: SafePoints, target: int, now: int) -> int:
    """Deletes the history below `target`, or below the lowest hold if that is lower; gives the GC safepoint then.

    `now`: the unix second, for holds that have expired.
    """
    safe_point = safepoints.may_collect(target, now)
    if safe_point > safepoints.gc_safe_point:
        resolve_locks(store, safe_point)
        safepoints.advance_gc(safe_point)
    return safepoints.gc_safe_point


def resolve_locks(store: MvccStore, max_ts: int) -> None:
    """Ends every transaction that holds a lock and started at or before max_ts, however long it might still live."""
    for lock in store.scan_locks(max_ts):
        with store.lock:
            store.resolve_lock(lock.start_ts, _decide(store, lock))


def _decide(store: MvccStore, lock: Lock) -> int:
    """The transaction's commit ts, 0 if it is rolled back."""
    status = store.check_txn_status(lock.primary, lock.start_ts, MAX_TS, rollback_if_not_exist=True)
    if status.lock is None or not status.lock.async_commit:
        return status.commit_ts
    found = store.check_secondary_locks(status.lock.secondaries, lock.start_ts)
    if len(found.locks) < len(status.lock.secondaries):
        return found.commit_ts
    if not all(secondary.async_commit for secondary in found.locks):
        forced = store.check_txn_status(lock.primary, lock.start_ts, MAX_TS, force_sync_commit=True)
        return forced.commit_ts
    return max(locked.min_commit_ts for locked in (status.lock, *found.locks))
