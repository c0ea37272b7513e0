"""Our own requests are checked before they are sent, and are built in one place. All values here are harmless."""

from __future__ import annotations

import ast
import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import changefeed
import pytest
from changefeed.errors import InvalidRequest
from changefeed.model.tso import compose
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.lock_sweep import LockSweep
from changefeed.upstream.tikv.client.pd import LocatedRegion, PdClient
from changefeed.upstream.tikv.client.requests import change_data, to_pd, to_store
from changefeed.upstream.tikv.client.requests.arguments import Arguments
from changefeed.upstream.tikv.tidb.memcomparable import encode_bytes
from changefeed.wire import cdcpb_pb2, kvrpcpb_pb2, pdpb_pb2
from upstream_fake import FakeCluster

NOW = compose(1_700_000_000_000)
A, B = encode_bytes(b"a"), encode_bytes(b"b")
REGION = LocatedRegion(7, A, encode_bytes(b"m"), 1, 2, 70, 3)
LOCK = kvrpcpb_pb2.LockInfo(primary_lock=b"p", lock_version=NOW - 9, key=b"k", lock_ttl=1)


def register(**changed: Any) -> cdcpb_pb2.ChangeDataRequest:
    ids = {"cluster_id": 5, "request_id": 1, "region_id": 2, "conf_ver": 1, "version": 1, "checkpoint_ts": 9}
    return change_data.register(**{**ids, "start_key": A, "end_key": B, **changed})


def addressed(request: to_store.StoreRequest[Any], cluster_id: int = 5, **changed: Any) -> Any:
    return request.addressed(LocatedRegion(**{**REGION.__dict__, **changed}), cluster_id)


def locked(**changed: Any) -> kvrpcpb_pb2.LockInfo:
    lock = kvrpcpb_pb2.LockInfo(lock_type=kvrpcpb_pb2.PessimisticLock, lock_for_update_ts=NOW)
    lock.MergeFrom(LOCK)
    for name, value in changed.items():
        setattr(lock, name, value)
    return lock


GOOD: list[Callable[[], Any]] = [
    lambda: to_pd.timestamps(5, 1),
    lambda: to_pd.timestamps(5, 10_000),
    lambda: to_pd.regions(5, b"", b""),
    lambda: to_pd.regions(5, A, b""),
    lambda: to_pd.safepoint(5, "changefeed-shop-orders", 1, 0),
    lambda: to_pd.no_safepoint(5, "changefeed-shop-orders"),
    lambda: addressed(to_store.get(b"k", NOW, NOW)),
    lambda: addressed(to_store.scan(b"b", b"m", 1, NOW, NOW, kvrpcpb_pb2.ScanResponse)),
    lambda: addressed(to_store.scan(b"b", b"", 1, 1, NOW, kvrpcpb_pb2.ScanResponse), end_key=b""),
    lambda: addressed(to_store.scan_locks(b"a", b"b", 1024, NOW, NOW)),
    lambda: to_store.check_transaction(LOCK, 0, NOW, expired=False, force_sync_commit=False),
    lambda: to_store.check_secondary(b"k", NOW, NOW),
    lambda: addressed(to_store.resolve_locks(b"k", NOW, 0, [])),
    lambda: addressed(to_store.resolve_locks(b"k", NOW, NOW + 1, [b"k", b"l"])),
    lambda: addressed(to_store.roll_back_pessimistic(locked())),
    register,
    lambda: change_data.deregister(5, 1, 2),
]


@pytest.mark.parametrize("build", GOOD)
def test_what_is_in_order_is_built(build: Callable[[], Any]) -> None:
    build()


@pytest.mark.parametrize(
    ("build", "call", "argument"),
    [
        (lambda: to_pd.timestamps(5, 0), "Tso", "count"),
        (lambda: to_pd.timestamps(5, 10_001), "Tso", "count"),
        (lambda: to_pd.timestamps(0, 1), "Tso", "cluster_id"),
        (lambda: to_pd.regions(5, B, A), "ScanRegions", "end_key"),
        (lambda: to_pd.regions(0, A, B), "ScanRegions", "cluster_id"),
        (lambda: to_pd.store(5, 0), "GetStore", "store_id"),
        (lambda: to_pd.safepoint(5, "", 60, 9), "UpdateServiceGCSafePoint", "service_id"),
        (lambda: to_pd.safepoint(5, "gc_worker", 60, 9), "UpdateServiceGCSafePoint", "service_id"),
        (lambda: to_pd.no_safepoint(5, "gc_worker"), "UpdateServiceGCSafePoint", "service_id"),
        (lambda: to_pd.safepoint(5, "mine", 0, 9), "UpdateServiceGCSafePoint", "TTL"),
        (lambda: to_pd.safepoint(5, "mine", 60, -1), "UpdateServiceGCSafePoint", "safe_point"),
        (lambda: to_pd.gc_safepoint(0), "GetGCSafePoint", "cluster_id"),
        (lambda: to_pd.gc_state(0), "GetGCState", "cluster_id"),
        (lambda: to_store.get(b"", NOW, NOW), "KvGet", "key"),
        (lambda: to_store.get(b"k", 0, NOW), "KvGet", "version"),
        (lambda: to_store.get(b"k", NOW + 1, NOW), "KvGet", "version"),
        (lambda: to_store.get(b"k", NOW, NOW, [0]), "KvGet", "resolved_locks"),
        (lambda: to_store.scan(b"b", b"b", 1, NOW, NOW, kvrpcpb_pb2.ScanResponse), "KvScan", "end_key"),
        (lambda: to_store.scan(b"b", b"c", 0, NOW, NOW, kvrpcpb_pb2.ScanResponse), "KvScan", "limit"),
        (lambda: to_store.scan(b"b", b"c", 1, NOW + 1, NOW, kvrpcpb_pb2.ScanResponse), "KvScan", "version"),
        (lambda: to_store.scan_locks(b"b", b"b", 1, NOW, NOW), "KvScanLock", "end_key"),
        (lambda: to_store.scan_locks(b"b", b"", 1, NOW, NOW), "KvScanLock", "end_key"),
        (lambda: to_store.scan_locks(b"a", b"b", 0, NOW, NOW), "KvScanLock", "limit"),
        (lambda: to_store.scan_locks(b"a", b"b", 1, NOW + 1, NOW), "KvScanLock", "max_version"),
        (lambda: check(locked(primary_lock=b"")), "KvCheckTxnStatus", "primary_key"),
        (lambda: check(locked(lock_version=0)), "KvCheckTxnStatus", "lock_ts"),
        (lambda: check(locked(lock_version=NOW + 1)), "KvCheckTxnStatus", "lock_ts"),
        (lambda: check(LOCK, read_ts=NOW + 1), "KvCheckTxnStatus", "caller_start_ts"),
        (lambda: to_store.check_secondary(b"", NOW, NOW), "KvCheckSecondaryLocks", "keys"),
        (lambda: to_store.check_secondary(b"k", NOW + 1, NOW), "KvCheckSecondaryLocks", "start_version"),
        (lambda: to_store.resolve_locks(b"", 9, 0, []), "KvResolveLock", "keys"),
        (lambda: to_store.resolve_locks(b"k", 9, 0, [b""]), "KvResolveLock", "keys"),
        (lambda: to_store.resolve_locks(b"k", 0, 0, []), "KvResolveLock", "start_version"),
        (lambda: to_store.resolve_locks(b"k", 9, 9, []), "KvResolveLock", "commit_version"),
        (lambda: to_store.roll_back_pessimistic(locked(key=b"")), "KVPessimisticRollback", "keys"),
        (lambda: to_store.roll_back_pessimistic(locked(lock_for_update_ts=1)), "KVPessimisticRollback", "for_update"),
        (lambda: addressed(to_store.get(b"k", NOW, NOW), cluster_id=0), "KvGet", "cluster_id"),
        (lambda: addressed(to_store.get(b"k", NOW, NOW), id=0), "KvGet", "region_id"),
        (lambda: addressed(to_store.get(b"k", NOW, NOW), version=0), "KvGet", "version"),
        (lambda: addressed(to_store.get(b"k", NOW, NOW), conf_ver=0), "KvGet", "conf_ver"),
        (lambda: addressed(to_store.get(b"k", NOW, NOW), leader_peer_id=0), "KvGet", "peer_id"),
        (lambda: addressed(to_store.get(b"k", NOW, NOW), leader_store_id=0), "KvGet", "store_id"),
        (lambda: addressed(to_store.get(b"m", NOW, NOW)), "KvGet", "key"),
        (lambda: addressed(to_store.scan_locks(b"b", b"n", 1, NOW, NOW)), "KvScanLock", "end_key"),
        (lambda: register(cluster_id=0), "Register", "cluster_id"),
        (lambda: register(request_id=0), "Register", "request_id"),
        (lambda: register(region_id=0), "Register", "region_id"),
        (lambda: register(version=0), "Register", "version"),
        (lambda: register(conf_ver=0), "Register", "conf_ver"),
        (lambda: register(checkpoint_ts=0), "Register", "checkpoint_ts"),
        (lambda: register(start_key=b"a"), "Register", "start_key"),
        (lambda: register(end_key=B + b"x"), "Register", "end_key"),
        (lambda: register(end_key=A), "Register", "end_key"),
        (lambda: change_data.deregister(5, 1, 0), "Deregister", "region_id"),
        (lambda: change_data.deregister(5, 0, 2), "Deregister", "request_id"),
    ],
)
def test_what_is_not_in_order_is_refused_by_name(build: Callable[[], Any], call: str, argument: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^A request {call} was not sent: {argument}.* must .*, not ") as caught:
        build()
    assert "report it" in caught.value.next_step


def check(lock: kvrpcpb_pb2.LockInfo, read_ts: int = 0) -> Any:
    return to_store.check_transaction(lock, read_ts, NOW, expired=False, force_sync_commit=False)


def test_a_version_that_a_store_can_not_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_data, "CLIENT_VERSION", "v8.5.0")
    with pytest.raises(InvalidRequest, match=r"ticdc_version must be three numbers with dots, not 'v8\.5\.0'"):
        register()


def test_a_refusal_shows_the_value_and_not_all_of_a_long_one() -> None:
    with pytest.raises(InvalidRequest, match="start_key must be a key, not empty"):
        Arguments("Any").key("start_key", b"")
    with pytest.raises(InvalidRequest) as caught:
        Arguments("Any").encoded("start_key", b"x" * 1000)
    assert len(caught.value.message) < 250


_BUILT = {
    name
    for wire in (pdpb_pb2, kvrpcpb_pb2, cdcpb_pb2)
    for name in wire.DESCRIPTOR.message_types_by_name
    if name.endswith(("Request", "RequestHeader")) or name in ("Context", "Header")
}


def test_no_request_is_built_anywhere_else() -> None:
    """Every file of the product but the builders': neither made by its class nor by one that was imported by name."""
    root = Path(next(iter(changefeed.__path__)))
    assert {"ScanLockRequest", "TsoRequest", "ChangeDataRequest", "Context", "Header"} <= _BUILT
    made: dict[str, set[str]] = {"in": set(), "elsewhere": set()}
    for file in root.rglob("*.py"):
        inside = file.relative_to(root)
        if inside.parts[0] == "wire":
            continue
        where = "in" if inside.parent.name == "requests" else "elsewhere"
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(), attr=name)) if name in _BUILT:
                    made[where].add(f"{name} in {inside}")
                case ast.ImportFrom(module=str(module), names=names) if module.endswith("pb_pb2"):
                    made[where] |= {f"{each.name} in {inside}" for each in names}
    assert made["elsewhere"] == set()
    assert len(made["in"]) > 12, "else this test looks for the wrong thing"


async def test_a_read_ahead_of_pds_clock_is_refused(pd: PdClient, cluster: FakeCluster) -> None:
    with pytest.raises(InvalidRequest, match="KvGet was not sent: version must be a ts that PD has given out"):
        await Snapshot(pd, compose(cluster.physical + 1)).get(b"k")
    assert cluster.kv_calls == []


async def test_more_callers_than_a_request_may_ask_timestamps_for(
    pd: PdClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_pd, "MOST_TIMESTAMPS", 2)
    given = await asyncio.gather(*(pd.tso() for _ in range(5)))
    assert cluster.tso_counts == [2, 2, 1]
    assert given == sorted(set(given))


# --- what other writers wait for ---


class Blocking:
    """Stores whose calls that settle locks are answered when the test says so."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.now: dict[int, int] = {}
        self.most = 0
        self.let_go = asyncio.Event()
        cluster.kv = {
            "KvGet": self.get,
            "KvScanLock": self.scan_locks,
            "KvCheckTxnStatus": self.settle(kvrpcpb_pb2.CheckTxnStatusResponse()),
            "KvResolveLock": self.settle(kvrpcpb_pb2.ResolveLockResponse()),
        }
        self.finished: set[bytes] = set()

    def lock(self, key: bytes) -> kvrpcpb_pb2.LockInfo:
        return kvrpcpb_pb2.LockInfo(primary_lock=b"p" + key, lock_version=compose(500), key=key)

    def get(self, request: kvrpcpb_pb2.GetRequest) -> kvrpcpb_pb2.GetResponse:
        if request.key in self.finished:
            return kvrpcpb_pb2.GetResponse(not_found=True)
        return kvrpcpb_pb2.GetResponse(error=kvrpcpb_pb2.KeyError(locked=self.lock(request.key)))

    def scan_locks(self, request: kvrpcpb_pb2.ScanLockRequest) -> kvrpcpb_pb2.ScanLockResponse:
        return kvrpcpb_pb2.ScanLockResponse(locks=[self.lock(b"s%d" % number) for number in range(3)])

    def settle(self, answer: Any) -> Callable[[Any], Any]:
        async def blocks(request: Any) -> Any:
            store = request.context.peer.store_id
            self.now[store] = self.now.get(store, 0) + 1
            self.most = max(self.most, self.now[store])
            await self.let_go.wait()
            self.now[store] -= 1
            if isinstance(request, kvrpcpb_pb2.ResolveLockRequest):
                self.finished |= set(request.keys)
            return answer

        return blocks


async def test_only_a_few_calls_that_settle_locks_are_made_at_a_time(pd: PdClient, cluster: FakeCluster) -> None:
    """Each occupies one of the few threads of the store that writers need; whoever makes them takes turns."""
    store = Blocking(cluster)
    readers = [asyncio.create_task(Snapshot(pd, compose(900)).get(b"r%d" % number)) for number in range(8)]
    sweep = asyncio.create_task(LockSweep(pd).sweep(b"a", b"z", compose(900)))
    async with asyncio.timeout(20):
        # Each asks for a ts before its first call, and before it asks for the fate of a lock.
        for ours in itertools.count(1):
            await pd.tso()
            if sum(cluster.tso_counts) - ours >= 2 * 9:
                break
        while store.most < 2:
            await pd.tso()
        for _ in range(10):  # whoever may call has
            await pd.tso()
        store.let_go.set()
        assert await asyncio.gather(*readers) == [None] * 8
        assert (await sweep).finished == 3
    assert store.most == 2
    origins = {request.context.request_origin for _, request in cluster.kv_calls}
    assert origins == {kvrpcpb_pb2.RequestOriginTiDB}, (
        "else the store asks PD in that thread about each of our timestamps"
    )
