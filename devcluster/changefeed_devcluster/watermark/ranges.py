"""An advancer for a range of the store's keys: what is locked there now, and what is changed from then on.

Inside the store's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..store.store import MvccStore
from ..store.txn import ChangeKind, Lock, Op, RowChange, StoreChange
from .advancer import WatermarkAdvancer


def advancer_of(locks: Iterable[Lock], spares_large: bool) -> WatermarkAdvancer:
    """Make an advancer for a range with these locks.

    `locks`: of PUT and DELETE in the range.
    """
    made = WatermarkAdvancer(spares_large)
    for lock in locks:
        made.locked(lock.start_ts, [lock.key], lock.large_primary)
    return made


def locks_of(store: MvccStore, start: bytes, end: bytes) -> Iterable[Lock]:
    """Yield the locks of PUT and DELETE in the range, keys ascending."""
    return (lock for lock in store.locks_in(start, end) if lock.writes)


def track(advancer: WatermarkAdvancer, change: StoreChange, rows: Iterable[RowChange]) -> None:
    """Tell the advancer of a change.

    `rows`: those of the change that are in the range.
    """
    if change.kind is ChangeKind.PREWRITE:
        advancer.locked(change.start_ts, (row.key for row in rows), change.large_primary)
    elif change.kind is ChangeKind.COMMIT:
        advancer.unlocked(change.start_ts, [row.key for row in rows if row.op is not Op.LOCK])
    elif change.kind is ChangeKind.ROLLBACK:
        advancer.unlocked(change.start_ts, (row.key for row in rows))
