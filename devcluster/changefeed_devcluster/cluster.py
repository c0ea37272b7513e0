"""The development cluster: PD and TiKV stores on ports of one address, in one thread of this process.

`LocalCluster` puts the parts together, restores them from a data folder, and does harm on request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from changefeed.wire import metapb_pb2 as metapb

from .cdc.cdc import ChangeData
from .cdc.subscriptions import SINK_QUOTA, Subscriptions
from .cdc.troubles import InjectedTrouble, InjectedTroubles
from .certificates import Certificates
from .common_names import CommonNames
from .frozen import FrozenHistory
from .handshake import GatedServer
from .journal import Journal
from .kept import KeptState
from .pd.heartbeats import INTERVAL_S
from .pd.oracle import Oracle
from .pd.pd import PlacementDriver
from .pd.regions import ELECTION_S, Region, Regions
from .pd.safepoints import SafePoints, ServiceSafePoints
from .ports import GrpcServer, Ports, PortServer
from .server_thread import ServerThread
from .store import unfinished
from .store.calls import StoreCalls
from .store.frozen_store import FrozenStore
from .store.gc import collect_garbage
from .store.kv import Tikv
from .store.scheduler import Scheduler
from .store.store import MvccStore
from .watermark.gate import VersionGate
from .watermark.watermarks import Watermarks

_PD = 0
_ALIVE_MS = 365 * 86_400_000


class LocalCluster:
    """A cluster that runs between `start` and `stop`, or inside a `with`. Not to be started twice.

    Without `data_dir` nothing outlives it. With it, data, region boundaries, cluster id and safepoints go on where an
    earlier cluster with the same folder ended. `min_ts_interval`: seconds between two resolved-ts, `scan_speed_limit`:
    bytes a second of a store's scans (0: none), `sink_quota`: bytes that may wait to be sent on all its connections;
    these are TiKV's cdc.min-ts-interval, incremental-fetch-speed-limit and sink-memory-quota. `frozen`: history
    beside what the store holds. `replay`: show the data folder as it is, and keep nothing of what happens meanwhile.
    `host`: the address of this machine that it listens at and that its PD names. `store_port`: of the first store, the
    others have the next ones; 0 for free ones. Everybody who reaches it is let in; with `certificates` only who shows a
    good one, with `common_names` only who bears one of these; PD goes by `pd_common_names` instead, if they are given.
    `proposed_watermark`: so many stores have a mechanism that no TiKV has: large transactions do not hold their
    watermarks. It counts when all have it, or at once if not `gated`. `gc_barriers`: PD answers for safepoints as the
    newest one does; without, as those of up to 8.5.

    `first_start_ts`: what `note_start` was told in the folder's first life. `history_ts`: the last ts in the folder.
    """

    def __init__(
        self,
        stores: int = 3,
        data_dir: Path | None = None,
        pd_port: int = 0,
        store_port: int = 0,
        min_ts_interval: float = 1.0,
        frozen: FrozenHistory | None = None,
        replay: bool = False,
        host: str = "127.0.0.1",
        certificates: Certificates | None = None,
        common_names: Sequence[str] = (),
        pd_common_names: Sequence[str] | None = None,
        proposed_watermark: int = 0,
        gated: bool = True,
        scan_speed_limit: float = 0.0,
        sink_quota: int = SINK_QUOTA,
        gc_barriers: bool = True,
    ) -> None:
        self._host = host
        self._certificates = certificates
        self._common_names = common_names
        self._pd_common_names = common_names if pd_common_names is None else pd_common_names
        self.pd_address = ""
        self.troubles = InjectedTroubles()
        self._held: dict[int, bytes] = {}
        self.store_addresses: dict[int, str] = {}
        self._pd_port = pd_port
        self._store_port = store_port
        self._journal = Journal(data_dir, replay) if data_dir is not None else None
        self._store_ids = tuple(range(1, stores + 1))
        self._frozen = frozen or FrozenHistory()
        self.store = FrozenStore(self._journal, frozen) if frozen else MvccStore(self._journal)
        self._kept = KeptState(self._journal)
        self.oracle = Oracle(self._kept.save_tso, is_frozen=self._pd_is_frozen)
        self.regions = Regions(self.store.lock, self._store_ids, self._journal)
        self.safepoints = (SafePoints if gc_barriers else ServiceSafePoints)(self._kept.save_hold, self._forget)
        try:
            self._kept.restore(self.store, self.regions, self.oracle, self.safepoints)
        except ValueError:
            self._close_journal()
            raise
        self.store.max_ts = self.oracle.next()
        self.regions.bootstrap()
        self.watermarks = Watermarks(self.store, self.regions, VersionGate(self._store_ids, proposed_watermark, gated))
        self.subscriptions = Subscriptions(
            self.store,
            self.regions,
            self.oracle,
            self.cluster_id,
            self._frozen,
            self.troubles,
            self.watermarks,
            sink_quota,
        )
        self._scan_speed_limit = scan_speed_limit
        self.schedulers = {store_id: Scheduler(self.oracle, self._pd_is_frozen) for store_id in self._store_ids}
        self._driver: PlacementDriver | None = None
        self._services: dict[int, ChangeData] = {}
        self.ports = Ports(host)
        self._thread = ServerThread(self._open, self._tick, min_ts_interval, self.ports.close)

    # --- life ---

    def start(self) -> Self:
        """Returns once every port is bound. Raises OSError that names a busy port."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends all calls at once and closes the journal."""
        self._thread.stop()
        self._close_journal()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def note_start(self, ts: int) -> None:
        """Keeps a ts from before the workload's first row, if none was kept before: where a replay begins."""
        self._kept.save_start(ts)

    @property
    def cluster_id(self) -> int:
        return self._kept.cluster_id

    @property
    def first_start_ts(self) -> int:
        return self._kept.first_start_ts

    @property
    def history_ts(self) -> int:
        return self._kept.history_ts

    def _forget(self, safe_point: int) -> None:
        """Deletes what the GC safepoint has passed; the journal does it again at the same point."""
        with self.store.lock:
            self._kept.save_gc(safe_point)
            self.store.collect_garbage(safe_point)

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
                self._thread.soon(self._services[chosen].cut_after, messages)
            else:
                self._thread.do(self.ports.restart(chosen))

    def kill(self, store_id: int, seconds: float | None = None, election_s: float = ELECTION_S) -> None:
        """Ends a store, until it is started again after some seconds or by `heal`; others go on.

        Its streams end, and nobody answers at its address. The regions that it led get another leader after
        `election_s`. Raises ValueError when it is down already.
        """
        self._chosen(store_id)
        if store_id in self.regions.down:
            raise ValueError(f"store {store_id} is down already")
        self.regions.down.add(store_id)
        self._thread.do(self.ports.kill(store_id))
        self._thread.later(election_s, self.regions.elect)
        if seconds is not None:
            self._thread.later(seconds, partial(self._revive, store_id))

    async def _revive(self, store_id: int) -> None:
        if store_id in self.regions.down:
            self.regions.down.discard(store_id)
            await self.ports.restart(store_id)

    def restart_pd(self, heartbeat_s: float = INTERVAL_S, after_s: float = 0.0) -> None:
        """Breaks all connections of PD, which is back at once and hears of each region's leader within `heartbeat_s`.

        It reads the CAs of its clients again. With `after_s` this returns before it happens.
        """
        assert self._driver is not None
        self._driver.heartbeats.forget(self.regions.all(), heartbeat_s)
        if after_s:
            self._thread.later(after_s, partial(self.ports.restart, _PD))
        else:
            self._thread.do(self.ports.restart(_PD))

    def upgrade(self, store_id: int | None = None) -> None:
        """Restarts a store, or all one after the other, with a newer version.

        In a cluster with some of the proposed watermark it is the version that has it.
        """
        for chosen in self._chosen(store_id):
            with self.store.lock:
                self.watermarks.gate.upgrade(chosen)
            if self._driver is not None:
                self._driver.stores = [self._described(*each) for each in self.store_addresses.items()]
            self.cut(chosen)

    def stall(self, seconds: float | None = None, store_id: int | None = None) -> None:
        """Sends no change data, without an error, for a while or until `heal`; all goes on being queued."""
        self._begin(InjectedTrouble.STALL, store_id, seconds)

    def stall_region(self, region_id: int, seconds: float | None = None) -> None:
        """Tells no resolved-ts of a region; its rows go on."""
        self.troubles.begin(InjectedTrouble.STALL_REGION, region_id, seconds)

    def delay(self, by: float, seconds: float | None = None, store_id: int | None = None) -> None:
        """Lets `by` seconds pass before change data is sent."""
        self._begin(InjectedTrouble.DELAY, store_id, seconds, by)

    def slow_scans(self, bytes_per_second: float, seconds: float | None = None, store_id: int | None = None) -> None:
        """Lets a store's scans come at so many bytes a second: what is written meanwhile overtakes what they read."""
        self._begin(InjectedTrouble.SLOW_SCAN, store_id, seconds, bytes_per_second)

    def congest(self, seconds: float | None = None, store_id: int | None = None) -> None:
        """Has no room for change data, as if another client of the store didn't read what it has asked for."""
        self._begin(InjectedTrouble.CONGESTION, store_id, seconds)

    def repeat(self, seconds: float | None = None) -> None:
        """Sends twice what a store may send twice, and resolved-ts that go back."""
        self.troubles.begin(InjectedTrouble.REPEAT, None, seconds)

    def reorder(self, seconds: float | None = None) -> None:
        """Sends in another order what the protocol does not order."""
        self.troubles.begin(InjectedTrouble.REORDER, None, seconds)

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
            self._thread.later(seconds, partial(self._let_go, start_ts))
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

    def freeze_pd(self, seconds: float | None = None) -> None:
        """Lets PD answer nothing, without an error, for a while or until `heal`: resolved-ts stands, then jumps."""
        self.troubles.begin(InjectedTrouble.FROZEN_PD, None, seconds)

    def _pd_is_frozen(self) -> bool:
        return self.troubles.amount(InjectedTrouble.FROZEN_PD) > 0

    def heal(self) -> None:
        """Ends whatever lasts: stalls, delays, slow scans, congestion, repeats, reorders, cuts to come, held locks.

        Stores that were killed are started, and PD thaws.
        """
        self.troubles.heal()
        for service in self._services.values():
            service.heal()
        for start_ts in list(self._held):
            self._let_go(start_ts)
        for store_id in list(self.regions.down):
            self._thread.do(self._revive(store_id))

    def _let_go(self, start_ts: int) -> None:
        key = self._held.pop(start_ts, None)
        if key is not None:
            self.store.rollback([key], start_ts)

    def _begin(self, kind: InjectedTrouble, store_id: int | None, seconds: float | None, amount: float = 1.0) -> None:
        self._chosen(store_id)
        self.troubles.begin(kind, store_id, seconds, amount)

    def _chosen(self, store_id: int | None) -> Sequence[int]:
        if store_id is None:
            return self._store_ids
        if store_id not in self._store_ids:
            raise ValueError(f"there is no store {store_id}: one of {', '.join(map(str, self._store_ids))}")
        return [store_id]

    # --- the server thread ---

    def _tick(self) -> None:
        if not self._pd_is_frozen():
            self.subscriptions.advance()

    async def _open(self) -> None:
        driver = self._driver = PlacementDriver(
            self.cluster_id, self.oracle, self.regions, self.safepoints, self._pd_is_frozen
        )
        self.ports.bind(_PD, self._pd_port, self._pd_server)
        self.pd_address = self.ports.address(_PD)
        for store_id in self._store_ids:
            self._services[store_id] = ChangeData(store_id, self.subscriptions, self.troubles, self._scan_speed_limit)
            port = self._store_port + store_id - 1 if self._store_port else 0
            self.ports.bind(store_id, port, partial(self._store_server, store_id))
            self.store_addresses[store_id] = self.ports.address(store_id)
        driver.url = f"{'https' if self._certificates else 'http'}://{self.pd_address}"
        driver.stores = [self._described(store_id, address) for store_id, address in self.store_addresses.items()]
        await self.ports.start()

    def _described(self, store_id: int, address: str) -> metapb.Store:
        version = self.watermarks.gate.version(store_id)
        return metapb.Store(id=store_id, address=address, version=version, start_timestamp=int(time.time()))

    def _pd_handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        assert self._driver is not None
        return [self._driver.handler()]

    def _pd_server(self) -> PortServer:
        handlers = self._pd_handlers()
        if self._certificates is None:
            return GrpcServer(handlers)
        if self._pd_common_names:
            context = partial(self._certificates.context, self._certificates.cas)
            return GatedServer(GrpcServer(handlers), context, self._pd_common_names)
        return GrpcServer(handlers, self._certificates.pd_credentials())

    def _store_server(self, store_id: int) -> PortServer:
        calls = StoreCalls(store_id, self.store, self.regions, self.watermarks.safe_ts)
        tikv = Tikv(self.cluster_id, self.oracle, calls, self.schedulers[store_id])
        credentials = self._certificates.store_credentials() if self._certificates else None
        interceptors = [CommonNames(self._common_names)] if self._common_names else []
        return GrpcServer([self._services[store_id].handler(), tikv.handler()], credentials, interceptors)
