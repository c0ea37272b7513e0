"""Locks that dead transactions left are finished, those of living ones are left alone.

See docs/design/tikv.md, Stuck locks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from changefeed.errors import Transient
from changefeed.upstream.tikv.client import lock_sweep
from changefeed.upstream.tikv.client.lock_sweep import LockSweep
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.wire import kvrpcpb_pb2 as kv
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op
from upstream_fake import FakeCluster, region

NOW_MS = 1000  # FakeCluster's
OLD = (NOW_MS - 600) << 18


def lock(key: bytes, start_ts: int = OLD, ttl: int = 400, kind: int = kv.Put, **more: Any) -> kv.LockInfo:
    return kv.LockInfo(primary_lock=b"p", lock_version=start_ts, key=key, lock_ttl=ttl, lock_type=kind, **more)


class Store:
    """Locks by key, and what has become of each transaction: a commit ts, 0 for rolled back, None for alive."""

    def __init__(self, cluster: FakeCluster, locks: list[kv.LockInfo], fates: dict[int, int | None]) -> None:
        self.cluster = cluster
        self.locks = {lock.key: lock for lock in locks}
        self.fates = fates
        cluster.kv.update(
            KvScanLock=self.scan,
            KvCheckTxnStatus=self.check,
            KvResolveLock=self.finish,
            KVPessimisticRollback=self.roll_back,
        )

    def calls(self, method: str) -> list[Any]:
        return [request for name, request in self.cluster.kv_calls if name == method]

    def scan(self, request: kv.ScanLockRequest) -> kv.ScanLockResponse:
        found = [
            lock
            for key, lock in sorted(self.locks.items())
            if request.start_key <= key < request.end_key and lock.lock_version <= request.max_version
        ]
        return kv.ScanLockResponse(locks=found[: request.limit])

    def check(self, request: kv.CheckTxnStatusRequest) -> kv.CheckTxnStatusResponse:
        fate = self.fates[request.lock_ts]
        if fate is None:
            return kv.CheckTxnStatusResponse(lock_ttl=10_000)
        return kv.CheckTxnStatusResponse(commit_version=fate)

    def finish(self, request: kv.ResolveLockRequest) -> kv.ResolveLockResponse:
        keys = list(request.keys) or [
            key for key, held in self.locks.items() if held.lock_version == request.start_version
        ]
        for key in keys:
            assert self.locks.pop(key).lock_version == request.start_version
        return kv.ResolveLockResponse()

    def roll_back(self, request: kv.PessimisticRollbackRequest) -> kv.PessimisticRollbackResponse:
        for key in request.keys:
            assert self.locks.pop(key).lock_for_update_ts == request.for_update_ts
        return kv.PessimisticRollbackResponse()


@pytest.mark.parametrize("fate", [0, OLD + 9])
async def test_dead_locks_are_finished_and_living_ones_named(pd: PdClient, cluster: FakeCluster, fate: int) -> None:
    living = OLD + 5
    store = Store(cluster, [lock(b"b"), lock(b"c"), lock(b"d", living), lock(b"e", living)], {OLD: fate, living: None})
    swept = await LockSweep(pd).sweep(b"a", b"z", OLD + 100)
    assert swept.finished == 2
    # As long as its primary lives, not as the lock here was written.
    assert [(found.lock_version, found.key, found.lock_ttl) for found in swept.living] == [(living, b"d", 10_000)]
    assert sorted(store.locks) == [b"d", b"e"]
    (finish,) = store.calls("KvResolveLock")
    assert (finish.start_version, finish.commit_version, list(finish.keys)) == (OLD, fate, [b"b", b"c"])
    # A sweep reads nothing, so it pushes nobody's commit ts.
    assert {request.caller_start_ts for request in store.calls("KvCheckTxnStatus")} == {0}


async def test_sweep_is_clipped_to_range_regions_and_ts(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.regions = [[region(1, b"", b"m"), region(2, b"m", b"")]]
    later = OLD + 1000
    store = Store(cluster, [lock(b"a"), lock(b"b"), lock(b"n"), lock(b"o", later), lock(b"x")], {OLD: 0, later: 0})
    swept = await LockSweep(pd).sweep(b"b", b"x", OLD + 999)
    assert (swept.finished, sorted(store.locks)) == (2, [b"a", b"o", b"x"])
    ranges = [(r.context.region_id, r.start_key, r.end_key) for r in store.calls("KvScanLock")]
    assert ranges == [(1, b"b", b"m"), (2, b"m", b"x")]


async def test_sweep_goes_page_by_page(pd: PdClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_sweep, "SCAN_LIMIT", 3)
    living = OLD + 5
    locks = [lock(b"b%02d" % number, living if number % 2 else OLD) for number in range(10)]
    store = Store(cluster, locks, {OLD: 0, living: None})
    swept = await LockSweep(pd).sweep(b"a", b"z", OLD + 100)
    assert swept.finished == 5
    assert sorted(store.locks) == [b"b01", b"b03", b"b05", b"b07", b"b09"]


async def test_a_living_transaction_of_many_pages_is_asked_for_once(
    pd: PdClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_sweep, "SCAN_LIMIT", 3)
    living = OLD + 5
    locks = [lock(b"b%02d" % number, living) for number in range(10)]
    store = Store(cluster, [*locks, lock(b"c")], {OLD: 0, living: None})
    swept = await LockSweep(pd).sweep(b"a", b"z", OLD + 100)
    assert [found.key for found in swept.living] == [b"b00"]
    assert [request.lock_ts for request in store.calls("KvCheckTxnStatus")] == [living, OLD]
    assert (swept.finished, len(store.locks)) == (1, 10)


async def test_large_transaction_is_finished_region_by_region(pd: PdClient, cluster: FakeCluster) -> None:
    store = Store(cluster, [lock(b"b%02d" % number) for number in range(20)], {OLD: OLD + 9})
    swept = await LockSweep(pd).sweep(b"a", b"z", OLD + 100)
    (finish,) = store.calls("KvResolveLock")
    assert (swept.finished, list(finish.keys), finish.commit_version) == (20, [], OLD + 9)


async def test_pessimistic_locks_are_rolled_back_when_dead_and_no_obstacle_when_alive(
    pd: PdClient, cluster: FakeCluster
) -> None:
    living = OLD + 5
    dead_lock = lock(b"b", kind=kv.PessimisticLock, lock_for_update_ts=OLD + 3)
    store = Store(cluster, [dead_lock, lock(b"c", living, kind=kv.PessimisticLock)], {OLD: OLD + 9, living: None})
    swept = await LockSweep(pd).sweep(b"a", b"z", OLD + 100)
    assert (swept.finished, swept.living, sorted(store.locks)) == (1, [], [b"c"])
    assert store.calls("KvResolveLock") == []
    assert all(request.resolving_pessimistic_lock for request in store.calls("KvCheckTxnStatus"))


async def test_scan_that_meets_a_lock_in_memory_is_transient(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.kv["KvScanLock"] = lambda _: kv.ScanLockResponse(error=kv.KeyError(abort="later"))
    with pytest.raises(Transient, match="later"):
        await LockSweep(pd).sweep(b"a", b"z", OLD)


@pytest.fixture
def dev() -> Iterator[DevCluster]:
    with DevCluster(stores=2) as running:
        yield running


@pytest.fixture
async def dev_pd(dev: DevCluster) -> AsyncIterator[PdClient]:
    client = await PdClient.connect([dev.pd_address])
    yield client
    await client.close()


async def test_abandoned_transaction_over_two_regions_is_finished(dev: DevCluster, dev_pd: PdClient) -> None:
    """Its primary was committed: the secondary gets the same commit ts, though nobody comes back for it."""
    dev.split(b"m")
    start_ts = dev.oracle.next()
    dev.store.prewrite([Mutation(Op.PUT, b"b", b"1"), Mutation(Op.PUT, b"x", b"2")], b"b", start_ts)
    commit_ts = dev.oracle.next()
    dev.store.commit([b"b"], start_ts, commit_ts)
    swept = await LockSweep(dev_pd).sweep(b"a", b"z", dev.oracle.next())
    assert swept.finished == 1
    assert dev.store.get(b"x", commit_ts) == b"2"
    assert dev.store.get(b"x", commit_ts - 1) is None


async def test_expired_transaction_is_rolled_back_and_a_living_one_stays(dev: DevCluster, dev_pd: PdClient) -> None:
    dead, living = dev.hold_lock(b"b", ttl_ms=0), dev.hold_lock(b"c", ttl_ms=60_000)
    swept = await LockSweep(dev_pd).sweep(b"a", b"z", dev.oracle.next())
    assert swept.finished == 1
    assert [found.lock_version for found in swept.living] == [living]
    assert [lock.start_ts for lock in dev.store.scan_locks(dev.oracle.next())] == [living]
    assert dead < living
