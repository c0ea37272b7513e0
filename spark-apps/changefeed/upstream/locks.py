"""Locks that block a read: wait for a living transaction, finish a dead one (facts, tikv-wire 3.5).

It must never roll back a transaction that may be committed: the primary's store decides, with async commit all of its
secondaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from changefeed.errors import ProtocolViolation
from changefeed.model.tso import MAX_TS, physical_ms
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.pd import PdClient
from changefeed.upstream.regions import RegionCalls
from changefeed.wire import kvrpcpb_pb2


@dataclass(frozen=True)
class Fate:
    """What became of a transaction: `commit_ts`, 0 for rolled back."""

    commit_ts: int


class LockResolver:
    def __init__(self, pd: PdClient, calls: RegionCalls, read_ts: int) -> None:
        self._pd = pd
        self._calls = calls
        self._read_ts = read_ts
        self.ignored: set[int] = set()  # start_ts of transactions that can only commit above read_ts

    async def resolve(self, locks: Iterable[kvrpcpb_pb2.LockInfo], attempts: Attempts) -> None:
        """Clear the way past `locks`, or wait a little: the caller reads again either way. Raises Transient."""
        by_transaction: dict[tuple[bytes, int], list[kvrpcpb_pb2.LockInfo]] = {}
        for lock in _flat(locks):
            by_transaction.setdefault((lock.primary_lock, lock.lock_version), []).append(lock)
        for (primary, start_ts), blocking in by_transaction.items():
            ignored_before = start_ts in self.ignored
            fate = await self._fate(blocking[0], attempts)
            if fate is not None:
                for lock in blocking:
                    await self._finish(lock, fate, attempts)
            elif ignored_before or start_ts not in self.ignored:
                why = f"key {blocking[0].key.hex()} is locked by transaction {start_ts} (primary {primary.hex()})"
                await attempts.pause(why, base=0.01, cap=3.0)

    async def _fate(self, lock: kvrpcpb_pb2.LockInfo, attempts: Attempts, sync: bool = False) -> Fate | None:
        """None: it lives, or may live. `sync`: it fell back from async commit, so its primary alone decides."""
        now = await self._pd.tso()
        expired = _expired(lock.lock_version, lock.lock_ttl, now)
        request = kvrpcpb_pb2.CheckTxnStatusRequest(
            primary_key=lock.primary_lock,
            lock_ts=lock.lock_version,
            caller_start_ts=self._read_ts,
            current_ts=now if lock.lock_ttl else MAX_TS,
            rollback_if_not_exist=expired,
            force_sync_commit=sync,
            resolving_pessimistic_lock=lock.lock_type == kvrpcpb_pb2.PessimisticLock,
            verify_is_primary=True,
        )
        status, _ = await self._calls.send(
            "KvCheckTxnStatus", lock.primary_lock, lambda _: request, kvrpcpb_pb2.CheckTxnStatusResponse, attempts
        )
        if status.HasField("error"):
            return None
        if status.action == kvrpcpb_pb2.MinCommitTSPushed:
            self.ignored.add(lock.lock_version)
        primary = status.lock_info
        if primary.use_async_commit and not sync and not status.commit_version:
            if not _expired(lock.lock_version, status.lock_ttl or primary.lock_ttl, now):
                return None
            return await self._async_commit_fate(primary, attempts) or await self._fate(lock, attempts, sync=True)
        return None if status.lock_ttl else Fate(status.commit_version)

    async def _async_commit_fate(self, primary: kvrpcpb_pb2.LockInfo, attempts: Attempts) -> Fate | None:
        """Committed if all keys are locked or one is committed; a missing one rolls it back. None: no async commit."""
        commit_ts = primary.min_commit_ts
        for key in primary.secondaries:
            found = await self._check_secondary(key, primary.lock_version, attempts)
            if found.commit_ts or not found.locks:
                return Fate(found.commit_ts)
            if not all(lock.use_async_commit for lock in found.locks):
                return None
            commit_ts = max(commit_ts, *(lock.min_commit_ts for lock in found.locks))
        return Fate(commit_ts)

    async def _check_secondary(
        self, key: bytes, start_ts: int, attempts: Attempts
    ) -> kvrpcpb_pb2.CheckSecondaryLocksResponse:
        request = kvrpcpb_pb2.CheckSecondaryLocksRequest(keys=[key], start_version=start_ts)
        found, _ = await self._calls.send(
            "KvCheckSecondaryLocks", key, lambda _: request, kvrpcpb_pb2.CheckSecondaryLocksResponse, attempts
        )
        _no_error(found.error, "KvCheckSecondaryLocks", key)
        return found

    async def _finish(self, lock: kvrpcpb_pb2.LockInfo, fate: Fate, attempts: Attempts) -> None:
        request = kvrpcpb_pb2.ResolveLockRequest(
            start_version=lock.lock_version, commit_version=fate.commit_ts, keys=[lock.key]
        )
        response, _ = await self._calls.send(
            "KvResolveLock", lock.key, lambda _: request, kvrpcpb_pb2.ResolveLockResponse, attempts
        )
        _no_error(response.error, "KvResolveLock", lock.key)


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
