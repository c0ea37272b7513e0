"""The records of the key space: versions, locks and rollbacks by raw key, and how they are read.

See docs/design/tikv.md, Transactions.

Data only: who may change what is decided in `store.py` and `rules.py`, and every change comes through `ledger.py`.
Nothing here locks, journals or reports. Every rollback record is kept until garbage collection, as TiKV keeps those
that it calls protected; a version that comes to the same ts takes nothing away from one (TiKV: overlapped rollback).
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from sortedcontainers import SortedDict

from .txn import KeyIsLocked, Lock, Op, WriteRecord


class ScannedVersion(NamedTuple):
    """A version met by an incremental scan, with what the key held before it (None: nothing)."""

    key: bytes
    version: WriteRecord
    old_value: bytes | None


class LockView(NamedTuple):
    """How a reader sees locks: start ts to be ignored, start ts to be read as committed, isolation RC.

    See docs/design/tikv.md, Snapshot reads.
    """

    resolved: Collection[int] = ()
    committed: Collection[int] = ()
    ignores_locks: bool = False


SNAPSHOT = LockView()

STEP_KEYS = 50_000
"""A scan mostly meets keys that have nothing new: 20 ms. A turn for the others costs as much, when they are busy."""


class Mvcc:
    """Versions of a key ascend by commit ts, and no list is empty."""

    def __init__(self) -> None:
        self.versions: SortedDict[bytes, list[WriteRecord]] = SortedDict()
        self.locks: SortedDict[bytes, Lock] = SortedDict()
        self.rollbacks: dict[bytes, set[int]] = {}

    # --- one key ---

    def read(self, key: bytes, ts: int, view: LockView = SNAPSHOT) -> bytes | None:
        """The value at ts, None if there is none. Raises KeyIsLocked."""
        lock = self.locks.get(key)
        if lock is not None and not view.ignores_locks and lock.blocks_read_at(ts):
            if lock.start_ts in view.committed:
                return lock.value if lock.op is Op.PUT else None
            if lock.start_ts not in view.resolved:
                raise KeyIsLocked([lock])
        return self.value_at(key, ts)

    def value_at(self, key: bytes, ts: int) -> bytes | None:
        """Return what committed versions say the key held at ts."""
        version = self.version_at(key, ts)
        return None if version is None or version.op is Op.DELETE else version.value

    def version_at(self, key: bytes, ts: int) -> WriteRecord | None:
        """The newest PUT or DELETE at or below ts."""
        versions: Sequence[WriteRecord] = self.versions.get(key, ())
        for version in reversed(versions):
            if version.commit_ts <= ts and version.op is not Op.LOCK:
                return version
        return None

    def own_lock(self, key: bytes, start_ts: int) -> Lock | None:
        lock: Lock | None = self.locks.get(key)
        return lock if lock is not None and lock.start_ts == start_ts else None

    def commit_of(self, key: bytes, start_ts: int) -> int | None:
        """The commit ts of the transaction's version of a key."""
        versions: Sequence[WriteRecord] = self.versions.get(key, ())
        for version in reversed(versions):
            if version.start_ts == start_ts:
                return version.commit_ts
            if version.commit_ts <= start_ts:
                break
        return None

    def has_version_at(self, key: bytes, ts: int) -> bool:
        """Tell whether some transaction has committed the key at just that ts."""
        return any(version.commit_ts == ts for version in self.versions.get(key, ()))

    def rolled_back(self, key: bytes, start_ts: int) -> bool:
        return start_ts in self.rollbacks.get(key, ())

    def newest(self, key: bytes) -> tuple[int, int]:
        """(commit ts, start ts) of the newest record, rollbacks included; (0, 0) if there is none."""
        versions = self.versions.get(key)
        rollbacks = self.rollbacks.get(key) if self.rollbacks else None
        version = versions[-1][:2] if versions else (0, 0)
        return max(version, (max(rollbacks),) * 2) if rollbacks else version

    # --- ranges ---

    def locks_in(self, start: bytes, end: bytes) -> Iterator[Lock]:
        """All locks of [start, end), keys ascending."""
        return (self.locks[key] for key in self.locks.irange(start, end or None, (True, False)))

    def keys_in(self, start: bytes, end: bytes, reverse: bool) -> Iterator[bytes]:
        """Keys with a version or a lock, without repeats."""
        written = self.versions.irange(start, end or None, (True, False), reverse)
        locked = [
            key for key in self.locks.irange(start, end or None, (True, False), reverse) if key not in self.versions
        ]
        if not locked:
            return iter(written)
        return heapq.merge(written, locked, reverse=reverse)

    def scan_versions(
        self, start: bytes, end: bytes, after_ts: int, upto_seq: int, enough: int
    ) -> tuple[list[ScannedVersion], bytes | None]:
        """One step of an incremental scan: PUT and DELETE versions above after_ts made by changes up to upto_seq.

        Keys ascending, versions of a key newest first. The second value is where the next step starts, None at the end.
        A step ends behind the key that brings it `enough` versions, or after so many keys that others must have a turn.
        """
        found: list[ScannedVersion] = []
        for visited, key in enumerate(self.versions.irange(start, end or None, (True, False)), start=1):
            versions = self.versions[key]
            if versions[-1].commit_ts > after_ts:
                _collect(found, key, versions, after_ts, upto_seq)
            if len(found) >= enough or visited == STEP_KEYS:
                return found, key + b"\0"
        return found, None

    # --- changes ---

    def append(self, key: bytes, version: WriteRecord) -> None:
        versions = self.versions.get(key)
        if versions is None:
            self.versions[key] = [version]
        elif versions[-1].commit_ts < version.commit_ts:
            versions.append(version)
        else:
            insort(versions, version)

    def collect_garbage(self, safe_point: int) -> int:
        """Forgets what no read at or above safe_point can see; gives the number of versions gone."""
        gone = 0
        for key in list(self.versions):
            versions = self.versions[key]
            if versions[0].commit_ts > safe_point:
                continue
            kept = _living(versions, safe_point)
            gone += len(versions) - len(kept)
            if kept:
                self.versions[key] = kept
            else:
                del self.versions[key]
        for key, rollbacks in list(self.rollbacks.items()):
            rollbacks -= {ts for ts in rollbacks if ts <= safe_point}
            if not rollbacks:
                del self.rollbacks[key]
        return gone


def _living(versions: list[WriteRecord], safe_point: int) -> list[WriteRecord]:
    """The versions above safe_point, and the PUT that a read at safe_point sees."""
    newer = [version for version in versions if version.commit_ts > safe_point]
    for version in reversed(versions[: len(versions) - len(newer)]):
        if version.op is Op.PUT:
            return [version, *newer]
        if version.op is Op.DELETE:
            break
    return newer


def _collect(
    found: list[ScannedVersion], key: bytes, versions: list[WriteRecord], after_ts: int, upto_seq: int
) -> None:
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
