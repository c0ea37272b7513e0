"""A whole changefeed of a real PostgreSQL, into csv files: what is replayed of them is what the tables have."""

from __future__ import annotations

import asyncio
import csv
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.owner.closing.undriven import close
from changefeed.owner.driver import Outcome, RunOptions
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import parse
from changefeed.upstream import choice
from integration_inprocess import InProcessExecution, Run, resource
from integration_postgresql import Postgresql, running

USER, PASSWORD = "keeper", "p@ss/word"
ACCOUNTS, BALANCE = 20, 100
TABLES = (
    "CREATE SCHEMA bank",
    "CREATE TABLE bank.accounts (id int PRIMARY KEY, owner varchar(20), balance bigint NOT NULL)",
    "CREATE TABLE bank.transfers (id bigint PRIMARY KEY, source int, target int, amount bigint)",
    "CREATE TABLE bank.notes (id int PRIMARY KEY, body text)",
    *(f"ALTER TABLE bank.{table} REPLICA IDENTITY FULL" for table in ("accounts", "transfers", "notes")),
)
PUBLICATION = "CREATE PUBLICATION changefeed FOR ALL TABLES WITH (publish_via_partition_root = true)"
COLUMNS = {"accounts": "id, owner, balance", "transfers": "id, source, target, amount", "notes": "id, body"}

Rows = dict[str, list[str]]


@pytest.fixture
def database() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES)
        yield server


class Bank:
    """Transfers between accounts, each a transaction over all three tables; at times a row is deleted or renumbered."""

    def __init__(self, database: Postgresql) -> None:
        self._database, self._chosen, self._done = database, random.Random(7), 0

    def open(self) -> None:
        self._database.query(
            f"INSERT INTO bank.accounts SELECT n, 'owner ' || n, {BALANCE} FROM generate_series(1, {ACCOUNTS}) n",
            "INSERT INTO bank.notes VALUES (1, NULL), (2, repeat('long ', 5000))",
        )

    def transfer(self, count: int) -> None:
        connection = self._database.connect()
        try:
            for _ in range(count):
                self._done += 1
                self._one(connection)
        finally:
            connection.close()

    def _one(self, connection: Any) -> None:
        source, target = self._chosen.sample(range(1, ACCOUNTS + 1), 2)
        amount, number = self._chosen.randrange(50), self._done
        connection.run("BEGIN")
        connection.run(f"UPDATE bank.accounts SET balance = balance - {amount} WHERE id = {source}")
        connection.run(f"UPDATE bank.accounts SET balance = balance + {amount} WHERE id = {target}")
        connection.run(f"INSERT INTO bank.transfers VALUES ({number}, {source}, {target}, {amount})")
        if number % 3 == 0:
            connection.run(f"DELETE FROM bank.transfers WHERE id = {number - 2}")
        if number % 4 == 0:
            connection.run(f"UPDATE bank.transfers SET id = -id WHERE id = {number - 1}")
        connection.run(f"INSERT INTO bank.notes VALUES ({number + 10}, 'note {number}')")
        connection.run("UPDATE bank.notes SET id = id WHERE id = 2")
        connection.run("ROLLBACK" if number % 7 == 0 else "COMMIT")

    def tables(self) -> dict[str, Rows]:
        found = {}
        for table, columns in COLUMNS.items():
            rows = self._database.query(f"SELECT {columns} FROM bank.{table}")
            found[table] = {str(row[0]): [_text(value) for value in row] for row in rows}
        return found


def _text(value: object) -> str:
    return "\\N" if value is None else str(value)


def lines(lake: Path) -> list[list[str]]:
    """Operation, table, schema, ts and columns, by ts."""
    found: list[list[str]] = []
    for path in sorted(lake.rglob("CDC*.csv")):
        with path.open(newline="") as file:
            found.extend(csv.reader(file))
    return sorted(found, key=lambda line: int(line[3]))


def replayed(lake: Path) -> dict[str, Rows]:
    tables: dict[str, Rows] = {table: {} for table in COLUMNS}
    for op, table, schema, _, *columns in lines(lake):
        assert schema == "bank"
        if op == "D":
            del tables[table][columns[0]]
        else:
            tables[table][columns[0]] = columns
    return tables


class World:
    def __init__(self, database: Postgresql, folder: Path) -> None:
        self.database, self.folder, self.lake = database, folder, folder / "lake"
        self.secrets = folder / "secrets"
        (self.secrets / "reader").mkdir(parents=True)
        for key, value in (("username", USER), ("password", PASSWORD)):
            (self.secrets / "reader" / key).write_text(value)

    def changefeed(self, **spec: Any) -> Changefeed:
        reader = {"secretRef": {"name": "reader"}}
        upstream = {"host": "127.0.0.1", "port": self.database.port, "database": "postgres", "credentials": reader}
        made = resource("", 0, self.folder, upstream={"postgresql": upstream}, filter={"rules": ["bank.*"]}, **spec)
        del made["spec"]["startTs"]
        return parse(json.dumps(made))

    def run(self, **spec: Any) -> Run:
        options = RunOptions(metrics_port=0, secrets_dir=self.secrets)
        return Run(self.changefeed(**spec), InProcessExecution(), options).start()

    async def now(self) -> int:
        upstream = await choice.access_of(self.changefeed(), self.secrets).connect()
        try:
            return await upstream.now()
        finally:
            await upstream.close()

    async def to_the_end(self) -> Outcome:
        return await self.run(targetTs=str(await self.now())).outcome()

    def slots(self) -> list[str]:
        return [name for (name,) in self.database.query("SELECT slot_name FROM pg_replication_slots")]


@pytest.fixture
def world(database: Postgresql, tmp_path: Path) -> World:
    return World(database, tmp_path)


async def test_a_bank_is_replayed_once_and_whole_though_its_driver_is_killed(world: World) -> None:
    world.database.query(PUBLICATION)
    bank = Bank(world.database)
    first = world.run()
    await first.until(lambda: first.driver is not None and first.view.progress, "the driver runs")
    await asyncio.to_thread(bank.open)
    await asyncio.to_thread(bank.transfer, 60)
    await first.until(lambda: lines(world.lake), "something is written")
    await first.killed()
    await asyncio.to_thread(bank.transfer, 60)
    outcome = await world.to_the_end()
    assert outcome.state == "finished"
    tables = bank.tables()
    assert sum(int(row[2]) for row in tables["accounts"].values()) == ACCOUNTS * BALANCE
    assert replayed(world.lake) == tables
    twice = Counter(tuple(line[:5]) for line in lines(world.lake))
    assert [line for line, count in twice.items() if count > 1] == []
    assert first.view.progress[-1].server == "PostgreSQL"
    assert len(world.slots()) == 1
    assert await close(world.changefeed(), world.secrets)
    assert world.slots() == []


async def test_what_is_missing_is_said_with_the_sql_that_mends_it_before_anything_is_made(world: World) -> None:
    with pytest.raises(NeedsHuman, match="There is no publication changefeed") as caught:
        await world.run().outcome()
    assert "CREATE PUBLICATION" in caught.value.next_step
    assert PASSWORD not in str(caught.value)
    assert world.slots() == []
    assert not list((world.folder / "state").rglob("log/*.json"))


async def test_a_change_of_schema_comes_between_the_rows_of_before_and_after(world: World) -> None:
    world.database.query(PUBLICATION)
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    rows = (
        "INSERT INTO bank.notes VALUES (1, 'before')",
        "ALTER TABLE bank.notes ADD COLUMN author text DEFAULT 'nobody'",
        "UPDATE bank.notes SET body = 'after' WHERE id = 1",
        "INSERT INTO bank.notes VALUES (2, 'new', 'me')",
        "CREATE TABLE bank.later (id int PRIMARY KEY, v int)",
        "ALTER TABLE bank.later REPLICA IDENTITY FULL",
        "INSERT INTO bank.later VALUES (7, 1)",
    )
    await asyncio.to_thread(world.database.query, *rows)
    await run.until(lambda: any(line[1] == "later" for line in lines(world.lake)), "the new table is written")
    await run.killed()
    await asyncio.to_thread(
        world.database.query,
        "TRUNCATE bank.notes",
        "INSERT INTO bank.notes VALUES (3, 'third', NULL)",
        "UPDATE bank.later SET v = 2",
        "ALTER TABLE bank.later RENAME COLUMN v TO w",
        "DELETE FROM bank.later",
    )
    assert (await world.to_the_end()).state == "finished"
    written = [[line[0], line[1], *line[4:]] for line in lines(world.lake)]
    assert [line for line in written if line[1] == "notes"] == [
        ["I", "notes", "1", "before"],
        ["U", "notes", "1", "after", "nobody"],
        ["I", "notes", "2", "new", "me"],
        ["I", "notes", "3", "third", "\\N"],
    ]
    assert [line for line in written if line[1] == "later"] == [
        ["I", "later", "7", "1"],
        ["U", "later", "7", "2"],
        ["D", "later", "7", "2"],
    ]
    assert [types(world.lake, table) for table in ("notes", "later")] == [[0, 5, 11], [3, 12]]


def types(lake: Path, table: str) -> list[int]:
    """What has led to each version of a table, by the numbers of schema files."""
    found = [json.loads(path.read_text()) for path in (lake / "bank" / table / "meta").glob("schema_*.json")]
    return [each["Type"] for each in sorted(found, key=lambda each: each["TableVersion"])]
