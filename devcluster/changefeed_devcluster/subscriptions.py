"""Who hears of which changes: the heart of the change data service, without a socket, thread or event loop.

Everything runs inside the store's lock. A change costs its caller only the sorting of its rows into regions and one
queue entry a subscription; encoding happens when a connection drains its queue (`cdc.py`). A slow reader delays nobody.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import errorpb_pb2 as errorpb

from . import events
from .codec import decode_bound
from .oracle import Oracle
from .regions import Region, RegionEvent, Regions
from .store import MvccStore, ScannedVersion
from .txn import MAX_TS, Change, Kind, Lock, Op, RowChange

SINK_QUOTA = 512 << 20
PENDING_SCANS = 10_000
_SCAN_KEYS = 1024
_ROW_OVERHEAD = 64
_FIRST_RESOLVED_GROUP = 8


class RegionRows:
    """The rows of one change in one region, encoded at the first need and then shared by all subscriptions."""

    __slots__ = ("_groups", "change", "high", "low", "rows", "size")

    def __init__(self, change: Change, rows: list[RowChange]) -> None:
        keys = [row.key for row in rows]
        self.change = change
        self.rows = rows
        self.low = min(keys)
        self.high = max(keys)
        self.size = sum(len(row.key) + len(row.value) + len(row.old_value or b"") + _ROW_OVERHEAD for row in rows)
        self._groups: list[bytes] | None = None

    def groups(self, picked: list[RowChange] | None) -> list[bytes]:
        """Entries bodies of all rows, or of some."""
        if picked is not None:
            return events.group_rows(events.change_rows(self.change, picked))
        if self._groups is None:
            self._groups = events.group_rows(events.change_rows(self.change, self.rows))
        return self._groups


@dataclass(eq=False, slots=True)
class Subscription:
    """One registration: (connection, request, region). `open` counts the PUT and DELETE locks by start ts."""

    connection: Connection
    request_id: int
    region_id: int
    epoch_version: int
    checkpoint_ts: int
    start: bytes
    end: bytes
    filter_loop: bool
    tags: tuple[bytes, bytes]
    open: Counter[int] = field(default_factory=Counter)
    resolved_ts: int = 0
    initialized: bool = False
    closed: bool = False

    def covers(self, low: bytes, high: bytes) -> bool:
        return self.start <= low and (not self.end or high < self.end)

    def drops(self, txn_source: int) -> bool:
        """Loop and lossy-DDL filtering (facts, 2.8)."""
        return txn_source > 0 and (txn_source >> 8 != 0 or (self.filter_loop and txn_source & 0xFF != 0))

    def frames(self, groups: Sequence[bytes]) -> list[bytes]:
        return [events.entries_event(*self.tags, group) for group in groups]


class LiveRows(NamedTuple):
    """Queue entry: rows of a change for a subscription; `picked` None means all."""

    subscription: Subscription
    rows: RegionRows
    picked: list[RowChange] | None

    @property
    def size(self) -> int:
        return self.rows.size

    def frames(self) -> list[bytes]:
        return self.subscription.frames(self.rows.groups(self.picked))


class Frames(NamedTuple):
    """Queue entry: finished elements of ChangeDataEvent.events."""

    size: int
    done: list[bytes]

    def frames(self) -> list[bytes]:
        return self.done


class Message(NamedTuple):
    """Queue entry: a whole ChangeDataEvent."""

    size: int
    body: bytes


class Connection:
    """One stream of a client. `wake` is called, inside the store's lock, when the queue has got its first entry."""

    def __init__(self, store_id: int, multiplexing: bool, wake: Callable[[], None]) -> None:
        self.store_id = store_id
        self.multiplexing = multiplexing
        self.version: tuple[int, ...] | None = None
        self.subscriptions: dict[tuple[int, int], Subscription] = {}
        self.queue: deque[LiveRows | Frames | Message] = deque()
        self.pushed_bytes = 0
        self.sent_bytes = 0
        self._wake = wake
        self._awake = False

    def push(self, item: LiveRows | Frames | Message) -> None:
        self.queue.append(item)
        self.pushed_bytes += item.size
        if not self._awake:
            self._awake = True
            self._wake()

    def drain(self) -> list[LiveRows | Frames | Message]:
        """All that is queued; call it inside the store's lock."""
        items = list(self.queue)
        self.queue.clear()
        self._awake = False
        return items

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent. One side writes each counter: pushers inside the lock, and the sender."""
        return self.pushed_bytes - self.sent_bytes

    @property
    def batches_resolved(self) -> bool:
        return self.version is not None and self.version >= BATCH_RESOLVED_SINCE


BATCH_RESOLVED_SINCE = (4, 0, 8, 1)
CLUSTER_ID_SINCE = (5, 3, 0, 1)


class Snapshot(NamedTuple):
    """What a scan has to show: versions of changes up to `seq`, and the locks of that moment in key order."""

    seq: int
    locks: deque[Lock]


class Subscriptions:
    """All registrations on all stores. Methods may be called from any thread; `lock` is the store's."""

    def __init__(self, store: MvccStore, regions: Regions, oracle: Oracle, cluster_id: int) -> None:
        self.lock = store.lock
        self._store = store
        self._regions = regions
        self._oracle = oracle
        self._cluster_id = cluster_id
        self._by_region: dict[int, list[Subscription]] = {}
        self._connections: list[Connection] = []
        store.observe(self._on_change)
        regions.observe(self._on_regions)

    # --- connections ---

    def connect(self, connection: Connection) -> None:
        with self.lock:
            self._connections.append(connection)

    def disconnect(self, connection: Connection) -> None:
        with self.lock:
            for subscription in list(connection.subscriptions.values()):
                self._remove(subscription)
            self._connections.remove(connection)

    # --- requests ---

    def register(self, connection: Connection, request: cdcpb.ChangeDataRequest) -> Subscription | None:
        """A new registration that waits for `attach`, or None when an error event was queued (order: facts, 2.3)."""
        with self.lock:
            region = self._regions.get(request.region_id)
            error = self._refusal(connection, request, region)
            if error is not None or region is None:
                self._push_error(connection, request.region_id, request.request_id, error or cdcpb.Error())
                return None
            start, end = _span(request)
            subscription = Subscription(
                connection=connection,
                request_id=request.request_id,
                region_id=region.id,
                epoch_version=request.region_epoch.version,
                checkpoint_ts=request.checkpoint_ts,
                start=start,
                end=end,
                filter_loop=request.filter_loop,
                tags=events.event_tags(region.id, request.request_id),
            )
            connection.subscriptions[request.request_id, region.id] = subscription
            return subscription

    def deregister(self, connection: Connection, request_id: int, region_id: int) -> None:
        """Ends one registration, or with region id 0 all of a request; each is acknowledged by region_not_found."""
        with self.lock:
            for subscription in list(connection.subscriptions.values()):
                if subscription.request_id == request_id and region_id in (0, subscription.region_id):
                    self._close(subscription, _region_not_found(subscription.region_id))

    def attach(self, subscription: Subscription) -> Snapshot | None:
        """Starts live events and takes the snapshot, in one moment; None when the registration has ended."""
        with self.lock:
            if subscription.closed:
                return None
            region = self._regions.get(subscription.region_id)
            error = _placement_error(region, subscription)
            if error is not None or region is None:
                self._close(subscription, error or _region_not_found(subscription.region_id))
                return None
            subscription.start = max(subscription.start, region.start)
            ends = [end for end in (subscription.end, region.end) if end]
            subscription.end = min(ends) if ends else b""
            self._by_region.setdefault(region.id, []).append(subscription)
            locks = deque(
                lock for lock in self._store.locks_in(subscription.start, subscription.end) if lock.op is not Op.LOCK
            )
            subscription.open.update(lock.start_ts for lock in locks)
            return Snapshot(self._store.seq, locks)

    def scan(self, subscription: Subscription, snapshot: Snapshot) -> Iterator[bool]:
        """Queues the snapshot's rows and INITIALIZED step by step; ends early when the registration has ended."""
        position: bytes | None = subscription.start
        if subscription.end and subscription.start >= subscription.end:
            position = None
        while position is not None:
            versions, following = self._store.scan_versions(
                position, subscription.end, subscription.checkpoint_ts, snapshot.seq, _SCAN_KEYS
            )
            found = _with_locks(versions, snapshot.locks, following)
            rows = events.scan_rows(item for item in found if not subscription.drops(_source(item)))
            if not self._push_scan(subscription, events.group_rows(rows), last=False):
                return
            yield True
            position = following
        self._push_scan(subscription, [events.INITIALIZED_ROW], last=True)

    def _push_scan(self, subscription: Subscription, groups: list[bytes], last: bool) -> bool:
        frames = subscription.frames(groups)
        with self.lock:
            if subscription.closed:
                return False
            if frames:
                subscription.connection.push(Frames(sum(map(len, frames)), frames))
            subscription.initialized = last
            return True

    # --- resolved ts ---

    def advance(self) -> None:
        """One tick of the watermark (facts, 2.12 point 5): call it every min-ts-interval."""
        if not self._by_region:
            return
        ts = self._oracle.next()
        with self.lock:
            self._store.max_ts = max(self._store.max_ts, ts)
            self._store.resolved_floor = max(self._store.resolved_floor, ts)
            for connection in self._connections:
                self._advance_connection(connection, ts)

    def _advance_connection(self, connection: Connection, ts: int) -> None:
        by_request: dict[int, list[tuple[int, int]]] = {}
        for subscription in connection.subscriptions.values():
            if not subscription.initialized:
                continue
            lowest = min(subscription.open, default=MAX_TS)
            subscription.resolved_ts = max(subscription.resolved_ts, min(ts, lowest))
            request_id = subscription.request_id if connection.multiplexing else 0
            by_request.setdefault(request_id, []).append((subscription.resolved_ts, subscription.region_id))
        if connection.batches_resolved:
            for request_id, resolved in by_request.items():
                _push_resolved(connection, request_id, resolved)
        elif not connection.multiplexing:
            for subscription in connection.subscriptions.values():
                if subscription.initialized:
                    event = cdcpb.Event(
                        region_id=subscription.region_id,
                        request_id=subscription.request_id,
                        resolved_ts=subscription.resolved_ts,
                    )
                    _push_event(connection, event)

    # --- observers, inside the lock ---

    def _on_change(self, change: Change) -> None:
        if not self._by_region:
            return
        by_region: dict[int, list[RowChange]] = {}
        locate = self._regions.locate_id
        for row in change.rows:
            by_region.setdefault(locate(row.key), []).append(row)
        for region_id, rows in by_region.items():
            subscriptions = self._by_region.get(region_id)
            if subscriptions:
                region_rows = RegionRows(change, rows)
                for subscription in tuple(subscriptions):
                    self._deliver(subscription, region_rows)

    def _deliver(self, subscription: Subscription, rows: RegionRows) -> None:
        change = rows.change
        picked = None
        if not subscription.covers(rows.low, rows.high):
            picked = [row for row in rows.rows if subscription.covers(row.key, row.key)]
            if not picked:
                return
        _count_locks(subscription.open, change, picked or rows.rows)
        if subscription.drops(change.txn_source):
            return
        if subscription.connection.backlog + rows.size > SINK_QUOTA:
            error = cdcpb.Error(congested=cdcpb.Congested(region_id=subscription.region_id))
            self._close(subscription, error)
            return
        subscription.connection.push(LiveRows(subscription, rows, picked))

    def _on_regions(self, event: RegionEvent, old: Sequence[Region], new: Sequence[Region]) -> None:
        for region in old:
            for subscription in tuple(self._by_region.get(region.id, ())):
                if event is RegionEvent.TRANSFER:
                    error = _not_leader(new[0])
                else:
                    children = new if event is RegionEvent.SPLIT else ()
                    error = _epoch_not_match(children)
                self._close(subscription, error)

    # --- inside the lock ---

    def _refusal(
        self, connection: Connection, request: cdcpb.ChangeDataRequest, region: Region | None
    ) -> cdcpb.Error | None:
        validates = connection.version is not None and connection.version >= CLUSTER_ID_SINCE
        if validates and request.header.cluster_id != self._cluster_id:
            mismatch = cdcpb.ClusterIDMismatch(current=self._cluster_id, request=request.header.cluster_id)
            return cdcpb.Error(cluster_id_mismatch=mismatch)
        if request.kv_api != cdcpb.ChangeDataRequest.TiDB:
            return cdcpb.Error(compatibility=cdcpb.Compatibility(required_version="6.2.0"))
        waiting = sum(not subscription.initialized for subscription in connection.subscriptions.values())
        if waiting >= PENDING_SCANS:
            busy = errorpb.ServerIsBusy(reason="too many pending incremental scans", backoff_ms=1000)
            return cdcpb.Error(server_is_busy=busy)
        if region is None or not region.has_peer_on(connection.store_id):
            return _region_not_found(request.region_id)
        if (request.request_id, region.id) in connection.subscriptions:
            return cdcpb.Error(duplicate_request=cdcpb.DuplicateRequest(region_id=region.id))
        return None

    def _close(self, subscription: Subscription, error: cdcpb.Error) -> None:
        self._remove(subscription)
        self._push_error(subscription.connection, subscription.region_id, subscription.request_id, error)

    def _remove(self, subscription: Subscription) -> None:
        subscription.closed = True
        subscription.connection.subscriptions.pop((subscription.request_id, subscription.region_id))
        siblings = self._by_region.get(subscription.region_id, [])
        if subscription in siblings:
            siblings.remove(subscription)
            if not siblings:
                del self._by_region[subscription.region_id]

    def _push_error(self, connection: Connection, region_id: int, request_id: int, error: cdcpb.Error) -> None:
        _push_event(connection, cdcpb.Event(region_id=region_id, request_id=request_id, error=error))


def _span(request: cdcpb.ChangeDataRequest) -> tuple[bytes, bytes]:
    """The raw range of a request; one that can't be decoded means the whole region (facts, 2.3)."""
    try:
        return decode_bound(request.start_key), decode_bound(request.end_key)
    except ValueError:
        return b"", b""


def _placement_error(region: Region | None, subscription: Subscription) -> cdcpb.Error | None:
    if region is None:
        return _region_not_found(subscription.region_id)
    if region.leader_store != subscription.connection.store_id:
        return _not_leader(region)
    if region.version != subscription.epoch_version:
        return _epoch_not_match([region])
    return None


def _region_not_found(region_id: int) -> cdcpb.Error:
    return cdcpb.Error(region_not_found=errorpb.RegionNotFound(region_id=region_id))


def _not_leader(region: Region) -> cdcpb.Error:
    return cdcpb.Error(not_leader=errorpb.NotLeader(region_id=region.id, leader=region.leader))


def _epoch_not_match(regions: Sequence[Region]) -> cdcpb.Error:
    return cdcpb.Error(epoch_not_match=errorpb.EpochNotMatch(current_regions=[region.message for region in regions]))


def _push_event(connection: Connection, event: cdcpb.Event) -> None:
    frame = events.framed_event(event.SerializeToString())
    connection.push(Frames(len(frame), [frame]))


def _push_resolved(connection: Connection, request_id: int, resolved: list[tuple[int, int]]) -> None:
    """Slowest regions first, in groups of 8, 32, 128, …; a group's ts is its lowest (facts, 2.4)."""
    heapq.heapify(resolved)
    size = _FIRST_RESOLVED_GROUP
    while resolved:
        group = [heapq.heappop(resolved) for _ in range(min(size, len(resolved)))]
        size *= 4
        batch = cdcpb.ResolvedTs(regions=[region_id for _, region_id in group], ts=group[0][0], request_id=request_id)
        body = cdcpb.ChangeDataEvent(resolved_ts=batch).SerializeToString()
        connection.push(Message(len(body), body))


def _count_locks(open_locks: Counter[int], change: Change, rows: list[RowChange]) -> None:
    if change.kind is Kind.ONE_PC:
        return
    if change.kind is Kind.PREWRITE:
        open_locks[change.start_ts] += len(rows)
        return
    left = open_locks[change.start_ts] - sum(row.op is not Op.LOCK for row in rows)
    if left:
        open_locks[change.start_ts] = left
    else:
        del open_locks[change.start_ts]


def _with_locks(
    versions: list[ScannedVersion], locks: deque[Lock], following: bytes | None
) -> Sequence[Lock | ScannedVersion]:
    """A step's versions with the locks of its keys, a key's lock first. Takes those locks."""
    taken: list[Lock | ScannedVersion] = []
    while locks and (following is None or locks[0].key < following):
        taken.append(locks.popleft())
    if not taken:
        return versions
    return list(heapq.merge(taken, versions, key=lambda item: item.key))


def _source(item: Lock | ScannedVersion) -> int:
    return item.txn_source if isinstance(item, Lock) else item.version.txn_source
