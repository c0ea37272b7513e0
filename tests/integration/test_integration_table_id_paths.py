"""`useTableIdAsPath`: folders have tables' ids for names, and readers find the same in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.objectstore.open import open_store
from changefeed.reading.known import known_of
from changefeed.tail.changes import TailedChanges
from changefeed.verify.result import Result
from changefeed.verify.storage.report import verify
from changefeed_devcluster.ddl import databases, partitions, tables
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import Run, World, insert, new_world

NOTE = NewColumn("note", "varchar(8)", nullable=True)
ITEMS = (NewColumn("id", "bigint"), NewColumn("price", "int"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def running(world: World) -> Run:
    storage = {"uri": world.lake.as_uri(), "protocol": "csv", "flushInterval": "100ms", "useTableIdAsPath": True}
    return world.run(sink={"storage": storage | {"csv": {"includeCommitTs": True}}})


async def settled(world: World, run: Run) -> None:
    after = world.tidb.now()
    await run.until(lambda: world.checkpoint() > after, "the checkpoint passes")


def rows(world: World) -> dict[tuple[int, int], list[str]]:
    """(id, table version) -> the rows' values in its files."""
    found: dict[tuple[int, int], list[str]] = {}
    for path in sorted(world.lake.rglob("CDC*.csv")):
        id_, version, date, _ = path.relative_to(world.lake).parts
        assert len(date) == 10
        lines = [line.split(",", 4)[4] for line in path.read_text().splitlines()]
        found.setdefault((int(id_), int(version)), []).extend(lines)
    return {place: lines for place, lines in found.items() if lines}


def schemas(world: World) -> dict[tuple[int, int], tuple[str, int]]:
    """(id, table version) -> the table's name and the type of the DDL in its schema file."""
    found = {}
    for path in world.lake.rglob("schema_*.json"):
        id_, meta, _ = path.relative_to(world.lake).parts
        file = json.loads(path.read_text())
        assert (meta, bool(file["Query"])) == ("meta", file["Type"] != 0)
        found[int(id_), file["TableVersion"]] = (f"{file['Schema']}.{file['Table']}", file["Type"])
    return found


async def verified(world: World) -> Result:
    result = await verify(world.lake.as_uri(), [world.cluster.pd_address])
    assert result.ok, result
    return result


def tailed(world: World, table: str) -> list[tuple[str, str | None]]:
    """What a reader from the start is shown of tables that begin so: (table, statement or id)."""
    store = open_store(world.lake.as_uri())
    changes = TailedChanges(store, known_of(store).format_of, 0, lambda schema, name: name.startswith(table))
    return [(each.table, each.row.values["id"] if each.row else each.query[:12]) for each in changes.round()]


async def test_a_renamed_table_stays_in_its_folder_and_a_truncated_one_begins_another(world: World) -> None:
    orders, tidb = world.orders, world.tidb
    insert(world, orders, (1, 2), name="a")
    run = running(world)
    await settled(world, run)
    wide = tidb.add_column(orders, NOTE)
    altered = tidb.last_ddl_ts
    insert(world, wide, (3,), name="b", note="x")
    renamed = tables.rename_table(tidb, wide, wide.db, "orders_of_old")
    moved = tidb.last_ddl_ts
    insert(world, renamed, (4,), name="c", note="y")
    await settled(world, run)
    await run.drained()
    again = running(world)
    fresh = tidb.truncate_table(renamed)
    truncated = tidb.last_ddl_ts
    insert(world, fresh, (5,), name="d", note="z")
    await settled(world, again)
    await again.drained()

    assert fresh.id != orders.id
    assert rows(world) == {
        (orders.id, world.start_ts): ['1,"a"', '2,"a"'],
        (orders.id, altered): ['3,"b","x"'],
        (orders.id, moved): ['4,"c","y"'],
        (fresh.id, truncated): ['5,"d","z"'],
    }
    assert schemas(world) == {
        (orders.id, world.start_ts): ("shop.orders", 0),
        (orders.id, altered): ("shop.orders", 5),
        (orders.id, moved): ("shop.orders_of_old", 14),
        (fresh.id, truncated): ("shop.orders_of_old", 11),
    }
    assert (await verified(world)).rows == 5
    assert tailed(world, "orders") == [
        *(("orders", "1"), ("orders", "2"), ("orders", "ALTER TABLE "), ("orders", "3")),
        *(("orders_of_old", text) for text in ("RENAME TABLE", "4", "TRUNCATE TAB", "5")),
    ]


async def test_each_partition_has_a_folder_and_the_tables_own_has_the_statements(world: World) -> None:
    tidb = world.tidb
    parted = tidb.create_table("shop", "parted", ITEMS, partitions={"p0": 10, "p1": 20})
    other = tidb.create_table("shop", "other", ITEMS)
    world.start_ts = start = tidb.now()
    p0, p1 = parted.physical_ids
    run = running(world)
    insert(world, parted, (8, 12), price=1)
    insert(world, other, (2,), price=1)
    parted = partitions.truncate_partition(tidb, parted, "p1")
    truncated, p1_again = tidb.last_ddl_ts, parted.physical_ids[1]
    insert(world, parted, (9, 13), price=2)
    parted, swapped = partitions.exchange_partition(tidb, parted, "p0", other)
    exchanged = tidb.last_ddl_ts
    insert(world, parted, (3, 14), price=3)
    insert(world, swapped, (4,), price=3)
    await settled(world, run)
    await run.drained()

    assert (parted.physical_ids, swapped.id) == ((other.id, p1_again), p0)
    assert rows(world) == {
        (p0, start): ["8,1"],
        (p1, start): ["12,1"],
        (other.id, start): ["2,1"],
        (p0, truncated): ["9,2"],
        (p1_again, truncated): ["13,2"],
        (other.id, exchanged): ["3,3"],
        (p1_again, exchanged): ["14,3"],
        (p0, exchanged): ["4,3"],
    }
    told = {place: name for place, name in schemas(world).items() if place[0] != world.orders.id}
    assert told == {
        **{(id_, start): ("shop.parted", 0) for id_ in (p0, p1)},
        (other.id, start): ("shop.other", 0),
        (parted.id, truncated): ("shop.parted", 23),
        **{(id_, truncated): ("shop.parted", 0) for id_ in (p0, p1_again)},
        (parted.id, exchanged): ("shop.parted", 0),
        **{(id_, exchanged): ("shop.parted", 0) for id_ in (other.id, p1_again)},
        (swapped.id, exchanged): ("shop.other", 42),
    }
    result = await verified(world)
    assert (result.rows, result.tables) == (8, 4)
    assert sorted(id_ for table, id_ in tailed(world, "parted") if id_ is not None and id_.isdecimal()) == [
        *("12", "13", "14", "3", "8", "9")
    ]


async def test_a_dropped_database_ends_its_tables_without_a_word(world: World) -> None:
    run = running(world)
    insert(world, world.orders, (1,), name="a")
    databases.drop_database(world.tidb, "shop")
    databases.create_database(world.tidb, "shop")
    items = world.tidb.create_table("shop", "items", ITEMS)
    orders = world.tidb.create_table("shop", "orders", (NewColumn("id", "bigint"), NewColumn("name", "varchar(64)")))
    insert(world, items, (7,), price=1)
    insert(world, orders, (2,), name="b")
    await settled(world, run)
    await run.drained()
    assert not list(world.lake.glob("shop*"))
    assert {name for name, _ in schemas(world).values()} == {"shop.orders", "shop.items"}
    assert sorted(line for lines in rows(world).values() for line in lines) == ['1,"a"', '2,"b"', "7,1"]
    assert (await verified(world)).rows == 3


async def test_verify_sees_a_schema_file_in_the_folder_of_another_table(world: World) -> None:
    """The oracle is no better than what it holds files against."""
    items = world.tidb.create_table("shop", "items", ITEMS)
    world.start_ts = world.tidb.now()
    run = running(world)
    insert(world, items, (1,), price=1)
    await settled(world, run)
    await run.drained()
    await verified(world)
    (theirs,) = (world.lake / str(world.orders.id) / "meta").iterdir()
    mine = world.lake / str(items.id) / "meta" / theirs.name
    mine.write_bytes(theirs.read_bytes())
    result = await verify(world.lake.as_uri(), [world.cluster.pd_address])
    assert f"{items.id}/meta/{theirs.name}" in str(result.first_problem)
