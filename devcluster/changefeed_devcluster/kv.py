"""The transactional calls of a store over gRPC (facts, tikv-wire 3.1-3.6): context checks around `store.py`.

Keys are raw in requests and answers, encoded inside region errors. What is not served (pessimistic locks, async commit)
is not in the method list, or falls back as the protocol allows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc
from changefeed.wire import errorpb_pb2 as errorpb
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from google.protobuf.message import Message

from .codec import encode_bytes
from .regions import Region, Regions
from .store import MvccStore
from .txn import (
    AlreadyCommitted,
    AlreadyExist,
    CommitTsExpired,
    KeyIsLocked,
    Lock,
    Mutation,
    Op,
    PrimaryMismatch,
    TxnError,
    TxnLockNotFound,
    TxnNotFound,
    WriteConflict,
)

Context = grpc.aio.ServicerContext[Any, Any]


class RegionMismatch(Exception):
    """The request's context does not fit the layout; `error` is what the client is told."""

    def __init__(self, error: errorpb.Error) -> None:
        super().__init__(error.message)
        self.error = error


class Tikv:
    """The service of one store."""

    def __init__(self, store_id: int, cluster_id: int, store: MvccStore, regions: Regions) -> None:
        self._store_id = store_id
        self._cluster_id = cluster_id
        self._store = store
        self._regions = regions

    def handler(self) -> grpc.GenericRpcHandler:
        calls: list[tuple[str, type[Message], type[Message], Callable[[Any], Message]]] = [
            ("KvGet", kvrpcpb.GetRequest, kvrpcpb.GetResponse, self._get),
            ("KvScan", kvrpcpb.ScanRequest, kvrpcpb.ScanResponse, self._scan),
            ("KvBatchGet", kvrpcpb.BatchGetRequest, kvrpcpb.BatchGetResponse, self._batch_get),
            ("KvPrewrite", kvrpcpb.PrewriteRequest, kvrpcpb.PrewriteResponse, self._prewrite),
            ("KvCommit", kvrpcpb.CommitRequest, kvrpcpb.CommitResponse, self._commit),
            ("KvBatchRollback", kvrpcpb.BatchRollbackRequest, kvrpcpb.BatchRollbackResponse, self._batch_rollback),
            (
                "KvCheckTxnStatus",
                kvrpcpb.CheckTxnStatusRequest,
                kvrpcpb.CheckTxnStatusResponse,
                self._check_txn_status,
            ),
            ("KvScanLock", kvrpcpb.ScanLockRequest, kvrpcpb.ScanLockResponse, self._scan_lock),
            ("KvResolveLock", kvrpcpb.ResolveLockRequest, kvrpcpb.ResolveLockResponse, self._resolve_lock),
            ("KvTxnHeartBeat", kvrpcpb.TxnHeartBeatRequest, kvrpcpb.TxnHeartBeatResponse, self._txn_heart_beat),
        ]
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._call(behaviour, response),
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, request, response, behaviour in calls
        }
        return grpc.method_handlers_generic_handler("tikvpb.Tikv", methods)

    def _call(
        self, behaviour: Callable[[Any], Message], response: type[Message]
    ) -> Callable[[Any, Context], Awaitable[Message]]:
        async def call(request: Any, context: Context) -> Message:
            wanted = request.context.cluster_id
            if wanted and wanted != self._cluster_id:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"cluster id mismatch: this cluster is {self._cluster_id}, the request is for {wanted}",
                )
            try:
                return behaviour(request)
            except RegionMismatch as mismatch:
                return response(region_error=mismatch.error)
            except TxnError as error:
                return response(error=key_error(error))

        return call

    # --- reads ---

    def _get(self, request: kvrpcpb.GetRequest) -> Message:
        self._region(request.context, [request.key])
        value = self._store.get(request.key, request.version, _resolved(request.context))
        if value is None:
            return kvrpcpb.GetResponse(not_found=True)
        return kvrpcpb.GetResponse(value=value)

    def _batch_get(self, request: kvrpcpb.BatchGetRequest) -> Message:
        self._region(request.context, request.keys)
        pairs = []
        for key in request.keys:
            try:
                value = self._store.get(key, request.version, _resolved(request.context))
            except KeyIsLocked as error:
                pairs.append(kvrpcpb.KvPair(key=key, error=key_error(error)))
                continue
            if value is not None:
                pairs.append(kvrpcpb.KvPair(key=key, value=value))
        return kvrpcpb.BatchGetResponse(pairs=pairs)

    def _scan(self, request: kvrpcpb.ScanRequest) -> Message:
        low, high = request.start_key, request.end_key
        if request.reverse:
            low, high = high, low
        region = self._region(request.context, () if request.reverse else [low])
        found = self._store.read_range(
            *_clip(region, low, high), request.version, request.limit, request.reverse, _resolved(request.context)
        )
        return kvrpcpb.ScanResponse(pairs=[_pair(key, value, request.key_only) for key, value in found])

    def _scan_lock(self, request: kvrpcpb.ScanLockRequest) -> Message:
        region = self._region(request.context, [request.start_key] if request.start_key else ())
        start, end = _clip(region, request.start_key, request.end_key)
        locks = self._store.scan_locks(request.max_version, start, end, request.limit)
        return kvrpcpb.ScanLockResponse(locks=[lock_info(lock) for lock in locks])

    # --- writes ---

    def _prewrite(self, request: kvrpcpb.PrewriteRequest) -> Message:
        self._region(request.context, [mutation.key for mutation in request.mutations])
        source = request.context.txn_source
        try:
            mutations = [Mutation(Op(mutation.op), mutation.key, mutation.value) for mutation in request.mutations]
            if request.try_one_pc:
                commit_ts = self._store.one_pc(mutations, request.start_version, request.min_commit_ts, source)
                return kvrpcpb.PrewriteResponse(one_pc_commit_ts=commit_ts)
            self._store.prewrite(
                mutations,
                request.primary_lock,
                request.start_version,
                request.lock_ttl,
                request.txn_size,
                request.min_commit_ts,
                source,
            )
        except KeyIsLocked as error:
            return kvrpcpb.PrewriteResponse(errors=[kvrpcpb.KeyError(locked=lock_info(lock)) for lock in error.locks])
        except TxnError as error:
            return kvrpcpb.PrewriteResponse(errors=[key_error(error)])
        except ValueError as error:
            return kvrpcpb.PrewriteResponse(errors=[kvrpcpb.KeyError(abort=str(error))])
        return kvrpcpb.PrewriteResponse()

    def _commit(self, request: kvrpcpb.CommitRequest) -> Message:
        self._region(request.context, request.keys)
        try:
            self._store.commit(request.keys, request.start_version, request.commit_version)
        except ValueError as error:
            return kvrpcpb.CommitResponse(error=kvrpcpb.KeyError(abort=str(error)))
        return kvrpcpb.CommitResponse(commit_version=request.commit_version)

    def _batch_rollback(self, request: kvrpcpb.BatchRollbackRequest) -> Message:
        self._region(request.context, request.keys)
        self._store.rollback(request.keys, request.start_version)
        return kvrpcpb.BatchRollbackResponse()

    def _check_txn_status(self, request: kvrpcpb.CheckTxnStatusRequest) -> Message:
        self._region(request.context, [request.primary_key])
        status = self._store.check_txn_status(
            request.primary_key,
            request.lock_ts,
            request.current_ts,
            request.rollback_if_not_exist,
            request.caller_start_ts,
            request.verify_is_primary,
        )
        return kvrpcpb.CheckTxnStatusResponse(
            lock_ttl=status.ttl_ms,
            commit_version=status.commit_ts,
            action=kvrpcpb.Action.Name(status.action),
            lock_info=lock_info(status.lock) if status.lock else None,
        )

    def _resolve_lock(self, request: kvrpcpb.ResolveLockRequest) -> Message:
        region = self._region(request.context, request.keys)
        fates = [(info.txn, info.status) for info in request.txn_infos]
        if not fates:
            fates = [(request.start_version, request.commit_version)]
        with self._store.lock:
            for start_ts, commit_ts in fates:
                self._store.resolve_lock(start_ts, commit_ts, region.start, region.end, request.keys or None)
        return kvrpcpb.ResolveLockResponse()

    def _txn_heart_beat(self, request: kvrpcpb.TxnHeartBeatRequest) -> Message:
        self._region(request.context, [request.primary_lock])
        ttl = self._store.txn_heart_beat(request.primary_lock, request.start_version, request.advise_lock_ttl)
        return kvrpcpb.TxnHeartBeatResponse(lock_ttl=ttl)

    # --- the context ---

    def _region(self, context: kvrpcpb.Context, keys: Iterable[bytes]) -> Region:
        """The request's region. Raises RegionMismatch, in the order in which TiKV looks."""
        if context.peer.store_id != self._store_id:
            mismatch = errorpb.StoreNotMatch(request_store_id=context.peer.store_id, actual_store_id=self._store_id)
            raise RegionMismatch(errorpb.Error(message="store not match", store_not_match=mismatch))
        region = self._regions.get(context.region_id)
        if region is None or not region.has_peer_on(self._store_id):
            missing = errorpb.RegionNotFound(region_id=context.region_id)
            raise RegionMismatch(
                errorpb.Error(message=f"region {context.region_id} not found", region_not_found=missing)
            )
        if region.leader_store != self._store_id:
            moved = errorpb.NotLeader(region_id=region.id, leader=region.leader)
            raise RegionMismatch(errorpb.Error(message=f"region {region.id} is led elsewhere", not_leader=moved))
        epoch = context.region_epoch
        if (epoch.version, epoch.conf_ver) != (region.version, region.conf_ver):
            changed = errorpb.EpochNotMatch(current_regions=[region.message])
            raise RegionMismatch(errorpb.Error(message=f"epoch of region {region.id} changed", epoch_not_match=changed))
        for key in keys:
            if not region.contains(key):
                outside = errorpb.KeyNotInRegion(
                    key=encode_bytes(key),
                    region_id=region.id,
                    start_key=region.message.start_key,
                    end_key=region.message.end_key,
                )
                raise RegionMismatch(
                    errorpb.Error(message=f"key {key.hex()} is not in region {region.id}", key_not_in_region=outside)
                )
        return region


def lock_info(lock: Lock) -> kvrpcpb.LockInfo:
    return kvrpcpb.LockInfo(
        primary_lock=lock.primary,
        lock_version=lock.start_ts,
        key=lock.key,
        lock_ttl=lock.ttl_ms,
        txn_size=lock.txn_size,
        lock_type=kvrpcpb.Op.Name(lock.op),
        min_commit_ts=lock.min_commit_ts,
    )


def key_error(error: TxnError) -> kvrpcpb.KeyError:
    """The message of a refusal."""
    match error:
        case KeyIsLocked():
            return kvrpcpb.KeyError(locked=lock_info(error.lock))
        case WriteConflict():
            conflict = kvrpcpb.WriteConflict(
                start_ts=error.start_ts,
                conflict_ts=error.conflict_start_ts,
                key=error.key,
                primary=error.primary,
                conflict_commit_ts=error.conflict_commit_ts,
                reason=kvrpcpb.WriteConflict.Reason.Name(error.reason),
            )
            return kvrpcpb.KeyError(conflict=conflict)
        case AlreadyExist():
            return kvrpcpb.KeyError(already_exist=kvrpcpb.AlreadyExist(key=error.key))
        case CommitTsExpired():
            late = kvrpcpb.CommitTsExpired(
                start_ts=error.start_ts,
                attempted_commit_ts=error.commit_ts,
                key=error.key,
                min_commit_ts=error.min_commit_ts,
            )
            return kvrpcpb.KeyError(commit_ts_expired=late)
        case TxnLockNotFound():
            missing = kvrpcpb.TxnLockNotFound(key=error.key)
            return kvrpcpb.KeyError(retryable=str(error), txn_lock_not_found=missing)
        case TxnNotFound():
            unknown = kvrpcpb.TxnNotFound(start_ts=error.start_ts, primary_key=error.primary)
            return kvrpcpb.KeyError(txn_not_found=unknown)
        case PrimaryMismatch():
            other = kvrpcpb.PrimaryMismatch(lock_info=lock_info(error.lock))
            return kvrpcpb.KeyError(primary_mismatch=other)
        case AlreadyCommitted():
            return kvrpcpb.KeyError(abort=str(error))
    raise TypeError(f"no key error for {type(error).__name__}")


def _pair(key: bytes, found: bytes | Lock, key_only: bool) -> kvrpcpb.KvPair:
    if isinstance(found, Lock):
        return kvrpcpb.KvPair(key=key, error=kvrpcpb.KeyError(locked=lock_info(found)))
    return kvrpcpb.KvPair(key=key, value=b"" if key_only else found)


def _clip(region: Region, start: bytes, end: bytes) -> tuple[bytes, bytes]:
    ends = [bound for bound in (end, region.end) if bound]
    return max(start, region.start), min(ends) if ends else b""


def _resolved(context: kvrpcpb.Context) -> Sequence[int]:
    return context.resolved_locks
