"""Statements that were typed in sessions of another database and time zone, end to end into MariaDB: each would do
something else there, or fail, as it was typed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed_devcluster.ddl.jobs import JobType
from changefeed_devcluster.ddl.running import RunningJob
from changefeed_devcluster.tidb.schema import NamedTable, NewColumn, TidbTable, make_column, make_table, with_column
from integration_inprocess import World, new_world
from integration_mariadb import MariaDb

ID, AMOUNT = NewColumn("id", "bigint"), NewColumn("amount", "decimal(20,4)", nullable=True)


@pytest.fixture
def database(mariadb: MariaDb) -> MariaDb:
    for name in ("src", "dst", "shop", "Mixed", "changefeed"):
        mariadb.query(f"DROP DATABASE IF EXISTS {name}")
    mariadb.query("CREATE DATABASE shop", "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(64))")
    return mariadb


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


class Typed:
    """What one session types; every database is made by it first, and replicated."""

    def __init__(self, world: World, *databases: str) -> None:
        self.tidb = world.tidb
        for name in databases:
            self.tidb.create_database(name)

    def run(
        self, kind: JobType, text: str, info: TidbTable, *more: NamedTable, db: str, gone: Any = (), args: Any = None
    ) -> NamedTable:
        database = self.tidb.databases[db]
        job = RunningJob(self.tidb, kind, database, (info.id, info.name.lower()), text, args or {})
        return job.finish(NamedTable(database, info), *more, erased=gone)[0]

    def create(self, text: str, db: str, name: str, *columns: NewColumn, **more: Any) -> NamedTable:
        (id_,) = self.tidb.new_physical_ids(1)
        return self.run(JobType.CREATE_TABLE, text, replace(make_table(id_, name, columns, "id"), **more), db=db)

    def insert(self, table: NamedTable, **row: Any) -> None:
        with self.tidb.begin() as txn:
            txn.insert(table, row)


async def replicated(world: World, database: MariaDb, *rules: str, zone: str = "UTC") -> None:
    spec = {"sink": {"mysql": {"uri": f"mysql://127.0.0.1:{database.port}"}}, "timeZone": zone}
    target = str(world.tidb.now())
    outcome = await world.run(filter={"rules": ["shop.*", *rules]}, targetTs=target, **spec).outcome()
    assert outcome.state == "finished"


async def test_tables_of_another_database_than_the_statements(world: World, database: MariaDb) -> None:
    session = Typed(world, "src", "dst")
    model = session.create(
        "CREATE TABLE src.model (id BIGINT PRIMARY KEY, amount DECIMAL(20,4))", "src", "model", ID, AMOUNT
    )
    session.create("CREATE TABLE dst.model (id INT)", "dst", "model", ID, NewColumn("amount", "int", nullable=True))
    (id_,) = world.tidb.new_physical_ids(1)
    copy = session.run(
        JobType.CREATE_TABLE, "CREATE TABLE dst.copy LIKE model", replace(model.info, id=id_, name="copy"), db="dst"
    )
    session.insert(copy, id=1, amount="12.3456")
    session.insert(model, id=7, amount="1.0000")
    view = {"view_select": "SELECT `src`.`model`.`id` AS `id` FROM `src`.`model`", "view_cols": []}
    (id_,) = world.tidb.new_physical_ids(1)
    shown = TidbTable(id_, "v", model.info.columns[:1], attributes={"view": view})
    session.run(JobType.CREATE_VIEW, "CREATE VIEW dst.v AS SELECT id FROM model", shown, db="dst")
    moved = session.create("CREATE TABLE src.orders (id BIGINT PRIMARY KEY)", "src", "orders", ID)
    archived = replace(moved.info, name="archive")
    session.run(JobType.RENAME_TABLE, "RENAME TABLE orders TO dst.archive", archived, db="dst", gone=[moved])
    session.insert(world.tidb.tables["dst.archive"], id=9)
    await replicated(world, database, "src.*", "dst.*")
    assert database.query("SELECT amount FROM dst.copy") == [(b"12.3456",)]
    assert database.query("SELECT id FROM dst.v") == [(b"7",)]
    assert database.query("SELECT id FROM dst.archive") == [(b"9",)]


async def test_names_in_mixed_case_and_a_character_set_alone(world: World, database: MariaDb) -> None:
    session = Typed(world, "Mixed")
    name = NewColumn("name", "varchar(20)", nullable=True, unique=True)
    text = (
        "CREATE TABLE Names (id BIGINT PRIMARY KEY, name VARCHAR(20), UNIQUE KEY name (name)) DEFAULT CHARSET=utf8mb4"
    )
    table = session.create(text, "Mixed", "Names", ID, name)
    session.insert(table, id=1, name="a")
    session.insert(table, id=2, name="A")
    more = with_column(table.info, NewColumn("n", "int", nullable=True))
    session.run(JobType.ADD_COLUMN, "ALTER TABLE Names ADD COLUMN n INT /*! COMMENT 'executed' */", more, db="Mixed")
    await replicated(world, database, "Mixed.*")
    assert database.query("SELECT id, name, n FROM Mixed.Names ORDER BY id") == [(b"1", b"a", None), (b"2", b"A", None)]
    query = "SELECT column_comment FROM information_schema.columns WHERE table_name = 'Names' AND column_name = 'n'"
    assert database.query(query) == [(b"",)]


@pytest.mark.parametrize(
    ("kind", "clause", "default", "origin"),
    [
        ("timestamp", "TIMESTAMP NULL DEFAULT '2024-01-01 08:00:00'", "2024-01-01 00:00:00", "2024-01-01 00:00:00"),
        ("datetime", "DATETIME DEFAULT CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP", "2024-05-06 15:08:09"),
        ("timestamp", "TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP", "2024-05-06 07:08:09"),
    ],
)
async def test_older_rows_of_an_added_column(
    world: World, database: MariaDb, kind: str, clause: str, default: str, origin: str
) -> None:
    session = Typed(world, "src")
    table = session.create("CREATE TABLE t (id BIGINT PRIMARY KEY)", "src", "t", ID)
    session.insert(table, id=1)
    info = with_column(table.info, NewColumn("at", kind, nullable=True))
    columns = (*info.columns[:-1], replace(info.columns[-1], default=default, origin_default=origin))
    session.run(JobType.ADD_COLUMN, f"ALTER TABLE t ADD COLUMN at {clause}", replace(info, columns=columns), db="src")
    await replicated(world, database, "src.*", zone="Asia/Shanghai")
    assert database.query("SELECT CAST(at AS CHAR) FROM src.t") == [(origin.encode(),)]
    database.query("INSERT INTO src.t (id) VALUES (2)")
    (at,) = database.query("SELECT at > '2024-02-01' FROM src.t WHERE id = 2")
    assert at == (b"1" if default == "CURRENT_TIMESTAMP" else b"0",)


@pytest.mark.parametrize(("zone", "offset", "wanted"), [("", 0, "00"), ("UTC", 7200, "06"), ("Europe/Berlin", 0, "07")])
async def test_a_cast_between_times_in_the_sessions_zone_or_the_changefeeds(
    world: World, database: MariaDb, zone: str, offset: int, wanted: str
) -> None:
    session = Typed(world, "src")
    table = session.create(
        "CREATE TABLE t (id BIGINT PRIMARY KEY)", "src", "t", ID, NewColumn("at", "datetime", nullable=True)
    )
    session.insert(table, id=1, at="2024-01-01 08:00:00")
    world.tidb.session.time_zone, world.tidb.session.utc_offset = zone, offset
    new = make_column(NewColumn("at", "timestamp", nullable=True), 9, 1)
    after = replace(table.info, columns=(table.info.columns[0], new), max_column_id=9)
    session.run(JobType.MODIFY_COLUMN, "ALTER TABLE t MODIFY at TIMESTAMP NULL", after, db="src")
    await replicated(world, database, "src.*", zone="Asia/Shanghai")
    assert database.query("SELECT CAST(at AS CHAR) FROM src.t") == [(f"2024-01-01 {wanted}:00:00".encode(),)]
