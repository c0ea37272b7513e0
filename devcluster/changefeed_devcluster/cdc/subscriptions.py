"""Who hears of which changes: the heart of the change data service, without a socket, thread or event loop.

Everything runs inside the store's lock. A change costs its caller only the sorting of its rows into regions and one
queue entry a subscription; encoding happens when a connection drains its queue (`cdc.py`). A slow
reader delays nobody; what waits for it counts against its store's quota.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence

from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import errorpb_pb2 as errorpb

from ..codec import decode_bound
from ..frozen import FrozenHistory, ShardPart
from ..pd.oracle import Oracle
from ..pd.regions import Region, RegionEvent, Regions
from ..store.store import MvccStore
from ..store.txn import MAX_TS, Lock, RowChange, StoreChange
from ..watermark.advancer import WatermarkAdvancer
from ..watermark.ranges import advancer_of, locks_of, track
from ..watermark.watermarks import Watermarks
from . import events
from .answers import congested, epoch_not_match, not_leader, push_event, push_resolved, region_not_found
from .connection import CLUSTER_ID_SINCE, CdcConnection, CdcRegistration, Frames, LiveRows, RegionRows
from .scans import ScanSnapshot, played, scanned
from .troubles import InjectedTrouble, InjectedTroubles

SINK_QUOTA = 512 << 20
"""Bytes that may wait on all connections of a store together; for the next row its region is congested.

See docs/design/tikv.md, Events.
"""
PENDING_SCANS = 10_000
"""Scans that wait or run on all connections of a store together."""
_REPEATED_TS = 1000 << 18
TICKS = 64
"""So many resolved-ts of a region may wait to be sent; later ones are left out, the next one says more anyway."""


class Subscriptions:
    """All registrations on all stores. Methods may be called from any thread; `lock` is the store's."""

    def __init__(
        self,
        store: MvccStore,
        regions: Regions,
        oracle: Oracle,
        cluster_id: int,
        frozen: FrozenHistory | None = None,
        troubles: InjectedTroubles | None = None,
        watermarks: Watermarks | None = None,
        sink_quota: int = SINK_QUOTA,
    ) -> None:
        self.lock = store.lock
        self._watermarks = watermarks or Watermarks(store, regions)
        self._troubles = troubles or InjectedTroubles()
        self._frozen = frozen or FrozenHistory()
        self._store = store
        self._regions = regions
        self._oracle = oracle
        self._cluster_id = cluster_id
        self.by_region: dict[int, list[CdcRegistration]] = {}
        self.connections: list[CdcConnection] = []
        self._sink_quota = sink_quota
        self._scanning: Counter[int] = Counter()  # registrations that are not initialized, by store
        store.observe(self._on_change)
        regions.observe(self._on_regions)

    # --- connections ---

    def connect(self, connection: CdcConnection) -> None:
        with self.lock:
            self.connections.append(connection)

    def disconnect(self, connection: CdcConnection) -> None:
        with self.lock:
            for subscription in list(connection.subscriptions.values()):
                self._remove(subscription)
            self.connections.remove(connection)

    # --- requests ---

    def register(self, connection: CdcConnection, request: cdcpb.ChangeDataRequest) -> CdcRegistration | None:
        """A new registration that waits for `attach`, or None when an error event was queued.

        See docs/design/tikv.md, Registration.
        """
        with self.lock:
            region = self._regions.get(request.region_id)
            error = self._refusal(connection, request, region)
            if error is not None or region is None:
                self._push_error(connection, request.region_id, request.request_id, error or cdcpb.Error())
                return None
            start, end = _span(request)
            subscription = CdcRegistration(
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
            self._scanning[connection.store_id] += 1
            return subscription

    def deregister(self, connection: CdcConnection, request_id: int, region_id: int) -> None:
        """Ends one registration, or with region id 0 all of a request; each is acknowledged by region_not_found."""
        with self.lock:
            names = [(request_id, region_id)]
            if not region_id:
                names = [name for name in connection.subscriptions if name[0] == request_id]
            for subscription in filter(None, map(connection.subscriptions.get, names)):
                self._close(subscription, region_not_found(subscription.region_id))

    def attach(self, subscription: CdcRegistration) -> ScanSnapshot | None:
        """Starts live events and takes the snapshot, in one moment; None when the registration has ended."""
        with self.lock:
            if subscription.closed:
                return None
            region = self._regions.get(subscription.region_id)
            error = self._placement_error(region, subscription)
            if error is not None or region is None:
                self._close(subscription, error or region_not_found(subscription.region_id))
                return None
            subscription.start = max(subscription.start, region.start)
            ends = [end for end in (subscription.end, region.end) if end]
            subscription.end = min(ends) if ends else b""
            subscription.is_whole = (subscription.start, subscription.end) == (region.start, region.end)
            self.by_region.setdefault(region.id, []).append(subscription)
            locks = self._locks(subscription)
            subscription.advancer = advancer_of(locks, self._spares_large(subscription))
            return ScanSnapshot(self._store.seq, subscription.checkpoint_ts, locks, self._freeze(subscription))

    def look_again(self, subscription: CdcRegistration, snapshot: ScanSnapshot) -> ScanSnapshot:
        """A later snapshot for a scan: it repeats what has come live since `attach`, and some that the client has."""
        with self.lock:
            after_ts = max(snapshot.after_ts - _REPEATED_TS, 0)
            return ScanSnapshot(self._store.seq, after_ts, self._locks(subscription), snapshot.frozen)

    def _locks(self, subscription: CdcRegistration) -> deque[Lock]:
        return deque(locks_of(self._store, subscription.start, subscription.end))

    def _spares_large(self, subscription: CdcRegistration) -> bool:
        return self._watermarks.gate.spares_large(subscription.connection.store_id)

    def _freeze(self, subscription: CdcRegistration) -> list[tuple[ShardPart, int]]:
        """Notes where the frozen history stands, and holds the watermark below what is to come."""
        pieces = self._frozen.pieces(subscription.start, subscription.end)
        for shard in {piece.shard for piece in pieces}:
            # Whoever resumes at a ts has been promised that nothing commits at or below it any more.
            shard.happened = max(shard.happened, shard.first_after(subscription.checkpoint_ts))
            if shard.happened < shard.transactions:
                subscription.held_ts = min(subscription.held_ts, shard.start_of(shard.happened))
        return [(piece, piece.shard.happened) for piece in pieces]

    def scan(self, subscription: CdcRegistration, snapshot: ScanSnapshot) -> Iterator[int]:
        """Queues the snapshot's rows batch by batch, with INITIALIZED as the last row of the last Event.

        Gives the size of each batch before it is queued; ends early when the registration has ended.
        """
        last: list[bytes] = []
        for batch in scanned(self._store, self._frozen, subscription, snapshot):
            if last:
                yield sum(map(len, last))
                if not self._push_scan(subscription, last):
                    return
            last = batch
        if last:
            yield sum(map(len, last))
        done = [*last[:-1], b"".join(last[-1:]) + events.INITIALIZED_ROW]
        self._push_scan(subscription, done, ends=True)

    def play(self, subscription: CdcRegistration, snapshot: ScanSnapshot) -> Iterator[bool]:
        """Queues what of the frozen history had not happened at the snapshot, in the order of its ts, step by step.

        Ends early when the registration has ended. Call it after the scan.
        """
        for message, piece, number in played(self._frozen, subscription, snapshot):
            with self.lock:
                if subscription.closed:
                    return
                subscription.connection.push(message)
                for shard in {piece.shard for piece, _ in snapshot.frozen}:
                    # All that starts earlier has been queued, in whichever shard.
                    shard.happened = max(shard.happened, shard.first_after(piece.shard.commit_of(number)))
                subscription.held_ts = piece.shard.commit_of(number)
            yield True
        with self.lock:
            subscription.held_ts = MAX_TS

    def _push_scan(self, subscription: CdcRegistration, bodies: list[bytes], ends: bool = False) -> bool:
        """Tell whether the registration is still there. `ends`: the scan, with these bodies."""
        frames = subscription.frames(bodies)
        size = sum(map(len, frames))
        with self.lock:
            if subscription.closed:
                return False
            if not self._has_room(subscription.connection.store_id, size):
                self._close(subscription, congested(subscription.region_id))
                return False
            lane = (subscription.request_id, subscription.region_id, "scan")
            subscription.connection.push(Frames(size, frames, lane))
            if ends:
                subscription.initialized = True
                subscription.is_ripe = any(each.is_ripe for each in self.by_region[subscription.region_id])
                self._scanning[subscription.connection.store_id] -= 1
            return True

    # --- resolved ts ---

    def advance(self) -> None:
        """One tick of the watermark (docs/design/tikv.md, Resolved-ts): call it every min-ts-interval."""
        if not self.by_region and not self._watermarks.safe_ts.is_asked_for:
            return
        ts = self._oracle.allocate()
        with self.lock:
            if self._watermarks.statuses.is_due:
                self._watermarks.ask(self._advancers())
            self._watermarks.safe_ts.advance(ts)
            self._store.max_ts = max(self._store.max_ts, ts)
            self._store.resolved_floor = max(self._store.resolved_floor, ts)
            for connection in self.connections:
                self._advance_connection(connection, ts)

    def _advancers(self) -> dict[int, list[WatermarkAdvancer]]:
        """By store; what goes by the wrong mechanism, as the cluster was upgraded, is made again."""
        found: dict[int, list[WatermarkAdvancer]] = defaultdict(list)
        for subscription in (each for some in self.by_region.values() for each in some):
            spares_large = self._spares_large(subscription)
            if subscription.advancer.spares_large != spares_large:
                subscription.advancer = advancer_of(self._locks(subscription), spares_large)
            found[subscription.connection.store_id].append(subscription.advancer)
        return found

    def _advance_connection(self, connection: CdcConnection, ts: int) -> None:
        by_request: dict[int, list[tuple[int, int]]] = {}
        for subscription in connection.subscriptions.values():
            if not subscription.is_ripe:
                subscription.is_ripe = subscription.initialized
                continue
            if self._troubles.amount(InjectedTrouble.STALL_REGION, subscription.region_id):
                continue
            upto = min(ts, subscription.advancer.lowest, subscription.held_ts)
            subscription.resolved_ts = max(subscription.resolved_ts, upto)
            by_request.setdefault(subscription.request_id, []).append(
                (subscription.resolved_ts, subscription.region_id)
            )
        if by_request and connection.ticks < TICKS:
            connection.ticks += 1
            push_resolved(connection, by_request)
            if self._troubles.amount(InjectedTrouble.REPEAT):
                push_resolved(connection, by_request)
                earlier = {
                    request: [(max(t - _REPEATED_TS, 0), region) for t, region in resolved]
                    for request, resolved in by_request.items()
                }
                push_resolved(connection, earlier)
                nothing = {request: [(0, region) for _, region in resolved] for request, resolved in by_request.items()}
                push_resolved(connection, nothing)

    # --- observers, inside the lock ---

    def _on_change(self, change: StoreChange) -> None:
        if not self.by_region:
            return
        by_region: dict[int, list[RowChange]] = {}
        locate = self._regions.locate_id
        for row in change.rows:
            by_region.setdefault(locate(row.key), []).append(row)
        for region_id, rows in by_region.items():
            subscriptions = self.by_region.get(region_id)
            if subscriptions and not self._deliver(tuple(subscriptions), RegionRows(change, rows)):
                for subscription in tuple(subscriptions):
                    self._close(subscription, congested(region_id))

    def _deliver(self, subscriptions: Sequence[CdcRegistration], rows: RegionRows) -> bool:
        """To all who hear of a region, as far as the store's quota has room, whoever has used it up."""
        for subscription in subscriptions:
            picked = rows.of(subscription)
            if picked == []:
                continue
            track(subscription.advancer, rows.change, picked or rows.rows)
            if subscription.drops(rows.change.txn_source):
                continue
            if not self._has_room(subscription.connection.store_id, rows.size):
                return False
            subscription.connection.push(LiveRows(subscription, rows, picked))
        return True

    def _has_room(self, store_id: int, size: int) -> bool:
        if self._troubles.amount(InjectedTrouble.CONGESTION, store_id):
            return False
        return size + sum(each.backlog for each in self.connections if each.store_id == store_id) <= self._sink_quota

    def _on_regions(self, event: RegionEvent, old: Sequence[Region], new: Sequence[Region]) -> None:
        for region in old:
            for subscription in tuple(self.by_region.get(region.id, ())):
                if event is RegionEvent.TRANSFER:
                    error = not_leader(new[0], new[0].leader)
                else:
                    children = new if event is RegionEvent.SPLIT else ()
                    error = epoch_not_match(children)
                self._close(subscription, error)

    # --- inside the lock ---

    def _refusal(
        self, connection: CdcConnection, request: cdcpb.ChangeDataRequest, region: Region | None
    ) -> cdcpb.Error | None:
        validates = connection.version is not None and connection.version >= CLUSTER_ID_SINCE
        if validates and request.header.cluster_id != self._cluster_id:
            mismatch = cdcpb.ClusterIDMismatch(current=self._cluster_id, request=request.header.cluster_id)
            return cdcpb.Error(cluster_id_mismatch=mismatch)
        if request.kv_api != cdcpb.ChangeDataRequest.TiDB:
            return cdcpb.Error(compatibility=cdcpb.Compatibility(required_version="6.2.0"))
        if self._scanning[connection.store_id] >= PENDING_SCANS:
            busy = errorpb.ServerIsBusy(reason="too many pending incremental scans")
            return cdcpb.Error(server_is_busy=busy)
        if region is None or not region.has_peer_on(connection.store_id):
            return region_not_found(request.region_id)
        if (request.request_id, region.id) in connection.subscriptions:
            return cdcpb.Error(duplicate_request=cdcpb.DuplicateRequest(region_id=region.id))
        return None

    def _placement_error(self, region: Region | None, subscription: CdcRegistration) -> cdcpb.Error | None:
        if region is None:
            return region_not_found(subscription.region_id)
        if region.leader_store != subscription.connection.store_id:
            return not_leader(region, self._regions.living_leader(region))
        if region.version != subscription.epoch_version:
            return epoch_not_match([region])
        return None

    def _close(self, subscription: CdcRegistration, error: cdcpb.Error) -> None:
        self._remove(subscription)
        self._push_error(subscription.connection, subscription.region_id, subscription.request_id, error)

    def _remove(self, subscription: CdcRegistration) -> None:
        subscription.closed = True
        if not subscription.initialized:
            self._scanning[subscription.connection.store_id] -= 1
        subscription.connection.subscriptions.pop((subscription.request_id, subscription.region_id))
        siblings = self.by_region.get(subscription.region_id, [])
        if subscription in siblings:
            siblings.remove(subscription)
            if not siblings:
                del self.by_region[subscription.region_id]

    def _push_error(self, connection: CdcConnection, region_id: int, request_id: int, error: cdcpb.Error) -> None:
        push_event(connection, cdcpb.Event(region_id=region_id, request_id=request_id, error=error))


def _span(request: cdcpb.ChangeDataRequest) -> tuple[bytes, bytes]:
    """The raw range of a request; one that can't be decoded means the whole region.

    See docs/design/tikv.md, Registration.
    """
    try:
        return decode_bound(request.start_key), decode_bound(request.end_key)
    except ValueError:
        return b"", b""
