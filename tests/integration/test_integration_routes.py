"""Tables that are written under other names, in files and in a database, with their DDLs; verify and restore follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import integration_iceberg as iceberg
import pytest
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.reading.progress import NoProgress
from changefeed.routing.routes import Routes
from changefeed.verify.choice import verify_sink
from changefeed.verify.result import Result
from changefeed.verify.storage.report import verify
from changefeed_devcluster.ddl.columns import drop_column
from changefeed_devcluster.ddl.databases import drop_database
from changefeed_devcluster.ddl.indexes import add_index
from changefeed_devcluster.ddl.running import last
from changefeed_devcluster.ddl.tables import create_view, rename_table, swap_tables
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn
from integration_inprocess import World, insert, new_world
from integration_mariadb import MariaDb
from integration_restore import restored

ID, NOTE = NewColumn("id", "bigint"), NewColumn("note", "varchar(20)", nullable=True)
PARTED = {"p0": 10, "p1": 100}
ROUTES = [
    {"match": ["shop.orders"], "schema": "lake", "table": "all_orders"},
    {"match": ["shop.tmp_*"], "table": "scratch"},
    {"match": ["shop.*"], "schema": "{schema}_copy", "table": "t_{table}"},
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def history(world: World) -> None:
    """Rows, and each kind of DDL, of tables that are renamed, moved or left alone."""
    tidb = world.tidb
    world.insert(range(1, 4))
    orders = tidb.add_column(world.orders, NewColumn("late", "int", nullable=True))
    insert(world, orders, [4], name="x", late=4)
    orders = add_index(tidb, orders, "by_name", ["name"], is_unique=False)
    orders = last(drop_column(tidb, orders, "late"))
    insert(world, orders, [5], name="y")
    parts = tidb.create_table("shop", "parts", (ID, NOTE), partitions=PARTED)
    insert(world, parts, [1, 50], note="p")
    items = tidb.create_table("shop", "items", (ID, NOTE))
    insert(world, items, [1], note="items")
    things = rename_table(tidb, items, tidb.databases["shop"], "things")
    insert(world, things, [2], note="things")
    things = tidb.truncate_table(things)
    insert(world, things, [3], note="left")
    scratch = tidb.create_table("shop", "tmp_a", (ID, NOTE))
    insert(world, scratch, [1], note="a")
    insert(world, rename_table(tidb, scratch, tidb.databases["shop"], "tmp_b"), [2], note="b")
    one = tidb.create_table("shop", "one", (ID, NOTE))
    other = tidb.create_table("shop", "other", (ID, NOTE))
    insert(world, one, [1], note="one")
    one, other = swap_tables(tidb, one, other)
    insert(world, one, [2], note="other now")
    tidb.drop_table(other)


async def written(world: World, **spec: Any) -> Any:
    """All that was written until now is in the sink; gives the changefeed, which can go on."""
    spec = {"routes": ROUTES, **spec}
    run, end = world.run(**spec), world.tidb.now()
    await run.until(lambda: run.driver is not None and run.driver.owner.state.checkpoint_ts > end, "all is written")
    await run.drained()
    return world.changefeed(**spec)


async def verified(world: World, **spec: Any) -> Result:
    await written(world, **spec)
    return await verify(world.lake.as_uri(), [world.cluster.pd_address])


@pytest.mark.parametrize("by_id", [False, True])
async def test_files_have_the_routed_names_alone(world: World, tmp_path: Path, by_id: bool) -> None:
    history(world)
    storage = {"uri": world.lake.as_uri(), "protocol": "csv", "csv": {"includeCommitTs": True}}
    result = await verified(world, sink={"storage": storage | {"useTableIdAsPath": by_id}})
    assert result.ok, result
    assert result.consumed > 0
    if by_id:
        return
    folders = {"/".join(path.parent.relative_to(world.lake).parts[:2]) for path in world.lake.rglob("CDC*.csv")}
    assert folders == {
        *("lake/all_orders", "shop/scratch"),
        *(f"shop_copy/t_{name}" for name in ("parts", "items", "things", "one", "other")),
    }
    told = "".join(path.read_text() for path in world.lake.rglob("schema_*.json"))
    assert "`shop`.`" not in told.replace("`shop`.`scratch`", "")
    assert "ALTER TABLE orders" not in told
    found, _ = restored(world, world.checkpoint(), tmp_path / "restored")
    assert sorted(found["shop_copy.t_things"]) == [3]
    assert sorted(found["shop.scratch"]) == [1, 2]


async def test_a_table_under_its_own_name_is_no_longer_the_changefeeds(world: World) -> None:
    world.insert(range(1, 3))
    assert (await verified(world)).ok
    (world.lake / "lake" / "all_orders").rename(world.lake / "lake" / "orders")
    result = await verify(world.lake.as_uri(), [world.cluster.pd_address])
    assert not result.ok


async def test_verify_finds_rows_under_a_name_that_no_route_gives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is in the product; verify has routes of its own log's config."""
    world.insert(range(1, 3))
    with monkeypatch.context() as broken:
        broken.setattr(Routes, "routed", lambda self, table: table)
        await written(world)
    assert not (await verify(world.lake.as_uri(), [world.cluster.pd_address])).ok


async def test_a_database_has_the_routed_tables_and_their_ddls(world: World, mariadb: MariaDb) -> None:
    for name in ("lake", "shop", "shop_copy"):
        mariadb.query(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    mariadb.query("CREATE TABLE lake.all_orders (id BIGINT PRIMARY KEY, name VARCHAR(64))")
    history(world)
    changefeed = await written(world, sink={"mysql": {"uri": f"mysql://127.0.0.1:{mariadb.port}"}})
    assert mariadb.query("SELECT id, name FROM lake.all_orders ORDER BY id")[3:] == [(b"4", b"x"), (b"5", b"y")]
    assert mariadb.query("SELECT id FROM shop_copy.t_things") == [(b"3",)]
    assert mariadb.query("SELECT id FROM shop.scratch ORDER BY id") == [(b"1",), (b"2",)]
    assert [name for (name,) in mariadb.query("SHOW TABLES FROM shop_copy")] == [b"t_other", b"t_parts", b"t_things"]
    assert [name for (name,) in mariadb.query("SHOW TABLES FROM shop")] == [b"scratch"]
    result = await verify_sink(changefeed, None, None, NoProgress())
    assert result.ok, result
    mariadb.query("DELETE FROM lake.all_orders WHERE id = 2")
    assert not (await verify_sink(changefeed, None, None, NoProgress())).ok


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_a_lake_has_the_routed_tables(world: World, tmp_path: Path, mode: str) -> None:
    history(world)
    changefeed = await written(world, sink=iceberg.sink(tmp_path, mode))
    catalog = iceberg.catalog_of(tmp_path)
    assert {".".join(name) for (space,) in catalog.list_namespaces() for name in catalog.list_tables(space)} >= {
        *("lake.all_orders", "shop.scratch", "shop_copy.t_parts", "shop_copy.t_things"),
    }
    result = await verify_sink(changefeed, None, None, NoProgress())
    assert result.ok, result


async def test_tables_that_would_meet_are_refused_before_anything_is_written(world: World) -> None:
    tidb = world.tidb
    tidb.create_database("shop_2")
    tidb.create_table("shop_2", "orders", (ID,))
    world.start_ts = tidb.now()
    routes = [{"match": ["shop*.orders"], "schema": "lake"}]
    spec: dict[str, Any] = {"filter": {"rules": ["shop*.*"]}, "routes": routes}
    with pytest.raises(InvalidSpec, match=r"shop.orders and shop_2.orders would both be written to lake.orders"):
        await world.run(**spec).outcome()
    assert not list(world.log.glob("*.json")) if world.log.exists() else True


async def test_tables_that_meet_by_a_ddl_end_the_run_before_a_row_of_it_is_written(world: World) -> None:
    tidb = world.tidb
    world.insert(range(1, 3))
    tidb.create_database("shop_2")
    other = tidb.create_table("shop_2", "orders", (ID,))
    insert(world, other, [77])
    routes = [{"match": ["shop*.orders"], "schema": "lake"}]
    with pytest.raises(NeedsHuman, match=r"shop_2.orders would be written to lake.orders, to which shop.orders is"):
        await world.run(filter={"rules": ["shop*.*"]}, routes=routes).outcome()
    assert not [path for path in world.lake.rglob("CDC*.csv") if "77" in path.read_text()]


async def test_a_database_that_would_take_other_tables_with_it_and_a_view_are_refused(world: World) -> None:
    tidb = world.tidb
    tidb.create_database("crm")
    people = tidb.create_table("crm", "people", (ID,))
    world.start_ts = tidb.now()
    spec: dict[str, Any] = {"filter": {"rules": ["shop.*", "crm.*"]}}
    spec["routes"] = [{"match": ["crm.people"], "schema": "shop"}]
    create_view(tidb, "seen", people)
    with pytest.raises(NeedsHuman, match=r"view crm.seen reads crm.people, which is written as shop.people"):
        await world.run(**spec).outcome()
    spec["filter"]["rules"].append("!crm.seen")
    drop_database(tidb, "shop")
    with pytest.raises(NeedsHuman, match=r"DROP DATABASE shop .* crm.people is written as shop.people"):
        await world.run(**spec).outcome()
    spec["filter"]["eventFilters"] = [{"matcher": ["shop.*"], "ignoreEvent": ["drop database"]}]
    await written(world, **spec)


async def test_the_name_of_a_table_that_is_written_stays(world: World) -> None:
    world.insert(range(1, 3))
    await written(world)
    world.insert(range(3, 5))
    with pytest.raises(InvalidSpec, match=r"shop.orders would be written to shop.orders, but is to lake.all_orders"):
        await world.run(routes=[]).outcome()
    assert (await verified(world)).ok


async def test_filters_go_by_the_upstreams_names_and_the_sinks_options_by_its_own(world: World) -> None:
    world.insert(range(1, 3))
    filters = [{"matcher": ["shop.orders"], "ignoreEvent": ["delete"]}]
    csv = {"includeCommitTs": True, "outputFieldHeader": True}
    selectors = [{"matcher": ["lake.all_orders"], "columns": ["id"]}, {"matcher": ["shop.orders"], "columns": ["*"]}]
    storage = {"uri": world.lake.as_uri(), "protocol": "csv", "csv": csv, "columnSelectors": selectors}
    with world.tidb.begin() as txn:
        txn.delete(world.orders, 1)
    result = await verified(world, filter={"rules": ["shop.*"], "eventFilters": filters}, sink={"storage": storage})
    assert result.ok, result
    (file,) = world.lake.rglob("CDC*.csv")
    assert [line.split(",")[:1] + line.split(",")[4:] for line in file.read_text().splitlines()[1:]] == [
        ['"I"', "1"],
        ['"I"', "2"],
    ]


SHARDS = [{"match": ["shop_*.orders"], "schema": "shop", "table": "orders", "merge": True}]
MERGED: dict[str, Any] = {"filter": {"rules": ["shop_*.*"]}, "routes": SHARDS}


def shards(world: World, *names: str) -> list[NamedTable]:
    for name in names:
        world.tidb.create_database(name)
    return [world.tidb.create_table(name, "orders", (ID, NOTE)) for name in names]


async def test_shards_are_merged_into_one_table_and_altered_one_after_the_other(world: World, mariadb: MariaDb) -> None:
    tidb = world.tidb
    one, two = shards(world, "shop_1", "shop_2")
    world.start_ts = tidb.now()
    create = "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, note VARCHAR(20))"
    mariadb.query("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", create)
    spec = MERGED | {"sink": {"mysql": {"uri": f"mysql://127.0.0.1:{mariadb.port}"}}}
    insert(world, one, range(1, 4), note="one")
    insert(world, two, range(10, 13), note="two")
    one = tidb.add_column(one, NewColumn("late", "int", nullable=True))
    insert(world, one, [4], note="one", late=1)
    insert(world, two, [13], note="two, as it was")
    changefeed = await written(world, **spec)
    assert (await verify_sink(changefeed, None, None, NoProgress())).ok, "while only one of them is altered"
    two = tidb.add_column(two, NewColumn("late", "int", nullable=True))
    insert(world, two, [14], note="two", late=2)
    (three,) = shards(world, "shop_3")
    three = tidb.add_column(three, NewColumn("late", "int", nullable=True))
    insert(world, three, [20], note="three", late=3)
    with tidb.begin() as txn:
        txn.delete(one, 1)
        txn.update(two, {"id": 10, "note": "new"})
    changefeed = await written(world, **spec)
    rows = mariadb.query("SELECT id, note, late FROM shop.orders WHERE id IN (4, 10, 13, 14, 20) ORDER BY id")
    assert rows == [
        (b"4", b"one", b"1"),
        (b"10", b"new", None),
        (b"13", b"two, as it was", None),
        (b"14", b"two", b"2"),
        (b"20", b"three", b"3"),
    ]
    result = await verify_sink(changefeed, None, None, NoProgress())
    assert result.ok, result
    mariadb.query("DELETE FROM shop.orders WHERE id = 20")
    assert not (await verify_sink(changefeed, None, None, NoProgress())).ok
    tidb.truncate_table(two)
    with pytest.raises(NeedsHuman, match=r"shop_2.orders is merged with others into shop.orders"):
        await world.run(**spec).outcome()


async def test_shards_that_differ_are_refused_before_anything_is_written(world: World, mariadb: MariaDb) -> None:
    shards(world, "shop_1")
    world.tidb.create_database("shop_2")
    world.tidb.create_table("shop_2", "orders", (ID, NewColumn("note", "int", nullable=True)))
    world.start_ts = world.tidb.now()
    spec = MERGED | {"sink": {"mysql": {"uri": f"mysql://127.0.0.1:{mariadb.port}"}}}
    with pytest.raises(InvalidSpec, match=r"can't be merged into shop.orders: it has another column note than shop_2"):
        await world.run(**spec).outcome()
