"""The oracle's own reader: every version once whatever the regions do, and never a scan that may lack one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from changefeed.errors import Transient
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.keys import table_span
from changefeed.verify.upstream import history
from changefeed.verify.upstream.history import read_history
from changefeed_devcluster import keys
from changefeed_devcluster.cdc import subscriptions
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.tidb import Tidb

COLUMNS = (NewColumn("id", "bigint"), NewColumn("v", "int"))


@pytest.fixture
def tidb(cluster: DevCluster) -> Tidb:
    tidb = Tidb(cluster)
    tidb.bootstrap()
    tidb.create_database("shop")
    return tidb


@pytest.fixture
def table(tidb: Tidb) -> NamedTable:
    """100 rows over six regions, each updated once; a neighbour on each side."""
    for name in ("before", "t", "after"):
        table = tidb.create_table("shop", name, COLUMNS, regions=6 if name == "t" else 1, handles=100)
        for value in range(2):
            with tidb.begin() as txn:
                for pk in range(1, 101):
                    (txn.update if value else txn.insert)(table, {"id": pk, "v": value})
    return tidb.tables["shop.t"]


class Kept:
    """history.VersionSink in memory."""

    def __init__(self) -> None:
        self.tables = [history.SCAN_SCHEMA.empty_table()]
        self.added: list[pa.Table] = []

    async def add(self, versions: pa.Table) -> None:
        self.added.append(versions)

    async def keep(self) -> None:
        self.tables += self.added
        self.added = []

    async def drop(self) -> None:
        self.added = []


async def read(pd: PdClient, table: NamedTable, after_ts: int, upto_ts: int, **options: Any) -> pa.Table:
    kept = Kept()
    await read_history(pd, *table_span(table.id), after_ts, upto_ts, kept, **options)
    assert not kept.added
    return pa.concat_tables(kept.tables)


def changes(found: pa.Table) -> list[tuple[int, int, bool, bool]]:
    """(commit ts, primary key, is a delete, there was a row before) of each version, sorted."""
    return sorted(
        (row["commit_ts"], keys.handle_of(row["key"]), row["delete"], row["old_value"] is not None)
        for row in found.to_pylist()
    )


def expected(tidb: Tidb, table: NamedTable, after_ts: int, upto_ts: int) -> list[tuple[int, int, bool, bool]]:
    return sorted(
        (change.commit_ts, change.pk, change.op == "delete", change.op != "insert")
        for change in tidb.history(table, after_ts, upto_ts)
    )


async def test_both_bounds(pd: PdClient, tidb: Tidb, table: NamedTable) -> None:
    first, second = sorted({change.commit_ts for change in tidb.history(table, 0, tidb.now())})
    assert changes(await read(pd, table, 1, second)) == expected(tidb, table, 0, second)
    assert {commit_ts for commit_ts, *_ in changes(await read(pd, table, first, second))} == {second}
    assert {commit_ts for commit_ts, *_ in changes(await read(pd, table, 1, second - 1))} == {first}
    assert (await read(pd, table, second, tidb.now())).num_rows == 0


async def test_a_region_and_a_table_without_rows(pd: PdClient, tidb: Tidb, table: NamedTable) -> None:
    empty = tidb.create_table("shop", "empty", COLUMNS, regions=3)
    assert (await read(pd, empty, 1, tidb.now())).schema == history.SCAN_SCHEMA
    with tidb.begin() as txn:
        txn.insert(empty, {"id": 500, "v": 1})
    with tidb.begin() as txn:
        txn.delete(empty, 500)
    assert changes(await read(pd, empty, 1, tidb.now())) == expected(tidb, empty, 0, tidb.now())


def split(cluster: DevCluster, table: NamedTable, pk: int) -> None:
    cluster.split(keys.record_key(table.id, pk))


def merge(cluster: DevCluster, table: NamedTable, pk: int) -> None:
    """The region of a key with the one before it."""
    regions = cluster.regions.all()
    at = next(n for n, region in enumerate(regions) if region.contains(keys.record_key(table.id, pk)))
    cluster.merge(regions[at - 1].id, regions[at].id)


def transfer(cluster: DevCluster, table: NamedTable, pk: int) -> None:
    region = cluster.regions.locate(keys.record_key(table.id, pk))
    cluster.transfer(region.id, region.leader_store % 3 + 1)


def cut(cluster: DevCluster, table: NamedTable, pk: int) -> None:
    cluster.cut()


@pytest.mark.parametrize("harm", [split, merge, transfer, cut])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_every_version_once_while_regions_change(
    cluster: DevCluster,
    pd: PdClient,
    tidb: Tidb,
    table: NamedTable,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[DevCluster, NamedTable, int], None],
    after: int,
) -> None:
    """Before the region after `after` others is read, the regions of keys behind, at and ahead of it change."""
    real = history.read_region
    reads = 0

    async def changing(*arguments: Any) -> None:
        nonlocal reads
        reads += 1
        if reads == after + 1:
            for pk in (10, 30, 45, 60, 75):
                await asyncio.to_thread(harm, cluster, table, pk)
        await real(*arguments)

    monkeypatch.setattr(history, "read_region", changing)
    now = tidb.now()
    assert changes(await read(pd, table, 1, now)) == expected(tidb, table, 0, now)


async def test_a_store_that_sends_the_whole_region(
    pd: PdClient, tidb: Tidb, table: NamedTable, cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "_span", lambda request: (b"", b""))
    while len(regions := cluster.regions.all()) > 1:
        cluster.merge(regions[0].id, regions[1].id)
    now = tidb.now()
    assert changes(await read(pd, table, 1, now)) == expected(tidb, table, 0, now)


async def test_a_transaction_that_may_still_commit_is_waited_for(pd: PdClient, tidb: Tidb, table: NamedTable) -> None:
    txn = tidb.begin()
    txn.update(table, {"id": 50, "v": 7})
    txn.prewrite()
    now = tidb.now()
    with pytest.raises(Transient, match=f"began at {txn.start_ts}, before the checkpoint, is still open"):
        await read(pd, table, 1, now, patience=0.2)
    reading = asyncio.create_task(read(pd, table, 1, now))
    await asyncio.sleep(0)
    txn.commit()
    assert changes(await reading) == expected(tidb, table, 0, now)


async def test_a_transaction_that_began_later_is_not(pd: PdClient, tidb: Tidb, table: NamedTable) -> None:
    now = tidb.now()
    txn = tidb.begin()
    txn.update(table, {"id": 50, "v": 7})
    txn.prewrite()
    assert changes(await read(pd, table, 1, now)) == expected(tidb, table, 0, now)


async def test_a_silent_store_ends_the_wait(cluster: DevCluster, pd: PdClient, tidb: Tidb, table: NamedTable) -> None:
    cluster.stall(60)
    with pytest.raises(Transient, match="is silent"):
        await read(pd, table, 1, tidb.now(), patience=0.2)


async def test_regions_that_never_answer_end_the_wait(
    pd: PdClient, tidb: Tidb, table: NamedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "PENDING_SCANS", 0)
    with pytest.raises(Transient, match="server_is_busy"):
        await read(pd, table, 1, tidb.now(), patience=0.2)


async def test_a_region_that_fails_on_its_way_counts_once(
    pd: PdClient, tidb: Tidb, table: NamedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was added of it is dropped, and comes again."""
    monkeypatch.setattr(history, "CHUNK_BYTES", 1)
    real = history.read_region
    reads = 0

    async def failing(*arguments: Any) -> None:
        nonlocal reads
        reads += 1
        await real(*arguments)
        if reads % 2:
            raise history.RegionNotReadable("it is cut off")

    monkeypatch.setattr(history, "read_region", failing)
    now = tidb.now()
    assert changes(await read(pd, table, 1, now)) == expected(tidb, table, 0, now)
    assert reads == 12
