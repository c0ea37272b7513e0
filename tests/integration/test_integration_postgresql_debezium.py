"""Debezium's engine beside a changefeed on one PostgreSQL: both tell the same transactions, with the same values."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import pytest
from integration_debezium_changes import Transaction, differences, rows_after, told_by_debezium, told_by_files
from integration_debezium_reader import NEW_SLOT, SLOT, DebeziumReader, debezium_reader
from integration_debezium_reader import PUBLICATION as THEIR_PUBLICATION
from integration_postgresql import running
from integration_postgresql_bank import PUBLICATION, TABLES, Bank
from integration_postgresql_world import PASSWORD, USER, World

_READ_S = 60.0
_LAST = "done"
#: Types and values of a column each; row n has the nth, or else NULL.
_VALUES = (
    ("boolean", "true", "false"),
    ("smallint", "-32768", "32767"),
    ("int", "2147483647", "-2147483648"),
    ("bigint", "9223372036854775807", "-9223372036854775808"),
    ("oid", "4294967295", "0"),
    ("numeric", "123456789012345678901234567890.000000000000000000000000000001", "0.00001230", "1e20", "'NaN'"),
    ("numeric(10, 4)", "-0.5", "0.0001", "0"),
    ("numeric(5, -2)", "1234500"),
    ("real", "1.1", "'NaN'", "'-0'", "3.4028235e38", "'Infinity'"),
    ("double precision", "1e300", "'-Infinity'", "5e-324", "0.1", "'NaN'"),
    ("text", "'Grüße, 世界 🎈'", "E'tab\\t new\\nline \\\\ \"quoted\"'", "''"),
    ("varchar(20)", "''", "'v'"),
    ("char(5)", "'ab'", "''", "'äöüßé'"),
    ("name", "'a_name'"),
    ("bytea", "'\\x00deadbeefff'", "''"),
    ("date", "'2024-02-29'", "'0001-01-01'", "'9999-12-31'", "'1582-10-10'"),
    ("timestamp", "'2024-02-29 12:34:56.789012'", "'9999-12-31 23:59:59.999999'", "'0001-01-01'", "'1582-10-10'"),
    ("timestamp(3)", "'2024-02-29 12:34:56.789'", "'1969-12-31 23:59:59.999'", "'0001-01-01'"),
    ("timestamp(0)", "'2024-02-29 12:34:56'"),
    ("timestamptz", "'2024-07-01 00:00:00.1+02'", "'1969-12-31 23:59:59.999999+00'", "'1582-10-10 00:00:00+00'"),
    ("timestamptz(3)", "'2024-07-01 10:00:00.125+00'", "'9999-12-31 23:59:59.999+00'", "'0001-01-01 00:00:00+00'"),
    ("time", "'12:34:56.789012'", "'00:00:00'", "'23:59:59.999999'"),
    ("time(3)", "'12:34:56.7'", "'23:59:59.999'"),
    ("timetz", "'12:34:56+05:30'", "'00:00:00-11'"),
    ("interval", "'1 year 2 mons -3 days 04:05:06.7'", "'-1 days'", "'0'", "'5 s'"),
    ("bit(1)", "'1'", "'0'"),
    ("bit(12)", "'101010101010'", "'000000000001'"),
    ("bit(70)", "repeat('10', 35)::bit(70)"),
    ("varbit", "'10101'", "'1'", "'00101'"),
    ("json", """'{"a":  [1, 2.50, null]}'""", "'null'"),
    ("jsonb", """'{"b": "x", "a": 1e40}'""", "'null'"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("mood", "'so \"so\"'", "'sad'"),
    ("small", "12.5", "-9999.99"),
    ("int[]", "'{1,NULL,3}'", "'{}'"),
    ("text[]", """'{"a,b",NULL,"NULL","\\"q\\\\"}'""", "'{\"\"}'"),
    ("numeric(6, 2)[]", "'{1.5,NULL}'"),
    ("int4range", "'[1,10)'", "'empty'"),
    ("daterange", "'(2024-01-01,)'"),
    ("tstzrange", "'[2024-01-01 00:00:00+00,)'"),
    ("int4multirange", "'{[1,3),[5,8)}'"),
    ("inet", "'::1/64'", "'10.1.2.3'"),
    ("cidr", "'10.0.0.0/8'"),
    ("macaddr", "'08:00:2b:01:02:03'"),
    ("money", "'-1234.56'", "'0.01'"),
    ("point", "'(1,-2.5)'", "'(1e300,0)'"),
    ("box", "'(1,2),(3,4)'"),
    ("polygon", "'((0,0),(1,1),(1,0))'"),
    ("circle", "'<(1,2),3>'"),
    ("tsvector", "'a fat cat'"),
    ("pg_lsn", "'16/B374D848'"),
    ("xid8", "'18446744073709551615'"),
    ("pair", """'(1,"x,y")'"""),
)
#: A day that the Gregorian calendar has in theory alone. Debezium's snapshot has another one, its stream has it.
_NO_DAY_OF_JAVA = ("typed", "4"), f"c{[each[0] for each in _VALUES].index('date')}", "1582-10-10", "1582-10-20"
_COLUMNS = ", ".join(f"c{number} {each[0]}" for number, each in enumerate(_VALUES))
_TYPED = f"CREATE TABLE bank.typed (id int PRIMARY KEY, {_COLUMNS})"
_ROWS = [
    f"INSERT INTO bank.typed VALUES ({number}, {', '.join(values)})"
    for number, values in enumerate(zip_longest(*(each[1:] for each in _VALUES), fillvalue="NULL"), 1)
]
_CHANGES = (
    "UPDATE bank.typed SET c0 = NOT c0, c1 = 1 WHERE id < 4",
    "UPDATE bank.typed SET id = 10 WHERE id = 1",
    "DELETE FROM bank.typed WHERE id = 2",
    "ALTER TABLE bank.notes ADD COLUMN author text DEFAULT 'nobody', ADD COLUMN n int",
    "UPDATE bank.notes SET author = 'me' WHERE id < 3",
    "ALTER TABLE bank.notes ALTER COLUMN n TYPE bigint",
    "INSERT INTO bank.notes VALUES (-1, 'new', NULL, 5)",
)
_ENDS = (
    "ALTER TABLE bank.notes DROP COLUMN author",
    "BEGIN",
    "INSERT INTO bank.notes VALUES (-2, 'gone')",
    "TRUNCATE bank.notes",
    "INSERT INTO bank.notes VALUES (-3, 'stays', 3)",
    "COMMIT",
    "DELETE FROM bank.typed",
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(
            *TABLES,
            "CREATE TYPE mood AS ENUM ('sad', 'so \"so\"')",
            "CREATE TYPE pair AS (a int, b text)",
            "CREATE DOMAIN small AS numeric(6, 2)",
            _TYPED,
            f"CREATE TABLE bank.{_LAST} (id int PRIMARY KEY)",
            "ALTER TABLE bank.typed REPLICA IDENTITY FULL",
            f"ALTER TABLE bank.{_LAST} REPLICA IDENTITY FULL",
            PUBLICATION,
            f"CREATE PUBLICATION {THEIR_PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)",
        )
        yield World(server, tmp_path)


def _sink(world: World) -> dict[str, object]:
    canal_json = {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}}
    return {"storage": {"uri": world.lake.as_uri(), "flushInterval": "100ms", **canal_json}}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> DebeziumReader:
    return debezium_reader(tmp_path_factory.mktemp("classes"))


@contextmanager
def _beside(reader: DebeziumReader, world: World, snapshot: str) -> Iterator[subprocess.Popen[bytes]]:
    """Debezium reads; its values are told with their types."""
    options = {
        "snapshot_mode": snapshot,
        "converter_schemas_enable": "true",
        "decimal_handling_mode": "string",
        "include_unknown_datatypes": "true",
        "interval_handling_mode": "string",
        "message_prefix_exclude_list": "changefeed",
        "skipped_operations": "none",
    }
    with reader.start(world.database, world.folder / "debezium", _LAST, **options) as theirs:
        try:
            yield theirs
            assert theirs.wait(_READ_S) == 0, (world.folder / "debezium" / "log").read_text()
        finally:
            theirs.kill()


async def test_both_tell_the_same_transactions(world: World, reader: DebeziumReader) -> None:
    """Promise: a driver that is killed on the way tells what it would have told; each value is what another reads."""
    database, bank = world.database, Bank(world.database)
    database.query(NEW_SLOT)
    first = world.run(sink=_sink(world))
    await first.until(lambda: first.driver is not None and first.view.progress, "the driver runs")
    with _beside(reader, world, "no_data"):
        await asyncio.to_thread(bank.open)
        await asyncio.to_thread(database.query, *_ROWS)
        await asyncio.to_thread(bank.transfer, 20)
        await first.killed()
        await asyncio.to_thread(database.query, *_CHANGES)
        await asyncio.to_thread(bank.transfer, 20)
        await asyncio.to_thread(database.query, *_ENDS, f"INSERT INTO bank.{_LAST} VALUES (1)")
        assert (await world.to_the_end(sink=_sink(world))).state == "finished"
    theirs, forms = told_by_debezium(world.folder / "debezium" / "changes", _LAST)
    ours = told_by_files(world.lake, _LAST, forms)
    assert len(theirs) > 40
    assert [part for part in ours if part.truncated] == [Transaction(truncated="notes")]
    assert ours == theirs


async def test_both_copies_lead_to_the_same_rows(world: World, reader: DebeziumReader) -> None:
    """Promise: rows of before, and changes that are made meanwhile, lead to the tables that a snapshot leads to."""
    database, bank = world.database, Bank(world.database)
    await asyncio.to_thread(bank.open)
    await asyncio.to_thread(database.query, *_ROWS)
    await asyncio.to_thread(bank.transfer, 20)
    with _beside(reader, world, "initial"):
        run = world.run(sink=_sink(world), initialCopy=True)
        while not database.query(f"SELECT FROM pg_replication_slots WHERE slot_name = '{SLOT}'"):
            await asyncio.to_thread(bank.transfer, 1)
        await asyncio.to_thread(bank.transfer, 20)
        await asyncio.to_thread(database.query, f"INSERT INTO bank.{_LAST} VALUES (1)")
        await world.to_now(run)
        await run.drained()
    theirs, forms = told_by_debezium(world.folder / "debezium" / "changes", _LAST)
    ours = rows_after(told_by_files(world.lake, _LAST, forms))
    assert {table for table, _ in ours} == {"accounts", "transfers", "notes", "typed"}
    assert differences(ours, rows_after(theirs)) == [_NO_DAY_OF_JAVA]
