"""Plays what was done to a real TiKV into the dev cluster's core, and says what each of them sent, in the same words.

Time is that of the recording; only when the store's clock for resolved-ts ticked is not in it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import count
from typing import Any

from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.cdc.cdc import messages, parse_version
from changefeed_devcluster.cdc.connection import CdcConnection, CdcRegistration
from changefeed_devcluster.cdc.subscriptions import Subscriptions
from changefeed_devcluster.codec import encode_bytes
from changefeed_devcluster.pd.oracle import Oracle
from changefeed_devcluster.pd.regions import Regions
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.watermark.watermarks import Watermarks
from google.protobuf import text_format
from trace_calls import Call, Player, Trace

TICK_MS = 1000
Told = dict[tuple[int, int, int], list[Any]]
"""What each (stream, request id, region) was told: rows of an Event, an error, or a resolved-ts."""

_STORES = (2, 1, 5)
_CONF_VER = 5
_VERSION = "8.5.0"
_AFTERWARDS_MS = 3000
_LONG = 300
_STARTS = ("start_version", "start_ts")
_TIMES = (*_STARTS, "commit_version", "min_commit_ts", "lock_ts", "current_ts", "for_update_ts")
_UNDER_WAY: Mapping[str, tuple[int, Callable[[Regions], object]]] = {
    "merge_mid": (1850, lambda regions: regions.merge(488, 484)),
    "leader_move": (1700, lambda regions: regions.transfer(496, 1)),
}
"""What PD did meanwhile, and about when: it is no call, but seen in the streams."""


class Recording(Trace):
    """A trace with its registrations and streams."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        requests = [(call.ms, call.request) for call in self.calls if call.is_of_a_client]
        begun = {int(request[field]) for _, request in requests for field in _STARTS if field in request}
        self._begun = {int(ts): label for label, ts in self.about["names"].items() if int(ts) in begun}
        used = [(ms, int(request[field])) for ms, request in requests for field in _TIMES if field in request]
        self.base_ms = max((ts >> 18) - ms for ms, ts in used)
        """When it began: nobody uses a ts before it is there."""

    @cached_property
    def registrations(self) -> list[tuple[int, int, cdcpb.ChangeDataRequest]]:
        """(ms, stream, request); those of a list of refusals say only what is other than in the last one."""
        given = self.about["registrations"]
        last = [each for each in given if "epoch_version" in each][-1]
        return [(each["ms"], each["stream"], self._request({**last, **each})) for each in given]

    def _request(self, given: Mapping[str, Any]) -> cdcpb.ChangeDataRequest:
        request = cdcpb.ChangeDataRequest(
            header=cdcpb.Header(cluster_id=int(self.about["cluster_id"]), ticdc_version=_VERSION),
            region_id=given["region_id"],
            region_epoch=metapb.RegionEpoch(version=given["epoch_version"], conf_ver=given["epoch_conf_ver"]),
            request_id=given["request_id"],
            checkpoint_ts=int(given["checkpoint_ts"]),
            start_key=bytes.fromhex(given["start_key"]),
            end_key=bytes.fromhex(given["end_key"]),
            filter_loop=given.get("filter_loop", False),
            kv_api=given.get("kv_api", 0),
        )
        for name, kind in (("header", cdcpb.Header), ("region_epoch", metapb.RegionEpoch)):
            if name in given:
                getattr(request, name).CopyFrom(text_format.Parse(given[name], kind()))
        if "deregister" in given:
            request.deregister.SetInParent()
        return request

    def layout(self) -> pdpb.ScanRegionsResponse:
        """The scenario's region as it was at first, and others around it."""
        start, end = encode_bytes(self.start), encode_bytes(self.end)
        region_id, version = self._first_region()
        about = [(1, 1, b"", start), (region_id, version, start, end), (5, 1, end, b"")]
        regions = [
            metapb.Region(
                id=id_,
                start_key=low,
                end_key=high,
                region_epoch=metapb.RegionEpoch(conf_ver=_CONF_VER, version=version),
                peers=[metapb.Peer(id=id_ + at, store_id=store) for at, store in enumerate(_STORES, 1)],
            )
            for id_, version, low, high in about
        ]
        led = [pdpb.Region(region=region, leader=region.peers[0]) for region in regions]
        return pdpb.ScanRegionsResponse(regions=led)

    def _first_region(self) -> tuple[int, int]:
        ms, _, request = self.registrations[0]
        for call in self.calls:
            if call.name == "SplitRegion" and call.ms < ms:
                right = call.response["right"]
                return right["id"], int(right["region_epoch"]["version"]) - 1
        return request.region_id, request.region_epoch.version

    def recorded(self) -> Told:
        return self.told({stream["stream"]: self.stream(stream["stream"]) for stream in self.about["streams"]})

    def told(self, streams: Mapping[int, Sequence[cdcpb.ChangeDataEvent]]) -> Told:
        """By registration; what has no request id is for all of the region's."""
        found: Told = defaultdict(list)
        for stream, received in streams.items():
            known = {request.request_id for _, where, request in self.registrations if where == stream}
            for message in received:
                for event in message.events:
                    found[stream, event.request_id, event.region_id].append(_event(event))
                resolved = message.resolved_ts
                waits_for = self._begun.get(resolved.ts, "nothing")
                for region_id in resolved.regions:
                    for id_ in {resolved.request_id} if resolved.request_id else known:
                        found[stream, id_, region_id].append(f"resolved-ts: {waits_for}")
        return found


def _event(event: cdcpb.Event) -> Any:
    """Live rows of one call come in any order; a scan's, which end in INITIALIZED, in that of their keys."""
    if event.WhichOneof("event") == "error":
        return str(event.error)
    rows = [
        (
            *(cdcpb.Event.LogType.Name(row.type), row.op_type, row.start_ts, row.commit_ts),
            *(row.key, _short(row.value), _short(row.old_value), row.txn_source, row.generation),
        )
        for row in event.entries.entries
    ]
    return rows if rows[-1][0] == "INITIALIZED" else sorted(rows)


def _short(value: bytes) -> bytes:
    return hashlib.sha256(value).digest() if len(value) > _LONG else value


class Play:
    """One run of a recording's script; `phase_ms`: when the first tick of resolved-ts is."""

    def __init__(self, recording: Recording, phase_ms: int) -> None:
        self._recording = recording
        self._now_ms = 0
        self._bytes_per_second = 0.0
        about = recording.about
        store = MvccStore()
        self._regions = Regions(store.lock, _STORES)
        self._regions.restore(recording.layout())
        self._regions._last_id = self._regions.locate(recording.start).id + len(_STORES)
        oracle = Oracle(clock=lambda: (recording.base_ms + self._now_ms) / 1000)
        watermarks = Watermarks(store, self._regions)
        self._player = Player(recording, store, self._regions, oracle, watermarks.safe_ts)
        self._subscriptions = Subscriptions(
            store, self._regions, oracle, int(about["cluster_id"]), watermarks=watermarks
        )
        self._connections = {stream["stream"]: self._connected(stream) for stream in about["streams"]}
        self._streams: dict[int, list[cdcpb.ChangeDataEvent]] = {stream: [] for stream in self._connections}
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        for call in recording.calls:
            self._at(call.ms, partial(self._do, call))
        for ms, stream, request in recording.registrations:
            self._at(ms, partial(self._register, stream, request))
        if recording.name in _UNDER_WAY:
            ms, act = _UNDER_WAY[recording.name]
            self._at(ms, partial(act, self._regions))
        for ms in range(phase_ms, int(max(self._events)[0]) + _AFTERWARDS_MS, TICK_MS):
            self._at(ms, self._subscriptions.advance)

    def _connected(self, stream: Mapping[str, Any]) -> CdcConnection:
        connection = CdcConnection(stream["store"], stream["method"] == "EventFeedV2", lambda: None)
        connection.version = parse_version(_VERSION)
        self._subscriptions.connect(connection)
        return connection

    def _at(self, ms: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._events, (ms, next(self._numbers), act))

    def run(self) -> Told:
        while self._events:
            ms, _, act = heapq.heappop(self._events)
            self._now_ms = int(ms)
            act()
            for stream, connection in self._connections.items():
                bodies = messages(connection, connection.drain())
                self._streams[stream] += map(cdcpb.ChangeDataEvent.FromString, bodies)
        return self._recording.told(self._streams)

    def _do(self, call: Call) -> None:
        if call.is_of_a_client:
            self._player.play(call)
        else:  # cdc.incremental-fetch-speed-limit
            self._bytes_per_second = 400.0 if call.request == "400B" else 0.0

    def _register(self, stream: int, request: cdcpb.ChangeDataRequest) -> None:
        connection = self._connections[stream]
        if request.WhichOneof("request") == "deregister":
            self._subscriptions.deregister(connection, request.request_id, request.region_id)
            return
        subscription = self._subscriptions.register(connection, request)
        snapshot = self._subscriptions.attach(subscription) if subscription else None
        if subscription and snapshot:
            self._go_on(self._subscriptions.scan(subscription, snapshot), subscription)

    def _go_on(self, steps: Iterator[int], subscription: CdcRegistration, size: int = 0) -> None:
        """A scan, as fast as the store's limit lets it come."""
        if size and self._bytes_per_second:
            lifted = max(call.ms for call in self._recording.calls if not call.is_of_a_client)
            ends = self._now_ms + 1000 * size / self._bytes_per_second
            self._at(min(ends, lifted + 1), partial(self._go_on, steps, subscription))
            return
        following = next(steps, None)
        if following is not None:
            self._go_on(steps, subscription, following)
