"""Calls to the key-value service of the store that leads a region. Keys are raw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from changefeed.model.tso import MAX_TS
from changefeed.upstream.tikv.client.pd import LocatedRegion, encode_bound
from changefeed.upstream.tikv.client.requests.arguments import Arguments
from changefeed.wire import errorpb_pb2, kvrpcpb_pb2, metapb_pb2

MOST_ROWS = 16384
MOST_LOCKS = 1024


class HasRegionError(Protocol):
    @property
    def region_error(self) -> errorpb_pb2.Error: ...

    def HasField(self, field_name: Any) -> bool: ...

    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...


class _RegionMessage(Protocol):
    context: kvrpcpb_pb2.Context

    def SerializeToString(self) -> bytes: ...


Response = TypeVar("Response", bound=HasRegionError)


@dataclass(frozen=True)
class StoreRequest(Generic[Response]):
    """A call about `keys` of one region; of a range, the first one. `end`: of the range, b"": open; None: no range."""

    method: str
    message: _RegionMessage
    response: type[Response]
    keys: tuple[bytes, ...]
    end: bytes | None = None
    settles_locks: bool = False  # it occupies one of the few threads that the store has for writers

    def addressed(self, region: LocatedRegion, cluster_id: int) -> _RegionMessage:
        """The message to the leader of `region`."""
        arguments = Arguments(self.method)
        arguments.numbers(
            cluster_id=cluster_id,
            region_id=region.id,
            conf_ver=region.conf_ver,
            version=region.version,
            peer_id=region.leader_peer_id,
            store_id=region.leader_store_id,
        )
        where = f"be in region {region.id}"
        for key in self.keys:
            position = encode_bound(key)
            inside = region.start_key <= position and (not region.end_key or position < region.end_key)
            arguments.need(inside, "key", key, where)
        if self.end is not None and region.end_key:
            arguments.need(b"" < encode_bound(self.end) <= region.end_key, "end_key", self.end, where)
        self.message.context.MergeFrom(
            kvrpcpb_pb2.Context(
                region_id=region.id,
                region_epoch=metapb_pb2.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
                peer=metapb_pb2.Peer(id=region.leader_peer_id, store_id=region.leader_store_id),
                cluster_id=cluster_id,
                # A store holds the timestamps of other origins against PD's, in a thread that writers wait for. Ours
                # are PD's: that is what `now` is asked for here.
                request_origin=kvrpcpb_pb2.RequestOriginTiDB,
            )
        )
        return self.message


def get(key: bytes, ts: int, now: int, resolved_locks: Iterable[int] = ()) -> StoreRequest[kvrpcpb_pb2.GetResponse]:
    """`now`: PD's, asked for at or after `ts`; `resolved_locks`: start_ts of transactions to be read past."""
    arguments = Arguments("KvGet")
    arguments.key("key", key)
    arguments.ts("version", ts, now)
    message = kvrpcpb_pb2.GetRequest(context=_context(arguments, resolved_locks, now), key=key, version=ts)
    return StoreRequest("KvGet", message, kvrpcpb_pb2.GetResponse, (key,))


def scan(
    start: bytes,
    end: bytes,
    limit: int,
    ts: int,
    now: int,
    response: type[Response],
    resolved_locks: Iterable[int] = (),
) -> StoreRequest[Response]:
    """The first `limit` rows of [start, end) as of `ts`; `end` b"": to the last key. As `get`."""
    arguments = Arguments("KvScan")
    arguments.range(start, end)
    arguments.between("limit", limit, 1, MOST_ROWS)
    arguments.ts("version", ts, now)
    context = _context(arguments, resolved_locks, now)
    message = kvrpcpb_pb2.ScanRequest(context=context, start_key=start, end_key=end, limit=limit, version=ts)
    return StoreRequest("KvScan", message, response, (start,), end)


def scan_locks(
    start: bytes, end: bytes, limit: int, max_version: int, now: int
) -> StoreRequest[kvrpcpb_pb2.ScanLockResponse]:
    """The first `limit` locks in [start, end) with start_ts <= `max_version`."""
    arguments = Arguments("KvScanLock")
    arguments.range(start, end, open_end=False)
    arguments.between("limit", limit, 1, MOST_LOCKS)
    arguments.ts("max_version", max_version, now)
    message = kvrpcpb_pb2.ScanLockRequest(max_version=max_version, start_key=start, end_key=end, limit=limit)
    return StoreRequest("KvScanLock", message, kvrpcpb_pb2.ScanLockResponse, (start,), end)


def check_transaction(
    lock: kvrpcpb_pb2.LockInfo, read_ts: int, now: int, expired: bool, force_sync_commit: bool
) -> StoreRequest[kvrpcpb_pb2.CheckTxnStatusResponse]:
    """What became of the transaction of `lock`, by its primary. `read_ts`: it is asked to commit above that; 0: not.

    `expired`: by the lock's own ttl. A lock without a ttl has expired by any clock.
    """
    arguments = Arguments("KvCheckTxnStatus")
    arguments.key("primary_key", lock.primary_lock)
    arguments.ts("lock_ts", lock.lock_version, now)
    arguments.between("caller_start_ts", read_ts, 0, now)
    message = kvrpcpb_pb2.CheckTxnStatusRequest(
        primary_key=lock.primary_lock,
        lock_ts=lock.lock_version,
        caller_start_ts=read_ts,
        current_ts=now if lock.lock_ttl else MAX_TS,
        rollback_if_not_exist=expired,
        force_sync_commit=force_sync_commit,
        resolving_pessimistic_lock=lock.lock_type == kvrpcpb_pb2.PessimisticLock,
        verify_is_primary=True,
    )
    response = kvrpcpb_pb2.CheckTxnStatusResponse
    return StoreRequest("KvCheckTxnStatus", message, response, (lock.primary_lock,), settles_locks=True)


def check_secondary(key: bytes, start_ts: int, now: int) -> StoreRequest[kvrpcpb_pb2.CheckSecondaryLocksResponse]:
    """Whether a transaction in async commit has locked `key`. If not, it never will."""
    arguments = Arguments("KvCheckSecondaryLocks")
    arguments.key("keys", key)
    arguments.ts("start_version", start_ts, now)
    message = kvrpcpb_pb2.CheckSecondaryLocksRequest(keys=[key], start_version=start_ts)
    response = kvrpcpb_pb2.CheckSecondaryLocksResponse
    return StoreRequest("KvCheckSecondaryLocks", message, response, (key,), settles_locks=True)


def resolve_locks(
    first: bytes, start_ts: int, commit_ts: int, keys: list[bytes]
) -> StoreRequest[kvrpcpb_pb2.ResolveLockResponse]:
    """Commit a transaction's locks on `keys` at `commit_ts`, or roll them back: 0. No keys: all in the region of
    `first`."""
    arguments = Arguments("KvResolveLock")
    arguments.between("start_version", start_ts, 1, MAX_TS - 1)
    after = commit_ts == 0 or start_ts < commit_ts < MAX_TS
    arguments.need(after, "commit_version", commit_ts, f"be 0 or above start_version {start_ts}")
    for key in (first, *keys):
        arguments.key("keys", key)
    message = kvrpcpb_pb2.ResolveLockRequest(start_version=start_ts, commit_version=commit_ts, keys=keys)
    return StoreRequest("KvResolveLock", message, kvrpcpb_pb2.ResolveLockResponse, (first, *keys), settles_locks=True)


def roll_back_pessimistic(lock: kvrpcpb_pb2.LockInfo) -> StoreRequest[kvrpcpb_pb2.PessimisticRollbackResponse]:
    """Remove a pessimistic lock."""
    arguments = Arguments("KVPessimisticRollback")
    arguments.key("keys", lock.key)
    arguments.between("start_version", lock.lock_version, 1, MAX_TS - 1)
    arguments.between("for_update_ts", lock.lock_for_update_ts, lock.lock_version, MAX_TS - 1)
    message = kvrpcpb_pb2.PessimisticRollbackRequest(
        start_version=lock.lock_version, for_update_ts=lock.lock_for_update_ts, keys=[lock.key]
    )
    response = kvrpcpb_pb2.PessimisticRollbackResponse
    return StoreRequest("KVPessimisticRollback", message, response, (lock.key,), settles_locks=True)


def _context(arguments: Arguments, resolved_locks: Iterable[int], now: int) -> kvrpcpb_pb2.Context:
    """What of it the caller decides."""
    locks = sorted(resolved_locks)
    for start_ts in locks:
        arguments.ts("resolved_locks", start_ts, now)
    return kvrpcpb_pb2.Context(resolved_locks=locks)
