"""Locks in the way: wait for a living transaction, finish a dead one (docs/design/tikv.md, Resolving locks).

It must never roll back a transaction that may be committed: the primary's store decides, with async commit all of its
secondaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from changefeed.errors import ProtocolViolation
from changefeed.model.tso import physical_ms
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.tikv.client.pd import LocatedRegion, encode_bound
from changefeed.upstream.tikv.client.regions import Pd, RegionCalls
from changefeed.upstream.tikv.client.requests import to_store
from changefeed.wire import kvrpcpb_pb2

#: A transaction with more locks in the way than this is finished in the whole region at once.
_WHOLE_REGION_AT = 16
#: They neither block a read nor hold change data back (docs/design/tikv.md, Order of rows, Snapshot reads).
_HARMLESS = (kvrpcpb_pb2.Lock, kvrpcpb_pb2.PessimisticLock, kvrpcpb_pb2.SharedLock)


def holds_back(lock: kvrpcpb_pb2.LockInfo) -> bool:
    """Whether a region's resolved-ts stays below the lock's start_ts."""
    return lock.lock_type not in _HARMLESS


@dataclass(frozen=True)
class Fate:
    """What became of a transaction: `commit_ts`, 0 for rolled back."""

    commit_ts: int


@dataclass(frozen=True)
class LivingTransaction:
    """Or maybe so. `ttl_ms`: from its start, 0 where the primary does not say."""

    ttl_ms: int = 0


class LockResolver:
    """`read_ts`: living transactions are asked to commit above it; 0: they are left alone."""

    def __init__(self, upstream: Pd, calls: RegionCalls, read_ts: int) -> None:
        self._upstream = upstream
        self._calls = calls
        self._read_ts = read_ts
        self.ignored: set[int] = set()  # start_ts of transactions that can only commit above read_ts

    async def resolve(self, locks: Iterable[kvrpcpb_pb2.LockInfo], attempts: Attempts) -> None:
        """Clear the way past `locks`, or wait a little: the caller reads again either way. Raises Transient."""
        ignored_before = set(self.ignored)
        for lock in await self.settle(locks, attempts):
            if lock.lock_version in ignored_before or lock.lock_version not in self.ignored:
                why = f"key {lock.key.hex()} is locked by transaction {lock.lock_version}"
                await attempts.pause(f"{why} (primary {lock.primary_lock.hex()})", base=0.01, cap=3.0)

    async def settle(self, locks: Iterable[kvrpcpb_pb2.LockInfo], attempts: Attempts) -> list[kvrpcpb_pb2.LockInfo]:
        """Finish what is dead. Gives a lock of each living transaction, without waiting for it. Raises Transient.

        Its `lock_ttl` is the primary's then, which heartbeats prolong.
        """
        by_transaction: dict[tuple[bytes, int], list[kvrpcpb_pb2.LockInfo]] = {}
        for lock in _flat(locks):
            by_transaction.setdefault((lock.primary_lock, lock.lock_version), []).append(lock)
        living = []
        for found in by_transaction.values():
            # What holds others back comes first: it tells more of its transaction than a pessimistic lock.
            found.sort(key=holds_back, reverse=True)
            fate = await self._fate(found[0], attempts)
            if isinstance(fate, LivingTransaction):
                found[0].lock_ttl = fate.ttl_ms or found[0].lock_ttl
                living.append(found[0])
            else:
                await self._finish(found, fate, attempts)
        return living

    async def _fate(
        self, lock: kvrpcpb_pb2.LockInfo, attempts: Attempts, sync: bool = False
    ) -> Fate | LivingTransaction:
        """`sync`: it fell back from async commit, so its primary alone decides."""
        now = await self._upstream.tso()
        expired = _expired(lock.lock_version, lock.lock_ttl, now)

        def request(_: LocatedRegion) -> to_store.StoreRequest[kvrpcpb_pb2.CheckTxnStatusResponse]:
            return to_store.check_transaction(lock, self._read_ts, now, expired, force_sync_commit=sync)

        status, _ = await self._calls.send(lock.primary_lock, request, attempts)
        if status.HasField("error"):
            return LivingTransaction()
        if status.action == kvrpcpb_pb2.MinCommitTSPushed:
            self.ignored.add(lock.lock_version)
        primary = status.lock_info
        if primary.use_async_commit and not sync and not status.commit_version:
            if not _expired(lock.lock_version, status.lock_ttl or primary.lock_ttl, now):
                return LivingTransaction(status.lock_ttl)
            fate = await self._async_commit_fate(primary, now, attempts)
            return fate or await self._fate(lock, attempts, sync=True)
        return LivingTransaction(status.lock_ttl) if status.lock_ttl else Fate(status.commit_version)

    async def _async_commit_fate(self, primary: kvrpcpb_pb2.LockInfo, now: int, attempts: Attempts) -> Fate | None:
        """Committed if all keys are locked or one is committed; a missing one rolls it back. None: no async commit."""
        commit_ts = primary.min_commit_ts
        for key in primary.secondaries:
            found = await self._check_secondary(key, primary.lock_version, now, attempts)
            if found.commit_ts or not found.locks:
                return Fate(found.commit_ts)
            if not all(lock.use_async_commit for lock in found.locks):
                return None
            commit_ts = max(commit_ts, *(lock.min_commit_ts for lock in found.locks))
        return Fate(commit_ts)

    async def _check_secondary(
        self, key: bytes, start_ts: int, now: int, attempts: Attempts
    ) -> kvrpcpb_pb2.CheckSecondaryLocksResponse:
        found, _ = await self._calls.send(key, lambda _: to_store.check_secondary(key, start_ts, now), attempts)
        _no_error(found.error, "KvCheckSecondaryLocks", key)
        return found

    async def _finish(self, locks: list[kvrpcpb_pb2.LockInfo], fate: Fate, attempts: Attempts) -> None:
        """Resolve locks of one transaction."""
        pessimistic = [lock for lock in locks if lock.lock_type == kvrpcpb_pb2.PessimisticLock]
        for lock in pessimistic:  # never written, whatever became of the transaction
            await self._roll_pessimistic_back(lock, attempts)
        keys = [lock.key for lock in locks if lock.lock_type != kvrpcpb_pb2.PessimisticLock]
        whole = len(keys) > _WHOLE_REGION_AT
        start_ts = locks[0].lock_version

        def request(region: LocatedRegion) -> to_store.StoreRequest[kvrpcpb_pb2.ResolveLockResponse]:
            here = [] if whole else [key for key in keys if _contains(region, key)]
            return to_store.resolve_locks(keys[0], start_ts, fate.commit_ts, here)

        while keys:
            response, region = await self._calls.send(keys[0], request, attempts)
            _no_error(response.error, "KvResolveLock", keys[0])
            keys = [key for key in keys if not _contains(region, key)]

    async def _roll_pessimistic_back(self, lock: kvrpcpb_pb2.LockInfo, attempts: Attempts) -> None:
        response, _ = await self._calls.send(lock.key, lambda _: to_store.roll_back_pessimistic(lock), attempts)
        for error in response.errors:
            _no_error(error, "KVPessimisticRollback", lock.key)


def _contains(region: LocatedRegion, key: bytes) -> bool:
    position = encode_bound(key)
    return region.start_key <= position and (not region.end_key or position < region.end_key)


def _flat(locks: Iterable[kvrpcpb_pb2.LockInfo]) -> Iterator[kvrpcpb_pb2.LockInfo]:
    for lock in locks:
        if lock.shared_lock_infos:
            yield from _flat(lock.shared_lock_infos)
        else:
            yield lock


def _expired(start_ts: int, ttl_ms: int, now: int) -> bool:
    return physical_ms(now) - physical_ms(start_ts) >= ttl_ms


def _no_error(error: Any, method: str, key: bytes) -> None:
    # `error` is a kvrpcpb KeyError; the generated stub takes it for Python's.
    if error.ListFields():
        raise ProtocolViolation(f"{method} of {key.hex()}: {str(error).strip()}")
