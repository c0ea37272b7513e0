"""The transactional store: Percolator over sorted keys in memory (facts, tikv-wire 3.4-3.6 and 6).

One store object holds the whole key space; regions are only a view of who may be asked (`regions.py`). Every method
takes the one lock, changes everything or nothing, and may be repeated: a second prewrite, commit or rollback of the
same transaction succeeds without effect. Each effective change is journaled and reported to the observers inside the
lock, so they see changes in the order of application. Observers must only note the change and return.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from sortedcontainers import SortedDict

from .journal import Journal, Record
from .txn import (
    MAX_TS,
    Action,
    AlreadyCommitted,
    AlreadyExist,
    AlreadyRolledBack,
    Change,
    CommitTsExpired,
    KeyIsLocked,
    Kind,
    Lock,
    Mutation,
    Op,
    PrimaryMismatch,
    RowChange,
    TxnLockNotFound,
    TxnNotFound,
    TxnStatus,
    Version,
    WriteConflict,
)

_SCAN_CHUNK = 4096
_MESSAGE_OP = {Op.PUT: kvrpcpb.Put, Op.DELETE: kvrpcpb.Del, Op.LOCK: kvrpcpb.Lock}


class ScannedVersion(NamedTuple):
    """A version met by an incremental scan, with what the key held before it (None: nothing)."""

    key: bytes
    version: Version
    old_value: bytes | None


def expired(lock_ts: int, ttl_ms: int, current_ts: int) -> bool:
    """True once the lock's time to live has passed (facts, 3.6, CheckTxnStatus)."""
    return (lock_ts >> 18) + ttl_ms < (current_ts >> 18)


class MvccStore:
    """Thread-safe. `lock` may be held by a caller to see several reads at one moment.

    `max_ts`: no 1PC commit ts is at or below it. `resolved_floor`: the highest resolved-ts base told to a subscriber;
    no lock written later may commit at or below it.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.lock = threading.RLock()
        self.max_ts = 0
        self.resolved_floor = 0
        self.seq = 0
        self._journal = journal
        self._writes: SortedDict[bytes, list[Version]] = SortedDict()
        self._locks: SortedDict[bytes, Lock] = SortedDict()
        self._rollbacks: dict[bytes, set[int]] = {}
        self._observers: list[Callable[[Change], None]] = []

    def observe(self, observer: Callable[[Change], None]) -> None:
        """Calls `observer` with every later change, inside the lock, in order of application."""
        with self.lock:
            self._observers.append(observer)

    # --- writes ---

    def prewrite(
        self,
        mutations: Sequence[Mutation],
        primary: bytes,
        start_ts: int,
        ttl_ms: int = 3000,
        txn_size: int = 0,
        min_commit_ts: int = 0,
        txn_source: int = 0,
    ) -> None:
        """Locks every key. Take the commit ts from the oracle after it.

        Raises KeyIsLocked (with all foreign locks met), WriteConflict, AlreadyRolledBack, AlreadyExist.
        """
        with self.lock:
            rows = self._check(mutations, primary, start_ts)
            if not rows:
                return
            if self._journal:
                self._journal.append(
                    Record.PREWRITE,
                    kvrpcpb.PrewriteRequest(
                        mutations=_mutation_messages(rows),
                        primary_lock=primary,
                        start_version=start_ts,
                        lock_ttl=ttl_ms,
                        txn_size=txn_size,
                        min_commit_ts=min_commit_ts,
                        context=kvrpcpb.Context(txn_source=txn_source),
                    ),
                )
            locks, floor = self._locks, self.resolved_floor
            for key, op, value, old_value in rows:
                locks[key] = Lock(
                    key, primary, start_ts, op, value, old_value, ttl_ms, txn_size, min_commit_ts, txn_source, floor
                )
            self._report(Kind.PREWRITE, start_ts, 0, txn_source, [row for row in rows if row.op is not Op.LOCK])

    def commit(self, keys: Iterable[bytes], start_ts: int, commit_ts: int) -> None:
        """Turns the transaction's locks into versions. Raises TxnLockNotFound, CommitTsExpired."""
        if commit_ts <= start_ts:
            raise ValueError(f"commit ts {commit_ts} is not above start ts {start_ts}")
        with self.lock:
            locks: dict[bytes, Lock] = {}
            for key in keys:
                lock = self._locks.get(key)
                if lock is None or lock.start_ts != start_ts:
                    if self._commit_of(key, start_ts) is None:
                        raise TxnLockNotFound(key, start_ts)
                    continue
                lowest = max(lock.min_commit_ts, lock.floor + 1)
                if commit_ts < lowest:
                    raise CommitTsExpired(key, start_ts, commit_ts, lowest)
                locks[key] = lock
            if locks:
                self._apply_commit(locks, start_ts, commit_ts)

    def one_pc(
        self,
        mutations: Sequence[Mutation],
        start_ts: int,
        min_commit_ts: int = 0,
        txn_source: int = 0,
    ) -> int:
        """Writes versions without locks; gives the commit ts, above start_ts, min_commit_ts - 1 and max_ts.

        It is computed, not allocated: two transactions may get the same one. Raises what prewrite raises.
        """
        with self.lock:
            done = self._commit_of(mutations[0].key, start_ts)
            if done is not None:
                return done
            rows = self._check(mutations, mutations[0].key, start_ts)
            commit_ts = max(self.max_ts + 1, start_ts + 1, min_commit_ts)
            if self._journal:
                self._journal.append(
                    Record.ONE_PC,
                    kvrpcpb.PrewriteRequest(
                        mutations=_mutation_messages(rows),
                        start_version=start_ts,
                        min_commit_ts=commit_ts,
                        context=kvrpcpb.Context(txn_source=txn_source),
                    ),
                )
            self._apply_one_pc(rows, start_ts, commit_ts, txn_source)
            return commit_ts

    def rollback(self, keys: Iterable[bytes], start_ts: int) -> None:
        """Removes the transaction's locks and bars its later prewrites. Raises AlreadyCommitted."""
        with self.lock:
            todo = []
            for key in dict.fromkeys(keys):
                commit_ts = self._commit_of(key, start_ts)
                if commit_ts is not None:
                    raise AlreadyCommitted(key, start_ts, commit_ts)
                if start_ts not in self._rollbacks.get(key, ()):
                    todo.append(key)
            if todo:
                self._apply_rollback(todo, start_ts)

    def check_txn_status(
        self,
        primary: bytes,
        lock_ts: int,
        current_ts: int,
        rollback_if_not_exist: bool = False,
        caller_start_ts: int = 0,
        verify_is_primary: bool = False,
    ) -> TxnStatus:
        """The fate of a transaction, decided now if its lock has expired. Raises TxnNotFound, PrimaryMismatch."""
        with self.lock:
            lock = self._locks.get(primary)
            if lock is not None and lock.start_ts == lock_ts:
                if verify_is_primary and lock.primary != primary:
                    raise PrimaryMismatch(lock)
                if expired(lock_ts, lock.ttl_ms, current_ts):
                    self._apply_rollback([primary], lock_ts)
                    return TxnStatus(Action.TTL_EXPIRE_ROLLBACK)
                if lock.min_commit_ts and caller_start_ts and caller_start_ts >= lock.min_commit_ts:
                    lock.min_commit_ts = max(caller_start_ts + 1, current_ts)
                    return TxnStatus(Action.MIN_COMMIT_TS_PUSHED, ttl_ms=lock.ttl_ms, lock=lock)
                return TxnStatus(Action.NO_ACTION, ttl_ms=lock.ttl_ms, lock=lock)
            commit_ts = self._commit_of(primary, lock_ts)
            if commit_ts is not None:
                return TxnStatus(Action.NO_ACTION, commit_ts=commit_ts)
            if lock_ts in self._rollbacks.get(primary, ()):
                return TxnStatus(Action.NO_ACTION)
            if not rollback_if_not_exist:
                raise TxnNotFound(primary, lock_ts)
            self._apply_rollback([primary], lock_ts)
            return TxnStatus(Action.LOCK_NOT_EXIST_ROLLBACK)

    def resolve_lock(
        self, start_ts: int, commit_ts: int, start: bytes = b"", end: bytes = b"", only: Sequence[bytes] | None = None
    ) -> None:
        """Commits (commit_ts > 0) or rolls back the locks of a transaction in [start, end), or just those of `only`."""
        with self.lock:
            if only is None:
                keys = [lock.key for lock in self.locks_in(start, end) if lock.start_ts == start_ts]
            else:
                keys = [key for key in only if key in self._locks and self._locks[key].start_ts == start_ts]
            if keys and commit_ts:
                self.commit(keys, start_ts, commit_ts)
            elif keys:
                self._apply_rollback(keys, start_ts)

    def txn_heart_beat(self, primary: bytes, start_ts: int, advise_ttl_ms: int) -> int:
        """Prolongs the primary lock; gives its ttl in ms. Raises TxnNotFound."""
        with self.lock:
            lock = self._locks.get(primary)
            if lock is None or lock.start_ts != start_ts:
                raise TxnNotFound(primary, start_ts)
            ttl_ms: int = max(lock.ttl_ms, advise_ttl_ms)
            lock.ttl_ms = ttl_ms
            return ttl_ms

    # --- reads ---

    def get(self, key: bytes, ts: int, resolved: Collection[int] = ()) -> bytes | None:
        """The value at ts, None if there is none. `resolved`: start ts of locks to be ignored. Raises KeyIsLocked."""
        with self.lock:
            self._raise_max_ts(ts)
            lock = self._locks.get(key)
            if lock is not None and lock.blocks_read_at(ts) and lock.start_ts not in resolved:
                raise KeyIsLocked([lock])
            return _value_at(self._writes.get(key, ()), ts)

    def scan(self, start: bytes, end: bytes, ts: int, limit: int | None = None) -> list[tuple[bytes, bytes]]:
        """The live pairs of [start, end) at ts, keys ascending; an empty `end` has no bound. Raises KeyIsLocked."""
        pairs: list[tuple[bytes, bytes]] = []
        for key, found in self.read_range(start, end, ts, limit):
            if isinstance(found, Lock):
                raise KeyIsLocked([found])
            pairs.append((key, found))
        return pairs

    def read_range(
        self,
        start: bytes,
        end: bytes,
        ts: int,
        limit: int | None = None,
        reverse: bool = False,
        resolved: Collection[int] = (),
    ) -> list[tuple[bytes, bytes | Lock]]:
        """As `scan`, but a blocked key stands in the result with its lock; `reverse` gives keys descending.

        The lock is given up between chunks: what is read is the snapshot at ts all the same, for any ts that the oracle
        has given out.
        """
        found: list[tuple[bytes, bytes | Lock]] = []
        wanted = MAX_TS if limit is None else limit
        while len(found) < wanted:
            with self.lock:
                self._raise_max_ts(ts)
                keys = list(islice(self._keys_in(start, end, reverse), _SCAN_CHUNK))
                for key in keys:
                    lock = self._locks.get(key)
                    if lock is not None and lock.blocks_read_at(ts) and lock.start_ts not in resolved:
                        found.append((key, lock))
                    else:
                        value = _value_at(self._writes.get(key, ()), ts)
                        if value is not None:
                            found.append((key, value))
                    if len(found) == wanted:
                        return found
            if len(keys) < _SCAN_CHUNK:
                break
            if reverse:
                end = keys[-1]
            else:
                start = keys[-1] + b"\0"
        return found

    def scan_locks(self, max_ts: int, start: bytes = b"", end: bytes = b"", limit: int = 0) -> list[Lock]:
        """Locks of [start, end) with start ts ≤ max_ts, keys ascending, at most `limit` (0: all)."""
        with self.lock:
            self._raise_max_ts(max_ts)
            locks = (lock for lock in self.locks_in(start, end) if lock.start_ts <= max_ts)
            return list(islice(locks, limit or None))

    def locks_in(self, start: bytes, end: bytes) -> Iterator[Lock]:
        """All locks of [start, end), keys ascending; hold `lock` while iterating."""
        return (self._locks[key] for key in self._locks.irange(start, end or None, (True, False)))

    def scan_versions(
        self, start: bytes, end: bytes, after_ts: int, upto_seq: int, max_keys: int
    ) -> tuple[list[ScannedVersion], bytes | None]:
        """One step of an incremental scan: PUT and DELETE versions above after_ts made by changes up to upto_seq.

        Keys ascending, versions of a key newest first. The second value is where the next step starts, None at the end.
        """
        with self.lock:
            found: list[ScannedVersion] = []
            key = None
            visited = 0
            for key in islice(self._writes.irange(start, end or None, (True, False)), max_keys):
                visited += 1
                versions = self._writes[key]
                if versions[-1].commit_ts > after_ts:
                    _collect(found, key, versions, after_ts, upto_seq)
            if visited < max_keys or key is None:
                return found, None
            return found, key + b"\0"

    # --- replay ---

    def replay(self, kind: Record, body: bytes) -> int:
        """Applies a journaled change again, unchecked and unreported; gives the highest ts in it."""
        if kind is Record.COMMIT:
            commit = kvrpcpb.CommitRequest.FromString(body)
            locks = {key: self._locks[key] for key in commit.keys}
            self._write_commit(locks, commit.start_version, commit.commit_version)
            return commit.commit_version
        if kind is Record.ROLLBACK:
            rollback = kvrpcpb.BatchRollbackRequest.FromString(body)
            self._write_rollback(list(rollback.keys), rollback.start_version)
            return rollback.start_version
        request = kvrpcpb.PrewriteRequest.FromString(body)
        rows = [
            RowChange(m.key, Op(m.op), m.value, _value_at(self._writes.get(m.key, ()), MAX_TS))
            for m in request.mutations
        ]
        source = request.context.txn_source
        if kind is Record.ONE_PC:
            self._write_one_pc(rows, request.start_version, request.min_commit_ts, source)
            return request.min_commit_ts
        for key, op, value, old_value in rows:
            self._locks[key] = Lock(
                key, request.primary_lock, request.start_version, op, value, old_value, request.lock_ttl,
                request.txn_size, request.min_commit_ts, source, 0,
            )  # fmt: skip
        return request.start_version

    # --- inside the lock ---

    def _check(self, mutations: Sequence[Mutation], primary: bytes, start_ts: int) -> list[RowChange]:
        """What has to be written, with old values; keys that the transaction has locked already are left out."""
        if len({mutation.key for mutation in mutations}) != len(mutations):
            raise ValueError(f"a prewrite of transaction {start_ts} names a key twice")
        rows: list[RowChange] = []
        foreign: list[Lock] = []
        for op, key, value in mutations:
            lock = self._locks.get(key)
            if lock is not None and lock.start_ts == start_ts:
                continue
            versions = self._writes.get(key, ())
            self._check_conflict(key, versions, primary, start_ts)
            if lock is not None:
                foreign.append(lock)
                continue
            old_value = _value_at(versions, start_ts)
            if op is Op.INSERT or op is Op.CHECK_NOT_EXISTS:
                if old_value is not None:
                    raise AlreadyExist(key)
                if op is Op.CHECK_NOT_EXISTS:
                    continue
            rows.append(RowChange(key, Op.PUT if op is Op.INSERT else op, value, old_value))
        if foreign:
            raise KeyIsLocked(foreign)
        return rows

    def _check_conflict(self, key: bytes, versions: Sequence[Version], primary: bytes, start_ts: int) -> None:
        rollbacks = self._rollbacks.get(key) if self._rollbacks else None
        if rollbacks:
            if start_ts in rollbacks:
                raise AlreadyRolledBack(key, primary, start_ts)
            newest = max(rollbacks)
            if newest > start_ts:
                raise WriteConflict(key, primary, start_ts, newest, newest)
        if versions and versions[-1].commit_ts > start_ts:
            raise WriteConflict(key, primary, start_ts, versions[-1].start_ts, versions[-1].commit_ts)

    def _commit_of(self, key: bytes, start_ts: int) -> int | None:
        """The commit ts of the transaction's version of a key."""
        versions: Sequence[Version] = self._writes.get(key, ())
        for version in reversed(versions):
            if version.start_ts == start_ts:
                return version.commit_ts
            if version.commit_ts <= start_ts:
                break
        return None

    def _apply_commit(self, locks: dict[bytes, Lock], start_ts: int, commit_ts: int) -> None:
        if self._journal:
            self._journal.append(
                Record.COMMIT,
                kvrpcpb.CommitRequest(start_version=start_ts, keys=list(locks), commit_version=commit_ts),
            )
        self._write_commit(locks, start_ts, commit_ts)
        rows = [RowChange(key, lock.op) for key, lock in locks.items() if lock.op is not Op.LOCK]
        source = next(iter(locks.values())).txn_source
        self._report(Kind.COMMIT, start_ts, commit_ts, source, rows)

    def _write_commit(self, locks: dict[bytes, Lock], start_ts: int, commit_ts: int) -> None:
        self.seq += 1
        for key, lock in locks.items():
            del self._locks[key]
            self._append(key, Version(commit_ts, start_ts, lock.op, lock.value, lock.txn_source, self.seq))

    def _apply_one_pc(self, rows: list[RowChange], start_ts: int, commit_ts: int, txn_source: int) -> None:
        self._write_one_pc(rows, start_ts, commit_ts, txn_source)
        stored = [row for row in rows if row.op is not Op.LOCK]
        self._report(Kind.ONE_PC, start_ts, commit_ts, txn_source, stored)

    def _write_one_pc(self, rows: list[RowChange], start_ts: int, commit_ts: int, txn_source: int) -> None:
        self.seq += 1
        for key, op, value, _ in rows:
            self._append(key, Version(commit_ts, start_ts, op, value, txn_source, self.seq))

    def _append(self, key: bytes, version: Version) -> None:
        versions = self._writes.get(key)
        if versions is None:
            self._writes[key] = [version]
        else:
            versions.append(version)

    def _apply_rollback(self, keys: list[bytes], start_ts: int) -> None:
        if self._journal:
            self._journal.append(Record.ROLLBACK, kvrpcpb.BatchRollbackRequest(start_version=start_ts, keys=keys))
        self._report(Kind.ROLLBACK, start_ts, 0, 0, self._write_rollback(keys, start_ts))

    def _write_rollback(self, keys: list[bytes], start_ts: int) -> list[RowChange]:
        rows = []
        for key in keys:
            lock = self._locks.get(key)
            own = lock is not None and lock.start_ts == start_ts
            if own:
                del self._locks[key]
            self._rollbacks.setdefault(key, set()).add(start_ts)
            rows.append(RowChange(key, lock.op if lock is not None and own else Op.LOCK))
        return rows

    def _report(self, kind: Kind, start_ts: int, commit_ts: int, txn_source: int, rows: list[RowChange]) -> None:
        if rows and self._observers:
            change = Change(kind, start_ts, commit_ts, txn_source, rows)
            for observer in self._observers:
                observer(change)

    def _raise_max_ts(self, ts: int) -> None:
        if self.max_ts < ts < MAX_TS:
            self.max_ts = ts

    def _keys_in(self, start: bytes, end: bytes, reverse: bool) -> Iterator[bytes]:
        """Keys with a version or a lock, without repeats."""
        written = self._writes.irange(start, end or None, (True, False), reverse)
        locked = [
            key for key in self._locks.irange(start, end or None, (True, False), reverse) if key not in self._writes
        ]
        if not locked:
            return iter(written)
        return heapq.merge(written, locked, reverse=reverse)


def _value_at(versions: Sequence[Version], ts: int) -> bytes | None:
    """What a key held at ts: the newest PUT or DELETE at or below it decides."""
    for version in reversed(versions):
        if version.commit_ts <= ts and version.op is not Op.LOCK:
            return version.value if version.op is Op.PUT else None
    return None


def _collect(found: list[ScannedVersion], key: bytes, versions: list[Version], after_ts: int, upto_seq: int) -> None:
    for index in range(len(versions) - 1, -1, -1):
        version = versions[index]
        if version.commit_ts <= after_ts:
            return
        if version.seq <= upto_seq and version.op is not Op.LOCK:
            before = index - 1
            while before >= 0 and versions[before].op is Op.LOCK:
                before -= 1
            had_value = before >= 0 and versions[before].op is Op.PUT
            found.append(ScannedVersion(key, version, versions[before].value if had_value else None))


def _mutation_messages(rows: list[RowChange]) -> list[kvrpcpb.Mutation]:
    return [kvrpcpb.Mutation(op=_MESSAGE_OP[row.op], key=row.key, value=row.value) for row in rows]
