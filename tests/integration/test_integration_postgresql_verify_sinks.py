"""`changefeed verify` of databases, lakes and topics of a real PostgreSQL: what is right holds, each harm is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changefeed.reading.failures import NotVerifiable
from changefeed.verify.kafka import avro_report, read
from changefeed.verify.snapshot import reached
from changefeed.verify.tables import as_they_stand
from integration_iceberg import catalog_of, local
from integration_iceberg import sink as iceberg_sink
from integration_java import FETCH_S
from integration_kafka_broker import Broker
from integration_kafka_broker import running as broker_running
from integration_mariadb import MariaDb
from integration_mariadb import running as mariadb_running
from integration_postgresql import running
from integration_postgresql_bank import PUBLICATION, TABLES, Bank
from integration_postgresql_sinks import TIDB_EXTENSION, Verified, into_kafka, into_mysql, running_into
from integration_postgresql_world import PASSWORD, USER, World
from integration_registry import RELEASES, RegistryServer, Release
from pyiceberg.manifest import DataFileContent

pytestmark = pytest.mark.timeout(FETCH_S + 120)

NOTES = (
    "INSERT INTO bank.notes VALUES (1, 'one'), (2, 'two'), (3, 'three')",
    "UPDATE bank.notes SET body = 'zwei' WHERE id = 2",
    "DELETE FROM bank.notes WHERE id = 3",
)


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with mariadb_running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_running(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES, PUBLICATION)
        yield World(server, tmp_path)


Found = dict[str, tuple[int, int, int]]
RIGHT = {
    "changed": (0, 0, 1),
    "missing": (1, 0, 0),
    "extra": (0, 1, 0),
    "none": (0, 0, 0),
}


async def found_of(feed: Verified, harms: dict[str, Callable[[], object]]) -> Found:
    """By harm what is missing, surplus and different; each is done to what the ones before have left."""
    found = {}
    for name, harm in harms.items():
        await asyncio.to_thread(harm)
        result = await feed.verify()
        assert result.ok == (name == "none"), result.first_problem
        found[name] = result.missing, result.surplus, result.different
    return found


# -- MySQL


async def test_rows_of_a_database_are_compared_while_they_change_and_each_harm_is_found(
    world: World, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_into(world, into_mysql(world, mariadb), initialCopy=True) as feed:
        bank = Bank(world.database)
        await asyncio.to_thread(bank.open)
        writing = asyncio.create_task(asyncio.to_thread(bank.transfer, 300))
        during = await feed.verify()
        await writing
        assert (during.first_problem, during.tables) == (None, 3)
        await feed.query("ALTER TABLE bank.notes ADD COLUMN author text DEFAULT 'nobody'", *NOTES[1:2])
        await feed.query("TRUNCATE bank.notes", *NOTES, "ALTER TABLE bank.transfers ADD COLUMN of_nobody int")
        monkeypatch.setattr(as_they_stand, "LOOKS", 2)
        (count,) = world.database.query("SELECT count(*) FROM bank.transfers")
        result = await feed.verify()
        assert (result.first_problem, result.rows) == (None, 20 + count[0] + 2)
        assert "bank.transfers is another one than its newest change has: of_nobody was not" in result.notes[1]
        harms: dict[str, Callable[[], object]] = {
            "changed": lambda: mariadb.query("UPDATE bank.notes SET body = 'x' WHERE id = 2"),
            "none": lambda: mariadb.query("UPDATE bank.notes SET body = 'zwei' WHERE id = 2"),
            "missing": lambda: mariadb.query("DELETE FROM bank.notes WHERE id = 1"),
            "extra": lambda: mariadb.query("INSERT INTO bank.notes VALUES (1, 'one', 'nobody'), (99, 'made up', NULL)"),
        }
        assert await found_of(feed, harms) == {name: RIGHT[name] for name in harms}


async def test_rows_of_before_are_not_missed(world: World, mariadb: MariaDb) -> None:
    world.database.query("INSERT INTO bank.notes VALUES (-1, 'of before')")
    async with running_into(world, into_mysql(world, mariadb)) as feed:
        await feed.query(*NOTES)
        result = await feed.verify()
    assert (result.first_problem, result.rows) == (None, 2)
    assert "1 rows of bank.notes are not in the sink: they have not changed since" in "\n".join(result.notes)


async def test_a_changefeed_that_does_not_run_can_not_be_verified(
    world: World, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reached, "STANDS_STILL_S", 0.0)
    async with running_into(world, into_mysql(world, mariadb)) as feed:
        await feed.query(*NOTES)
    with pytest.raises(NotVerifiable, match="stands still at"):
        await feed.verify()


# -- Iceberg


def files_of(folder: Path) -> list[Path]:
    """The data files of bank.notes."""
    table = catalog_of(folder).load_table("bank.notes")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    entries = [each for manifest in snapshot.manifests(table.io) for each in manifest.fetch_manifest_entry(table.io)]
    return [local(each.data_file.file_path) for each in entries if each.data_file.content == DataFileContent.DATA]


def rewritten(folder: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """As if each file had other rows."""
    for path in files_of(folder):
        found = pq.ParquetFile(path).read()
        rows = change(found.to_pylist())
        pq.write_table(pa.Table.from_pylist(rows, found.schema), path)


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_tables_of_a_lake_are_compared_and_each_harm_is_found(
    world: World, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_into(world, iceberg_sink(world.folder, mode), initialCopy=True) as feed:
        bank = Bank(world.database)
        await asyncio.to_thread(bank.open)
        writing = asyncio.create_task(asyncio.to_thread(bank.transfer, 100))
        during = await feed.verify()
        await writing
        assert (during.first_problem, during.tables) == (None, 3)
        default = "DEFAULT 7" if mode == "append" else ""
        await feed.query("TRUNCATE bank.notes", *NOTES, f"ALTER TABLE bank.accounts ADD COLUMN since int {default}")
        await feed.query("UPDATE bank.accounts SET owner = 'x' WHERE id = 3")
        monkeypatch.setattr(as_they_stand, "LOOKS", 2)
        result = await feed.verify()
        assert result.first_problem is None
        assert ("rows of bank.accounts are older than its columns" in "\n".join(result.notes)) == bool(default)
        kept = {path: path.read_bytes() for path in files_of(world.folder)}

        def restored(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Callable[[], None]:
            def harm() -> None:
                for path, content in kept.items():
                    path.write_bytes(content)
                rewritten(world.folder, change)

            return harm

        other = {"zwei": "drei"}

        def extra(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return rows + [{**row, "id": 99} for row in rows if row["body"] == "one"]

        harms = {
            "changed": restored(lambda rows: [row | {"body": other.get(row["body"], row["body"])} for row in rows]),
            "missing": restored(lambda rows: [row for row in rows if row["body"] != "one"]),
            "extra": restored(extra),
            "none": restored(lambda rows: rows),
        }
        assert await found_of(feed, harms) == {name: RIGHT[name] for name in harms}
        if mode == "append":
            await asyncio.to_thread(restored(lambda rows: rows + [row for row in rows if row["body"] == "one"]))
            assert (await feed.verify()).first_problem == "bank.notes: 1 changes appear twice."


# -- Kafka

Messages = list[tuple[bytes | None, bytes | None]]
Change = Callable[[tuple[bytes | None, bytes | None]], Messages]


def read_through(monkeypatch: pytest.MonkeyPatch, module: Any, change: Change) -> None:
    """As if each message were those that `change` makes of it."""
    real = module.read_topics

    def harmed(cluster: Any, parts: Any, add: Callable[..., None], seen: Any) -> int:
        def changed(positions: Sequence[Any], messages: Messages) -> None:
            made = [(at, each) for at, one in zip(positions, messages, strict=True) for each in change(one)]
            add([at for at, _ in made], [each for _, each in made])

        count: int = real(cluster, parts, changed, seen)
        return count

    monkeypatch.setattr(module, "read_topics", harmed)


def replacing(old: bytes, *new: bytes) -> Change:
    """Put into each message that holds `old` each of `new` in its place, one message for each."""

    def change(message: tuple[bytes | None, bytes | None]) -> Messages:
        key, value = message
        if value is None or old not in value:
            return [message]
        return [(key, value.replace(old, each)) for each in new]

    return change


@pytest.mark.parametrize("options", [TIDB_EXTENSION, {"protocol": "open-protocol"}], ids=lambda o: o["protocol"])
async def test_topics_are_replayed_and_each_harm_is_found(
    world: World, broker: Broker, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = into_kafka(broker, options["protocol"], **options)
    async with running_into(world, sink, initialCopy=True) as feed:
        bank = Bank(world.database)
        await asyncio.to_thread(bank.open)
        writing = asyncio.create_task(asyncio.to_thread(bank.transfer, 100))
        during = await feed.verify()
        await writing
        assert (during.first_problem, during.tables) == (None, 3)
        await feed.query("TRUNCATE bank.notes", *NOTES, "ALTER TABLE bank.accounts ADD COLUMN since int DEFAULT 7")
        await feed.query("UPDATE bank.accounts SET owner = 'x' WHERE id = 3")
        monkeypatch.setattr(as_they_stand, "LOOKS", 1)
        result = await feed.verify()
        assert result.first_problem is None
        assert "19 rows of bank.accounts are older than its columns: only their keys" in "\n".join(result.notes)
        body, other, one = BODIES[options["protocol"]]
        is_one = f"FROM lines WHERE kind = 'row' AND contains(decode(line), '{one}')"
        shown = f"part, message, nth + 100, kind, database, name, ts, line, h {is_one}"
        nine = r"""encode(regexp_replace(decode(line), '("id":(\{[^}]*"v":)?"?)1(["}])', '\19\3'))"""
        harms = {
            f"UPDATE lines SET line = encode(replace(decode(line), '{body}', '{other}'))": (
                "bank.notes: 0 rows are missing, 0 are surplus, 1 different: different: id=2."
            ),
            f"DELETE {is_one}": "bank.notes: 1 rows are missing, 0 are surplus, 0 different: missing: id=1.",
            f"INSERT INTO lines SELECT {shown}": "A change of bank.notes appears again: I, commit ts",
            f"INSERT INTO lines SELECT {shown.replace('line, h', f'{nine}, h')}": (
                "bank.notes: 0 rows are missing, 1 are surplus, 0 different: surplus: id=9."
            ),
        }
        for sql, said in harms.items():
            with monkeypatch.context() as harmed:
                harm_lines(harmed, sql)
                result = await feed.verify()
                assert str(result.first_problem).startswith(said), sql
        assert (await feed.verify()).ok


#: By protocol: the body of the note 2, another one, and that of the note 1.
BODIES = {"canal-json": ("zwei", "drei", '"one"'), "open-protocol": ("endlaQ==", "ZHJlaQ==", "b25l")}


def harm_lines(monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    """As if the topics had other rows."""
    real = read.TopicsRead.read

    def harmed(topics: read.TopicsRead, *arguments: Any) -> None:
        real(topics, *arguments)
        topics.stored.db.execute(sql)

    monkeypatch.setattr(read.TopicsRead, "read", harmed)


async def test_last_messages_of_avro_are_compared_and_each_harm_is_found(
    world: World,
    broker: Broker,
    every_registry: Callable[[Release], RegistryServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = every_registry(RELEASES[-1])
    sink = into_kafka(broker, "avro", protocol="avro", schemaRegistry=registry.uri)
    async with running_into(world, sink, initialCopy=True) as feed:
        bank = Bank(world.database)
        await asyncio.to_thread(bank.open)
        await feed.query(*(statement.replace("(1,", "(101,").replace("(2,", "(102,") for statement in NOTES[:1]))
        await asyncio.to_thread(bank.transfer, 30)
        await feed.query("ALTER TABLE bank.transfers ADD COLUMN since int", "UPDATE bank.transfers SET since = 1")
        monkeypatch.setattr(as_they_stand, "LOOKS", 1)
        result = await feed.verify()
        assert (result.first_problem, result.tables) == (None, 2)
        assert "bank.transfers was made, altered or emptied since the start" in "\n".join(result.notes)
        for change, counts in (
            (replacing(b"three", b"trois"), (0, 0, 1)),
            (replacing(b"three"), (1, 0, 0)),
        ):
            with monkeypatch.context() as harmed:
                read_through(harmed, avro_report, change)
                result = await feed.verify()
                assert (result.missing, result.surplus, result.different) == counts
        await feed.query("DELETE FROM bank.notes WHERE id = 3")
        with monkeypatch.context() as harmed:  # the row's end is lost
            read_through(harmed, avro_report, lambda message: [] if message[1] is None else [message])
            result = await feed.verify()
        assert result.surplus > 0
        assert json.dumps(result.to_json())
