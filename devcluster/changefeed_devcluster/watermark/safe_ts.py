"""Stale reads: up to which ts any peer of a region may be read, and what a reader has to know of the locks there.

By the old mechanism all that is committed at or below the safe ts is unlocked, so locks are not looked at. By the new
one a large transaction may be committed below it while keys are locked still: such a lock's primary is asked.

Inside the store's lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from changefeed.wire import errorpb_pb2 as errorpb

from ..pd.regions import Region, RegionEvent, Regions
from ..store.contexts import RegionMismatch
from ..store.mvcc import LockView
from ..store.store import MvccStore
from ..store.txn import RowChange, StoreChange
from .advancer import WatermarkAdvancer
from .gate import VersionGate
from .ranges import advancer_of, locks_of, track
from .statuses import Statuses

_NO_LOCKS = LockView(ignores_locks=True)


@dataclass
class _Read:
    """A region that is read so. `safe_ts`: 0 before the first tick."""

    region: Region
    advancer: WatermarkAdvancer
    safe_ts: int = 0


class SafeTs:
    """Knows the safe ts of regions that somebody has read so: the first read of one finds that it is not ready."""

    def __init__(self, store: MvccStore, regions: Regions, gate: VersionGate, statuses: Statuses) -> None:
        self._store = store
        self._regions = regions
        self._gate = gate
        self._statuses = statuses
        self._read: dict[int, _Read] = {}  # by region
        store.observe(self._on_change)
        regions.observe(self._on_regions)

    def view(self, region: Region, store_id: int, ts: int, start: bytes, end: bytes) -> LockView:
        """How a peer on a store is read at `ts` in a range of the region. Raises RegionMismatch: it is not ready."""
        if region.id not in self._read:
            self._read[region.id] = self._followed(region)
        safe_ts = self._read[region.id].safe_ts
        if ts > safe_ts:
            early = errorpb.DataIsNotReady(region_id=region.id, peer_id=region.peer_on(store_id), safe_ts=safe_ts)
            raise RegionMismatch(errorpb.Error(message=f"region {region.id} is not ready", data_is_not_ready=early))
        if not self._read[region.id].advancer.spares_large:
            return _NO_LOCKS
        committed, ignored = set[int](), set[int]()
        for lock in locks_of(self._store, start, end):
            if lock.start_ts > ts or lock.start_ts in committed or lock.start_ts in ignored:
                continue
            commit_ts = self._statuses.read(store_id, lock.start_ts, lock.primary, ts).commit_ts
            (committed if 0 < commit_ts <= ts else ignored).add(lock.start_ts)
        return LockView(ignored, committed)

    def advancers(self) -> dict[int, list[WatermarkAdvancer]]:
        """Group them by the store that leads the region; what goes by the wrong mechanism is made again."""
        found: dict[int, list[WatermarkAdvancer]] = defaultdict(list)
        for read in self._read.values():
            leader = read.region.leader_store
            if read.advancer.spares_large != self._gate.spares_large(leader):
                read.advancer = self._followed(read.region).advancer
            found[leader].append(read.advancer)
        return found

    def advance(self, ts: int) -> None:
        """A tick; nothing that is not locked yet commits at or below `ts`."""
        for read in self._read.values():
            read.safe_ts = max(read.safe_ts, min(ts, read.advancer.lowest))

    @property
    def is_asked_for(self) -> bool:
        return bool(self._read)

    def _followed(self, region: Region) -> _Read:
        locks = locks_of(self._store, region.start, region.end)
        return _Read(region, advancer_of(locks, self._gate.spares_large(region.leader_store)))

    def _on_change(self, change: StoreChange) -> None:
        if not self._read:
            return
        by_region: dict[int, list[RowChange]] = defaultdict(list)
        for row in change.rows:
            by_region[self._regions.locate_id(row.key)].append(row)
        for region_id in by_region.keys() & self._read.keys():
            track(self._read[region_id].advancer, change, by_region[region_id])

    def _on_regions(self, event: RegionEvent, old: Sequence[Region], new: Sequence[Region]) -> None:
        for region in old:
            self._read.pop(region.id, None)
