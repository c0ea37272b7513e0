"""Large transactions: over eight regions beside a small load, and overtaking the scan of a region that has moved."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from changefeed.verify.storage.report import verify
from changefeed_devcluster import keys
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.large_transaction import LargeTransaction
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from integration_inprocess import Run, World, insert

STORES, REGIONS, HANDLES = 2, 8, 800


class Open:
    """A changefeed under a load, and a large transaction that has flushed to every region."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.table: NamedTable = world.tidb.create_table(
            "shop", "ledger", [NewColumn("id", "bigint"), NewColumn("n", "int")], regions=REGIONS, handles=HANDLES
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
        pulled, heard = run.view.progress[-1].pulled, self.inserted
        await run.until(lambda: run.view.progress[-1].pulled >= pulled + 20, "rows are pulled")
        assert heard < self.inserted
        assert world.checkpoint() == self.large.start_ts


@contextmanager
def opened(folder: Path, proposed: int) -> Iterator[Open]:
    """`proposed`: so many stores have the proposed watermark."""
    with DevCluster(stores=STORES, min_ts_interval=0.05, proposed_watermark=proposed) as cluster:
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


async def test_with_the_proposed_watermark_the_checkpoint_follows_its_promise(tmp_path: Path) -> None:
    with opened(tmp_path, proposed=STORES) as made:
        run = made.world.run()
        made.flush(0)
        await run.until(made.passes, "the checkpoint passes its start")
        made.flush(1)
        await ended(made, run)
        assert made.world.cluster.watermarks.statuses.requests.total() > 0


async def test_by_the_old_mechanism_it_waits_at_its_start_until_the_last_store_is_upgraded(tmp_path: Path) -> None:
    with opened(tmp_path, proposed=1) as made:
        run = made.world.run()
        made.flush(0)
        await made.waits(run)
        assert not made.world.cluster.watermarks.statuses.requests
        made.world.cluster.upgrade(2)
        await run.until(made.passes, "the checkpoint passes its start")
        made.flush(1)
        await ended(made, run)


async def test_flushes_that_overtake_the_scan_of_a_region_that_has_moved_are_the_newer_ones(tmp_path: Path) -> None:
    """Its new leader scans what the first flush wrote, while the second one comes live. The values are too long for the
    commit to have them, and nothing in the stream says which is which."""
    with DevCluster(stores=2, min_ts_interval=0.05) as cluster:
        world = World(cluster, tmp_path)
        columns = [NewColumn("id", "bigint"), NewColumn("note", "varchar(600)")]
        table = world.tidb.create_table("shop", "ledger", columns)
        insert(world, table, (1, 2, 3), note="before")
        run = world.run()
        large = world.tidb.begin_large()
        large.update(table, {"id": 1, "note": "first " * 60})
        large.delete(table, 2)
        large.insert(table, {"id": 4, "note": "first " * 60})
        large.insert(table, {"id": 5, "note": "first " * 60})
        large.flush()
        await run.until(lambda: world.checkpoint() == large.start_ts, "the checkpoint is at its start")
        cluster.slow_scans(1)
        region = cluster.regions.locate(keys.record_key(table.id, 1))
        cluster.transfer(region.id, 3 - region.leader_store)
        await run.until(lambda: region.id in cluster.subscriptions.by_region, "the new leader has its snapshot")
        large.update(table, {"id": 1, "note": "second " * 60})
        large.insert(table, {"id": 2, "note": "second " * 60})
        large.delete(table, 3)
        large.delete(table, 4)
        large.update(table, {"id": 5, "note": "second " * 60})
        large.flush()
        cluster.heal()
        commit_ts = large.commit()
        await run.until(lambda: world.checkpoint() >= commit_ts, "the checkpoint passes its end")
        await run.drained()
        result = await verify(world.lake.as_uri(), [cluster.pd_address])
        assert result.ok, f"{result.first_problem} ({result})"
        assert len(world.tidb.snapshot(table, commit_ts)) == 3
