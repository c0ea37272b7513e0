"""The watermark of a range of keys, by the transactions that are open in it (design 2 of docs/design/README.md).

A transaction holds it at its start ts until its last lock is gone: so does every TiKV, whatever the transaction is.

The rest is a proposal, and only in a cluster that was started for it. There a large transaction, of which only start ts
and primary are kept however many keys it locks, holds it below the ts that it has promised to commit at or above; with
its first commit or rollback in the range it is decided, and holds nothing any more.

The range is what one subscriber hears of, or one reader reads: a commit in the region but outside the range decides
nothing that the subscriber has been told. And one that is known to be committed at C holds its range at C - 1 until a
commit of it is seen there: its rows are still to come (docs/design/rules.md, Rule 18).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..store.txn import MAX_TS


class LargeTransactionStatus(NamedTuple):
    """What the store of a primary key says of a large transaction; all of it 0: nothing is known there."""

    min_commit_ts: int = 0  # it is open
    commit_ts: int = 0
    is_rolled_back: bool = False

    @property
    def is_final(self) -> bool:
        return self.commit_ts > 0 or self.is_rolled_back

    @property
    def lowest(self) -> int:
        """Return the ts above which its rows will be committed."""
        if self.is_rolled_back:
            return MAX_TS
        return max(self.commit_ts, self.min_commit_ts, 1) - 1


class Large(NamedTuple):
    """A large transaction that is open.

    `lowest`: its rows have a commit ts above it.
    """

    lowest: int
    primary: bytes


class WatermarkAdvancer:
    """Locks of PUT and DELETE in, in the order of their changes; a watermark out."""

    def __init__(self, spares_large: bool) -> None:
        """Without `spares_large` it is TiKV's mechanism, to which a large transaction is one of many keys."""
        self.spares_large = spares_large
        self._start_ts_by_key: dict[bytes, int] = {}
        self._locks: Counter[int] = Counter()  # by start ts
        self._large: dict[int, Large] = {}  # by start ts

    def locked(self, start_ts: int, keys: Iterable[bytes], large_primary: bytes = b"") -> None:
        """Learn of a lock.

        `large_primary`: the transaction is a large one. It may lock a key again.
        """
        if large_primary and self.spares_large:
            self._large.setdefault(start_ts, Large(start_ts, large_primary))
            return
        new = [key for key in keys if key not in self._start_ts_by_key]
        self._start_ts_by_key.update(dict.fromkeys(new, start_ts))
        self._locks[start_ts] += len(new)

    def unlocked(self, start_ts: int, keys: Iterable[bytes]) -> None:
        """Committed or rolled back; keys without a lock of the transaction may be among them."""
        if self._large.pop(start_ts, None) is not None:
            return
        gone = [key for key in keys if self._start_ts_by_key.get(key) == start_ts]
        for key in gone:
            del self._start_ts_by_key[key]
        if len(gone) < self._locks[start_ts]:
            self._locks[start_ts] -= len(gone)
        else:
            del self._locks[start_ts]

    @property
    def large(self) -> Mapping[int, Large]:
        """The large transactions to be asked for, by start ts."""
        return self._large

    @property
    def tracked(self) -> int:
        """Keys and transactions in memory."""
        return len(self._start_ts_by_key) + len(self._large)

    def learn(self, statuses: Mapping[int, LargeTransactionStatus]) -> None:
        """Return what primaries say, by start ts; a promise never sinks."""
        for start_ts, known in self._large.items():
            if start_ts in statuses:
                self._large[start_ts] = known._replace(lowest=max(known.lowest, statuses[start_ts].lowest))

    @property
    def lowest(self) -> int:
        """Every open transaction of the range commits above it; MAX_TS when none is open."""
        large = min((known.lowest for known in self._large.values()), default=MAX_TS)
        return min(large, min(self._locks, default=MAX_TS))
