"""Calls to PD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from changefeed.model.tso import MAX_TS
from changefeed.upstream.tikv.client.requests.arguments import Arguments
from changefeed.wire import pdpb_pb2

MOST_REGIONS = 1024
#: A millisecond of PD's clock has 262,144 timestamps; a larger request than that can't be answered.
MOST_TIMESTAMPS = 10_000
_LONGEST_HOLD_S = (1 << 31) - 1
#: Its safepoint is GC's own, and moves it.
_GC_WORKER = "gc_worker"


class _PdMessage(Protocol):
    def SerializeToString(self) -> bytes: ...


class HasHeader(Protocol):
    header: pdpb_pb2.ResponseHeader

    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...


Response = TypeVar("Response", bound=HasHeader)


@dataclass(frozen=True)
class PdRequest(Generic[Response]):
    """A unary call."""

    method: str
    message: _PdMessage
    response: type[Response]


def members() -> PdRequest[pdpb_pb2.GetMembersResponse]:
    """Ask for the members of whatever cluster answers: the one call that names none."""
    message = pdpb_pb2.GetMembersRequest(header=pdpb_pb2.RequestHeader())
    return PdRequest("GetMembers", message, pdpb_pb2.GetMembersResponse)


def timestamps(cluster_id: int, count: int) -> pdpb_pb2.TsoRequest:
    """A message of the Tso stream."""
    arguments = Arguments("Tso")
    arguments.between("count", count, 1, MOST_TIMESTAMPS)
    return pdpb_pb2.TsoRequest(header=_header(arguments, cluster_id), count=count)


def regions(cluster_id: int, start: bytes, end: bytes) -> PdRequest[pdpb_pb2.ScanRegionsResponse]:
    """The first MOST_REGIONS of a range of ENCODED keys, as PD has them; b"" is minus or plus infinity."""
    arguments = Arguments("ScanRegions")
    arguments.range(start, end)
    message = pdpb_pb2.ScanRegionsRequest(
        header=_header(arguments, cluster_id), start_key=start, end_key=end, limit=MOST_REGIONS
    )
    return PdRequest("ScanRegions", message, pdpb_pb2.ScanRegionsResponse)


def store(cluster_id: int, store_id: int) -> PdRequest[pdpb_pb2.GetStoreResponse]:
    arguments = Arguments("GetStore")
    arguments.numbers(store_id=store_id)
    message = pdpb_pb2.GetStoreRequest(header=_header(arguments, cluster_id), store_id=store_id)
    return PdRequest("GetStore", message, pdpb_pb2.GetStoreResponse)


def safepoint(
    cluster_id: int, service_id: str, ttl_seconds: int, safe_point: int
) -> PdRequest[pdpb_pb2.UpdateServiceGCSafePointResponse]:
    """Set a service's safepoint for `ttl_seconds`."""
    arguments = Arguments("UpdateServiceGCSafePoint")
    arguments.between("TTL", ttl_seconds, 1, _LONGEST_HOLD_S)
    arguments.between("safe_point", safe_point, 0, MAX_TS - 1)
    return _safepoint(arguments, cluster_id, service_id, ttl_seconds, safe_point)


def no_safepoint(cluster_id: int, service_id: str) -> PdRequest[pdpb_pb2.UpdateServiceGCSafePointResponse]:
    """Remove a service's safepoint."""
    return _safepoint(Arguments("UpdateServiceGCSafePoint"), cluster_id, service_id, 0, MAX_TS)


def _safepoint(
    arguments: Arguments, cluster_id: int, service_id: str, ttl_seconds: int, safe_point: int
) -> PdRequest[pdpb_pb2.UpdateServiceGCSafePointResponse]:
    arguments.need(service_id not in ("", _GC_WORKER), "service_id", service_id, "be a name of our own")
    message = pdpb_pb2.UpdateServiceGCSafePointRequest(
        header=_header(arguments, cluster_id), service_id=service_id.encode(), TTL=ttl_seconds, safe_point=safe_point
    )
    return PdRequest("UpdateServiceGCSafePoint", message, pdpb_pb2.UpdateServiceGCSafePointResponse)


def gc_safepoint(cluster_id: int) -> PdRequest[pdpb_pb2.GetGCSafePointResponse]:
    message = pdpb_pb2.GetGCSafePointRequest(header=_header(Arguments("GetGCSafePoint"), cluster_id))
    return PdRequest("GetGCSafePoint", message, pdpb_pb2.GetGCSafePointResponse)


def gc_state(cluster_id: int) -> PdRequest[pdpb_pb2.GetGCStateResponse]:
    message = pdpb_pb2.GetGCStateRequest(header=_header(Arguments("GetGCState"), cluster_id))
    return PdRequest("GetGCState", message, pdpb_pb2.GetGCStateResponse)


def _header(arguments: Arguments, cluster_id: int) -> pdpb_pb2.RequestHeader:
    arguments.numbers(cluster_id=cluster_id)
    return pdpb_pb2.RequestHeader(cluster_id=cluster_id)
