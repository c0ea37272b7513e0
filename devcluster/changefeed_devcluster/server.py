"""The development cluster: PD and TiKV stores on loopback ports, in one thread of this process.

`DevCluster` puts the parts together, restores them from a data folder, and does harm on request: in the process through
its methods, from another one through `/devcluster.Control/Harm` on PD's port.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb

from .cdc import ChangeData
from .journal import Journal, Record
from .kv import Tikv
from .oracle import Oracle, compose
from .pd import VERSION, PlacementDriver
from .regions import Region, Regions
from .safepoints import Hold, SafePoints
from .store import MvccStore
from .subscriptions import Subscriptions
from .txn import Mutation, Op

HARM_METHOD = "/devcluster.Control/Harm"
_START_SECONDS = 30.0
_LAST_WORDS_SECONDS = 0.05
_PD = 0
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


class DevCluster:
    """A cluster that runs between `start` and `stop`, or inside a `with`. Not to be started twice.

    Without `data_dir` nothing outlives it. With it, data, region boundaries, cluster id and safepoints go on where an
    earlier cluster with the same folder ended. `min_ts_interval`: seconds between two resolved-ts.
    """

    def __init__(
        self, stores: int = 3, data_dir: Path | None = None, pd_port: int = 0, min_ts_interval: float = 0.2
    ) -> None:
        self.pd_address = ""
        self.cluster_id = 0
        self.store_addresses: dict[int, str] = {}
        self._pd_port = pd_port
        self._interval = min_ts_interval
        self._journal = Journal(data_dir) if data_dir is not None else None
        self._gc_safe_point = 0
        self._store_ids = tuple(range(1, stores + 1))
        self.store = MvccStore(self._journal)
        self.oracle = Oracle(self._save_tso if self._journal else None)
        self.regions = Regions(self.store.lock, self._store_ids, self._journal)
        self.safepoints = SafePoints(self._save_hold if self._journal else None)
        try:
            self._restore()
        except ValueError:
            self._close_journal()
            raise
        self.store.max_ts = self.oracle.next()
        self.regions.bootstrap()
        self._subscriptions = Subscriptions(self.store, self.regions, self.oracle, self.cluster_id)
        self._services: dict[int, ChangeData] = {}
        self._servers: dict[int, grpc.aio.Server] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    # --- life ---

    def start(self) -> DevCluster:
        """Returns once every port is bound. Raises OSError that names a busy port."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="devcluster", daemon=True)
        self._thread.start()
        started.result(_START_SECONDS)
        return self

    def stop(self) -> None:
        """Ends all calls at once and closes the journal."""
        if self._loop is not None and self._stopping is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop = None
        self._close_journal()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> DevCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- harm ---

    def split(self, key: bytes) -> tuple[Region, Region]:
        """Splits a region at a raw key."""
        return self.regions.split(key)

    def merge(self, left_id: int, right_id: int) -> Region:
        return self.regions.merge(left_id, right_id)

    def transfer(self, region_id: int, store_id: int) -> Region:
        """Moves a region's leadership."""
        return self.regions.transfer(region_id, store_id)

    def cut(self, store_id: int | None = None) -> None:
        """Breaks all connections of a store, or of all, like a process that dies and is back on its port at once."""
        for chosen in self._chosen(store_id):
            asyncio.run_coroutine_threadsafe(self._restart(chosen), self._running_loop()).result(_START_SECONDS)

    def stall(self, seconds: float, store_id: int | None = None) -> None:
        """Holds the delivery of change data for a while."""
        for chosen in self._chosen(store_id):
            self._running_loop().call_soon_threadsafe(self._services[chosen].stall, seconds)

    def hold_lock(self, key: bytes, ttl_ms: int = 3000) -> int:
        """Abandons a transaction that has prewritten a delete of a raw key; gives its start ts."""
        start_ts = self.oracle.next()
        self.store.prewrite([Mutation(Op.DELETE, key)], key, start_ts, ttl_ms)
        return start_ts

    def harm(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Harm by name, with JSON values: keys are hex. Raises ValueError for an unknown or wrong request.

        `regions` {}, `split` {key}, `merge` {left, right}, `transfer` {region, store}, `cut` {store?},
        `stall` {seconds, store?}, `hold-lock` {key, ttl_ms?}.
        """
        try:
            return self._harm(action, arguments)
        except (KeyError, TypeError) as error:
            raise ValueError(f"harm {action!r} lacks or has a wrong argument: {error}") from error

    def _harm(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        changed: Sequence[Region] = ()
        match action:
            case "regions":
                changed = self.regions.all()
            case "split":
                changed = self.split(bytes.fromhex(arguments["key"]))
            case "merge":
                changed = [self.merge(int(arguments["left"]), int(arguments["right"]))]
            case "transfer":
                changed = [self.transfer(int(arguments["region"]), int(arguments["store"]))]
            case "cut":
                self.cut(arguments.get("store"))
            case "stall":
                self.stall(float(arguments["seconds"]), arguments.get("store"))
            case "hold-lock":
                start_ts = self.hold_lock(bytes.fromhex(arguments["key"]), int(arguments.get("ttl_ms", 3000)))
                return {"start_ts": str(start_ts)}
            case _:
                raise ValueError(
                    f"unknown harm {action!r}: one of regions, split, merge, transfer, cut, stall, hold-lock"
                )
        return {"regions": [_describe(region) for region in changed]}

    def _chosen(self, store_id: int | None) -> Sequence[int]:
        if store_id is None:
            return self._store_ids
        if store_id not in self._store_ids:
            raise ValueError(f"there is no store {store_id}: one of {', '.join(map(str, self._store_ids))}")
        return [store_id]

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the dev cluster is not running")
        return self._loop

    # --- the data folder ---

    def _restore(self) -> None:
        restored_id = 0
        for kind, body in self._journal.replay() if self._journal else ():
            match kind:
                case Record.CLUSTER:
                    cluster = metapb.Cluster.FromString(body)
                    restored_id = cluster.id
                    if cluster.max_peer_count != len(self._store_ids):
                        raise ValueError(f"the data folder holds a cluster of {cluster.max_peer_count} stores")
                case Record.REGIONS:
                    self.regions.restore(pdpb.ScanRegionsResponse.FromString(body))
                case Record.IDS:
                    self.regions.restore_ids(pdpb.AllocIDResponse.FromString(body).id)
                case Record.TSO:
                    self.oracle.raise_to(compose(pdpb.Timestamp.FromString(body).physical))
                case Record.SERVICE_SAFEPOINT:
                    hold = pdpb.UpdateServiceGCSafePointRequest.FromString(body)
                    self.safepoints.restore(Hold(hold.service_id, hold.TTL, hold.safe_point))
                case Record.GC_SAFEPOINT:
                    self._gc_safe_point = pdpb.UpdateGCSafePointRequest.FromString(body).safe_point
                case _:
                    self.oracle.raise_to(self.store.replay(kind, body))
        self.cluster_id = restored_id or secrets.randbits(62) | 1 << 62
        if self._journal and not restored_id:
            cluster = metapb.Cluster(id=self.cluster_id, max_peer_count=len(self._store_ids))
            self._journal.append(Record.CLUSTER, cluster)

    def _save_tso(self, physical_ms: int) -> None:
        if self._journal:
            self._journal.append(Record.TSO, pdpb.Timestamp(physical=physical_ms))

    def _save_hold(self, hold: Hold) -> None:
        if self._journal:
            record = pdpb.UpdateServiceGCSafePointRequest(
                service_id=hold.service_id, TTL=hold.expires_at, safe_point=hold.safe_point
            )
            self._journal.append(Record.SERVICE_SAFEPOINT, record)

    # --- the server thread ---

    def _run(self, started: Future[None]) -> None:
        asyncio.run(self._serve(started))

    async def _serve(self, started: Future[None]) -> None:
        self._stopping = asyncio.Event()
        try:
            await self._open()
        except OSError as error:
            await self._close_servers()
            started.set_exception(error)
            return
        self._loop = asyncio.get_running_loop()
        started.set_result(None)
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._interval)
            self._subscriptions.advance()
        await self._close_servers()

    async def _close_servers(self) -> None:
        """Stops all servers, then waits for what gRPC still has to tell this loop: a closed loop would log errors."""
        await asyncio.gather(*(server.stop(None) for server in self._servers.values()))
        await asyncio.sleep(_LAST_WORDS_SECONDS)

    async def _open(self) -> None:
        driver = PlacementDriver(
            self.cluster_id, self.oracle, self.regions, self.safepoints, self._gc_safe_point, self._journal
        )
        self._servers[_PD] = grpc.aio.server(options=(*_OPTIONS, ("grpc.so_reuseport", 0)))
        self.pd_address = _bind(self._servers[_PD], self._pd_port, [driver.handler(), self._control_handler()])
        for store_id in self._store_ids:
            self._services[store_id] = ChangeData(store_id, self._subscriptions)
            self._servers[store_id] = grpc.aio.server(options=_OPTIONS)
            self.store_addresses[store_id] = _bind(self._servers[store_id], 0, self._store_handlers(store_id))
        driver.address = self.pd_address
        driver.stores = [
            metapb.Store(id=store_id, address=address, version=VERSION, start_timestamp=int(time.time()))
            for store_id, address in self.store_addresses.items()
        ]
        for server in self._servers.values():
            await server.start()

    async def _restart(self, store_id: int) -> None:
        """A new server takes over the port before the old one is stopped, so nobody else can."""
        old, new = self._servers[store_id], grpc.aio.server(options=_OPTIONS)
        _bind(new, int(self.store_addresses[store_id].rpartition(":")[2]), self._store_handlers(store_id))
        self._servers[store_id] = new
        await new.start()
        await old.stop(None)

    def _store_handlers(self, store_id: int) -> list[grpc.GenericRpcHandler]:
        tikv = Tikv(store_id, self.cluster_id, self.store, self.regions)
        return [self._services[store_id].handler(), tikv.handler()]

    def _control_handler(self) -> grpc.GenericRpcHandler:
        async def harm(body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            try:
                request = json.loads(body)
                action = str(request.pop("action", ""))
                answer = {"ok": True, **await asyncio.to_thread(self.harm, action, request)}
            except ValueError as error:
                answer = {"ok": False, "error": str(error)}
            return json.dumps(answer).encode()

        service, method = HARM_METHOD[1:].split("/")
        return grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(harm)})


def _bind(server: grpc.aio.Server, port: int, handlers: list[grpc.GenericRpcHandler]) -> str:
    server.add_generic_rpc_handlers(handlers)
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError as error:
        raise OSError(errno.EADDRINUSE, f"port {port} of 127.0.0.1 can't be bound, it is in use") from error
    return f"127.0.0.1:{bound}"


def _describe(region: Region) -> dict[str, Any]:
    return {
        "id": region.id,
        "start": region.start.hex(),
        "end": region.end.hex(),
        "version": region.version,
        "leader_store": region.leader_store,
    }
