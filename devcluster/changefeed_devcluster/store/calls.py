"""What the transactional calls of a store answer (docs/design/tikv.md, Transactions): context checks around `store.py`.

Keys are raw in requests and answers, encoded inside region errors. Nothing waits: who meets a lock is told at once.
What is not served (BatchCommands, coprocessor) is no call here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from google.protobuf.message import Message

from ..pd.regions import Region, Regions
from ..watermark.safe_ts import SafeTs
from .contexts import OutOfRegion, RegionMismatch, clip, find_region, whole
from .key_errors import key_error, lock_info, locked_errors
from .mvcc import LockView
from .store import MvccStore
from .txn import AlreadyCommitted, Assertion, KeyIsLocked, Lock, Mutation, Op, PessimisticCheck, TxnError


class StoreCalls:
    """The calls of one store, whose arguments are right (`requests.py`)."""

    def __init__(self, store_id: int, store: MvccStore, regions: Regions, safe_ts: SafeTs) -> None:
        self._store_id = store_id
        self._store = store
        self._regions = regions
        self._safe_ts = safe_ts
        self._calls: dict[str, Callable[[Any], Message | bytes]] = {
            "KvGet": self._get,
            "KvScan": self._scan,
            "KvBatchGet": self._batch_get,
            "KvPrewrite": self._prewrite,
            "KvFlush": self._flush,
            "KvBufferBatchGet": self._buffer_batch_get,
            "KvPessimisticLock": self._pessimistic_lock,
            "KVPessimisticRollback": self._pessimistic_rollback,
            "KvTxnHeartBeat": self._txn_heart_beat,
            "KvCommit": self._commit,
            "KvBatchRollback": self._batch_rollback,
            "KvCleanup": self._cleanup,
            "KvCheckTxnStatus": self._check_txn_status,
            "KvCheckSecondaryLocks": self._check_secondary_locks,
            "KvScanLock": self._scan_lock,
            "KvResolveLock": self._resolve_lock,
            "SplitRegion": self._split_region,
        }

    @property
    def names(self) -> list[str]:
        return list(self._calls)

    def answer(self, name: str, request: Any) -> Message | bytes:
        """Answer the call with this name, refusals included; bytes: of a message that was encoded before."""
        kind = message_class(name, "Response")
        response: Callable[..., Message] = kind
        try:
            with self._store.lock:  # the layout can't change between its check and the act
                return self._calls[name](request)
        except RegionMismatch as mismatch:
            return response(region_error=mismatch.error)
        except TxnError as error:
            errors = locked_errors(error) if isinstance(error, KeyIsLocked) else [key_error(error)]
        except (OutOfRegion, ValueError) as error:
            errors = [kvrpcpb.KeyError(abort=str(error))]
        one = "error" in kind.DESCRIPTOR.fields_by_name
        return response(error=errors[0]) if one else response(errors=errors)

    def _region(self, context: kvrpcpb.Context, *keys: bytes) -> Region:
        return find_region(self._regions, self._store_id, context, keys)

    # --- reads ---

    def _readable(self, context: kvrpcpb.Context, *keys: bytes) -> Region:
        any_peer = context.stale_read or context.replica_read
        return find_region(self._regions, self._store_id, context, keys, any_peer)

    def _view(self, context: kvrpcpb.Context, region: Region, ts: int, start: bytes, end: bytes) -> LockView:
        if context.stale_read:
            return self._safe_ts.view(region, self._store_id, ts, start, end)
        return LockView(context.resolved_locks, context.committed_locks, context.isolation_level == kvrpcpb.RC)

    def _get(self, request: kvrpcpb.GetRequest) -> Message:
        region = self._readable(request.context)
        whole(region, request.key, request.key + b"\0")
        view = self._view(request.context, region, request.version, request.key, request.key + b"\0")
        value = self._store.get(request.key, request.version, view)
        return kvrpcpb.GetResponse(not_found=True) if value is None else kvrpcpb.GetResponse(value=value)

    def _batch_get(self, request: kvrpcpb.BatchGetRequest) -> Message:
        region = self._readable(request.context, *request.keys)
        pairs = []
        for key in request.keys:
            view = self._view(request.context, region, request.version, key, key + b"\0")
            try:
                value = self._store.get(key, request.version, view)
            except KeyIsLocked as error:
                pairs.append(kvrpcpb.KvPair(error=key_error(error)))
                continue
            if value is not None:
                pairs.append(kvrpcpb.KvPair(key=key, value=value))
        return kvrpcpb.BatchGetResponse(pairs=pairs)

    def _scan(self, request: kvrpcpb.ScanRequest) -> Message | bytes:
        region = self._readable(request.context)
        low, high = request.start_key, request.end_key
        if request.reverse:
            low, high = high or region.start, low
        start, end = whole(region, low, high)
        view = self._view(request.context, region, request.version, start, end)
        if not request.reverse and not request.key_only:
            encoded = self._store.encoded_range(start, end, request.version, request.limit, view)
            if encoded is not None:
                return encoded
        found = self._store.read_range(start, end, request.version, request.limit, request.reverse, view)
        return kvrpcpb.ScanResponse(pairs=[_pair(key, value, request.key_only) for key, value in found])

    def _scan_lock(self, request: kvrpcpb.ScanLockRequest) -> Message:
        keys = [request.start_key] if request.start_key else []
        region = self._region(request.context, *keys)
        start, end = clip(region, request.start_key, request.end_key)
        locks = self._store.scan_locks(request.max_version, start, end, request.limit)
        return kvrpcpb.ScanLockResponse(locks=[lock_info(lock) for lock in locks])

    # --- locking ---

    def _prewrite(self, request: kvrpcpb.PrewriteRequest) -> Message:
        self._region(request.context, *(mutation.key for mutation in request.mutations))
        mutations = _mutations(request)
        source = request.context.txn_source
        if request.try_one_pc:
            commit_ts = self._store.one_pc(
                mutations,
                request.start_version,
                request.min_commit_ts,
                source,
                for_update_ts=request.for_update_ts,
                max_commit_ts=request.max_commit_ts,
            )
            if commit_ts:
                return kvrpcpb.PrewriteResponse(min_commit_ts=commit_ts, one_pc_commit_ts=commit_ts)
        min_commit_ts = self._store.prewrite(
            mutations,
            request.primary_lock,
            request.start_version,
            request.lock_ttl,
            request.txn_size,
            request.min_commit_ts,
            source,
            for_update_ts=request.for_update_ts,
            async_commit=request.use_async_commit,
            secondaries=request.secondaries,
            max_commit_ts=request.max_commit_ts,
        )
        return kvrpcpb.PrewriteResponse(min_commit_ts=min_commit_ts if request.use_async_commit else 0)

    def _flush(self, request: kvrpcpb.FlushRequest) -> Message:
        self._region(request.context, *(mutation.key for mutation in request.mutations))
        asserts = request.assertion_level != kvrpcpb.Off
        self._store.flush(
            [_mutation(mutation, PessimisticCheck.SKIP, asserts) for mutation in request.mutations],
            request.primary_key,
            request.start_ts,
            request.generation,
            request.min_commit_ts,
            request.lock_ttl,
            request.context.txn_source,
        )
        return kvrpcpb.FlushResponse()

    def _buffer_batch_get(self, request: kvrpcpb.BufferBatchGetRequest) -> Message:
        """Return what the transaction has flushed to the keys; a delete has no value, what it did not flush no pair."""
        self._region(request.context, *request.keys)
        locks = (self._store.flushed(key, request.version) for key in request.keys)
        pairs = [kvrpcpb.KvPair(key=lock.key, value=lock.value) for lock in locks if lock is not None]
        return kvrpcpb.BufferBatchGetResponse(pairs=pairs)

    def _pessimistic_lock(self, request: kvrpcpb.PessimisticLockRequest) -> Message:
        keys = [mutation.key for mutation in request.mutations]
        self._region(request.context, *keys)
        if request.wake_up_mode != kvrpcpb.WakeUpModeNormal:
            raise ValueError("this store wakes nobody up: lock with WakeUpModeNormal")
        values = self._store.pessimistic_lock(
            keys,
            request.primary_lock,
            request.start_version,
            request.for_update_ts,
            request.lock_ttl,
            request.min_commit_ts,
            [m.key for m in request.mutations if m.assertion == kvrpcpb.NotExist],
            request.lock_only_if_exists,
        )
        answer = kvrpcpb.PessimisticLockResponse()
        if request.return_values:
            answer.values.extend(value or b"" for value in values)
        if request.return_values or request.check_existence:
            answer.not_founds.extend(value is None for value in values)
        return answer

    def _pessimistic_rollback(self, request: kvrpcpb.PessimisticRollbackRequest) -> Message:
        self._region(request.context, *request.keys)
        self._store.pessimistic_rollback(request.keys, request.start_version, request.for_update_ts)
        return kvrpcpb.PessimisticRollbackResponse()

    def _txn_heart_beat(self, request: kvrpcpb.TxnHeartBeatRequest) -> Message:
        self._region(request.context, request.primary_lock)
        ttl = self._store.txn_heart_beat(
            request.primary_lock, request.start_version, request.advise_lock_ttl, request.min_commit_ts
        )
        return kvrpcpb.TxnHeartBeatResponse(lock_ttl=ttl)

    # --- ends of a transaction ---

    def _commit(self, request: kvrpcpb.CommitRequest) -> Message:
        self._region(request.context, *request.keys)
        self._store.commit(request.keys, request.start_version, request.commit_version)
        return kvrpcpb.CommitResponse(commit_version=request.commit_version)

    def _batch_rollback(self, request: kvrpcpb.BatchRollbackRequest) -> Message:
        self._region(request.context, *request.keys)
        self._store.rollback(request.keys, request.start_version)
        return kvrpcpb.BatchRollbackResponse()

    def _cleanup(self, request: kvrpcpb.CleanupRequest) -> Message:
        self._region(request.context, request.key)
        try:
            self._store.cleanup(request.key, request.start_version, request.current_ts)
        except AlreadyCommitted as error:
            return kvrpcpb.CleanupResponse(commit_version=error.commit_ts)
        return kvrpcpb.CleanupResponse()

    def _check_txn_status(self, request: kvrpcpb.CheckTxnStatusRequest) -> Message:
        self._region(request.context, request.primary_key)
        status = self._store.check_txn_status(
            request.primary_key,
            request.lock_ts,
            request.current_ts,
            request.rollback_if_not_exist,
            request.caller_start_ts,
            request.verify_is_primary,
            request.force_sync_commit,
            request.resolving_pessimistic_lock,
        )
        return kvrpcpb.CheckTxnStatusResponse(
            lock_ttl=status.ttl_ms,
            commit_version=status.commit_ts,
            action=kvrpcpb.Action.Name(status.action),
            lock_info=lock_info(status.lock, status.lock.primary) if status.lock else None,
        )

    def _check_secondary_locks(self, request: kvrpcpb.CheckSecondaryLocksRequest) -> Message:
        self._region(request.context, *request.keys)
        found = self._store.check_secondary_locks(request.keys, request.start_version)
        locks = [lock_info(lock) for lock in found.locks]
        return kvrpcpb.CheckSecondaryLocksResponse(locks=locks, commit_ts=found.commit_ts)

    def _resolve_lock(self, request: kvrpcpb.ResolveLockRequest) -> Message:
        region = self._region(request.context, *request.keys)
        fates = [(info.txn, info.status) for info in request.txn_infos]
        for start_ts, commit_ts in fates or [(request.start_version, request.commit_version)]:
            self._store.resolve_lock(start_ts, commit_ts, region.start, region.end, request.keys or None)
        return kvrpcpb.ResolveLockResponse()

    # --- the layout ---

    def _split_region(self, request: kvrpcpb.SplitRegionRequest) -> Message:
        keys = list(request.split_keys) or [request.split_key]
        region = self._region(request.context, *keys)
        for key in sorted(keys):
            if key != region.start:
                self._regions.split(key)
        parts = [part for part in self._regions.all() if region.contains(part.start)]
        messages = [part.message for part in parts]
        return kvrpcpb.SplitRegionResponse(left=messages[0], right=messages[-1], regions=messages)


def _mutations(request: kvrpcpb.PrewriteRequest) -> list[Mutation]:
    checks = request.pessimistic_actions or [kvrpcpb.PrewriteRequest.SKIP_PESSIMISTIC_CHECK] * len(request.mutations)
    asserts = request.assertion_level != kvrpcpb.Off
    return [
        _mutation(mutation, PessimisticCheck(check), asserts)
        for mutation, check in zip(request.mutations, checks, strict=True)
    ]


def _mutation(mutation: kvrpcpb.Mutation, check: PessimisticCheck, asserts: bool) -> Mutation:
    assertion = Assertion(mutation.assertion) if asserts else Assertion.NONE
    return Mutation(Op(mutation.op), mutation.key, mutation.value, check, assertion)


def _pair(key: bytes, found: bytes | Lock, key_only: bool) -> kvrpcpb.KvPair:
    if isinstance(found, Lock):
        return kvrpcpb.KvPair(error=kvrpcpb.KeyError(locked=lock_info(found)))
    return kvrpcpb.KvPair(key=key, value=b"" if key_only else found)


def message_class(call: str, kind: str) -> Any:
    """Return the class of a call's messages.

    `kind`: Request or Response; the message classes are named after the calls.
    """
    name = call[2:] if call.lower().startswith("kv") else call
    return getattr(kvrpcpb, name + kind)
