"""A span with a copy against the development cluster: the rows as of its ts once, then the changes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pyarrow as pa
import pytest
from changefeed.clock import SystemClock
from changefeed.errors import Refused, SnapshotLostByGC
from changefeed.model.table_copy import COPY_TICKS, TableCopy
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.regions import Pd
from changefeed.upstream.tikv.feed import initial_copy
from changefeed.upstream.tikv.feed import span_feed as feed_module
from changefeed.upstream.tikv.feed.initial_copy import AT_ONCE, MOST_AT_ONCE, CopyScan, ScanRateLimit
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op
from test_puller_feed import DEADLINE, END, START, Written, feeding, key


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(stores=2, min_ts_interval=0.05) as running:
        yield running


async def test_rows_of_the_snapshot_come_once_before_the_changes(cluster: DevCluster) -> None:
    before = Written(cluster)
    before.transaction([key(number) for number in range(3000)])
    before.transaction([key(7), key(2500)], delete=True)
    newest = before.transaction([key(8)])
    ts = cluster.oracle.next()
    copy = TableCopy(ts - COPY_TICKS, (START, key(1000), key(2000), END))
    later = Written(cluster)
    later.present = set(before.present)
    later.transaction([key(8), key(5000)])
    later.transaction([key(9)], delete=True)
    cluster.split(key(1500))
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, copy.from_ts, copy)
        await received.until_resolved(1, cluster.oracle.next())
    values = {name: row for (name, commit_ts), row in sorted(before.rows.items(), key=lambda each: each[0][1])}
    standing = {(name, copy.ts_of(name)): (0, 2, values[name][2]) for name in before.present}
    assert len(standing) == 2998
    assert standing[key(8), copy.ts_of(key(8))][2] == before.rows[key(8), newest][2]
    assert received.rows == standing | later.rows
    assert received.failed == []


async def test_a_copy_goes_on_with_the_chunk_that_the_span_lacks(cluster: DevCluster) -> None:
    before = Written(cluster)
    before.transaction([key(number) for number in range(30)])
    ts = cluster.oracle.next()
    copy = TableCopy(ts - COPY_TICKS, (START, key(10), key(20), END))
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, copy.from_ts + 2, copy)
        feed.hold(1)
        feed.resume(1)
        await received.until_resolved(1, cluster.oracle.next())
        assert {name for name, _ in received.rows} == {key(number) for number in range(20, 30)}
        feed.subscribe(2, 77, START, END, copy.from_ts + 3, copy)
        await received.until_resolved(2, cluster.oracle.next())
    assert len(received.rows) == 10


async def test_a_lock_from_before_the_snapshot_is_waited_for(cluster: DevCluster) -> None:
    open_ts = cluster.oracle.next()
    cluster.store.prewrite([Mutation(Op.PUT, key(1), b"x")], key(1), open_ts)
    commit_ts = cluster.oracle.next()
    ts = cluster.oracle.next()
    copy = TableCopy(ts - COPY_TICKS, (START, END))
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, copy.from_ts, copy)
        cluster.store.commit([key(1)], open_ts, commit_ts)
        await received.until_resolved(1, ts)
    assert received.rows[key(1), copy.from_ts + 1] == (0, 2, b"x")


async def test_a_store_that_refuses_a_copy_is_named_and_asked_again(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run waits: it may be mended meanwhile."""
    Written(cluster).transaction([key(1)])
    ts = cluster.oracle.next()
    copy = TableCopy(ts - COPY_TICKS, (START, END))
    address, refuses, asked_again = PdClient.store_address, [True], asyncio.Event()

    async def refused(self: PdClient, store_id: int) -> str:
        if refuses:
            if len(refuses) == 2:
                asked_again.set()
            refuses.append(True)
            raise Refused("Store 1 does not let us in.", "Mend it.")
        return await address(self, store_id)

    monkeypatch.setattr(PdClient, "store_address", refused)
    monkeypatch.setattr(feed_module, "PD_DOWN_SECONDS", 0.05)
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, copy.from_ts, copy)
        async with asyncio.timeout(DEADLINE):
            await asked_again.wait()
        stopped = feed.stopped()
        assert stopped is not None
        assert (stopped.reason, stopped.message) == ("TikvRefuses", "Store 1 does not let us in. Mend it.")
        refuses.clear()
        await received.until_resolved(1, ts)
        assert feed.stopped() is None
    assert (len(received.rows), received.failed) == (1, [])


async def test_a_snapshot_that_gc_has_passed_is_not_believed(cluster: DevCluster) -> None:
    Written(cluster).transaction([key(1)])
    ts = cluster.oracle.next()
    copy = TableCopy(ts - COPY_TICKS, (START, END))
    cluster.collect_garbage(cluster.oracle.next())
    async with feeding(cluster) as (feed, received):
        feed.subscribe(1, 77, START, END, copy.from_ts, copy)
        async with asyncio.timeout(DEADLINE):
            while not received.failed:
                received.changed.clear()
                await received.changed.wait()
    assert isinstance(received.failed[0].error, SnapshotLostByGC)
    assert 1 not in received.resolved


async def test_a_task_scans_few_chunks_at_once_whatever_the_number_of_its_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, most = Counter[bytes](), Counter[bytes]()  # of a table, and under b"" of all

    class Counted(Snapshot):
        async def columns(self, start: bytes, _end: bytes) -> AsyncIterator[tuple[pa.Array, pa.Array]]:
            for table in (start[:1], b""):
                running[table] += 1
                most[table] = max(most[table], running[table])
            yield pa.array([start]), pa.array([b"v"])
            running.subtract((start[:1], b""))

    class Safe:
        async def gc_safepoint(self) -> int:
            return 0

    async def nothing(*_: object) -> None:
        await asyncio.sleep(0)

    whole: dict[bytes, list[int]] = {}

    async def copied(table: bytes) -> None:
        async def says(ts: int) -> None:
            whole.setdefault(table, []).append(ts)

        copy = TableCopy(0, tuple(table + bytes((number,)) for number in range(21)))
        await scan.run(copy, 1, 0, nothing, says)

    monkeypatch.setattr(initial_copy, "Snapshot", Counted)
    scan = CopyScan(cast("Pd", Safe()), SystemClock(), nothing)
    tables = [b"a", b"b", b"c", b"d"]
    await asyncio.gather(*map(copied, tables))
    assert most == {b"": MOST_AT_ONCE, **dict.fromkeys(tables, AT_ONCE)}
    assert whole == {table: [*range(1, 21), COPY_TICKS] for table in tables}


def test_the_pace_is_kept_whatever_is_read_at_once() -> None:
    rng, pace, now, read = random.Random(3), ScanRateLimit(1000.0), 5.0, 0
    for _ in range(100):
        size = rng.randrange(1, 400)
        read += size
        now += pace.wait(now, size)
        assert read <= 1000.0 * (now - 5.0) + 1e-6
    assert ScanRateLimit(None).wait(0.0, 1 << 40) == 0.0
