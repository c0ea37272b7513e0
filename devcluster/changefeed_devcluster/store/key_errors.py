"""The store's refusals as kvrpcpb messages (docs/design/tikv.md, Transactions)."""

from __future__ import annotations

from changefeed.wire import kvrpcpb_pb2 as kvrpcpb

from .txn import (
    AlreadyExist,
    AssertionFailed,
    CommitTsExpired,
    KeyIsLocked,
    Lock,
    PrimaryMismatch,
    TxnError,
    TxnLockNotFound,
    TxnNotFound,
    WriteConflict,
)


def lock_info(lock: Lock, key: bytes | None = None) -> kvrpcpb.LockInfo:
    """Describe a lock as key errors do.

    `key`: what it is said to lock; CheckTxnStatus names the primary, whichever key it was asked about.
    """
    return kvrpcpb.LockInfo(
        primary_lock=lock.primary,
        lock_version=lock.start_ts,
        key=lock.key if key is None else key,
        lock_ttl=lock.ttl_ms,
        txn_size=lock.txn_size,
        lock_type=kvrpcpb.Op.Name(lock.op),
        lock_for_update_ts=lock.for_update_ts,
        use_async_commit=lock.async_commit,
        min_commit_ts=lock.min_commit_ts,
        secondaries=lock.secondaries,
    )


def locked_errors(error: KeyIsLocked) -> list[kvrpcpb.KeyError]:
    """One message for each lock in the way."""
    return [kvrpcpb.KeyError(locked=lock_info(lock)) for lock in error.locks]


def key_error(error: TxnError) -> kvrpcpb.KeyError:
    """The message of a refusal; what has none of its own aborts the transaction, as in TiKV."""
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
            return kvrpcpb.KeyError(retryable=str(error), conflict=conflict)
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
            return kvrpcpb.KeyError(primary_mismatch=kvrpcpb.PrimaryMismatch(lock_info=lock_info(error.lock)))
        case AssertionFailed():
            failed = kvrpcpb.AssertionFailed(
                start_ts=error.start_ts,
                key=error.key,
                assertion=kvrpcpb.Assertion.Name(error.assertion),
                existing_start_ts=error.existing.start_ts if error.existing else 0,
                existing_commit_ts=error.existing.commit_ts if error.existing else 0,
            )
            return kvrpcpb.KeyError(assertion_failed=failed)
    return kvrpcpb.KeyError(abort=str(error))
