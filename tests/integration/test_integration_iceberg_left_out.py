"""A table that can't be followed any more, and that the rules then leave out: all others go on, exactly once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.verify.iceberg.report import verify
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from integration_iceberg import catalog_of, changelog, local, sink
from integration_inprocess import Run, World, new_world


def located(folder: Path, name: str, location: str = "") -> str:
    """Where the catalog has the table's metadata; from now on it has those that are given."""
    with sqlite3.connect(folder / "catalog.db") as catalog:
        ((was,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", (name,))
        if location:
            catalog.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", (location, name))
    return str(was)


def of_version_3(folder: Path, name: str) -> None:
    """As Spark makes it; pyiceberg can't."""
    newest = local(located(folder, name))
    made = newest.with_name("00999-of-version-3.metadata.json")
    made.write_text(json.dumps(json.loads(newest.read_text()) | {"format-version": 3, "next-row-id": 0}))
    located(folder, name, made.as_uri())


def insert(world: World, *ids: int, tables: tuple[NamedTable, ...]) -> None:
    """A transaction of all tables."""
    with world.tidb.begin() as txn:
        for table in tables:
            for number in ids:
                txn.insert(table, {"id": number, "name": "n"})


def ids(world: World, name: str) -> list[int]:
    return [row["id"] for row in changelog(catalog_of(world.folder).load_table(("shop", name)))]


async def published(world: World, run: Run) -> None:
    now = world.tidb.now()
    await run.until(lambda: run.driver is not None and run.driver.publication.checkpoint_ts >= now, "all is published")


async def test_what_is_planned_of_a_table_that_is_left_out_holds_up_no_other(tmp_path: Path) -> None:
    with new_world(tmp_path) as world:
        columns = (NewColumn("id", "bigint"), NewColumn("name", "varchar(64)", nullable=True))
        both = (world.orders, world.tidb.create_table("shop", "items", columns))
        world.start_ts = world.tidb.now()
        members: dict[str, Any] = {"sink": sink(tmp_path, "append")}
        without_items = {**members, "filter": {"rules": ["shop.*", "!shop.items"]}}

        first = world.run(**members)
        insert(world, 1, 2, tables=both)
        await published(world, first)
        before = located(tmp_path, "items")
        of_version_3(tmp_path, "items")
        insert(world, 3, tables=both)
        with pytest.raises(NeedsHuman, match=r"shop\.items has format version 3"):
            await first.outcome()

        second = world.run(**without_items)
        insert(world, 4, tables=both)
        await published(world, second)
        await second.drained()
        assert ids(world, "orders") == [1, 2, 3, 4]
        verdict = await asyncio.to_thread(asyncio.run, verify(world.changefeed(**without_items)))
        assert (verdict.ok, verdict.rows) == (True, 4)

        located(tmp_path, "items", before)
        third = world.run(**members)
        insert(world, 5, tables=both)
        await published(world, third)
        await third.drained()
        assert ids(world, "orders") == [1, 2, 3, 4, 5]
        assert ids(world, "items") == [1, 2, 5]
        verdict = await asyncio.to_thread(asyncio.run, verify(world.changefeed(**members)))
        assert (verdict.ok, verdict.missing) == (False, 2)
