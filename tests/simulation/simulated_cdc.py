"""The change data service of the simulated stores: what clients see of the upstream (docs/design/tikv.md).

Live changes and the scan of a registration come interleaved, each in Events of their own, the scan's lock before its
writes; INITIALIZED ends the last Event of a scan; a resolved-ts comes after all that was committed before it; what an
error names is over. All of it as bytes of the real messages.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from random import Random

from changefeed.model.position import OP_DELETE
from changefeed.upstream.tikv.tidb.memcomparable import decode_bytes
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import errorpb_pb2, metapb_pb2
from simulated_time import Mailbox, Timeline
from simulated_transactions import Region, Row
from simulated_upstream import Upstream

_NO_ROOM_S = 6.0  # at most: another client does not read
_TRIES = 5  # in that time, of ranges that were turned away before: after 1/8 s at least, then twice as long each time

_PUT, _DELETE = cdcpb.Event.Row.PUT, cdcpb.Event.Row.DELETE
_SHORT = 255  # bytes of a value that stands in the lock, and in the commit


@dataclass(eq=False)
class Registration:
    stream: Stream
    request_id: int
    region: Region
    start: bytes
    end: bytes
    checkpoint_ts: int
    scan: deque[cdcpb.Event.Row] = field(default_factory=deque)
    scans_at: float = 0.0  # not before
    initialized: bool = False
    resolved_ts: int = 0
    told: set[int] = field(default_factory=set)  # start_ts of transactions of which it has seen a commit

    def wants(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)


class Stream:
    """One EventFeedV2 stream, as its store sees it."""

    def __init__(self, cdc: ChangeData, store: int, mailbox: Mailbox) -> None:
        self.cdc = cdc
        self.store = store
        self._mailbox = mailbox
        self.open = True
        self.registrations: dict[tuple[int, int], Registration] = {}
        self._outbox: list[tuple[int, int, int, cdcpb.Event.Row | cdcpb.Error]] = []  # with the number of an Event
        self._scan_events = 0
        self._last_arrival = 0.0
        self._tick_due = False
        # Since the store has no room: of which request, in which region, where it began.
        self.turned_away: list[tuple[int, int, bytes]] = []

    def on_request(self, request: cdcpb.ChangeDataRequest) -> None:
        if not self.open:
            return
        if request.HasField("deregister"):
            # The client gives it up before it has heard that it was turned away.
            name = request.request_id, request.region_id
            self.turned_away = [each for each in self.turned_away if each[:2] != name]
            for request_id, region_id in list(self.registrations):
                if request_id == request.request_id and request.region_id in (0, region_id):
                    gone = errorpb_pb2.RegionNotFound(region_id=region_id)
                    self.over(self.registrations[request_id, region_id], cdcpb.Error(region_not_found=gone))
        else:
            self._register(request)
        self.tick_soon()

    def _register(self, request: cdcpb.ChangeDataRequest) -> None:
        name = request.request_id, request.region_id
        if error := self.cdc.refusal(self, request):
            self._outbox.append((*name, 0, error))
            return
        region = self.cdc.region(request.region_id)
        assert region is not None
        start, end = _raw(request.start_key), _raw(request.end_key)
        start = max(start, region.start)
        end = min(end or region.end, region.end or end)
        registration = Registration(self, *name[:1], region, start, end, request.checkpoint_ts)
        registration.resolved_ts = request.checkpoint_ts
        self.cdc.attach(registration)
        self.registrations[name] = registration

    def row(self, registration: Registration, row: cdcpb.Event.Row, event: int = 0) -> None:
        """`event`: of a scan."""
        self._outbox.append((registration.request_id, registration.region.id, event, row))

    def over(self, registration: Registration, error: cdcpb.Error) -> None:
        del self.registrations[registration.request_id, registration.region.id]
        self.cdc.detach(registration)
        self._outbox.append((registration.request_id, registration.region.id, 0, error))
        self.tick_soon()

    def tick_soon(self, within: float = 0.2) -> None:
        if not self._tick_due and self.open:
            self._tick_due = True
            self.cdc.time.after(self.cdc.rng.random() * within, self._flush)

    def _flush(self) -> None:
        self._tick_due = False
        if not self.open:
            return
        for registration in self.registrations.values():
            self._scan_on(registration)
        self._send_rows()

    def tick(self) -> None:
        """Rows first, then what is resolved; again after a while."""
        if not self.open:
            return
        self._flush()
        for (request_id, ts), regions in self._resolved().items():
            self._send(
                cdcpb.ChangeDataEvent(resolved_ts=cdcpb.ResolvedTs(regions=regions, ts=ts, request_id=request_id))
            )
        self.cdc.time.after(self.cdc.tick_s * (0.5 + self.cdc.rng.random()), self.tick)

    def _scan_on(self, registration: Registration) -> None:
        if registration.initialized or self.cdc.time.now < registration.scans_at:
            return
        self._scan_events += 1
        rng, scan = self.cdc.rng, registration.scan
        if scan and (self.cdc.happens("slow_scan") or self.cdc.scans_wait()):
            count = rng.randint(0, len(scan) - 1)
            self.tick_soon(1.5)
        else:
            count = len(scan)
        for _ in range(count):
            row = scan.popleft()
            if row.type == cdcpb.Event.COMMITTED:
                registration.told.add(row.start_ts)
            self.row(registration, row, self._scan_events)
        if not scan:
            registration.initialized = True
            self.row(registration, cdcpb.Event.Row(type=cdcpb.Event.INITIALIZED), self._scan_events)

    def _resolved(self) -> dict[tuple[int, int], list[int]]:
        now_ts = self.cdc.read_ts()
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for registration in self.registrations.values():
            if not registration.initialized or self.cdc.rng.random() < 0.3:
                continue  # the slowest come first, the others when there is time
            registration.resolved_ts = max(registration.resolved_ts, min(now_ts, self.cdc.locked_to(registration)))
            ts = registration.resolved_ts
            if self.cdc.happens("odd_resolved"):  # late or none: to be ignored
                ts = self.cdc.rng.choice((0, registration.checkpoint_ts, ts - 1))
            found[registration.request_id, ts].append(registration.region.id)
        return found

    def _send_rows(self) -> None:
        outbox, self._outbox = self._outbox, []
        events = []
        for (request_id, region_id, _), items in groupby(outbox, key=lambda item: item[:3]):
            rows: list[cdcpb.Event.Row] = []
            for *_, what in items:
                if isinstance(what, cdcpb.Error):
                    events += _entries(request_id, region_id, rows)
                    rows = []
                    events.append(cdcpb.Event(request_id=request_id, region_id=region_id, error=what))
                else:
                    rows.append(what)
            events += _entries(request_id, region_id, rows)
        if events:
            self._send(cdcpb.ChangeDataEvent(events=events))

    def _send(self, message: cdcpb.ChangeDataEvent) -> None:
        body = message.SerializeToString()
        self._last_arrival = max(self._last_arrival, self.cdc.time.now + self.cdc.rng.random() * 0.05)
        self.cdc.time.at(self._last_arrival, lambda: self._mailbox.put(body))

    def cut(self, error: BaseException | None) -> None:
        """With all that it pulls; what is on its way may be lost."""
        if not self.open:
            return
        self.open = False
        for registration in self.registrations.values():
            self.cdc.detach(registration)
        self.registrations.clear()
        self.cdc.streams.remove(self)
        self.cdc.time.after(self.cdc.rng.random() * 0.05, lambda: self._mailbox.close(error))


class ChangeData:
    """All stores. `happens(what)`: whether one of the faults of the moment does."""

    def __init__(
        self,
        time: Timeline,
        rng: Random,
        upstream: Upstream,
        happens: Callable[[str], bool],
        proposed_watermark: Container[int] = (),
        slow_scans: Random | None = None,
        wire: Random | None = None,
    ) -> None:
        """`proposed_watermark`: stores whose resolved-ts large transactions do not hold, as a design proposes.

        With all others, as with any TiKV, it stands at the start of the oldest lock, but in worlds that are `eager`.
        `slow_scans`: dice for how long scans wait, None: not at all. `wire`: dice for what else rows say.
        """
        self.time = time
        self.rng = rng
        self.happens = happens
        self.tick_s = rng.uniform(0.3, 0.8)
        self.eager = rng.random() < 0.5  # goes beyond a decided transaction whose locks are still there, as the design
        self.proposed_watermark = proposed_watermark
        self.slow_scans = slow_scans
        self._wire = wire or Random(0)
        # Of a lock that a heartbeat rewrites; some servers left out the value, or the one before.
        self._copies = self._wire.choice((*["whole"] * 8, "no value", "no old value"))
        self.streams: list[Stream] = []
        self._no_room: dict[int, float] = {}  # by store: until when
        self.stale_regions: list[Region] = upstream.regions
        self._upstream = upstream
        self._by_region: dict[int, list[Registration]] = defaultdict(list)
        upstream.cdc = self

    def open_stream(self, store: int, mailbox: Mailbox) -> Stream:
        stream = Stream(self, store, mailbox)
        self.streams.append(stream)
        self.time.after(self.rng.random() * self.tick_s, stream.tick)
        return stream

    def scans_wait(self) -> bool:
        """Whether a scan goes on later, when another part of it has been sent."""
        return self.slow_scans is not None and self.slow_scans.random() < 0.7

    # What registrations are told.

    def prewritten(self, key: bytes, start_ts: int, value: bytes | None, old: bytes | None) -> None:
        self._tell(key, _prewrite(key, start_ts, value, old))
        if self._wire.random() < (0.1 if self._copies == "whole" else 0.4):
            self.heartbeat(key, start_ts, value, old)

    def heartbeat(self, key: bytes, start_ts: int, value: bytes | None, old: bytes | None) -> None:
        """The lock is rewritten, and told of when its value is in it."""
        if self._copies == "no value":
            self._tell(key, _prewrite(key, start_ts, None if value is None else b"", old))
        elif value is None or len(value) <= _SHORT:
            self._tell(key, _prewrite(key, start_ts, value, old if self._copies == "whole" else None))

    def commit(self, row: Row) -> None:
        value = row.value if len(row.value) <= _SHORT else b""
        change = _committed(row._replace(value=value, old=None))
        change.type = cdcpb.Event.COMMIT
        self._tell(row.key, change)
        if self._wire.random() < 0.1:  # a neighbour that was only locked
            self._tell(row.key, cdcpb.Event.Row())

    def committed(self, row: Row) -> None:
        self._tell(row.key, _committed(row))

    def rollback(self, key: bytes, start_ts: int) -> None:
        value = self._wire.choice((b"", b"p"))  # it is protected
        self._tell(key, cdcpb.Event.Row(type=cdcpb.Event.ROLLBACK, start_ts=start_ts, key=key, value=value))

    def _tell(self, key: bytes, row: cdcpb.Event.Row) -> None:
        for registration in list(self._by_region[self._upstream.region_of(key).id]):
            if self._has_no_room(registration.stream.store):
                registration.stream.over(registration, _congested(registration.region.id))
            elif registration.wants(key):
                if row.commit_ts:
                    registration.told.add(row.start_ts)
                registration.stream.row(registration, row)

    # Registrations.

    def refusal(self, stream: Stream, request: cdcpb.ChangeDataRequest) -> cdcpb.Error | None:
        region = self.region(request.region_id)
        if region is None:
            return cdcpb.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=request.region_id))
        if region.store != stream.store:
            return self._not_leader(region)
        if region.version != request.region_epoch.version:
            return cdcpb.Error(epoch_not_match=errorpb_pb2.EpochNotMatch())
        if (request.request_id, request.region_id) in stream.registrations:
            return cdcpb.Error(duplicate_request=cdcpb.DuplicateRequest(region_id=request.region_id))
        if self.happens("busy") and not self._has_no_room(stream.store):
            if self.rng.random() < 0.5:
                self._no_room[stream.store] = self.time.now + self.rng.random() * _NO_ROOM_S
                for each in self.streams:
                    each.turned_away.clear()
            else:
                return cdcpb.Error(server_is_busy=errorpb_pb2.ServerIsBusy(backoff_ms=self.rng.randint(0, 3000)))
        if self._has_no_room(stream.store):
            stream.turned_away.append((request.request_id, request.region_id, request.start_key))
            again = len(stream.turned_away) - len({start for *_, start in stream.turned_away})
            assert again <= _TRIES, f"store {stream.store} has no room, and is asked {again} times in vain"
            return _congested(request.region_id)
        return None

    def _has_no_room(self, store: int) -> bool:
        """Another client does not read; all are turned away, whoever they are."""
        return self.time.now < self._no_room.get(store, 0.0)

    def region(self, region_id: int) -> Region | None:
        return next((region for region in self._upstream.regions if region.id == region_id), None)

    def attach(self, registration: Registration) -> None:
        """From now on it hears what is changed; what is there, its scan tells."""
        if self.slow_scans is not None:
            registration.scans_at = self.time.now + self.slow_scans.uniform(0.0, 1.5)
        self._by_region[registration.region.id].append(registration)
        for key in (*self._upstream.keys, *self._upstream.large_keys):
            if not registration.wants(key):
                continue
            if lock := self._upstream.locks.get(key):
                old, start_ts = self._upstream.value_of(key), lock.transaction.start_ts
                registration.scan.append(_prewrite(key, start_ts, lock.value, old))
            for row in reversed(self._upstream.versions[key]):
                if row.commit_ts > registration.checkpoint_ts:
                    registration.scan.append(_committed(row))

    def detach(self, registration: Registration) -> None:
        self._by_region[registration.region.id].remove(registration)

    def regions_changed(self, old: Iterable[Region], new: Iterable[Region]) -> None:
        if self.rng.random() < 0.5:
            self.stale_regions = self._upstream.regions
        for region in old:
            for registration in list(self._by_region[region.id]):
                registration.stream.over(registration, self._why_over(region, new))

    def _why_over(self, region: Region, new: Iterable[Region]) -> cdcpb.Error:
        now = next((each for each in new if each.id == region.id), None)
        if now is None:
            return cdcpb.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=region.id))
        if now.version == region.version:
            return self._not_leader(now)
        return cdcpb.Error(epoch_not_match=errorpb_pb2.EpochNotMatch())

    def _not_leader(self, region: Region) -> cdcpb.Error:
        leader = metapb_pb2.Peer(id=1, store_id=region.store) if self.rng.random() < 0.7 else None
        return cdcpb.Error(not_leader=errorpb_pb2.NotLeader(region_id=region.id, leader=leader))

    def read_ts(self) -> int:
        """No transaction that locks nothing yet will commit at or below it."""
        self._upstream.read_ts = self._upstream.tso()
        return self._upstream.read_ts

    def locked_to(self, registration: Registration) -> int:
        """What locks leave to be resolved."""
        bounds = [self._upstream.read_ts]
        for key, lock in self._upstream.locks.items():
            if not registration.wants(key):
                continue
            transaction = lock.transaction
            spared = transaction.large and registration.stream.store in self.proposed_watermark
            if transaction.commit_ts and (spared or self.eager):
                if transaction.start_ts not in registration.told:  # rule 18
                    bounds.append(transaction.commit_ts - 1)
            elif not spared:
                bounds.append(transaction.start_ts)
            elif not transaction.over:
                bounds.append(max(transaction.start_ts, transaction.promise - 1))
        return min(bounds)


def _raw(key: bytes) -> bytes:
    return decode_bytes(key)[0] if key else b""


def _entries(request_id: int, region_id: int, rows: list[cdcpb.Event.Row]) -> list[cdcpb.Event]:
    if not rows:
        return []
    return [cdcpb.Event(request_id=request_id, region_id=region_id, entries=cdcpb.Event.Entries(entries=rows))]


def _congested(region_id: int) -> cdcpb.Error:
    return cdcpb.Error(congested=cdcpb.Congested(region_id=region_id))


def _prewrite(key: bytes, start_ts: int, value: bytes | None, old: bytes | None) -> cdcpb.Event.Row:
    return cdcpb.Event.Row(
        type=cdcpb.Event.PREWRITE,
        op_type=_DELETE if value is None else _PUT,
        start_ts=start_ts,
        key=key,
        value=value or b"",
        old_value=old or b"",
    )


def _committed(row: Row) -> cdcpb.Event.Row:
    return cdcpb.Event.Row(
        type=cdcpb.Event.COMMITTED,
        op_type=_DELETE if row.op == OP_DELETE else _PUT,
        start_ts=row.start_ts,
        commit_ts=row.commit_ts,
        key=row.key,
        value=row.value,
        old_value=row.old or b"",
    )
