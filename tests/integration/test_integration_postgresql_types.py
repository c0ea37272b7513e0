"""Values of PostgreSQL's types: a real server and each sink have what docs/reference/postgresql-types.md says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import consumers_postgresql_types as page
import pytest
from integration_iceberg import sink as iceberg_sink
from integration_java import FETCH_S
from integration_kafka_broker import Broker, messages_of
from integration_kafka_broker import running as broker_running
from integration_mariadb import MariaDb
from integration_mariadb import running as mariadb_running
from integration_postgresql import running
from integration_postgresql_sinks import TIDB_EXTENSION, into_files, into_kafka, into_mysql, running_into
from integration_postgresql_world import PASSWORD, USER, World
from integration_registry import RELEASES, RegistryServer, Release

pytestmark = pytest.mark.timeout(FETCH_S + 120)

_MADE = (
    "CREATE SCHEMA bank",
    "CREATE TYPE bank.mood AS ENUM ('glad', 'sad')",
    "CREATE TYPE bank.pair AS (a int, b text)",
    "CREATE DOMAIN bank.price AS numeric(8, 3) CHECK (VALUE > 0)",
    "CREATE PUBLICATION changefeed FOR ALL TABLES WITH (publish_via_partition_root = true)",
)
_CATALOG = """
SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE a.atttypid END::bigint,
    CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = 'bank.t'::regclass AND a.attnum > 1 ORDER BY a.attnum"""
_FIRST_OF_USERS = 16_384


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_running(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with mariadb_running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    columns = [f"c{number} {kind.sql.partition(' (')[0]}" for number, kind in enumerate(page.KINDS)]
    with running(USER, PASSWORD, of="newest") as server:
        server.query(
            *_MADE,
            f"CREATE TABLE bank.t (id int PRIMARY KEY, {', '.join(columns)})",
            "ALTER TABLE bank.t REPLICA IDENTITY FULL",
        )
        yield World(server, tmp_path)


def rows() -> list[str]:
    """The page's values; NULL all over; the values again, and each is emptied by an update."""
    given = ", ".join(kind.given for kind in page.KINDS)
    emptied = ", ".join(f"c{number} = NULL" for number in range(len(page.KINDS)))
    return [
        f"INSERT INTO bank.t VALUES (1, {given})",
        "INSERT INTO bank.t (id) VALUES (2)",
        f"INSERT INTO bank.t VALUES (3, {given})",
        f"UPDATE bank.t SET {emptied} WHERE id = 3",
    ]


async def test_the_page_has_what_a_server_and_files_have(world: World) -> None:
    found = world.database.query(_CATALOG)
    assert [(min(oid, _FIRST_OF_USERS), typmod) for oid, typmod in found] == [
        (min(kind.oid, _FIRST_OF_USERS), kind.typmod) for kind in page.KINDS
    ]
    csv = into_files(world, protocol="csv", csv={"includeCommitTs": True})
    async with running_into(world, csv, timeZone=page.ZONE) as feed:
        await feed.query(*rows())
        result = await feed.verify()
    assert (result.first_problem, result.consumed) == (None, 3)
    lines = [line for path in sorted(world.lake.rglob("CDC*.csv")) for line in path.read_bytes().splitlines()]
    (first,) = (line.decode() for line in lines if line.startswith(b'"I","t","bank"') and b",1,1," in line)
    assert first.split(",", 4)[4].removeprefix("1,") == ",".join(page.cells(kind)[0] for kind in page.KINDS)


SINKS: dict[str, Callable[[World, MariaDb, Broker], dict[str, Any]]] = {
    "canal-json": lambda world, *_: into_files(world, **TIDB_EXTENSION),
    "parquet": lambda world, *_: into_files(world, protocol="parquet"),
    "append": lambda world, *_: iceberg_sink(world.folder, "append"),
    "upsert": lambda world, *_: iceberg_sink(world.folder, "upsert"),
    "mysql": lambda world, mariadb, _: into_mysql(world, mariadb),
    "messages of canal-json": lambda _, __, broker: into_kafka(broker, "types_canal", **TIDB_EXTENSION),
    "open-protocol": lambda _, __, broker: into_kafka(broker, "types_open", protocol="open-protocol"),
}


@pytest.mark.parametrize("name", SINKS)
async def test_a_sink_has_what_the_server_has(world: World, mariadb: MariaDb, broker: Broker, name: str) -> None:
    sink = SINKS[name](world, mariadb, broker)
    async with running_into(world, sink, timeZone=page.ZONE) as feed:
        await feed.query(*rows())
        result = await feed.verify()
    assert result.first_problem is None
    assert getattr(result, "consumed", 0) or result.rows == 3
    assert len(result.notes) == 1, result.notes


async def test_topics_of_avro_have_what_the_server_has(
    world: World, broker: Broker, every_registry: Callable[[Release], RegistryServer]
) -> None:
    sink = into_kafka(broker, "types_avro", protocol="avro", schemaRegistry=every_registry(RELEASES[-1]).uri)
    async with running_into(world, sink, timeZone=page.ZONE) as feed:
        await feed.query(*rows())
        result = await feed.verify()
    assert (result.first_problem, result.rows, len(result.notes)) == (None, 3, 1)


async def test_messages_of_debezium_are_as_the_page_says(world: World, broker: Broker) -> None:
    sink = into_kafka(broker, "types_debezium", protocol="debezium")
    run = world.run(sink=sink, timeZone=page.ZONE)
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    world.database.query(*rows())
    await world.to_now(run)
    await run.drained()
    said = [json.loads(message.value()) for message in messages_of(broker.cluster, "types_debezium_bank_t")]
    (value,) = (each for each in said if (each["payload"].get("after") or {}).get("id") == 1)
    (fields,) = (field["fields"] for field in value["schema"]["fields"] if field["field"] == "after")
    types = {field["field"]: ", ".join(filter(None, (field["type"], field.get("name")))) for field in fields}
    shown = [
        f"{types[f'c{n}']}: {json.dumps(value['payload']['after'][f'c{n}'], ensure_ascii=False)}"
        for n in range(len(page.KINDS))
    ]
    assert shown == [page.cells(kind)[3] for kind in page.KINDS]
