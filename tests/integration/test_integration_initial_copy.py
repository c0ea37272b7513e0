"""spec.initialCopy: a table's rows from before startTs are in the sink once, before its changes, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import InvalidSpec
from changefeed.model.table_copy import COPY_TICKS
from changefeed.upstream.tikv.access import TikvAccess
from changefeed.verify.result import Result
from changefeed.verify.storage.report import StoredSink, verify
from changefeed_devcluster.keys import record_key
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import Run, World, insert, new_world
from integration_restore import restored

SLOW = "64Ki"  # of this the one puller reads ten chunks of some 75 kilobytes in ten seconds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With rows 1 to 9999 of shop.orders, of which some were changed and some deleted, in some ten regions."""
    with new_world(tmp_path) as made:
        made.insert(range(1, 10_000))
        with made.tidb.begin() as txn:
            for number in (5, 5005):
                txn.update(made.orders, {"id": number, "name": "changed"})
            for number in (6, 6006):
                txn.delete(made.orders, number)
        for border in range(800, 10_000, 1000):
            made.cluster.split(record_key(made.orders.id, border))
        made.start_ts = made.tidb.now()
        yield made


def copying(world: World, **spec: Any) -> Run:
    upstream = {"pdAddresses": [f"http://{world.cluster.pd_address}"], "scanRate": spec.pop("scanRate", "1Gi")}
    return world.run(initialCopy=True, upstream=upstream, spark={"pullers": {"count": 1}}, **spec)


async def verified(world: World) -> Result:
    result = await verify(StoredSink(world.lake.as_uri()), TikvAccess((f"http://{world.cluster.pd_address}",)))
    assert result.ok, result.to_json()
    return result


def copied_chunks(world: World) -> int:
    """How many are in committed files."""
    return sum(len(record["files"]) for record in world.records("commit"))


async def until_written(world: World, run: Run, ts: int) -> None:
    await run.until(lambda: world.checkpoint() >= ts, "all that was committed is written")


async def test_rows_of_before_come_once_while_others_are_written_and_drivers_die(world: World, tmp_path: Path) -> None:
    world.insert(range(20_000, 20_100))
    for turn in range(3):
        run = copying(world, scanRate=SLOW)
        before = copied_chunks(world)
        await run.until(lambda before=before: copied_chunks(world) > before, "a chunk is copied")
        world.insert(range(21_000 + 100 * turn, 21_100 + 100 * turn))
        world.cluster.split(record_key(world.orders.id, 1300 + 1000 * turn))
        await run.killed()
    (recorded,) = world.records("copy")
    (bounds,) = (table["bounds"] for table in recorded["tables"])
    assert len(bounds) >= 11
    assert int(recorded["from_ts"]) == world.start_ts - COPY_TICKS
    assert 0 < len(world.ids()) < 9997
    run = copying(world)
    last = world.insert(range(22_000, 22_100))
    await until_written(world, run, last)
    await run.drained()
    standing = {*range(1, 10_000)} - {6, 6006}
    later = {*range(20_000, 20_100), *range(21_000, 21_300), *range(22_000, 22_100)}
    assert sorted(world.ids()) == sorted(standing | later)
    result = await verified(world)
    assert result.rows == len(standing) + len(later)
    assert result.replayed == result.rows
    then, report = restored(world, world.start_ts, tmp_path / "then")
    assert report.left == []
    assert then["shop.orders"].keys() == standing
    assert then["shop.orders"][5005]["name"] == "changed"
    with pytest.raises(InvalidSpec, match="a table was only partly copied"):
        restored(world, world.start_ts - 1, tmp_path / "before")


async def test_a_table_that_rules_select_later_is_copied_then(world: World) -> None:
    columns = (NewColumn("id", "bigint"), NewColumn("name", "varchar(64)", nullable=True))
    items = world.tidb.create_table("shop", "items", columns)
    insert(world, items, range(1, 301), name="a")
    world.start_ts = world.tidb.now()
    run = copying(world, filter={"rules": ["shop.orders"]})
    insert(world, items, range(301, 401), name="b")
    await until_written(world, run, world.insert(range(20_000, 20_010)))
    await run.drained()
    run = copying(world)
    insert(world, items, range(401, 501), name="c")
    await until_written(world, run, world.insert(range(20_010, 20_020)))
    await run.drained()
    assert [len(record["tables"]) for record in world.records("copy")] == [1, 1]
    result = await verified(world)
    assert result.rows == 9997 + 20 + 500
    assert result.tables == 2


async def test_people_are_told_how_far_it_is_and_what_can_not_be_changed(world: World) -> None:
    run = copying(world, scanRate=SLOW)
    await run.until(lambda: any("; copied 0 %" in each.message for each in run.view.progress), "it is said")
    await run.until(lambda: "left" in run.view.progress[-1].message, "it is known for how long")
    await run.killed()
    with pytest.raises(InvalidSpec, match=r"spec\.initialCopy: it differs from true"):
        await world.run().outcome()
