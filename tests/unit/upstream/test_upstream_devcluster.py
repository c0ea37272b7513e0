"""The client against a cluster that keeps its own rules: regions that move, transactions that die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from changefeed.errors import NeedsHuman
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.safepoint import Safepoint
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.transaction import Transaction


@pytest.fixture
def dev() -> Iterator[DevCluster]:
    with DevCluster(stores=3) as cluster:
        yield cluster


@pytest.fixture
async def pd(dev: DevCluster) -> AsyncIterator[PdClient]:
    client = await PdClient.connect([dev.pd_address])
    yield client
    await client.close()


def put(dev: DevCluster, *pairs: tuple[bytes, bytes]) -> int:
    with Transaction(dev) as txn:
        for key, value in pairs:
            txn.write(key, value)
    return txn.commit_ts


async def everything(snapshot: Snapshot, batch: int = 7) -> dict[bytes, bytes]:
    return {key: value async for key, value in snapshot.scan(b"k", b"l", batch)}


async def test_time_and_cluster(dev: DevCluster, pd: PdClient) -> None:
    assert pd.cluster_id == dev.cluster_id
    stamps = await asyncio.gather(*(pd.tso() for _ in range(20)))
    assert len(set(stamps)) == 20
    assert await pd.tso() > max(stamps)


async def test_a_snapshot_stands_while_regions_split_and_move(dev: DevCluster, pd: PdClient) -> None:
    first = {b"k%03d" % n: b"old" for n in range(60)}
    put(dev, *first.items())
    snapshot = Snapshot(pd, await pd.tso())
    assert await everything(snapshot) == first
    _, right = dev.split(b"k020")
    dev.split(b"k040")
    store = next(r.leader_store_id for r in await pd.scan_regions(b"k050", b"k051"))
    dev.transfer(right.id, store % 3 + 1)
    put(dev, *((key, b"new") for key in first))
    assert await everything(snapshot) == first
    assert await snapshot.get(b"k050") == b"old"
    assert set((await everything(Snapshot(pd, await pd.tso()))).values()) == {b"new"}
    covering = await pd.scan_regions(b"k000", b"k059")
    assert len(covering) == 3
    assert [r.end_key for r in covering[:-1]] == [r.start_key for r in covering[1:]]


async def test_a_transaction_left_behind_is_finished(dev: DevCluster, pd: PdClient) -> None:
    put(dev, (b"k1", b"v"), (b"k2", b"v"))
    dev.hold_lock(b"k1", ttl_ms=0)
    assert await everything(Snapshot(pd, await pd.tso())) == {b"k1": b"v", b"k2": b"v"}
    put(dev, (b"k1", b"w"))  # the lock is gone


async def test_a_living_transaction_does_not_hold_up_a_read(dev: DevCluster, pd: PdClient) -> None:
    put(dev, (b"k1", b"v"))
    open_transaction = Transaction(dev)
    open_transaction.write(b"k1", b"w")
    open_transaction.prewrite()
    ts = await pd.tso()
    reading = asyncio.create_task(Snapshot(pd, ts).get(b"k1"))
    await asyncio.sleep(0)
    commit_ts = open_transaction.commit()
    assert await reading == b"v"
    assert commit_ts > ts
    assert await Snapshot(pd, commit_ts).get(b"k1") == b"w"


async def test_rule_14_a_safepoint_that_gc_has_passed(dev: DevCluster, pd: PdClient) -> None:
    ts = await pd.tso()
    later = await pd.tso()
    await Safepoint(pd, "mine", 60).hold(ts)
    assert dev.collect_garbage(later) == ts - 1  # held back
    await Safepoint(pd, "mine", 60).hold(ts)
    await Safepoint(pd, "mine", 60).remove()
    assert dev.collect_garbage(later) == later
    with pytest.raises(NeedsHuman, match="SnapshotLostByGC"):
        await Safepoint(pd, "mine", 60).hold(ts)
