"""A run lives through DDLs: each comes behind the rows before it, and what follows stands under its version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.verify.result import Result
from changefeed.verify.storage.report import verify
from changefeed_devcluster.ddl import columns, partitions, tables
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import Run, World, insert, new_world

NOTE = NewColumn("note", "varchar(8)", nullable=True)
ITEMS = (NewColumn("id", "bigint"), NewColumn("price", "int"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def rows(world: World, table: str) -> dict[int, list[str]]:
    """Table version -> the rows' values in its files, ids first."""
    found: dict[int, list[str]] = {}
    for path in sorted((world.lake / "shop" / table).rglob("CDC*.csv")):
        version = int(path.relative_to(world.lake / "shop" / table).parts[0])
        found.setdefault(version, []).extend(line.split(",", 4)[4] for line in path.read_text().splitlines())
    return found


def statements(world: World, table: str) -> dict[int, tuple[int, str]]:
    """Table version -> type and statement of its schema file."""
    files = [json.loads(path.read_text()) for path in (world.lake / "shop" / table / "meta").glob("schema_*.json")]
    return {file["TableVersion"]: (file["Type"], file["Query"]) for file in files}


async def verified(world: World) -> Result:
    """What `changefeed verify` says; it must be good."""
    result = await verify(world.lake.as_uri(), [world.cluster.pd_address])
    assert result.ok, result
    return result


async def settled(world: World, run: Run) -> None:
    after = world.tidb.now()
    await run.until(lambda: world.checkpoint() > after, "the checkpoint passes")


async def test_rule_9_rows_after_a_ddl_stand_behind_it_under_its_version(world: World) -> None:
    insert(world, world.orders, range(1, 4), name="a")
    run = world.run()
    await settled(world, run)
    insert(world, world.orders, range(4, 6), name="b")
    wide = world.tidb.add_column(world.orders, NOTE)
    altered = world.tidb.last_ddl_ts
    insert(world, wide, range(6, 8), name="c", note="new")
    await settled(world, run)
    await run.drained()

    assert rows(world, "orders") == {
        world.start_ts: ['1,"a"', '2,"a"', '3,"a"', '4,"b"', '5,"b"'],
        altered: ['6,"c","new"', '7,"c","new"'],
    }
    assert statements(world, "orders")[world.start_ts] == (0, "")
    kind, statement = statements(world, "orders")[altered]
    assert (kind, statement[:12]) == (5, "ALTER TABLE ")
    (record,) = world.records("ddl")
    assert (int(record["ts"]), record["involved"], record["dispatchers"]) == (altered, [wide.id], [wide.id])

    again = world.run()
    insert(world, wide, range(8, 9), name="d", note="old")
    await settled(world, again)
    await again.drained()
    assert rows(world, "orders")[altered][-1] == '8,"d","old"'
    assert (await verified(world)).rows == 8
    assert len(world.records("ddl")) == 1


async def test_rule_1_tables_join_and_leave_at_the_ts_of_their_ddl(world: World) -> None:
    run = world.run()
    items = world.tidb.create_table("shop", "items", ITEMS)
    created = world.tidb.last_ddl_ts
    insert(world, items, range(1, 4), price=1)
    fresh = world.tidb.truncate_table(items)
    truncated = world.tidb.last_ddl_ts
    insert(world, fresh, range(1, 3), price=2)
    await settled(world, run)
    assert rows(world, "items") == {created: ["1,1", "2,1", "3,1"], truncated: ["1,2", "2,2"]}
    world.tidb.drop_table(fresh)
    dropped = world.tidb.last_ddl_ts
    insert(world, world.orders, range(1, 2), name="a")
    await settled(world, run)
    await run.drained()
    assert [kind for _, (kind, _) in sorted(statements(world, "items").items())] == [3, 11, 4]
    assert dropped in statements(world, "items")
    assert [record["left"] for record in world.records("ddl")] == [[], [items.id], [fresh.id]]
    await world.run().drained()
    assert rows(world, "orders") == {world.start_ts: ['1,"a"']}
    assert (await verified(world)).tables == 1


async def test_a_run_that_is_killed_between_two_ddls_goes_on_behind_the_first(world: World) -> None:
    """The uninvolved table is ahead of the checkpoint when the run ends without a word."""
    run = world.run()
    items = world.tidb.create_table("shop", "items", ITEMS)
    insert(world, items, range(1, 3), price=1)
    wide = world.tidb.add_column(world.orders, NOTE)
    first = world.tidb.last_ddl_ts
    await run.until(lambda: world.records("ddl")[1:], "two DDLs are written")
    await run.killed()
    insert(world, wide, range(1, 3), name="a", note="x")
    wider = world.tidb.add_column(wide, NewColumn("more", "int", nullable=True))
    second = world.tidb.last_ddl_ts
    insert(world, wider, range(3, 4), name="b", note="y", more=7)
    again = world.run()
    await settled(world, again)
    await again.drained()
    assert rows(world, "orders") == {first: ['1,"a","x"', '2,"a","x"'], second: ['3,"b","y",7']}
    assert len(world.records("ddl")) == 3
    assert (await verified(world)).tables == 2


@pytest.mark.parametrize("online", [True, False])
async def test_rule_9_rows_of_a_column_that_is_modified_have_the_definition_in_force(
    world: World, online: bool
) -> None:
    """In each state of the job a session writes a row, and one that is a state behind. The run dies halfway."""
    items = world.tidb.create_table("shop", "items", ITEMS)
    world.start_ts = world.tidb.now()
    run = world.run()
    written: list[tuple[int, int]] = []  # commit ts, id
    known = items
    for table in columns.modify_column(world.tidb, items, "price", NewColumn("price", "varchar(24)"), online=online):
        for session in (table, known):
            number = len(written) + 1
            with world.tidb.begin() as txn:
                is_text = session.info.column("price").type.is_text
                txn.insert(session, {"id": number, "price": str(number) if is_text else number})
            written.append((txn.commit_ts, number))
        known = table
        if table.info.column("price").type.is_text and run is not None:
            await settled(world, run)
            await run.killed()
            run = None
    shown = world.tidb.last_ddl_ts
    again = world.run()
    await settled(world, again)
    await again.drained()
    assert rows(world, "items") == {
        world.start_ts: [f"{number},{number}" for ts, number in written if ts <= shown],
        shown: [f'{number},"{number}"' for ts, number in written if ts > shown],
    }
    assert [kind for _, (kind, _) in sorted(statements(world, "items").items())] == [0, 12]
    assert len(world.records("ddl")) == 1
    assert (await verified(world)).rows == len(written)


async def test_rule_9_a_column_of_several_changes_is_in_the_rows_from_when_sessions_have_it(world: World) -> None:
    items = world.tidb.create_table("shop", "items", ITEMS)
    world.start_ts = world.tidb.now()
    run = world.run()
    added = NewColumn("late", "int", default=7)
    for number, table in enumerate(columns.change_several(world.tidb, items, added, "price")):
        names = [column.name for column in table.info.public]
        insert(world, table, [number], **({"late": number} if "late" in names else {"price": number}))
    shown = world.tidb.last_ddl_ts
    await settled(world, run)
    await run.drained()
    found = rows(world, "items")
    assert found == {world.start_ts: ["0,0", "1,1", "2,2"], shown: [f"{number},{number}" for number in range(3, 7)]}
    assert (await verified(world)).rows == 7


async def test_a_table_that_goes_into_a_system_database_and_comes_back(world: World) -> None:
    run = world.run()
    insert(world, world.orders, (1,), name="a")
    hidden = tables.rename_table(world.tidb, world.orders, world.tidb.databases["mysql"], "hidden")
    insert(world, hidden, (2,), name="b")
    wide = world.tidb.add_column(hidden, NOTE)
    insert(world, wide, (3,), name="c", note="x")
    back = tables.rename_table(world.tidb, wide, world.orders.db, "Back")
    shown = world.tidb.last_ddl_ts
    insert(world, back, (4,), name="d", note="y")
    await settled(world, run)
    await run.drained()
    assert rows(world, "orders") == {world.start_ts: ['1,"a"']}
    assert rows(world, "Back") == {shown: ['4,"d","y"']}
    assert statements(world, "Back") == {shown: (0, "")}
    await verified(world)


def partition_rows(world: World, table: str) -> dict[tuple[int, int], list[str]]:
    """(table version, partition) -> the rows' values in its files."""
    found: dict[tuple[int, int], list[str]] = {}
    for path in sorted((world.lake / "shop" / table).rglob("CDC*.csv")):
        version, partition = path.relative_to(world.lake / "shop" / table).parts[:2]
        lines = [line.split(",", 4)[4] for line in path.read_text().splitlines()]
        found.setdefault((int(version), int(partition)), []).extend(lines)
    return found


async def test_rule_1_each_partition_is_a_dispatcher_that_joins_and_leaves_by_ddls(world: World) -> None:
    tidb = world.tidb
    parted = tidb.create_table("shop", "parted", ITEMS, partitions={"p0": 10, "p1": 20})
    p0, p1 = parted.physical_ids
    created = tidb.last_ddl_ts
    run = world.run()
    insert(world, parted, range(8, 13), price=1)
    parted = partitions.add_partition(tidb, parted, "p2", 30)
    added, p2 = tidb.last_ddl_ts, parted.physical_ids[-1]
    insert(world, parted, (7, 13, 25), price=2)
    parted = partitions.truncate_partition(tidb, parted, "p0")
    truncated, p0_again = tidb.last_ddl_ts, parted.physical_ids[0]
    insert(world, parted, (8,), price=3)
    await settled(world, run)
    assert partition_rows(world, "parted") == {
        (created, p0): ["8,1", "9,1"],
        (created, p1): ["10,1", "11,1", "12,1"],
        (added, p0): ["7,2"],
        (added, p1): ["13,2"],
        (added, p2): ["25,2"],
        (truncated, p0_again): ["8,3"],
    }
    parted = partitions.drop_partition(tidb, parted, "p1")
    parted = partitions.reorganize_partition(tidb, parted, ["p2"], {"p2a": 26, "p2b": None})
    reorganized, (p2a, p2b) = tidb.last_ddl_ts, parted.physical_ids[1:]
    insert(world, parted, (26, 24), price=4)
    await settled(world, run)
    await run.drained()
    found = partition_rows(world, "parted")
    assert {place: rows for place, rows in found.items() if place[0] == reorganized} == {
        (reorganized, p2a): ["24,4"],
        (reorganized, p2b): ["26,4"],
    }, "copies of rows are no changes"
    assert [kind for _, (kind, _) in sorted(statements(world, "parted").items())] == [3, 19, 23, 20, 64]
    await world.run().drained()
    result = await verified(world)
    assert (result.tables, result.rows) == (4, 11)


async def test_rule_1_an_exchanged_partition_and_table_go_on_in_each_others_place(world: World) -> None:
    tidb = world.tidb
    parted = tidb.create_table("shop", "parted", ITEMS, partitions={"p0": 10, "p1": 20})
    other = tidb.create_table("shop", "other", ITEMS)
    p0, p1 = parted.physical_ids
    run = world.run()
    insert(world, parted, (1, 11), price=1)
    insert(world, other, (2,), price=1)
    parted, swapped = partitions.exchange_partition(tidb, parted, "p0", other)
    exchanged = tidb.last_ddl_ts
    insert(world, parted, (3, 12), price=2)
    insert(world, swapped, (4,), price=2)
    await settled(world, run)
    await run.drained()
    assert (parted.physical_ids, swapped.physical_ids) == ((other.id, p1), (p0,))
    after = {place: rows for place, rows in partition_rows(world, "parted").items() if place[0] == exchanged}
    assert after == {(exchanged, other.id): ["3,2"], (exchanged, p1): ["12,2"]}
    assert rows(world, "other")[exchanged] == ["4,2"]
    assert statements(world, "other")[exchanged][0] == 42
    assert statements(world, "parted")[exchanged] == (0, "")
    await world.run().drained()
    assert (await verified(world)).rows == 6
