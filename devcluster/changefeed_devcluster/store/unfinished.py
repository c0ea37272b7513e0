"""Transactions that nobody ends: what a TiDB server leaves behind when it dies between prewrite and commit.

They touch rows without changing them: a row that exists is written again as it is, one that does not is deleted. So
harm can lock any row, and whoever resolves the lock changes nothing that a reader could miss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..pd.oracle import Oracle
from .store import MvccStore
from .txn import Lock, Mutation, Op, TxnError

T = TypeVar("T")
_ATTEMPTS = 200
_PAUSE_S = 0.01


def prewrite(store: MvccStore, oracle: Oracle, keys: Sequence[bytes], ttl_ms: int) -> int:
    """Locks raw keys, the first one is the primary; gives the start ts. Raises ValueError when they stay busy."""

    def attempt() -> int:
        start_ts = oracle.next()
        mutations = [_touch(store, key, start_ts) for key in keys]
        store.prewrite(mutations, keys[0], start_ts, ttl_ms)
        return start_ts

    return _until_free(attempt, keys[0])


def commit_primary(store: MvccStore, oracle: Oracle, keys: Sequence[bytes]) -> tuple[int, int]:
    """Locks raw keys and commits the first one only: the others must be committed by whoever meets them.

    Gives start and commit ts.
    """
    start_ts = prewrite(store, oracle, keys, ttl_ms=0)
    return start_ts, _until_free(lambda: _commit(store, oracle, keys[0], start_ts), keys[0])


def _commit(store: MvccStore, oracle: Oracle, key: bytes, start_ts: int) -> int:
    commit_ts = oracle.next()
    store.commit([key], start_ts, commit_ts)
    return commit_ts


def neighbours(store: MvccStore, oracle: Oracle, key: bytes, end: bytes, count: int) -> list[bytes]:
    """Up to `count` keys of rows from a raw key on."""
    return [found for found, _ in store.read_range(key, end, oracle.next(), count)]


def _touch(store: MvccStore, key: bytes, ts: int) -> Mutation:
    for _, value in store.read_range(key, key + b"\0", ts, 1):
        if not isinstance(value, Lock):
            return Mutation(Op.PUT, key, value)
    return Mutation(Op.DELETE, key)


def _until_free(attempt: Callable[[], T], key: bytes) -> T:
    """Others work on the same rows: a conflict with them is not the end."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return attempt()
        except TxnError:
            time.sleep(_PAUSE_S)
    try:
        return attempt()
    except TxnError as error:
        raise ValueError(f"key {key.hex()} stays busy ({error}): choose another one, or wait") from error
