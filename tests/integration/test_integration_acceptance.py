"""What a storage sink is accepted by (design 4 of docs/design/README.md), each broken once to see it red.

AC6, and of AC4 how many plans there are, are the planner's: tests/unit/owner/test_owner_planner.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from changefeed.objectstore.open import open_store
from changefeed.owner.driver import RunOptions
from changefeed_devcluster.ddl.databases import drop_database
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from integration_failing_store import SINK, STATE, surround, writes
from integration_inprocess import InProcessExecution, Run, World, new_world
from integration_s3_proxy import REFUSED, FaultyProxy, before
from integration_s3_servers import S3Server

pytestmark = pytest.mark.timeout(1800)  # the first run builds the server

DATA = "/CDC0"
FILE_SIZE = 4 << 20


class Shop(World):
    """shop.orders and two more, with a changefeed to an S3 server that may refuse what is put."""

    def __init__(self, cluster: DevCluster, folder: Path, proxy: FaultyProxy, uri_of: Callable[[str], str]) -> None:
        super().__init__(cluster, folder)
        self.proxy, self.uri_of = proxy, uri_of
        columns = (NewColumn("id", "bigint"), NewColumn("name", "varchar(64)", nullable=True))
        self.tables = [self.orders, *(self.tidb.create_table("shop", name, columns) for name in ("carts", "bills"))]
        self.start_ts = self.tidb.now()
        self.put: list[str] = []  # what was let through, in order
        self.refuse = ""  # paths with it
        proxy.strike = self._strike

    def _strike(self, method: str, path: str) -> str:
        fault = writes(REFUSED, self.refuse)(method, path) if self.refuse else ""
        if method == "PUT" and not fault:
            self.put.append(path.partition("?")[0])
        return fault

    def start(self) -> Run:
        storage = {"uri": self.uri_of(SINK), "protocol": "csv", "flushInterval": "200ms"}
        changefeed = self.changefeed(
            state={"uri": self.uri_of(STATE)}, sink={"storage": storage | {"csv": {"includeCommitTs": True}}}
        )
        return Run(changefeed, InProcessExecution(), RunOptions(metrics_port=0)).start()

    def write(self, rows: range) -> int:
        """A transaction over all tables; gives its commit ts."""
        with self.tidb.begin() as txn:
            for table in self.tables:
                for number in rows:
                    txn.insert(table, {"id": number, "name": f"{table.name} {number}"})
        return txn.commit_ts

    async def published(self, run: Run, ts: int) -> None:
        await run.until(lambda: checkpoint_of(run) >= ts, f"the checkpoint is at {ts}")

    async def refused(self, run: Run, times: int) -> None:
        more = self.proxy.struck[REFUSED] + times
        await run.until(lambda: self.proxy.struck[REFUSED] >= more, "the store has refused files")


def checkpoint_of(run: Run) -> int:
    return 0 if run.driver is None else run.driver.publication.checkpoint_ts


@pytest.fixture
def shop(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    surround(monkeypatch)
    with before(server) as (proxy, seen), DevCluster(stores=2, min_ts_interval=0.05) as cluster:
        yield Shop(cluster, tmp_path, proxy, lambda path: seen.uri(tmp_path.name + path))


async def test_ac1_the_checkpoint_moves_only_when_the_store_has_the_rows(shop: Shop) -> None:
    """Broken by telling the owner of a file before it is put."""
    run = shop.start()
    await shop.published(run, shop.write(range(10)))
    shop.refuse = DATA
    held = shop.write(range(10, 20))
    await shop.refused(run, 3 * 7)
    assert checkpoint_of(run) < held
    shop.refuse = ""
    await shop.published(run, held)
    await run.drained()


async def test_ac2_and_ac3_a_ddl_is_told_when_the_rows_before_it_stand_in_all_tables_that_it_concerns(
    shop: Shop,
) -> None:
    """A column of one table, then the end of all three, each while the store refuses the rows before it.

    Broken by a barrier that waits for nobody's files.
    """
    run = shop.start()
    await shop.published(run, shop.write(range(10)))
    for number, change in enumerate((add_column, end), 1):
        shop.refuse = DATA
        shop.write(range(10 * number, 10 * number + 10))
        change(shop)
        after = shop.tidb.now()
        await shop.refused(run, 6)
        shop.refuse = ""
        await shop.published(run, after)
    await run.drained()
    sink = open_store(shop.uri_of(SINK))
    rows = {path: commit_ts_of(sink.get(path).body) for path, _ in sink.list() if path.endswith(".csv")}
    first_put = {path: next(i for i, put in enumerate(shop.put) if put.endswith("/" + path)) for path in rows}
    told = [(path, i) for i, path in enumerate(shop.put) if "/meta/schema_" in path]
    assert len(told) >= 5
    for path, position in told:
        ts = int(path.rsplit("_", 2)[1])
        table = path.partition("/shop/")[2].partition("/")[0]
        before_it = [each for each, found in rows.items() if table in ("meta", each.split("/")[1]) and min(found) <= ts]
        assert all(first_put[each] < position for each in before_it), path
    assert Counter(len(found) for found in rows.values()) == {10: 9}


def add_column(shop: Shop) -> None:
    shop.tables[0] = shop.tidb.add_column(shop.tables[0], NewColumn("note", "varchar(64)", nullable=True))


def end(shop: Shop) -> None:
    drop_database(shop.tidb, "shop")


def commit_ts_of(body: bytes) -> list[int]:
    return [int(line.split(",")[3]) for line in body.decode().splitlines()]


async def test_ac4_and_ac5_a_busy_table_makes_full_files_by_size_and_quiet_ones_make_theirs_by_interval(
    tmp_path: Path,
) -> None:
    """Broken by a planner that never looks whether a file is full. Who shares an interval: see the planner's tests."""
    with new_world(tmp_path) as world:
        columns = (NewColumn("id", "bigint"), NewColumn("name", "varchar(1000)", nullable=True))
        busy, *quiet = [world.tidb.create_table("shop", f"table{number}", columns) for number in range(21)]
        world.start_ts = world.tidb.now()
        csv = {"uri": world.lake.as_uri(), "protocol": "csv", "flushInterval": "4s", "fileSize": "4Mi"}
        run = world.run(sink={"storage": csv})
        for turn in range(10 * FILE_SIZE // 100_000):
            await run.until(lambda: run.driver is not None, "it runs")
            add(world, busy, range(100 * turn, 100 * turn + 100))
            add(world, quiet[turn % len(quiet)], range(turn, turn + 1))
        last = world.tidb.now()
        await run.until(lambda: checkpoint_of(run) >= last, "all is published")
        await run.drained()
        entries = [entry for record in world.records("plan") for entry in record["entries"]]
    sizes = {entry["output"]["path"]: (world.lake / entry["output"]["path"]).stat().st_size for entry in entries}
    reasons = {entry["output"]["path"]: entry["reason"] for entry in entries}
    of_busy = [path for path in sizes if "/table0/" in path]
    full = [sizes[path] for path in of_busy if reasons[path] == "size"]
    assert sum(full) >= 0.8 * sum(sizes[path] for path in of_busy)
    assert all(0.9 * FILE_SIZE <= size <= 1.1 * FILE_SIZE for size in full), full
    assert {reasons[path] for path in sizes if path not in of_busy} <= {"interval", "shutdown"}


def add(world: World, table: NamedTable, ids: range) -> None:
    with world.tidb.begin() as txn:
        for number in ids:
            txn.insert(table, {"id": number, "name": str(number).ljust(980, ".")})
