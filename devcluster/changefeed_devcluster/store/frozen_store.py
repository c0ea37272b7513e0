"""Transactional reads over a frozen history: what KvGet and KvScan see of it, at any ts.

The rows are made again for each read, so a client that reads snapshots of millions of rows gets them at some 100,000
rows a second, unless they were encoded for just that. Only reads are answered: nobody may write to the keys of a frozen
history.
"""

from __future__ import annotations

import heapq
from itertools import islice

from ..frozen import FrozenHistory
from ..journal import Journal
from .mvcc import SNAPSHOT, LockView
from .store import MvccStore
from .txn import Lock

_AT_ONCE = 4096


class FrozenStore(MvccStore):
    """An `MvccStore` that reads a frozen history too; a lock on one of its keys counts."""

    def __init__(self, journal: Journal | None, frozen: FrozenHistory) -> None:
        super().__init__(journal)
        self._frozen = frozen

    def get(self, key: bytes, ts: int, view: LockView = SNAPSHOT) -> bytes | None:
        found = super().get(key, ts, view)
        if found is None:
            found = next((value for _, value in self._frozen.rows(key, key + b"\0", ts)), None)
        return found

    def read_range(
        self,
        start: bytes,
        end: bytes,
        ts: int,
        limit: int | None = None,
        reverse: bool = False,
        view: LockView = SNAPSHOT,
    ) -> list[tuple[bytes, bytes | Lock]]:
        stored = super().read_range(start, end, ts, limit, reverse, view)
        at_once = min(limit or _AT_ONCE, _AT_ONCE)
        met = {key for key, _ in stored}
        frozen = (pair for pair in self._frozen.rows(start, end, ts, reverse, at_once) if pair[0] not in met)
        return list(islice(heapq.merge(stored, frozen, key=lambda pair: pair[0], reverse=reverse), limit))

    def encoded_range(self, start: bytes, end: bytes, ts: int, limit: int, view: LockView = SNAPSHOT) -> bytes | None:
        if super().read_range(start, end, ts, 1, view=view):
            return None
        return self._frozen.answer(start, end, ts, limit)
