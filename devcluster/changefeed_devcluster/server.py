"""The development cluster: PD and TiKV stores on ports of one address, in one thread of this process.

`DevCluster` puts the parts together, restores them from a data folder, and does harm on request: in the process through
its methods, from another one through `control.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

import grpc
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import metapb_pb2 as metapb
from changefeed.wire import pdpb_pb2 as pdpb

from .cdc.cdc import ChangeData
from .cdc.subscriptions import Subscriptions
from .cdc.troubles import Trouble, Troubles
from .certificates import Certificates
from .common_names import CommonNames
from .control import control_handler
from .frozen import FrozenHistory
from .journal import Journal, Record
from .pd.oracle import Oracle, compose
from .pd.pd import PlacementDriver
from .pd.regions import Region, Regions
from .pd.safepoints import Hold, SafePoints
from .store import unfinished
from .store.frozen_store import FrozenStore
from .store.gc import collect_garbage
from .store.kv import Tikv
from .store.store import MvccStore
from .watermark.gate import VersionGate
from .watermark.watermarks import Watermarks

_START_SECONDS = 30.0
_LAST_WORDS_SECONDS = 0.05
_PD = 0
_ALIVE_MS = 365 * 86_400_000
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
    earlier cluster with the same folder ended. `min_ts_interval`: seconds between two resolved-ts. `frozen`: history
    beside what the store holds. `replay`: show the data folder as it is, and keep nothing of what happens meanwhile.
    `host`: the address of this machine that it listens at and that its PD names. `store_port`: of the first store, the
    others have the next ones; 0 for free ones. Everybody who reaches it is let in; with `certificates` only who shows a
    good one, with `common_names` only who bears one of these. `new_stores`: so many are of a version
    whose watermarks large transactions do not hold, which counts when all are, or at once if not `gated`.

    `first_start_ts`: what `note_start` was told in the folder's first life. `history_ts`: the last ts in the folder.
    """

    def __init__(
        self,
        stores: int = 3,
        data_dir: Path | None = None,
        pd_port: int = 0,
        store_port: int = 0,
        min_ts_interval: float = 0.2,
        frozen: FrozenHistory | None = None,
        replay: bool = False,
        host: str = "127.0.0.1",
        certificates: Certificates | None = None,
        common_names: Sequence[str] = (),
        new_stores: int = 0,
        gated: bool = True,
    ) -> None:
        self._host = host
        self._certificates = certificates
        self._interceptors = [CommonNames(common_names)] if common_names else []
        self.pd_address = ""
        self.cluster_id = 0
        self.first_start_ts = 0
        self.history_ts = 0
        self.troubles = Troubles()
        self._held: dict[int, bytes] = {}
        self.store_addresses: dict[int, str] = {}
        self._pd_port = pd_port
        self._store_port = store_port
        self._interval = min_ts_interval
        self._journal = Journal(data_dir, replay) if data_dir is not None else None
        self._store_ids = tuple(range(1, stores + 1))
        self._frozen = frozen or FrozenHistory()
        self.store = FrozenStore(self._journal, frozen) if frozen else MvccStore(self._journal)
        self.oracle = Oracle(self._save_tso if self._journal else None)
        self.regions = Regions(self.store.lock, self._store_ids, self._journal)
        self.safepoints = SafePoints(self._save_hold, self._forget)
        try:
            self._restore()
        except ValueError:
            self._close_journal()
            raise
        self.store.max_ts = self.oracle.next()
        self.regions.bootstrap()
        self.watermarks = Watermarks(self.store, self.regions, VersionGate(self._store_ids, new_stores, gated))
        self._subscriptions = Subscriptions(
            self.store, self.regions, self.oracle, self.cluster_id, self._frozen, self.troubles, self.watermarks
        )
        self._driver: PlacementDriver | None = None
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

    def note_start(self, ts: int) -> None:
        """Keeps a ts from before the workload's first row, if none was kept before: where a replay begins."""
        if not self.first_start_ts:
            self.first_start_ts = ts
            if self._journal:
                self._journal.append(Record.START, cdcpb.ResolvedTs(ts=ts))

    # --- harm ---

    def split(self, key: bytes) -> tuple[Region, Region]:
        """Splits a region at a raw key."""
        return self.regions.split(key)

    def merge(self, left_id: int, right_id: int) -> Region:
        return self.regions.merge(left_id, right_id)

    def transfer(self, region_id: int, store_id: int) -> Region:
        """Moves a region's leadership."""
        return self.regions.transfer(region_id, store_id)

    def cut(self, store_id: int | None = None, messages: int = 0) -> None:
        """Breaks all connections of a store, or of all, like a process that dies and is back on its port at once.

        With `messages`: breaks one change data stream of each store, after it has sent so many more.
        """
        for chosen in self._chosen(store_id):
            if messages:
                self._running_loop().call_soon_threadsafe(self._services[chosen].cut_after, messages)
            else:
                asyncio.run_coroutine_threadsafe(self._restart(chosen), self._running_loop()).result(_START_SECONDS)

    def upgrade(self, store_id: int | None = None) -> None:
        """Restarts a store, or all one after the other, with the version that spares large transactions."""
        for chosen in self._chosen(store_id):
            with self.store.lock:
                self.watermarks.gate.upgrade(chosen)
            if self._driver is not None:
                self._driver.stores = [self._described(*each) for each in self.store_addresses.items()]
            self.cut(chosen)

    def stall(self, seconds: float | None = None, store_id: int | None = None) -> None:
        """Sends no change data, without an error, for a while or until `heal`; all goes on being queued."""
        self._begin(Trouble.STALL, store_id, seconds)

    def stall_region(self, region_id: int, seconds: float | None = None) -> None:
        """Tells no resolved-ts of a region; its rows go on."""
        self.troubles.begin(Trouble.STALL_REGION, region_id, seconds)

    def delay(self, by: float, seconds: float | None = None, store_id: int | None = None) -> None:
        """Lets `by` seconds pass before change data is sent."""
        self._begin(Trouble.DELAY, store_id, seconds, by)

    def repeat(self, seconds: float | None = None) -> None:
        """Sends twice what a store may send twice, and resolved-ts that go back."""
        self.troubles.begin(Trouble.REPEAT, None, seconds)

    def reorder(self, seconds: float | None = None) -> None:
        """Sends in another order what the protocol does not order."""
        self.troubles.begin(Trouble.REORDER, None, seconds)

    def collect_garbage(self, target: int) -> int:
        """Deletes the history below `target`, or below the lowest hold if that is lower; gives the GC safepoint then.

        Open transactions that started before it are ended. Remove a hold first to lose it: `safepoints.remove`.
        """
        return collect_garbage(self.store, self.safepoints, target, int(time.time()))

    def hold_lock(self, key: bytes, ttl_ms: int = 3000) -> int:
        """Abandons a transaction that has prewritten a raw key; gives its start ts."""
        return unfinished.prewrite(self.store, self.oracle, [key], ttl_ms)

    def lock(self, key: bytes, seconds: float | None = None) -> int:
        """Locks a raw key, and rolls the transaction back after some seconds or at `heal`; gives its start ts."""
        start_ts = self.hold_lock(key, _ALIVE_MS)
        self._held[start_ts] = key
        if seconds is not None:
            loop = self._running_loop()
            loop.call_soon_threadsafe(loop.call_later, seconds, self._let_go, start_ts)
        return start_ts

    def abandon_secondary(self, key: bytes) -> tuple[int, int]:
        """Abandons a transaction that has committed its primary key only; gives its start and commit ts.

        The keys are the first two of rows from a raw key on.
        """
        found = unfinished.neighbours(self.store, self.oracle, key, b"", 2)
        if len(found) < 2:
            raise ValueError(f"there are no two rows from key {key.hex()} on")
        if self._frozen.pieces(found[0], found[1] + b"\0"):
            raise ValueError("rows of a frozen history can be locked, but not written")
        return unfinished.commit_primary(self.store, self.oracle, found)

    def heal(self) -> None:
        """Ends whatever lasts: stalls, delays, repeats, reorders, cuts to come, held locks."""
        self.troubles.heal()
        for service in self._services.values():
            service.heal()
        for start_ts in list(self._held):
            self._let_go(start_ts)

    def _let_go(self, start_ts: int) -> None:
        key = self._held.pop(start_ts, None)
        if key is not None:
            self.store.rollback([key], start_ts)

    def _begin(self, kind: Trouble, store_id: int | None, seconds: float | None, amount: float = 1.0) -> None:
        self._chosen(store_id)
        self.troubles.begin(kind, store_id, seconds, amount)

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
                    self.safepoints.gc_safe_point = pdpb.UpdateGCSafePointRequest.FromString(body).safe_point
                    self.store.collect_garbage(self.safepoints.gc_safe_point)
                case Record.START:
                    self.first_start_ts = cdcpb.ResolvedTs.FromString(body).ts
                case _:
                    self.history_ts = max(self.history_ts, self.store.replay(kind, body))
        self.oracle.raise_to(self.history_ts)
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

    def _forget(self, safe_point: int) -> None:
        """Deletes what the GC safepoint has passed; the journal does it again at the same place."""
        with self.store.lock:
            if self._journal:
                self._journal.append(Record.GC_SAFEPOINT, pdpb.UpdateGCSafePointRequest(safe_point=safe_point))
            self.store.collect_garbage(safe_point)

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
        driver = self._driver = PlacementDriver(self.cluster_id, self.oracle, self.regions, self.safepoints)
        self._servers[_PD] = self._server(("grpc.so_reuseport", 0))
        self.pd_address = self._bind(self._servers[_PD], self._pd_port, [driver.handler(), control_handler(self)])
        for store_id in self._store_ids:
            self._services[store_id] = ChangeData(store_id, self._subscriptions, self.troubles)
            self._servers[store_id] = self._server()
            port = self._store_port + store_id - 1 if self._store_port else 0
            self.store_addresses[store_id] = self._bind(self._servers[store_id], port, self._store_handlers(store_id))
        driver.url = f"{'https' if self._certificates else 'http'}://{self.pd_address}"
        driver.stores = [self._described(store_id, address) for store_id, address in self.store_addresses.items()]
        for server in self._servers.values():
            await server.start()

    def _described(self, store_id: int, address: str) -> metapb.Store:
        version = self.watermarks.gate.version(store_id)
        return metapb.Store(id=store_id, address=address, version=version, start_timestamp=int(time.time()))

    async def _restart(self, store_id: int) -> None:
        """A new server takes over the port before the old one is stopped, so nobody else can."""
        old, new = self._servers[store_id], self._server()
        self._bind(new, int(self.store_addresses[store_id].rpartition(":")[2]), self._store_handlers(store_id))
        self._servers[store_id] = new
        await new.start()
        await old.stop(None)

    def _store_handlers(self, store_id: int) -> list[grpc.GenericRpcHandler]:
        tikv = Tikv(store_id, self.cluster_id, self.store, self.regions, self.watermarks.safe_ts)
        return [self._services[store_id].handler(), tikv.handler()]

    def _server(self, *options: tuple[str, int]) -> grpc.aio.Server:
        return grpc.aio.server(interceptors=self._interceptors, options=(*_OPTIONS, *options))

    def _bind(self, server: grpc.aio.Server, port: int, handlers: list[grpc.GenericRpcHandler]) -> str:
        server.add_generic_rpc_handlers(handlers)
        address = f"{self._host}:{port}"
        try:
            if self._certificates:
                bound = server.add_secure_port(address, self._certificates.server_credentials())
            else:
                bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, f"port {port} of {self._host} can't be bound, it is in use") from error
        return f"{self._host}:{bound}"
