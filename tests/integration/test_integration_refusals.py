"""What a changefeed must not go on with: history that GC has really deleted, and a sink that is really another's.

Each is said on one screen, with the reason and the next step, and nothing wrong is committed before. More that is
refused, with made-up causes: test_integration_bad_input.py, test_integration_s3_run.py.
"""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.errors import NeedsHuman
from changefeed.owner.driver import Outcome
from changefeed.spark.launch import Launch
from changefeed.spec.parse import effective
from changefeed_devcluster import keys
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from changefeed_devcluster.tidb.server import CommittedChange
from changefeed_devcluster.tidb.tidb import Tidb
from conftest import Changefeed, Upstream
from integration_inprocess import World, new_world
from integration_screen import CANNOT_CHECK, FAILED, one_screen

Check = Callable[..., None]
HOLDER = b"changefeed-default-test-local"
SIGNS = {"insert": "I", "update": "U", "delete": "D"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def write(world: World, name: str = "test", **spec: Any) -> Path:
    """The world's changefeed as a file for the command line."""
    file = world.folder / f"{name}.json"
    file.write_text(json.dumps(effective(world.changefeed(**spec)) | {"metadata": {"name": name}}))
    return file


def collect(upstream: Upstream | World, holder: bytes = HOLDER) -> int:
    """Lose the changefeed's hold, then let GC go as far as it can; gives the GC safepoint."""
    upstream.cluster.safepoints.remove(holder)
    return upstream.cluster.collect_garbage(upstream.tidb.now())


def change_thrice(tidb: Tidb, table: NamedTable) -> None:
    """Change two rows: GC leaves the last version of row 1, of row 2 nothing at all."""
    for name in ("one", "two", "three"):
        with tidb.begin() as txn:
            txn.update(table, {"id": 1, "name": name})
    with tidb.begin() as txn:
        txn.delete(table, 2)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Check:
    """`refused(file, *said)`: `changefeed run` says all of it, to a person and to a script, before it needs Spark."""

    def context(_: Launch) -> None:
        pytest.fail("the run is not refused")

    monkeypatch.setattr(Launch, "begin", lambda _: None)
    monkeypatch.setattr(Launch, "context", context)

    def check(file: Path, *said: str) -> None:
        for mode in ([], ["--json"]):
            capfd.readouterr()
            assert main(["run", "-f", str(file), "--metrics-port", "0", *mode]) == FAILED
            one_screen(*capfd.readouterr(), bool(mode), said)

    return check


def replicate(world: World, rows: int, **spec: Any) -> Outcome:
    """A run until so many rows are in files."""

    async def run() -> Outcome:
        run = world.run(**spec)
        await run.until(lambda: len(world.ids()) >= rows, f"{rows} rows are in files")
        return await run.drained()

    return asyncio.run(run())


def check_not_verifiable(file: Path, capfd: pytest.CaptureFixture[str], *said: str) -> None:
    """What is below the checkpoint can't be compared any more, and verify says so instead of finding breaks."""
    for mode in ([], ["--json"]):
        capfd.readouterr()
        assert main(["verify", "-f", str(file), *mode]) == CANNOT_CHECK
        one_screen(*capfd.readouterr(), bool(mode), ("garbage collection may have gone up to", *said))


def line_of(change: CommittedChange) -> list[str]:
    row = change.row if change.row is not None else change.old_row
    assert row is not None
    return [SIGNS[change.op], "orders", "shop", str(change.commit_ts), str(row["id"]), row["name"]]


def lines(lake: Path) -> list[list[str]]:
    files = sorted(lake.rglob("CDC*.csv"))
    return [line for path in files for line in csv.reader(path.read_text().splitlines())]


def test_rule_14_a_start_below_the_gc_safepoint_is_refused(world: World, refused: Check) -> None:
    world.insert(range(1, 11))
    change_thrice(world.tidb, world.orders)
    safepoint = collect(world)
    assert safepoint > world.start_ts
    file = write(world)
    refused(file, "SnapshotLostByGC", str(world.start_ts), str(safepoint), "from a later startTs")
    assert not list(world.log.glob("*")), "startTs is not fixed: it may be mended, as the message says"
    assert not (world.lake / ".changefeed-owner.json").exists()

    # As the message says.
    start_ts = world.tidb.now()
    target_ts = world.insert(range(11, 21))
    assert replicate(world, 10, startTs=str(start_ts)).checkpoint_ts >= target_ts
    assert world.ids() == list(range(11, 21))


def test_rule_14_history_lost_between_two_runs_is_refused(
    world: World, refused: Check, capfd: pytest.CaptureFixture[str]
) -> None:
    world.insert(range(1, 11))
    checkpoint = replicate(world, 10).checkpoint_ts
    change_thrice(world.tidb, world.orders)
    written, records = lines(world.lake), sorted(world.log.iterdir())
    safepoint = collect(world)
    assert safepoint > checkpoint
    file = write(world)
    refused(file, "SnapshotLostByGC", str(checkpoint), str(safepoint), "an empty sink or a new snapshot")
    assert (world.checkpoint(), lines(world.lake)) == (checkpoint, written)
    assert sorted(world.log.iterdir()) == records
    check_not_verifiable(file, capfd, str(world.start_ts), str(safepoint))


def test_a_sink_of_a_changefeed_that_has_run_is_refused(world: World, refused: Check) -> None:
    world.insert(range(1, 11))
    replicate(world, 10)
    before = {path: path.read_bytes() for path in world.lake.rglob("*") if path.is_file()}
    state = world.folder / "second"
    file = write(world, "second", state={"uri": state.as_uri()})
    owner = (world.folder / "state" / "default" / "test" / "local").as_uri()
    refused(file, "SinkOwned", f"its state in {owner}", "Choose another folder", "two changefeeds can't share one")
    assert not list((state / "default" / "second" / "local" / "log").glob("*"))
    assert {path: path.read_bytes() for path in world.lake.rglob("*") if path.is_file()} == before

    world.insert(range(11, 21))
    replicate(world, 20)
    assert world.ids() == list(range(1, 21))


async def test_rule_14_history_lost_while_it_runs_ends_the_run_before_a_wrong_row(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], refused: Check, capfd: pytest.CaptureFixture[str]
) -> None:
    """A region's resolved-ts stands still, GC passes it, and the region is registered once more from there."""
    tidb, cluster = upstream.tidb, upstream.cluster
    tidb.create_database("shop")
    columns = (NewColumn("id", "bigint"), NewColumn("name", "varchar(20)", nullable=True))
    orders = tidb.create_table("shop", "orders", columns, regions=2, handles=100)
    changefeed = new_changefeed(["shop.*"])
    start_ts = tidb.now()
    changefeed.spec["startTs"] = str(start_ts)
    with tidb.begin() as txn:
        for number in range(1, 101):
            txn.insert(orders, {"id": number, "name": f"order {number}"})
    run = changefeed.start_here()
    await run.until(lambda: changefeed.checkpoint() >= txn.commit_ts, "the first rows are published")

    cluster.stall_region(cluster.regions.locate(keys.record_key(orders.id, 1)).id)
    change_thrice(tidb, orders)
    history = [line_of(change) for change in tidb.history(orders, start_ts, tidb.now())]
    safepoint = collect(upstream)
    assert safepoint > changefeed.checkpoint()
    cluster.cut()
    with pytest.raises(NeedsHuman, match=r"SnapshotLostByGC.*cluster's GC safepoint") as caught:
        await run.outcome()
    assert "from a later startTs" in caught.value.next_step
    assert changefeed.checkpoint() < safepoint
    found = lines(changefeed.lake)
    assert sorted(found) == sorted(history[:100]), "what GC has left of later changes is not written"

    await asyncio.to_thread(refused, changefeed.file, "SnapshotLostByGC", str(safepoint))
    await asyncio.to_thread(check_not_verifiable, changefeed.file, capfd, str(start_ts), str(safepoint))
