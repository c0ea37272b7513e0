"""The transactional store: Percolator over sorted keys in memory (docs/design/tikv.md, Transactions).

One store object holds the whole key space; regions are only a view of who may be asked (`regions.py`). Every method
takes the one lock, changes everything or nothing, and may be repeated: a second prewrite, commit or rollback of the
same transaction succeeds without effect. Each effective change is journaled and reported to the observers inside the
lock, so they see changes in the order of application. Observers must only note the change and return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from ..journal import Journal, JournalRecord
from .ledger import WriteLedger
from .mvcc import SNAPSHOT, LockView, Mvcc, ScannedVersion
from .rules import check_pessimistic_lock, check_prewrite
from .txn import (
    FLUSHED_SIZE,
    MAX_TS,
    AlreadyCommitted,
    CommitTsExpired,
    KeyIsLocked,
    Lock,
    Mutation,
    Op,
    PrimaryMismatch,
    Secondaries,
    StoreChange,
    TxnLockNotFound,
    TxnNotFound,
    TxnStatus,
    TxnStatusAction,
)

_SCAN_CHUNK = 4096


class MvccStore:
    """Thread-safe. `lock` may be held by a caller to see several reads at one moment.

    `max_ts`: no 1PC or async commit ts is at or below it. `resolved_floor`: the highest resolved-ts base told to a
    subscriber; no lock written later may commit at or below it. `gc_safe_point`: older snapshots are not whole.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.lock = threading.RLock()
        self.max_ts = 0
        self.resolved_floor = 0
        self.gc_safe_point = 0
        self._mvcc = Mvcc()
        self._ledger = WriteLedger(self._mvcc, journal)

    @property
    def seq(self) -> int:
        """The number of the last change that made versions."""
        return self._ledger.seq

    def observe(self, observer: Callable[[StoreChange], None]) -> None:
        """Calls `observer` with every later change, inside the lock, in order of application."""
        with self.lock:
            self._ledger.observers.append(observer)

    def replay(self, kind: JournalRecord, body: bytes) -> int:
        """Applies a journaled change again, unchecked and unreported; gives the highest ts in it."""
        return self._ledger.replay(kind, body)

    # --- locking ---

    def prewrite(
        self,
        mutations: Sequence[Mutation],
        primary: bytes,
        start_ts: int,
        ttl_ms: int = 3000,
        txn_size: int = 0,
        min_commit_ts: int = 0,
        txn_source: int = 0,
        *,
        for_update_ts: int = 0,
        async_commit: bool = False,
        secondaries: Sequence[bytes] = (),
        max_commit_ts: int = 0,
    ) -> int:
        """Locks every key. Take the commit ts from the oracle after it, unless it is an async commit.

        With `async_commit` it gives the lowest commit ts allowed, above every ts read at so far; the transaction
        commits at the highest of all its prewrites. 0 means that it has become an ordinary two-phase commit, because
        that ts would be above `max_commit_ts` (if not 0). A transaction that is committed already gives its commit ts.
        `for_update_ts` above 0 makes it pessimistic. Raises KeyIsLocked (with all foreign locks met), WriteConflict,
        AlreadyRolledBack, AlreadyExist, AssertionFailed, PessimisticLockNotFound.
        """
        with self.lock:
            checked = check_prewrite(self._mvcc, mutations, primary, start_ts, for_update_ts)
            if checked.commit_ts:
                return checked.commit_ts
            for lock in checked.pessimistic:
                ttl_ms = max(ttl_ms, lock.ttl_ms)
                min_commit_ts = max(min_commit_ts, lock.min_commit_ts)
            if async_commit:
                lowest = self._computed_ts(start_ts, for_update_ts, min_commit_ts)
                async_commit = not 0 < max_commit_ts < lowest
                min_commit_ts = lowest if async_commit else min_commit_ts
            locks = [
                Lock(
                    row.key, primary, start_ts, row.op, row.value, row.old_value, ttl_ms, txn_size, min_commit_ts,
                    txn_source, self.resolved_floor, for_update_ts, async_commit,
                    tuple(secondaries) if async_commit and row.key == primary else (),
                )
                for row in checked.rows
            ]  # fmt: skip
            if locks:
                self._ledger.prewrite(locks)
            return _async_min_commit_ts([*checked.prewritten, *locks])

    def flush(
        self,
        mutations: Sequence[Mutation],
        primary: bytes,
        start_ts: int,
        generation: int,
        min_commit_ts: int = 0,
        ttl_ms: int = 3000,
        txn_source: int = 0,
    ) -> None:
        """Locks every key for a large transaction; a key that an earlier generation has locked gets the new value.

        Generations rise from 1; what was flushed already, or later, is left. Raises what prewrite raises.
        """
        if generation < 1:
            raise ValueError(f"a flush of transaction {start_ts} has generation {generation}: they rise from 1")
        with self.lock:
            checked = check_prewrite(self._mvcc, mutations, primary, start_ts, 0, generation)
            if checked.commit_ts:
                return
            locks = []
            for row in checked.rows:
                lock = Lock(
                    row.key, primary, start_ts, row.op, row.value, row.old_value, ttl_ms, FLUSHED_SIZE,
                    max(min_commit_ts, start_ts + 1), txn_source, self.resolved_floor, generation=generation,
                )  # fmt: skip
                before = self._mvcc.own_lock(row.key, start_ts)
                if before is not None:  # what was promised of it stays
                    lock.ttl_ms = max(lock.ttl_ms, before.ttl_ms)
                    lock.min_commit_ts = max(lock.min_commit_ts, before.min_commit_ts)
                locks.append(lock)
            if locks:
                self._ledger.prewrite(locks)

    def flushed(self, key: bytes, start_ts: int) -> Lock | None:
        """Return what a large transaction has flushed to a key."""
        with self.lock:
            return self._mvcc.own_lock(key, start_ts)

    def one_pc(
        self,
        mutations: Sequence[Mutation],
        start_ts: int,
        min_commit_ts: int = 0,
        txn_source: int = 0,
        *,
        for_update_ts: int = 0,
        max_commit_ts: int = 0,
    ) -> int:
        """Writes versions without locks; gives the commit ts, above start_ts, min_commit_ts - 1 and max_ts.

        It is computed, not allocated: two transactions may get the same one. 0 means that nothing was written: the ts
        would be above `max_commit_ts` (if not 0), or keys are prewritten. Raises what prewrite raises.
        """
        with self.lock:
            checked = check_prewrite(self._mvcc, mutations, mutations[0].key, start_ts, for_update_ts)
            if checked.commit_ts:
                return checked.commit_ts
            commit_ts = self._computed_ts(start_ts, for_update_ts, min_commit_ts)
            if checked.prewritten or 0 < max_commit_ts < commit_ts:
                return 0
            self._ledger.one_pc(checked.rows, start_ts, commit_ts, txn_source)
            return commit_ts

    def pessimistic_lock(
        self,
        keys: Sequence[bytes],
        primary: bytes,
        start_ts: int,
        for_update_ts: int,
        ttl_ms: int = 3000,
        min_commit_ts: int = 0,
        must_not_exist: Collection[bytes] = (),
        only_if_exists: bool = False,
    ) -> list[bytes | None]:
        """Keeps other writers off the keys, readers not; gives the keys' newest values. It never waits.

        Raises KeyIsLocked, WriteConflict (PESSIMISTIC_RETRY: lock again at a newer for_update_ts),
        PessimisticLockRolledBack, LockTypeNotMatch, AlreadyExist.
        """
        with self.lock:
            own = [
                check_pessimistic_lock(self._mvcc, key, primary, start_ts, for_update_ts, key in must_not_exist)
                for key in keys
            ]
            values = [self._mvcc.value_at(key, MAX_TS) for key in keys]
            for key, lock, value in zip(keys, own, values, strict=True):
                if lock is not None:
                    lock.for_update_ts = max(lock.for_update_ts, for_update_ts)
                    lock.ttl_ms = max(lock.ttl_ms, ttl_ms)
                    lock.min_commit_ts = max(lock.min_commit_ts, min_commit_ts)
                elif value is not None or not only_if_exists:
                    self._ledger.lock(
                        Lock(
                            key, primary, start_ts, Op.PESSIMISTIC, b"", None, ttl_ms, 0, min_commit_ts, 0,
                            self.resolved_floor, for_update_ts,
                        )
                    )  # fmt: skip
            return values

    def pessimistic_rollback(self, keys: Iterable[bytes], start_ts: int, for_update_ts: int) -> None:
        """Gives up pessimistic locks taken at or before for_update_ts; the transaction may go on."""
        with self.lock:
            own = [self._mvcc.own_lock(key, start_ts) for key in dict.fromkeys(keys)]
            self._ledger.unlock(
                lock
                for lock in own
                if lock is not None and lock.op is Op.PESSIMISTIC and lock.for_update_ts <= for_update_ts
            )

    def txn_heart_beat(self, primary: bytes, start_ts: int, advise_ttl_ms: int, min_commit_ts: int = 0) -> int:
        """Prolongs the primary lock; gives its ttl in ms. Raises TxnNotFound.

        `min_commit_ts`: a large transaction promises to commit at or above it.
        """
        with self.lock:
            lock = self._mvcc.own_lock(primary, start_ts)
            if lock is None:
                raise TxnNotFound(primary, start_ts)
            before = lock.ttl_ms, lock.min_commit_ts
            lock.ttl_ms = max(lock.ttl_ms, advise_ttl_ms)
            if lock.generation:
                lock.min_commit_ts = max(lock.min_commit_ts, min_commit_ts)
            if (lock.ttl_ms, lock.min_commit_ts) != before:
                self._ledger.rewrite(lock)
            return lock.ttl_ms

    # --- ends of a transaction ---

    def commit(self, keys: Iterable[bytes], start_ts: int, commit_ts: int) -> None:
        """Turns the transaction's locks into versions; a forgotten pessimistic lock goes without one.

        Raises TxnLockNotFound, CommitTsExpired.
        """
        if commit_ts <= start_ts:
            raise ValueError(f"commit ts {commit_ts} is not above start ts {start_ts}")
        with self.lock:
            locks: list[Lock] = []
            for key in dict.fromkeys(keys):
                lock = self._mvcc.own_lock(key, start_ts)
                if lock is not None:
                    _check_commit_ts(lock, commit_ts)
                    locks.append(lock)
                elif self._mvcc.commit_of(key, start_ts) is None:
                    raise TxnLockNotFound(key, start_ts)
            self._ledger.unlock(lock for lock in locks if lock.op is Op.PESSIMISTIC)
            prewritten = [lock for lock in locks if lock.op is not Op.PESSIMISTIC]
            if prewritten:
                self._ledger.commit(prewritten, commit_ts)

    def rollback(self, keys: Iterable[bytes], start_ts: int, protects: bool = False) -> None:
        """Removes the transaction's locks and bars its later prewrites. Raises AlreadyCommitted.

        `protects`: so do the records of keys that were not locked, for a later transaction of the same ts too. Without
        it nothing is left on a key that another transaction has committed at just that ts: its version stays.
        """
        with self.lock:
            todo = []
            for key in dict.fromkeys(keys):
                commit_ts = self._mvcc.commit_of(key, start_ts)
                if commit_ts is not None:
                    raise AlreadyCommitted(key, start_ts, commit_ts)
                locked = self._mvcc.own_lock(key, start_ts) is not None
                displaced = not locked and not protects and self._mvcc.has_version_at(key, start_ts)
                if not displaced and not self._mvcc.rolled_back(key, start_ts):
                    todo.append(key)
            if todo:
                self._ledger.rollback(todo, start_ts, protects)

    def cleanup(self, key: bytes, start_ts: int, current_ts: int) -> None:
        """Rolls one key back if its lock has expired, whatever its age if current_ts is 0.

        Raises KeyIsLocked, AlreadyCommitted.
        """
        with self.lock:
            lock = self._mvcc.own_lock(key, start_ts)
            if lock is not None and current_ts and not lock.expired(current_ts):
                raise KeyIsLocked([lock])
            self.rollback([key], start_ts, protects=True)

    def check_txn_status(
        self,
        primary: bytes,
        lock_ts: int,
        current_ts: int,
        rollback_if_not_exist: bool = False,
        caller_start_ts: int = 0,
        verify_is_primary: bool = False,
        force_sync_commit: bool = False,
        resolving_pessimistic_lock: bool = False,
    ) -> TxnStatus:
        """The fate of a transaction, decided now if its lock has expired. Raises TxnNotFound, PrimaryMismatch.

        An async commit is never decided here, unless `force_sync_commit`: its keys decide (`check_secondary_locks`).
        """
        with self.lock:
            lock = self._mvcc.own_lock(primary, lock_ts)
            if lock is not None and verify_is_primary and lock.primary != primary:
                if resolving_pessimistic_lock or lock.op is not Op.PESSIMISTIC:
                    raise PrimaryMismatch(lock)
                self._ledger.unlock([lock])  # left over from before the transaction chose another primary
                lock = None
            if lock is None:
                return self._status_without_lock(primary, lock_ts, rollback_if_not_exist, resolving_pessimistic_lock)
            if lock.async_commit and not force_sync_commit:
                return TxnStatus(TxnStatusAction.NO_ACTION, ttl_ms=lock.ttl_ms, lock=lock)
            if not lock.expired(current_ts):
                return self._push_min_commit_ts(lock, caller_start_ts, current_ts)
            if resolving_pessimistic_lock and lock.op is Op.PESSIMISTIC:
                self._ledger.unlock([lock])
                return TxnStatus(TxnStatusAction.TTL_EXPIRE_PESSIMISTIC_ROLLBACK)
            self._ledger.rollback([primary], lock_ts)
            return TxnStatus(TxnStatusAction.TTL_EXPIRE_ROLLBACK)

    def _status_without_lock(self, primary: bytes, lock_ts: int, may_roll_back: bool, pessimistic: bool) -> TxnStatus:
        commit_ts = self._mvcc.commit_of(primary, lock_ts)
        if commit_ts is not None:
            return TxnStatus(TxnStatusAction.NO_ACTION, commit_ts=commit_ts)
        if self._mvcc.rolled_back(primary, lock_ts):
            return TxnStatus(TxnStatusAction.NO_ACTION)
        if not may_roll_back:
            raise TxnNotFound(primary, lock_ts)
        if pessimistic:
            return TxnStatus(TxnStatusAction.LOCK_NOT_EXIST_DO_NOTHING)
        self._ledger.rollback([primary], lock_ts, protects=True)
        return TxnStatus(TxnStatusAction.LOCK_NOT_EXIST_ROLLBACK)

    def _push_min_commit_ts(self, lock: Lock, caller_start_ts: int, current_ts: int) -> TxnStatus:
        """A living transaction; a reader that can be let past its locks is told so.

        See docs/design/tikv.md, Resolving locks.
        """
        if 0 < lock.min_commit_ts <= caller_start_ts < MAX_TS:
            lock.min_commit_ts = max(caller_start_ts + 1, current_ts)
            self._ledger.rewrite(lock)
        pushed = 0 < caller_start_ts < lock.min_commit_ts or caller_start_ts == MAX_TS
        action = TxnStatusAction.MIN_COMMIT_TS_PUSHED if pushed else TxnStatusAction.NO_ACTION
        return TxnStatus(action, ttl_ms=lock.ttl_ms, lock=lock)

    def check_secondary_locks(self, keys: Sequence[bytes], start_ts: int) -> Secondaries:
        """Whether an async commit has locked all these keys. One that is missing is barred: then it never commits."""
        with self.lock:
            locks: list[Lock] = []
            for key in keys:
                lock = self._mvcc.own_lock(key, start_ts)
                if lock is not None and lock.op is not Op.PESSIMISTIC:
                    locks.append(lock)
                    continue
                commit_ts = self._mvcc.commit_of(key, start_ts)
                if commit_ts is None and not self._mvcc.rolled_back(key, start_ts):
                    self._ledger.rollback([key], start_ts, protects=True)
                return Secondaries([], commit_ts or 0)
            return Secondaries(locks)

    def resolve_lock(
        self, start_ts: int, commit_ts: int, start: bytes = b"", end: bytes = b"", only: Sequence[bytes] | None = None
    ) -> None:
        """Commits (commit_ts > 0) or rolls back the locks of a transaction in [start, end), or the keys of `only`.

        Raises CommitTsExpired, and for `only` what commit and rollback raise.
        """
        with self.lock:
            keys = only
            if keys is None:
                keys = [lock.key for lock in self.locks_in(start, end) if lock.start_ts == start_ts]
            if keys and commit_ts:
                self.commit(keys, start_ts, commit_ts)
            elif keys:
                self.rollback(keys, start_ts)

    # --- reads ---

    def get(self, key: bytes, ts: int, view: LockView = SNAPSHOT) -> bytes | None:
        """The value at ts, None if there is none. Raises KeyIsLocked."""
        with self.lock:
            self._raise_max_ts(ts)
            return self._mvcc.read(key, ts, view)

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
        view: LockView = SNAPSHOT,
    ) -> list[tuple[bytes, bytes | Lock]]:
        """Scans as `scan` does, but a blocked key stands in the result with its lock; `reverse` gives keys descending.

        The lock is given up between chunks: what is read is the snapshot at ts all the same, for any ts that the oracle
        has given out.
        """
        found: list[tuple[bytes, bytes | Lock]] = []
        wanted = MAX_TS if limit is None else limit
        while len(found) < wanted:
            with self.lock:
                self._raise_max_ts(ts)
                keys = list(islice(self._mvcc.keys_in(start, end, reverse), _SCAN_CHUNK))
                for key in keys:
                    try:
                        value = self._mvcc.read(key, ts, view)
                    except KeyIsLocked as error:
                        found.append((key, error.lock))
                    else:
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

    def encoded_range(self, start: bytes, end: bytes, ts: int, limit: int, view: LockView = SNAPSHOT) -> bytes | None:
        """What `read_range` gives as a ScanResponse, where it is there as one."""
        return None

    def scan_locks(self, max_ts: int, start: bytes = b"", end: bytes = b"", limit: int = 0) -> list[Lock]:
        """Locks of [start, end) with start ts ≤ max_ts, keys ascending, at most `limit` (0: all)."""
        with self.lock:
            self._raise_max_ts(max_ts)
            locks = (lock for lock in self.locks_in(start, end) if lock.start_ts <= max_ts)
            return list(islice(locks, limit or None))

    def locks_in(self, start: bytes, end: bytes) -> Iterator[Lock]:
        """All locks of [start, end), keys ascending; hold `lock` while iterating."""
        return self._mvcc.locks_in(start, end)

    def scan_versions(
        self, start: bytes, end: bytes, after_ts: int, upto_seq: int, enough: int
    ) -> tuple[list[ScannedVersion], bytes | None]:
        """One step of an incremental scan: PUT and DELETE versions above after_ts made by changes up to upto_seq.

        Keys ascending, versions of a key newest first. The second value is where the next step starts, None at the end.
        A step ends behind the key that brings it `enough` versions, or earlier.
        """
        with self.lock:
            return self._mvcc.scan_versions(start, end, after_ts, upto_seq, enough)

    # --- garbage ---

    def collect_garbage(self, safe_point: int) -> int:
        """Forgets versions and rollbacks that no read at or above safe_point needs; gives the number of versions gone.

        A read below it is answered with what is left, as TiKV does: TiDB and PD guard against it (docs/design/tikv.md,
        Service safepoints). Resolve the locks below it first (`gc.py`).
        """
        with self.lock:
            self.gc_safe_point = max(self.gc_safe_point, safe_point)
            return self._mvcc.collect_garbage(safe_point)

    # --- inside the lock ---

    def _raise_max_ts(self, ts: int) -> None:
        if self.max_ts < ts < MAX_TS:
            self.max_ts = ts

    def _computed_ts(self, start_ts: int, for_update_ts: int, min_commit_ts: int) -> int:
        """The lowest commit ts that no reader and no subscriber has seen the other side of."""
        return max(self.max_ts + 1, start_ts + 1, for_update_ts + 1, min_commit_ts)


def _async_min_commit_ts(locks: Sequence[Lock]) -> int:
    """Return what a prewrite answers: the highest of its locks, 0 if one of them is not an async commit's."""
    if not all(lock.async_commit for lock in locks):
        return 0
    return max((lock.min_commit_ts for lock in locks), default=0)


def _check_commit_ts(lock: Lock, commit_ts: int) -> None:
    lowest = max(lock.min_commit_ts, lock.floor + 1)
    if commit_ts < lowest:
        raise CommitTsExpired(lock.key, lock.start_ts, commit_ts, lowest)
