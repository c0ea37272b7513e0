"""Regions: who may be asked for which keys. Ranges are raw here; PD's view of them is encoded.

See docs/design/tikv.md, Regions.

Immutable regions in an ordered list without holes. Changes happen inside the store's lock, so that a reader of both
sees them as one moment, and are reported to observers inside it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise

from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb

from ..codec import decode_bound, encode_bound
from ..journal import Journal, JournalRecord

ELECTION_S = 9.0
"""From a store's end to the moment that PD knows the new leaders of its regions."""


@dataclass(frozen=True)
class Region:
    """[start, end) in raw keys, an empty `end` has no bound. `peers`: store id → peer id."""

    id: int
    start: bytes
    end: bytes
    version: int
    conf_ver: int
    leader_store: int
    peers: tuple[tuple[int, int], ...]

    def contains(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)

    def has_peer_on(self, store_id: int) -> bool:
        return any(store == store_id for store, _ in self.peers)

    def peer_on(self, store_id: int) -> int:
        return next(peer for store, peer in self.peers if store == store_id)

    @cached_property
    def message(self) -> metapb.Region:
        """Describe it as PD and region errors do, with encoded bounds. Not to be changed."""
        return metapb.Region(
            id=self.id,
            start_key=encode_bound(self.start),
            end_key=encode_bound(self.end),
            region_epoch=metapb.RegionEpoch(conf_ver=self.conf_ver, version=self.version),
            peers=[metapb.Peer(id=peer, store_id=store) for store, peer in self.peers],
        )

    @cached_property
    def leader(self) -> metapb.Peer:
        return next(peer for peer in self.message.peers if peer.store_id == self.leader_store)


class RegionEvent(Enum):
    SPLIT = 1
    MERGE = 2
    TRANSFER = 3


RegionObserver = Callable[[RegionEvent, Sequence[Region], Sequence[Region]], None]
"""Called with what happened, the regions before and the regions after."""


BORDERS = (b"x\0\0\0", b"x\0\0\1")
"""Between the regions of a fresh cluster: those of the default keyspace, which PD splits off."""


class Regions:
    """The layout. `lock` is the store's. Starts as three regions on all stores, led by the first one.

    `down`: stores that can't be made leader of a region at the moment.
    """

    def __init__(
        self, lock: AbstractContextManager[bool], store_ids: Sequence[int], journal: Journal | None = None
    ) -> None:
        self._lock = lock
        self.store_ids = tuple(store_ids)
        self._journal = journal
        self.down: set[int] = set()
        self._last_id = 1000
        self._observers: list[RegionObserver] = []
        self._set([])

    def bootstrap(self) -> None:
        """Makes the first regions, unless a layout was restored."""
        with self._lock:
            if not self._ordered:
                bounds = pairwise((b"", *BORDERS, b""))
                self._set([self._first(start, end) for start, end in bounds])
                self._record()

    def observe(self, observer: RegionObserver) -> None:
        with self._lock:
            self._observers.append(observer)

    # --- look-ups ---

    def all(self) -> list[Region]:
        """Return them in key order."""
        with self._lock:
            return list(self._ordered)

    def get(self, region_id: int) -> Region | None:
        with self._lock:
            return self._by_id.get(region_id)

    def locate(self, key: bytes) -> Region:
        """The region of a raw key."""
        with self._lock:
            return self._ordered[bisect_right(self._starts, key) - 1]

    def locate_id(self, key: bytes) -> int:
        """Locate as `locate` does, the id only; hold the lock."""
        return self._ids[bisect_right(self._starts, key) - 1]

    def scan_encoded(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        """Regions that meet [start, end) in encoded keys, an empty `end` has no bound, at most `limit` (≤ 0: all).

        None if `end` lies below `start`.
        """
        if end and end < start:
            return []
        with self._lock:
            first = bisect_right(self._encoded_starts, start) - 1
            last = bisect_left(self._encoded_starts, end) if end else len(self._ordered)
            found = self._ordered[first : max(last, first + 1)]
            return found[:limit] if limit > 0 else found

    def before_encoded(self, key: bytes) -> Region | None:
        """The region left of the one that holds an encoded key."""
        with self._lock:
            index = bisect_right(self._encoded_starts, key) - 2
            return self._ordered[index] if index >= 0 else None

    # --- changes ---

    def alloc_id(self, count: int = 1) -> int:
        """The last of `count` new ids, unique in the cluster."""
        with self._lock:
            self._last_id += count
            if self._journal:
                self._journal.append(JournalRecord.IDS, pdpb.AllocIDResponse(id=self._last_id))
            return self._last_id

    def split(self, key: bytes) -> tuple[Region, Region]:
        """Splits at a raw key; the right part keeps the id, the left one is new. The same store leads both.

        A second split at the same key changes nothing and gives the two neighbours.
        """
        if not key:
            raise ValueError("a region can't be split at the empty key")
        with self._lock:
            index = bisect_right(self._starts, key) - 1
            old = self._ordered[index]
            if old.start == key:
                return self._ordered[index - 1], old
            version = old.version + 1
            left = Region(self.alloc_id(), old.start, key, version, old.conf_ver, old.leader_store, self._new_peers())
            right = replace(old, start=key, version=version)
            self._change(RegionEvent.SPLIT, [old], [left, right])
            return left, right

    def merge(self, left_id: int, right_id: int) -> Region:
        """The right region swallows the left one, its neighbour.

        The left one's version rises when the merge is prepared, the merged one's above both when it is done.
        """
        with self._lock:
            left, right = self._known(left_id), self._known(right_id)
            if left.end != right.start or not left.end:
                raise ValueError(f"region {left_id} does not end where region {right_id} starts")
            merged = replace(right, start=left.start, version=max(left.version + 1, right.version) + 1)
            self._change(RegionEvent.MERGE, [left, right], [merged])
            return merged

    def transfer(self, region_id: int, store_id: int) -> Region:
        """Makes the peer on a store the leader; the epoch stays."""
        with self._lock:
            old = self._known(region_id)
            if store_id in self.down:
                raise ValueError(f"store {store_id} is down, it can't lead region {region_id}")
            if not old.has_peer_on(store_id):
                raise ValueError(f"region {region_id} has no peer on store {store_id}")
            new = replace(old, leader_store=store_id)
            if new != old:
                self._change(RegionEvent.TRANSFER, [old], [new])
            return new

    def living_leader(self, region: Region) -> metapb.Peer | None:
        """Return the leader; None while another one is being elected."""
        return None if region.leader_store in self.down else region.leader

    def scatter(self, region_id: int) -> Region:
        """Moves the leadership to the store that leads fewest regions."""
        with self._lock:
            leaders = Counter(region.leader_store for region in self._ordered)
            able = [store for store in self.store_ids if store not in self.down]
            if not able:
                return self._known(region_id)
            return self.transfer(region_id, min(able, key=lambda store: (leaders[store], store)))

    def elect(self) -> None:
        """Regions whose leader is down get another one, where a peer is left that can lead."""
        with self._lock:
            for region in [region for region in self._ordered if region.leader_store in self.down]:
                able = [store for store, _ in region.peers if store not in self.down]
                if able:
                    self.transfer(region.id, able[region.id % len(able)])

    # --- replay ---

    def restore(self, layout: pdpb.ScanRegionsResponse) -> None:
        """Sets a journaled layout."""
        self._set([_from_message(region.region, region.leader.store_id) for region in layout.regions])

    def restore_ids(self, last_id: int) -> None:
        self._last_id = max(self._last_id, last_id)

    # --- inside the lock ---

    def _known(self, region_id: int) -> Region:
        region = self._by_id.get(region_id)
        if region is None:
            raise ValueError(f"there is no region {region_id}")
        return region

    def _new_peers(self) -> tuple[tuple[int, int], ...]:
        return tuple((store, self.alloc_id()) for store in self.store_ids)

    def _first(self, start: bytes, end: bytes) -> Region:
        return Region(self.alloc_id(), start, end, 1, 1, self.store_ids[0], self._new_peers())

    def _change(self, event: RegionEvent, old: Sequence[Region], new: Sequence[Region]) -> None:
        index = self._ordered.index(old[0])
        self._set([*self._ordered[:index], *new, *self._ordered[index + len(old) :]])
        self._record()
        for observer in self._observers:
            observer(event, old, new)

    def _set(self, regions: list[Region]) -> None:
        self._ordered = regions
        self._ids = [region.id for region in regions]
        self._starts = [region.start for region in regions]
        self._encoded_starts = [region.message.start_key for region in regions]
        self._by_id = {region.id: region for region in regions}

    def _record(self) -> None:
        if self._journal:
            layout = [pdpb.Region(region=region.message, leader=region.leader) for region in self._ordered]
            self._journal.append(JournalRecord.REGIONS, pdpb.ScanRegionsResponse(regions=layout))


def _from_message(region: metapb.Region, leader_store: int) -> Region:
    return Region(
        id=region.id,
        start=decode_bound(region.start_key),
        end=decode_bound(region.end_key),
        version=region.region_epoch.version,
        conf_ver=region.region_epoch.conf_ver,
        leader_store=leader_store,
        peers=tuple((peer.store_id, peer.id) for peer in region.peers),
    )
