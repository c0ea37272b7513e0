"""Whether a call has come to the right store and region: the region errors of every KvXxx call.

See docs/design/tikv.md, Region errors.
"""

from __future__ import annotations

from collections.abc import Iterable

from changefeed.wire import errorpb_pb2 as errorpb
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed.wire import metapb_pb2 as metapb

from ..codec import encode_bytes
from ..pd.regions import Region, Regions


class RegionMismatch(Exception):
    """The request's context does not fit the layout; `error` is what the client is told."""

    def __init__(self, error: errorpb.Error) -> None:
        super().__init__(error.message)
        self.error = error


def find_region(
    regions: Regions, store_id: int, context: kvrpcpb.Context, keys: Iterable[bytes], any_peer: bool = False
) -> Region:
    """The region asked for, when this store leads it and it holds the keys. Raises RegionMismatch, in TiKV's order.

    `any_peer`: the store need not lead it.
    """
    if context.peer.store_id != store_id:
        mismatch = errorpb.StoreNotMatch(request_store_id=context.peer.store_id, actual_store_id=store_id)
        raise RegionMismatch(errorpb.Error(message="store not match", store_not_match=mismatch))
    region = regions.get(context.region_id)
    if region is None or not region.has_peer_on(store_id):
        missing = errorpb.RegionNotFound(region_id=context.region_id)
        raise RegionMismatch(errorpb.Error(message=f"region {context.region_id} not found", region_not_found=missing))
    if region.leader_store != store_id and not any_peer:
        moved = errorpb.NotLeader(region_id=region.id, leader=regions.living_leader(region))
        raise RegionMismatch(errorpb.Error(message=f"region {region.id} is led elsewhere", not_leader=moved))
    peer_id = region.peer_on(store_id)
    if context.peer.id != peer_id:
        other = errorpb.MismatchPeerId(request_peer_id=context.peer.id, store_peer_id=peer_id)
        raise RegionMismatch(errorpb.Error(message=f"peer of region {region.id} changed", mismatch_peer_id=other))
    if context.region_epoch.version != region.version:  # conf_ver says nothing about keys: it is not looked at
        changed = errorpb.EpochNotMatch(current_regions=_current_regions(regions, region))
        raise RegionMismatch(errorpb.Error(message=f"epoch of region {region.id} changed", epoch_not_match=changed))
    for key in keys:
        if not region.contains(key):
            outside = errorpb.KeyNotInRegion(
                key=encode_bytes(key),
                region_id=region.id,
                start_key=region.message.start_key,
                end_key=region.message.end_key,
            )
            text = f"key {key.hex()} is not in region {region.id}"
            raise RegionMismatch(errorpb.Error(message=text, key_not_in_region=outside))
    return region


class OutOfRegion(Exception):
    """A read asks for keys that the region does not hold."""


def whole(region: Region, start: bytes, end: bytes) -> tuple[bytes, bytes]:
    """The range [start, end) of a read; an empty end is the region's. Raises OutOfRegion if it leaves the region."""
    if start < region.start or (region.end and end > region.end) or (region.end and start >= region.end):
        borders = f"[{region.start.hex()}, {region.end.hex()})"
        raise OutOfRegion(f"request range [{start.hex()}, {end.hex()}) is out of region {region.id} {borders}")
    return start, end or region.end


def clip(region: Region, start: bytes, end: bytes) -> tuple[bytes, bytes]:
    """The part of [start, end) that lies in the region."""
    ends = [bound for bound in (end, region.end) if bound]
    return max(start, region.start), min(ends) if ends else b""


def _current_regions(regions: Regions, region: Region) -> list[metapb.Region]:
    """The region and its left neighbour, which a split may have cut off from it."""
    left = regions.before_encoded(region.message.start_key) if region.start else None
    return [found.message for found in (region, left) if found is not None]
