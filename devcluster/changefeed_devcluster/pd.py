"""The placement driver over gRPC: members, TSO, regions, stores, safepoints (facts, tikv-wire 1.1-1.9).

Every call but GetMembers and GetClusterInfo checks the cluster id as the real one does. Keys here are encoded ones.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb
from google.protobuf.message import Message

from .journal import Journal, Record
from .oracle import LOGICAL_BITS, Oracle
from .regions import Region, Regions
from .safepoints import SafePoints

VERSION = "8.5.3"

Context = grpc.aio.ServicerContext[Any, Any]


class _Request(Protocol):
    @property
    def header(self) -> pdpb.RequestHeader: ...


class PlacementDriver:
    """`members` is filled in when the port is bound. `stores` the same."""

    def __init__(
        self,
        cluster_id: int,
        oracle: Oracle,
        regions: Regions,
        safepoints: SafePoints,
        gc_safe_point: int,
        journal: Journal | None,
    ) -> None:
        self.cluster_id = cluster_id
        self.address = ""
        self.stores: list[metapb.Store] = []
        self._oracle = oracle
        self._regions = regions
        self._safepoints = safepoints
        self._gc_safe_point = gc_safe_point
        self._journal = journal

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Tso": grpc.stream_stream_rpc_method_handler(
                self._tso,
                request_deserializer=pdpb.TsoRequest.FromString,
                response_serializer=pdpb.TsoResponse.SerializeToString,
            ),
            "GetMembers": _unary(self._get_members, pdpb.GetMembersRequest),
            "GetClusterInfo": _unary(self._get_cluster_info, pdpb.GetClusterInfoRequest),
        }
        checked: list[tuple[str, type[Message], Callable[[Any], Message]]] = [
            ("IsBootstrapped", pdpb.IsBootstrappedRequest, self._is_bootstrapped),
            ("AllocID", pdpb.AllocIDRequest, self._alloc_id),
            ("GetStore", pdpb.GetStoreRequest, self._get_store),
            ("GetAllStores", pdpb.GetAllStoresRequest, self._get_all_stores),
            ("GetRegion", pdpb.GetRegionRequest, self._get_region),
            ("GetPrevRegion", pdpb.GetRegionRequest, self._get_prev_region),
            ("GetRegionByID", pdpb.GetRegionByIDRequest, self._get_region_by_id),
            ("ScanRegions", pdpb.ScanRegionsRequest, self._scan_regions),
            ("BatchScanRegions", pdpb.BatchScanRegionsRequest, self._batch_scan_regions),
            ("GetClusterConfig", pdpb.GetClusterConfigRequest, self._get_cluster_config),
            ("GetGCSafePoint", pdpb.GetGCSafePointRequest, self._get_gc_safe_point),
            ("UpdateGCSafePoint", pdpb.UpdateGCSafePointRequest, self._update_gc_safe_point),
            ("UpdateServiceGCSafePoint", pdpb.UpdateServiceGCSafePointRequest, self._update_service_safe_point),
        ]
        for name, request, behaviour in checked:
            methods[name] = _unary(self._checked(behaviour), request)
        return grpc.method_handlers_generic_handler("pdpb.PD", methods)

    def _checked(self, behaviour: Callable[[Any], Message]) -> Callable[[_Request, Context], Awaitable[Message]]:
        async def call(request: _Request, context: Context) -> Message:
            await self._check_cluster(request, context)
            return behaviour(request)

        return call

    async def _check_cluster(self, request: _Request, context: Context) -> None:
        got = request.header.cluster_id
        if got != self.cluster_id:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"mismatch cluster id, need {self.cluster_id} but got {got}"
            )

    def _header(self, error: pdpb.ErrorType = pdpb.OK, message: str = "") -> pdpb.ResponseHeader:
        header = pdpb.ResponseHeader(cluster_id=self.cluster_id)
        if error != pdpb.OK:
            header.error.type = error
            header.error.message = message
        return header

    # --- members and time ---

    async def _get_members(self, request: pdpb.GetMembersRequest, context: Context) -> pdpb.GetMembersResponse:
        url = f"http://{self.address}"
        member = pdpb.Member(name="pd-0", member_id=1, peer_urls=[url], client_urls=[url], binary_version=f"v{VERSION}")
        return pdpb.GetMembersResponse(header=self._header(), members=[member], leader=member, etcd_leader=member)

    async def _get_cluster_info(
        self, request: pdpb.GetClusterInfoRequest, context: Context
    ) -> pdpb.GetClusterInfoResponse:
        return pdpb.GetClusterInfoResponse(header=self._header(), serviceModes=[pdpb.PD_SVC_MODE])

    async def _tso(self, requests: AsyncIterator[pdpb.TsoRequest], context: Context) -> AsyncIterator[pdpb.TsoResponse]:
        async for request in requests:
            await self._check_cluster(request, context)
            try:
                ts = self._oracle.allocate(request.count)
            except ValueError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            yield pdpb.TsoResponse(
                header=self._header(),
                count=request.count,
                timestamp=pdpb.Timestamp(physical=ts >> LOGICAL_BITS, logical=ts & ((1 << LOGICAL_BITS) - 1)),
            )

    def _is_bootstrapped(self, request: pdpb.IsBootstrappedRequest) -> Message:
        return pdpb.IsBootstrappedResponse(header=self._header(), bootstrapped=True)

    def _alloc_id(self, request: pdpb.AllocIDRequest) -> Message:
        count = max(1, request.count)
        return pdpb.AllocIDResponse(header=self._header(), id=self._regions.alloc_id(count), count=count)

    # --- stores ---

    def _get_store(self, request: pdpb.GetStoreRequest) -> Message:
        for store in self.stores:
            if store.id == request.store_id:
                return pdpb.GetStoreResponse(header=self._header(), store=store)
        message = f"invalid store ID {request.store_id}, not found"
        return pdpb.GetStoreResponse(header=self._header(pdpb.UNKNOWN, message))

    def _get_all_stores(self, request: pdpb.GetAllStoresRequest) -> Message:
        return pdpb.GetAllStoresResponse(header=self._header(), stores=self.stores)

    def _get_cluster_config(self, request: pdpb.GetClusterConfigRequest) -> Message:
        cluster = metapb.Cluster(id=self.cluster_id, max_peer_count=len(self.stores))
        return pdpb.GetClusterConfigResponse(header=self._header(), cluster=cluster)

    # --- regions ---

    def _get_region(self, request: pdpb.GetRegionRequest) -> Message:
        return self._region_response(self._regions.scan_encoded(request.region_key, b"", 1)[0])

    def _get_prev_region(self, request: pdpb.GetRegionRequest) -> Message:
        return self._region_response(self._regions.before_encoded(request.region_key))

    def _get_region_by_id(self, request: pdpb.GetRegionByIDRequest) -> Message:
        return self._region_response(self._regions.get(request.region_id))

    def _region_response(self, region: Region | None) -> pdpb.GetRegionResponse:
        if region is None:
            return pdpb.GetRegionResponse(header=self._header())
        return pdpb.GetRegionResponse(header=self._header(), region=region.message, leader=region.leader)

    def _scan_regions(self, request: pdpb.ScanRegionsRequest) -> Message:
        found = self._regions.scan_encoded(request.start_key, request.end_key, request.limit)
        return pdpb.ScanRegionsResponse(
            header=self._header(),
            region_metas=[region.message for region in found],
            leaders=[region.leader for region in found],
            regions=_region_messages(found),
        )

    def _batch_scan_regions(self, request: pdpb.BatchScanRegionsRequest) -> Message:
        wrong = _wrong_ranges(request.ranges)
        if wrong:
            return pdpb.BatchScanRegionsResponse(header=self._header(pdpb.UNKNOWN, wrong))
        found: dict[int, Region] = {}
        for key_range in request.ranges:
            for region in self._regions.scan_encoded(key_range.start_key, key_range.end_key, 0):
                found[region.id] = region
        limit = request.limit if request.limit > 0 else len(found)
        return pdpb.BatchScanRegionsResponse(
            header=self._header(), regions=_region_messages(list(found.values())[:limit])
        )

    # --- safepoints ---

    def _get_gc_safe_point(self, request: pdpb.GetGCSafePointRequest) -> Message:
        return pdpb.GetGCSafePointResponse(header=self._header(), safe_point=self._gc_safe_point)

    def _update_gc_safe_point(self, request: pdpb.UpdateGCSafePointRequest) -> Message:
        if request.safe_point > self._gc_safe_point:
            self._gc_safe_point = request.safe_point
            if self._journal:
                self._journal.append(Record.GC_SAFEPOINT, pdpb.UpdateGCSafePointRequest(safe_point=request.safe_point))
        return pdpb.UpdateGCSafePointResponse(header=self._header(), new_safe_point=self._gc_safe_point)

    def _update_service_safe_point(self, request: pdpb.UpdateServiceGCSafePointRequest) -> Message:
        now = int(time.time())
        lowest = self._safepoints.update(request.service_id, request.TTL, request.safe_point, now)
        return pdpb.UpdateServiceGCSafePointResponse(
            header=self._header(),
            service_id=lowest.service_id,
            TTL=lowest.expires_at - now,
            min_safe_point=lowest.safe_point,
        )


def _unary(
    behaviour: Callable[[Any, Context], Awaitable[Message]], request: type[Message]
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def _region_messages(regions: Sequence[Region]) -> list[pdpb.Region]:
    return [pdpb.Region(region=region.message, leader=region.leader) for region in regions]


def _wrong_ranges(ranges: Sequence[pdpb.KeyRange]) -> str:
    """What PD says to ranges that are reversed, unordered or overlapping; empty when they are right."""
    end: bytes | None = b""
    for index, key_range in enumerate(ranges):
        if key_range.end_key and key_range.start_key > key_range.end_key:
            return f"invalid key range, start key of the {index}-th range is above its end key"
        if end is None or key_range.start_key < end:
            return f"invalid key range, the {index}-th range overlaps the one before"
        end = key_range.end_key or None
    return ""
