"""What a subscriber is told beside rows: errors of a registration and resolved-ts.

See docs/design/tikv.md, Events, Error events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import errorpb_pb2 as errorpb
from changefeed.wire import metapb_pb2 as metapb

from ..pd.regions import Region
from . import events
from .connection import CdcConnection, Frames, QueuedEvent

_FIRST_RESOLVED_GROUP = 8
_RESOLVED_GROUP = 128


def region_not_found(region_id: int) -> cdcpb.Error:
    return cdcpb.Error(region_not_found=errorpb.RegionNotFound(region_id=region_id))


def not_leader(region: Region, leader: metapb.Peer | None) -> cdcpb.Error:
    return cdcpb.Error(not_leader=errorpb.NotLeader(region_id=region.id, leader=leader))


def epoch_not_match(regions: Sequence[Region]) -> cdcpb.Error:
    return cdcpb.Error(epoch_not_match=errorpb.EpochNotMatch(current_regions=[region.message for region in regions]))


def congested(region_id: int) -> cdcpb.Error:
    return cdcpb.Error(congested=cdcpb.Congested(region_id=region_id))


def push_event(connection: CdcConnection, event: cdcpb.Event) -> None:
    frame = events.framed_event(event.SerializeToString())
    connection.push(Frames(len(frame), [frame]))


def push_resolved(connection: CdcConnection, by_request: Mapping[int, list[tuple[int, int]]]) -> None:
    """Tells (resolved-ts, region) of each request, in the form that the client understands.

    See docs/design/tikv.md, Streams.

    Without multiplexing a region that is registered twice is told once, with the lower ts.
    """
    if connection.batches_resolved and connection.multiplexing:
        for request_id, resolved in by_request.items():
            push_batches(connection, request_id, resolved)
    elif connection.batches_resolved:
        lowest: dict[int, int] = {}
        for ts, region_id in (pair for resolved in by_request.values() for pair in resolved):
            lowest[region_id] = min(ts, lowest.get(region_id, ts))
        push_batches(connection, 0, [(ts, region_id) for region_id, ts in lowest.items()])
    elif not connection.multiplexing:
        for request_id, resolved in by_request.items():
            for ts, region_id in resolved:
                push_event(connection, cdcpb.Event(region_id=region_id, request_id=request_id, resolved_ts=ts))


def push_batches(connection: CdcConnection, request_id: int, resolved: list[tuple[int, int]]) -> None:
    """Slowest regions first, in groups of 8, 32, 128, 128, …; a group's ts is its lowest.

    See docs/design/tikv.md, Events.
    """
    waiting = sorted(resolved)
    size = _FIRST_RESOLVED_GROUP
    while waiting:
        group, waiting = waiting[:size], waiting[size:]
        size = min(size * 4, _RESOLVED_GROUP)
        batch = cdcpb.ResolvedTs(regions=[region_id for _, region_id in group], ts=group[0][0], request_id=request_id)
        body = cdcpb.ChangeDataEvent(resolved_ts=batch).SerializeToString()
        connection.push(QueuedEvent(len(body), body))
