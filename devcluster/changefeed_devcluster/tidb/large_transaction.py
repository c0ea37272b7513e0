"""A large transaction of a TiDB session: pipelined DML (docs/design/tikv.md, Large transactions).

Its rows reach the store flush after flush while it is open, and a heartbeat tells again and again that it lives and
that it will commit late. It ends as every transaction does: the primary key first, then all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn, TypeVar

from ..store.txn import Op, TxnError
from .transaction import TidbCluster, Transaction

T = TypeVar("T")

_TTL_MS = 20_000
_AT_ONCE = 256


class LargeTransaction(Transaction):
    """Works as `Transaction`, with `flush` and `heartbeat`; `commit` flushes the rest. Rows of it are read as they were
    flushed last. A flush that fails rolls it back.
    """

    def __init__(self, cluster: TidbCluster, source: int = 0) -> None:
        super().__init__(cluster, source=source)
        self._known: set[bytes] = set()  # keys that were flushed
        self._generation = 0
        self.primary = b""  # the first key of the first flush

    def read(self, key: bytes) -> bytes | None:
        if key not in self._writes and (lock := self._store.flushed(key, self.start_ts)) is not None:
            return lock.value if lock.op is Op.PUT else None
        return super().read(key)

    def erase(self, key: bytes) -> None:
        """A key that it has flushed is deleted, though nobody else has ever seen it: that makes a delete of nothing."""
        if self._store.flushed(key, self.start_ts) is None:
            super().erase(key)
        else:
            self._writes[key] = None

    def flush(self) -> None:
        """Locks what was written since the last flush. Raises TxnError, after having rolled back."""
        if not self._writes:
            return
        mutations = self._mutations()
        self._locked += [mutation.key for mutation in mutations if mutation.key not in self._known]
        self._known.update(mutation.key for mutation in mutations)
        self._generation += 1
        self.primary = self.primary or mutations[0].key
        try:
            for group in _groups(mutations):
                self._store.flush(
                    group, self.primary, self.start_ts, self._generation, 0, _TTL_MS, txn_source=self._source
                )
        except TxnError:
            self.rollback()
            raise
        self._writes = {}

    def heartbeat(self) -> int:
        """Lives on, and will commit at or above the ts that it gives. Raises TxnNotFound."""
        now = self._oracle.next()
        alive_ms = (now >> 18) - (self.start_ts >> 18)
        self._store.txn_heart_beat(self.primary, self.start_ts, alive_ms + _TTL_MS, now)
        return now

    def prewrite(self) -> NoReturn:
        raise TypeError("a large transaction flushes")

    def commit(self) -> int:
        """Flushes the rest and commits; gives the commit ts, 0 if nothing was written."""
        self.flush()
        if self._locked:
            self.commit_primary()
            self.commit_secondaries(len(self._locked))
        return self.commit_ts

    def commit_primary(self) -> int:
        """Decides it; gives the commit ts. Call `commit_secondaries` until nothing is left."""
        self._commit_primary()
        del self._locked[0]
        return self.commit_ts

    def commit_secondaries(self, count: int) -> int:
        """Commits so many of the keys that are locked still, in the order of their first flush; gives what is left."""
        for group in _groups(self._locked[:count]):
            self._store.commit(group, self.start_ts, self.commit_ts)
        del self._locked[:count]
        return len(self._locked)


def _groups(all_of_them: Sequence[T]) -> Iterator[Sequence[T]]:
    return (all_of_them[at : at + _AT_ONCE] for at in range(0, len(all_of_them), _AT_ONCE))
