"""A scripted PD and TiKV on one loopback port: they answer what a test puts in, and nothing more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio
from changefeed.upstream.tikv.tidb.memcomparable import encode_bytes
from changefeed.wire import kvrpcpb_pb2, metapb_pb2, pdpb_pb2

CLUSTER = 7300000000000000001
KV_REQUESTS = {
    "KvGet": kvrpcpb_pb2.GetRequest,
    "KvScan": kvrpcpb_pb2.ScanRequest,
    "KvCheckTxnStatus": kvrpcpb_pb2.CheckTxnStatusRequest,
    "KvCheckSecondaryLocks": kvrpcpb_pb2.CheckSecondaryLocksRequest,
    "KvResolveLock": kvrpcpb_pb2.ResolveLockRequest,
    "KvScanLock": kvrpcpb_pb2.ScanLockRequest,
    "KVPessimisticRollback": kvrpcpb_pb2.PessimisticRollbackRequest,
}


def region(
    number: int, start: bytes, end: bytes, store: int = 1, version: int = 1, leader: bool = True
) -> pdpb_pb2.Region:
    """Raw bounds; b"" is unbounded."""
    meta = metapb_pb2.Region(
        id=number,
        start_key=encode_bytes(start) if start else b"",
        end_key=encode_bytes(end) if end else b"",
        region_epoch=metapb_pb2.RegionEpoch(conf_ver=1, version=version),
    )
    return pdpb_pb2.Region(region=meta, leader=metapb_pb2.Peer(id=number * 10, store_id=store) if leader else None)


@dataclass
class FakeCluster:
    """`regions`: what each ScanRegions call answers, the last one for ever. `kv`: by method, a reply to a request."""

    cluster_id: int = CLUSTER
    address: str = ""
    leader_url: str | None = None  # None: itself
    is_leader: bool = True
    physical: int = 1000
    logical: int = 0
    break_tso: int = 0  # cut the stream instead of the next n answers
    tso_counts: list[int] = field(default_factory=list)
    tso_streams: int = 0
    regions: list[list[pdpb_pb2.Region]] = field(default_factory=lambda: [[region(1, b"", b"")]])
    scans: list[tuple[bytes, bytes]] = field(default_factory=list)
    store_asks: int = 0
    txn_safe_point: int = 0  # how far GC has told that it will go: no service gets a safepoint below it
    answers_txn_safe_point: bool = False  # as PD does since it has GC barriers; before: the services' least
    gc_safe_point: int = 0
    gc_calls: tuple[str, ...] = ("GetGCSafePoint",)  # of the two, those that it knows
    barriers: list[pdpb_pb2.GCBarrierInfo] = field(default_factory=list)
    safepoints: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    kv: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    kept_out: str = ""  # why calls of the store are refused
    kv_calls: list[tuple[str, Any]] = field(default_factory=list)

    def header(self) -> pdpb_pb2.ResponseHeader:
        return pdpb_pb2.ResponseHeader(cluster_id=self.cluster_id)

    async def check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if not self.is_leader:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not leader")
        if request.header.cluster_id != self.cluster_id:
            need, got = self.cluster_id, request.header.cluster_id
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"mismatch cluster id, need {need} but got {got}")

    async def get_members(self, request: Any, context: Any) -> pdpb_pb2.GetMembersResponse:
        url = f"http://{self.address}" if self.leader_url is None else self.leader_url
        leader = pdpb_pb2.Member(client_urls=[url]) if url else None
        return pdpb_pb2.GetMembersResponse(header=self.header(), leader=leader, members=[leader] if leader else [])

    async def tso(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[pdpb_pb2.TsoResponse]:
        self.tso_streams += 1
        async for request in requests:
            await self.check(request, context)
            if self.break_tso:
                self.break_tso -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "transport is closing")
            self.tso_counts.append(request.count)
            self.logical += request.count
            stamp = pdpb_pb2.Timestamp(physical=self.physical, logical=self.logical)
            yield pdpb_pb2.TsoResponse(header=self.header(), count=request.count, timestamp=stamp)

    async def scan_regions(self, request: Any, context: Any) -> pdpb_pb2.ScanRegionsResponse:
        await self.check(request, context)
        self.scans.append((request.start_key, request.end_key))
        answer = self.regions.pop(0) if len(self.regions) > 1 else self.regions[0]
        wanted = [
            r
            for r in answer
            if (not r.region.end_key or r.region.end_key > request.start_key)
            and (not request.end_key or r.region.start_key < request.end_key)
        ]
        return pdpb_pb2.ScanRegionsResponse(header=self.header(), regions=wanted[: request.limit])

    async def get_store(self, request: Any, context: Any) -> pdpb_pb2.GetStoreResponse:
        await self.check(request, context)
        self.store_asks += 1
        if request.store_id == 99:
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message="invalid store ID 99, not found")
            return pdpb_pb2.GetStoreResponse(header=pdpb_pb2.ResponseHeader(cluster_id=self.cluster_id, error=error))
        store = metapb_pb2.Store(id=request.store_id, address=self.address)
        return pdpb_pb2.GetStoreResponse(header=self.header(), store=store)

    async def safepoint(self, request: Any, context: Any) -> pdpb_pb2.UpdateServiceGCSafePointResponse:
        await self.check(request, context)
        if request.TTL <= 0:
            self.safepoints.pop(request.service_id, None)
        elif request.safe_point >= self.txn_safe_point:
            self.safepoints[request.service_id] = (request.safe_point, request.TTL)
        answer, service = self.txn_safe_point, b"gc_worker"
        if not self.answers_txn_safe_point:
            services = {b"gc_worker": self.txn_safe_point} if self.txn_safe_point else {}
            services |= {name: ts for name, (ts, _) in self.safepoints.items()}
            service, answer = min(services.items(), key=lambda each: each[1], default=(b"", 0))
        return pdpb_pb2.UpdateServiceGCSafePointResponse(
            header=self.header(), service_id=service, min_safe_point=answer
        )

    async def gc_safepoint(self, request: Any, context: Any) -> pdpb_pb2.GetGCSafePointResponse:
        await self.check(request, context)
        return pdpb_pb2.GetGCSafePointResponse(header=self.header(), safe_point=self.gc_safe_point)

    async def gc_state(self, request: Any, context: Any) -> pdpb_pb2.GetGCStateResponse:
        await self.check(request, context)
        state = pdpb_pb2.GCState(
            txn_safe_point=self.gc_safe_point + 1, gc_safe_point=self.gc_safe_point, gc_barriers=self.barriers
        )
        return pdpb_pb2.GetGCStateResponse(header=self.header(), gc_state=state)

    async def gc_call(self, method: str, request: Any, context: Any) -> Any:
        if method not in self.gc_calls:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        return await (self.gc_safepoint if method == "GetGCSafePoint" else self.gc_state)(request, context)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        def unary(call: Any, request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(call, request.FromString, lambda m: m.SerializeToString())

        def kv(method: str) -> Any:
            async def answer(request: Any, context: Any) -> Any:
                self.kv_calls.append((method, request))
                if self.kept_out:
                    await context.abort(grpc.StatusCode.UNAUTHENTICATED, self.kept_out)
                reply = self.kv[method](request)
                return await reply if isinstance(reply, Awaitable) else reply

            return answer

        pd = {
            "GetMembers": unary(self.get_members, pdpb_pb2.GetMembersRequest),
            "ScanRegions": unary(self.scan_regions, pdpb_pb2.ScanRegionsRequest),
            "GetStore": unary(self.get_store, pdpb_pb2.GetStoreRequest),
            "UpdateServiceGCSafePoint": unary(self.safepoint, pdpb_pb2.UpdateServiceGCSafePointRequest),
            "GetGCSafePoint": unary(partial(self.gc_call, "GetGCSafePoint"), pdpb_pb2.GetGCSafePointRequest),
            "GetGCState": unary(partial(self.gc_call, "GetGCState"), pdpb_pb2.GetGCStateRequest),
            "Tso": grpc.stream_stream_rpc_method_handler(
                self.tso, pdpb_pb2.TsoRequest.FromString, pdpb_pb2.TsoResponse.SerializeToString
            ),
        }
        tikv = {method: unary(kv(method), request) for method, request in KV_REQUESTS.items()}
        return [
            grpc.method_handlers_generic_handler("pdpb.PD", pd),
            grpc.method_handlers_generic_handler("tikvpb.Tikv", tikv),
        ]

    async def start(self) -> grpc.aio.Server:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(self.handlers())
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        return server
