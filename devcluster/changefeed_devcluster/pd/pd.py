"""The placement driver over gRPC: members, TSO, regions, stores, safepoints (docs/design/tikv.md, PD).

Every call but GetMembers and GetClusterInfo checks the cluster id as the real one does. Keys here are encoded ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb
from google.protobuf.message import Message

from .heartbeats import Heartbeats
from .oracle import LOGICAL_BITS, Oracle
from .regions import Region, Regions
from .safepoints import GC_WORKER, NEVER, SafePoints, ServiceSafePoint

VERSION = "8.5.3"
_POLL_S = 0.003

Context = grpc.aio.ServicerContext[Any, Any]


class _RequestWithHeader(Protocol):
    @property
    def header(self) -> pdpb.RequestHeader: ...


class PlacementDriver:
    """`url` and `stores` are filled in when the ports are bound. While it `is_frozen`, it answers nothing."""

    def __init__(
        self,
        cluster_id: int,
        oracle: Oracle,
        regions: Regions,
        safepoints: SafePoints,
        is_frozen: Callable[[], bool],
    ) -> None:
        self.cluster_id = cluster_id
        self.url = ""
        self.stores: list[metapb.Store] = []
        self._oracle = oracle
        self._regions = regions
        self._safepoints = safepoints
        self._is_frozen = is_frozen
        self.heartbeats = Heartbeats()

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Tso": grpc.stream_stream_rpc_method_handler(
                self._tso,
                request_deserializer=pdpb.TsoRequest.FromString,
                response_serializer=pdpb.TsoResponse.SerializeToString,
            ),
            "GetMembers": _unary(self._thawed(self._get_members), pdpb.GetMembersRequest),
            "GetClusterInfo": _unary(self._thawed(self._get_cluster_info), pdpb.GetClusterInfoRequest),
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
            ("ScatterRegion", pdpb.ScatterRegionRequest, self._scatter_region),
            ("GetOperator", pdpb.GetOperatorRequest, self._get_operator),
        ]
        if self._safepoints.knows_barriers:
            checked += [
                ("GetGCState", pdpb.GetGCStateRequest, self._get_gc_state),
                ("SetGCBarrier", pdpb.SetGCBarrierRequest, self._set_gc_barrier),
                ("DeleteGCBarrier", pdpb.DeleteGCBarrierRequest, self._delete_gc_barrier),
                ("AdvanceTxnSafePoint", pdpb.AdvanceTxnSafePointRequest, self._advance_txn_safe_point),
                ("AdvanceGCSafePoint", pdpb.AdvanceGCSafePointRequest, self._advance_gc_safe_point),
            ]
        for name, request, behaviour in checked:
            methods[name] = _unary(self._checked(behaviour), request)
        return grpc.method_handlers_generic_handler("pdpb.PD", methods)

    def _checked(
        self, behaviour: Callable[[Any], Message]
    ) -> Callable[[_RequestWithHeader, Context], Awaitable[Message]]:
        async def call(request: _RequestWithHeader, context: Context) -> Message:
            await self._thaw()
            await self._check_cluster(request, context)
            try:
                return behaviour(request)
            except ValueError as error:  # what PD has no error of a header for
                await context.abort(grpc.StatusCode.UNKNOWN, str(error))

        return call

    def _thawed(self, behaviour: Callable[[Any], Message]) -> Callable[[Any, Context], Awaitable[Message]]:
        async def call(request: Any, context: Context) -> Message:
            await self._thaw()
            return behaviour(request)

        return call

    async def _thaw(self) -> None:
        while self._is_frozen():  # noqa: ASYNC110 - any thread ends it
            await asyncio.sleep(_POLL_S)

    async def _check_cluster(self, request: _RequestWithHeader, context: Context) -> None:
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

    def _get_members(self, request: pdpb.GetMembersRequest) -> Message:
        urls = [self.url]
        member = pdpb.Member(name="pd-0", member_id=1, peer_urls=urls, client_urls=urls, binary_version=f"v{VERSION}")
        return pdpb.GetMembersResponse(header=self._header(), members=[member], leader=member, etcd_leader=member)

    def _get_cluster_info(self, request: pdpb.GetClusterInfoRequest) -> Message:
        return pdpb.GetClusterInfoResponse(header=self._header(), serviceModes=[pdpb.PD_SVC_MODE])

    async def _tso(self, requests: AsyncIterator[pdpb.TsoRequest], context: Context) -> AsyncIterator[pdpb.TsoResponse]:
        async for request in requests:
            await self._thaw()
            await self._check_cluster(request, context)
            try:
                ts = self._oracle.allocate(request.count)
            except ValueError as error:
                await context.abort(grpc.StatusCode.UNKNOWN, str(error))
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
        return pdpb.GetRegionResponse(header=self._header(), region=region.message, leader=self._leader(region))

    def _leader(self, region: Region) -> metapb.Peer | None:
        return region.leader if self.heartbeats.knows(region) else None

    def _scan_regions(self, request: pdpb.ScanRegionsRequest) -> Message:
        found = self._regions.scan_encoded(request.start_key, request.end_key, request.limit)
        return pdpb.ScanRegionsResponse(
            header=self._header(),
            region_metas=[region.message for region in found],
            leaders=[self._leader(region) or metapb.Peer() for region in found],
            regions=self._region_messages(found),
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
            header=self._header(), regions=self._region_messages(list(found.values())[:limit])
        )

    def _region_messages(self, regions: Sequence[Region]) -> list[pdpb.Region]:
        return [pdpb.Region(region=region.message, leader=self._leader(region)) for region in regions]

    def _scatter_region(self, request: pdpb.ScatterRegionRequest) -> Message:
        """Leaders move at once; peers stay, as every store has one of each region."""
        for region_id in request.regions_id or [request.region_id]:
            if self._regions.get(region_id) is not None:
                self._regions.scatter(region_id)
        return pdpb.ScatterRegionResponse(header=self._header(), finished_percentage=100)

    def _get_operator(self, request: pdpb.GetOperatorRequest) -> Message:
        """There is never an operator under way, which PD tells so."""
        header = self._header(pdpb.REGION_NOT_FOUND, f"no operator of region {request.region_id}")
        return pdpb.GetOperatorResponse(header=header)

    # --- safepoints ---

    def _get_gc_safe_point(self, request: pdpb.GetGCSafePointRequest) -> Message:
        return pdpb.GetGCSafePointResponse(header=self._header(), safe_point=self._safepoints.gc_safe_point)

    def _update_gc_safe_point(self, request: pdpb.UpdateGCSafePointRequest) -> Message:
        self._check_gc_safe_point(request.safe_point)
        self._safepoints.advance_gc(request.safe_point)
        return pdpb.UpdateGCSafePointResponse(header=self._header(), new_safe_point=self._safepoints.gc_safe_point)

    def _update_service_safe_point(self, request: pdpb.UpdateServiceGCSafePointRequest) -> Message:
        if not request.service_id:
            raise ValueError("service id of service safepoint cannot be empty")
        if request.service_id == GC_WORKER and request.TTL != NEVER:
            raise ValueError("TTL of gc_worker's service safe point must be infinity")
        now = int(time.time())
        told = self._safepoints.update(request.service_id, request.TTL, request.safe_point, now)
        return pdpb.UpdateServiceGCSafePointResponse(
            header=self._header(), service_id=told.service_id, TTL=_ttl(told, now), min_safe_point=told.safe_point
        )

    def _get_gc_state(self, request: pdpb.GetGCStateRequest) -> Message:
        now = int(time.time())
        barriers = () if request.exclude_gc_barriers else self._safepoints.barriers
        state = pdpb.GCState(
            keyspace_scope=request.keyspace_scope,
            txn_safe_point=self._safepoints.transaction_safe_point,
            gc_safe_point=self._safepoints.gc_safe_point,
            gc_barriers=[_barrier(hold, now) for hold in barriers],
        )
        return pdpb.GetGCStateResponse(header=self._header(), gc_state=state)

    def _set_gc_barrier(self, request: pdpb.SetGCBarrierRequest) -> Message:
        now = int(time.time())
        name = request.barrier_id.encode()
        try:
            hold = self._safepoints.set_barrier(name, request.ttl_seconds, request.barrier_ts, now)
        except ValueError as error:
            return pdpb.SetGCBarrierResponse(header=self._header(pdpb.UNKNOWN, str(error)))
        return pdpb.SetGCBarrierResponse(header=self._header(), new_barrier_info=_barrier(hold, now))

    def _delete_gc_barrier(self, request: pdpb.DeleteGCBarrierRequest) -> Message:
        hold = self._safepoints.remove(request.barrier_id.encode())
        gone = _barrier(hold, int(time.time())) if hold else None
        return pdpb.DeleteGCBarrierResponse(header=self._header(), deleted_barrier_info=gone)

    def _advance_txn_safe_point(self, request: pdpb.AdvanceTxnSafePointRequest) -> Message:
        old = self._safepoints.transaction_safe_point
        try:
            stopped = self._safepoints.advance_transactions(request.target, int(time.time()))
        except ValueError as error:
            return pdpb.AdvanceTxnSafePointResponse(header=self._header(pdpb.UNKNOWN, str(error)))
        blocker = "" if stopped.service_id == GC_WORKER else f"BarrierID: {stopped.service_id.decode()!r}"
        return pdpb.AdvanceTxnSafePointResponse(
            header=self._header(),
            old_txn_safe_point=old,
            new_txn_safe_point=self._safepoints.transaction_safe_point,
            blocker_description=blocker and f"{blocker}, BarrierTS: {stopped.safe_point}",
        )

    def _advance_gc_safe_point(self, request: pdpb.AdvanceGCSafePointRequest) -> Message:
        old = self._safepoints.gc_safe_point
        try:
            self._check_gc_safe_point(request.target)
            if request.target < old:
                raise ValueError(f"ErrDecreasingGCSafePoint: {request.target} is below the GC safepoint {old}")
        except ValueError as error:
            return pdpb.AdvanceGCSafePointResponse(header=self._header(pdpb.UNKNOWN, str(error)))
        self._safepoints.advance_gc(request.target)
        return pdpb.AdvanceGCSafePointResponse(
            header=self._header(), old_gc_safe_point=old, new_gc_safe_point=self._safepoints.gc_safe_point
        )

    def _check_gc_safe_point(self, target: int) -> None:
        reached = self._safepoints.transaction_safe_point
        if self._safepoints.knows_barriers and target > reached:
            why = f"{target} is above the transaction safepoint {reached}"
            raise ValueError(f"ErrGCSafePointExceedsTxnSafePoint: {why}")


def _barrier(hold: ServiceSafePoint, now: int) -> pdpb.GCBarrierInfo:
    return pdpb.GCBarrierInfo(
        barrier_id=hold.service_id.decode(), barrier_ts=hold.safe_point, ttl_seconds=_ttl(hold, now)
    )


def _ttl(hold: ServiceSafePoint, now: int) -> int:
    return NEVER if hold.expires_at == NEVER else max(hold.expires_at - now, 0)


def _unary(
    behaviour: Callable[[Any, Context], Awaitable[Message]], request: type[Message]
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def _wrong_ranges(ranges: Sequence[pdpb.KeyRange]) -> str:
    """Return what PD says to ranges that are reversed, unordered or overlapping; empty when they are right."""
    end: bytes | None = b""
    for index, key_range in enumerate(ranges):
        if key_range.end_key and key_range.start_key > key_range.end_key:
            return f"invalid key range, start key of the {index}-th range is above its end key"
        if end is None or key_range.start_key < end:
            return f"invalid key range, the {index}-th range overlaps the one before"
        end = key_range.end_key or None
    return ""
