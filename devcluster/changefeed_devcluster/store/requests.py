"""Whether a call's arguments are what the protocol means them to be. Anything else never reaches the store.

A real store relies on its clients here, so a request that gets through these checks is one that it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from changefeed.wire import kvrpcpb_pb2 as kvrpcpb

from .txn import MAX_TS

Rule = Callable[[Any], str | None]
"""What is wrong with a request, beginning with the argument's name; None: nothing."""


def wrong_argument(call: str, request: Any, latest: int) -> str | None:
    """The first of the call's rules that the request breaks, in words; None when it keeps all.

    `latest`: no clock of a client can be ahead of this ts. MAX_TS is none, it stands for whatever is newest.
    """
    broken = next(filter(None, (rule(request) for rule in _RULES[call])), None)
    for name in _TIMES:
        if broken is None and latest < getattr(request, name, 0) < MAX_TS:
            broken = f"{name} {getattr(request, name)} is in the future: PD has not come to {latest} yet"
    return broken


_TIMES = (
    "version", "start_version", "start_ts", "lock_ts", "for_update_ts", "commit_version",
    "caller_start_ts", "current_ts", "max_version",
)  # fmt: skip


# --- rules for one argument ---


def _given(name: str) -> Rule:
    return lambda request: None if getattr(request, name) else f"{name} is missing"


def _keys(name: str) -> Rule:
    def rule(request: Any) -> str | None:
        keys: Sequence[bytes] = getattr(request, name)
        if not keys or not all(keys):
            return f"{name} must hold keys, and none that is empty"
        return None

    return rule


def _ts(name: str) -> Rule:
    """The ts of a transaction: one that PD has given out."""
    return lambda request: None if 0 < getattr(request, name) < MAX_TS else f"{name} must be a transaction's ts"


def _lowest_commit_ts(start: str) -> Rule:
    """0 for none, or a ts that is not below the transaction's: PingCAP's Java client sends that very ts."""

    def rule(request: Any) -> str | None:
        ts = request.min_commit_ts
        if ts and not getattr(request, start) <= ts < MAX_TS:
            return f"min_commit_ts {ts} must not be below {start} {getattr(request, start)}, or 0"
        return None

    return rule


def _ts_above(name: str, start: str) -> Rule:
    """0 for none, or above the transaction's start ts."""

    def rule(request: Any) -> str | None:
        ts = getattr(request, name)
        if ts and not getattr(request, start) < ts < MAX_TS:
            return f"{name} {ts} must be above {start} {getattr(request, start)}, or 0"
        return None

    return rule


def _ordered(request: Any) -> str | None:
    low, high = request.start_key, request.end_key
    if getattr(request, "reverse", False):
        low, high = high, low
    if low and high and low > high:
        return f"start_key and end_key are the wrong way round: {low.hex()} is above {high.hex()}"
    return None


def _mutations(*operations: str) -> Rule:
    """At least one, of these operations, each of another key; only what is put or inserted has a value."""
    allowed = {kvrpcpb.Op.Value(operation) for operation in operations}
    valued = {kvrpcpb.Put, kvrpcpb.Insert}

    def rule(request: Any) -> str | None:
        mutations: Collection[kvrpcpb.Mutation] = request.mutations
        if not mutations or not all(mutation.key for mutation in mutations):
            return "mutations must not be empty, and each needs a key"
        for mutation in mutations:
            if mutation.op not in allowed:
                return f"mutations of key {mutation.key.hex()} must be one of {', '.join(operations)}"
            if mutation.value and mutation.op not in valued:
                return f"mutations of key {mutation.key.hex()} has a value, and its operation takes none"
        if len({mutation.key for mutation in mutations}) < len(mutations):
            return "mutations name a key twice"
        return None

    return rule


def _pessimistic_actions(request: Any) -> str | None:
    if len(request.pessimistic_actions) not in (0, len(request.mutations)):
        return "pessimistic_actions must be none, or one for each of mutations"
    if request.pessimistic_actions and not request.for_update_ts:
        return "for_update_ts is missing, which pessimistic_actions need"
    return None


def _secondaries(request: Any) -> str | None:
    if request.secondaries and (not request.use_async_commit or request.primary_lock in request.secondaries):
        return "secondaries are for use_async_commit, and the primary is none of them"
    return None


def _fates(request: Any) -> str | None:
    """A transaction and what has become of it, or several."""
    for fate in request.txn_infos:
        if not 0 < fate.txn < MAX_TS or (fate.status and fate.status <= fate.txn):
            return f"txn_infos: the status {fate.status} of {fate.txn} must be 0 or a later ts"
    return None if request.txn_infos else _ts("start_version")(request)


_WRITES = ("Put", "Del", "Lock", "Insert", "CheckNotExists")

_RULES: dict[str, Sequence[Rule]] = {
    "KvGet": (_given("key"), _given("version")),
    "KvScan": (_given("version"), _given("limit"), _ordered),
    "KvBatchGet": (_keys("keys"), _given("version")),
    "KvPrewrite": (
        _mutations(*_WRITES),
        _given("primary_lock"),
        _ts("start_version"),
        _lowest_commit_ts("start_version"),
        _pessimistic_actions,
        _secondaries,
    ),
    "KvFlush": (
        _mutations(*_WRITES),
        _given("primary_key"),
        _ts("start_ts"),
        _given("generation"),
        _lowest_commit_ts("start_ts"),
    ),
    "KvBufferBatchGet": (_keys("keys"), _ts("version")),
    "KvPessimisticLock": (
        _mutations("PessimisticLock"),
        _given("primary_lock"),
        _ts("start_version"),
        _ts("for_update_ts"),
        _lowest_commit_ts("start_version"),
    ),
    "KVPessimisticRollback": (_keys("keys"), _ts("start_version"), _given("for_update_ts")),
    "KvTxnHeartBeat": (_given("primary_lock"), _ts("start_version"), _given("advise_lock_ttl")),
    "KvCommit": (_keys("keys"), _ts("start_version"), _ts("commit_version")),
    "KvBatchRollback": (_keys("keys"), _ts("start_version")),
    "KvCleanup": (_given("key"), _ts("start_version")),
    "KvCheckTxnStatus": (_given("primary_key"), _ts("lock_ts")),
    "KvCheckSecondaryLocks": (_keys("keys"), _ts("start_version")),
    "KvScanLock": (_given("max_version"), _ordered),
    "KvResolveLock": (_fates, _ts_above("commit_version", "start_version")),
    "SplitRegion": (lambda request: None if request.split_key else _keys("split_keys")(request),),
}
