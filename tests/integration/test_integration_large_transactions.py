"""A large transaction over eight regions beside a small load, by the version of the stores (source design 2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from changefeed.verify.report import verify
from changefeed_devcluster import keys
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.large_transaction import LargeTransaction
from changefeed_devcluster.tidb.schema import Column, Table
from integration_inprocess import Run, World

STORES, REGIONS, HANDLES = 2, 8, 800


class Open:
    """A changefeed under a load, and a large transaction that has flushed to every region."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.table: Table = world.tidb.create_table(
            "shop", "ledger", [Column("id", "bigint"), Column("n", "int")], regions=REGIONS, handles=HANDLES
        )
        self.large: LargeTransaction = world.tidb.begin_large()
        self.doomed: LargeTransaction = world.tidb.begin_large()  # it will be rolled back
        self.ids = count(1)
        self.inserted = 0  # the commit ts of the load's last row

    def load(self, stop: threading.Event) -> None:
        while not stop.wait(0.02):
            number = next(self.ids)
            self.inserted = self.world.insert(range(number, number + 1))

    def flush(self, run: int) -> None:
        """Some rows of every region, and the first of all again."""
        for region in range(REGIONS):
            for handle in range(region * HANDLES // REGIONS + 10 * run, region * HANDLES // REGIONS + 10 * run + 10):
                self.large.insert(self.table, {"id": handle, "n": run})
        if run:
            self.large.update(self.table, {"id": 0, "n": run})
        else:
            self.doomed.insert(self.table, {"id": HANDLES // 2 - 1, "n": 0})
            self.doomed.insert(self.table, {"id": HANDLES - 1, "n": 0})
        for each in (self.large, self.doomed):
            each.flush()

    def passes(self) -> bool:
        """Whether the checkpoint has passed its start, by some milliseconds."""
        self.large.heartbeat()
        self.doomed.heartbeat()
        return self.world.checkpoint() > self.large.start_ts + (1 << 18)

    async def waits(self, run: Run) -> None:
        """The checkpoint gets to its start and stays there, while rows come."""
        world = self.world
        await run.until(lambda: world.checkpoint() == self.large.start_ts, "the checkpoint is at its start")
        pulled, heard = run.view.progress[-1].puller.rows, self.inserted
        await run.until(lambda: run.view.progress[-1].puller.rows >= pulled + 20, "rows are pulled")
        assert heard < self.inserted
        assert world.checkpoint() == self.large.start_ts


@contextmanager
def opened(folder: Path, new_stores: int) -> Iterator[Open]:
    with DevCluster(stores=STORES, min_ts_interval=0.05, new_stores=new_stores) as cluster:
        made = Open(World(cluster, folder))
        stop = threading.Event()
        thread = threading.Thread(target=made.load, args=(stop,))
        thread.start()
        try:
            yield made
        finally:
            stop.set()
            thread.join()


async def ended(made: Open, run: Run) -> None:
    """Commits it, its last keys after the checkpoint could pass it and a region was split; all of it is in files."""
    made.doomed.rollback()
    made.large.commit_primary()
    left = made.large.commit_secondaries(60)
    made.world.cluster.split(keys.record_key(made.table.id, HANDLES - 5))
    await run.until(lambda: made.inserted > made.large.commit_ts, "rows are written after it")
    while left:
        left = made.large.commit_secondaries(30)
    end = made.world.tidb.now()
    await run.until(lambda: made.world.checkpoint() > end, "the checkpoint passes its end")
    await run.drained()
    result = await verify(made.world.lake.as_uri(), [made.world.cluster.pd_address])
    assert result.ok, f"{result.first_problem} ({result})"
    assert len(made.world.tidb.snapshot(made.table, end)) == REGIONS * 20


async def test_with_new_stores_the_checkpoint_follows_its_promise(tmp_path: Path) -> None:
    with opened(tmp_path, new_stores=STORES) as made:
        run = made.world.run()
        made.flush(0)
        await run.until(made.passes, "the checkpoint passes its start")
        made.flush(1)
        await ended(made, run)
        assert made.world.cluster.watermarks.statuses.requests.total() > 0


async def test_by_the_old_mechanism_it_waits_at_its_start_until_the_last_store_is_upgraded(tmp_path: Path) -> None:
    with opened(tmp_path, new_stores=1) as made:
        run = made.world.run()
        made.flush(0)
        await made.waits(run)
        assert not made.world.cluster.watermarks.statuses.requests
        made.world.cluster.upgrade(2)
        await run.until(made.passes, "the checkpoint passes its start")
        made.flush(1)
        await ended(made, run)
