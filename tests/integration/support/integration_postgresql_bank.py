"""A bank in a PostgreSQL: transfers, changes of its tables, and what csv files of it lead to when they are replayed."""

from __future__ import annotations

import csv
import json
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pg8000.native
from changefeed.schema.ddl.actions import Action
from integration_postgresql import Postgresql

ACCOUNTS, BALANCE = 20, 100
TABLES = (
    "CREATE SCHEMA bank",
    "CREATE TABLE bank.accounts (id int PRIMARY KEY, owner varchar(20), balance bigint NOT NULL)",
    "CREATE TABLE bank.transfers (id bigint PRIMARY KEY, source int, target int, amount bigint)",
    "CREATE TABLE bank.notes (id int PRIMARY KEY, body text)",
    *(f"ALTER TABLE bank.{table} REPLICA IDENTITY FULL" for table in ("accounts", "transfers", "notes")),
)
PUBLICATION = "CREATE PUBLICATION changefeed FOR ALL TABLES WITH (publish_via_partition_root = true)"
#: What a client meets whose server dies; the second half of a message, too.
LOST = (pg8000.native.Error, OSError, struct.error)
_NULL = "\\N"
_LONGEST_CELL = 1 << 24
_COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'bank' "
    "ORDER BY table_name, ordinal_position"
)

Row = dict[str, str]  # by columns
Rows = dict[str, Row]  # by id
Tables = dict[str, Rows]


class Bank:
    """Transfers between accounts, each a transaction over all three tables; at times a row is deleted or renumbered."""

    def __init__(self, database: Postgresql, seed: int = 7) -> None:
        self._database, self._chosen, self._done = database, random.Random(seed), 0

    def open(self) -> None:
        self._database.query(
            f"INSERT INTO bank.accounts SELECT n, 'owner ' || n, {BALANCE} FROM generate_series(1, {ACCOUNTS}) n",
            "INSERT INTO bank.notes VALUES (1, NULL), (2, repeat('long ', 5000))",
        )

    def turn_to(self, database: Postgresql) -> None:
        """Another server has taken over."""
        self._database = database

    def transfer(self, count: int) -> None:
        connection = self._database.connect()
        try:
            for _ in range(count):
                self._one(connection)
        finally:
            connection.close()

    def run(self, stop: Event, per_second: float) -> None:
        """Transfers until then. A server that is away is asked again."""
        while not stop.wait(1 / per_second):
            with suppress(*LOST), self._database.connect() as connection:
                while not stop.wait(1 / per_second):
                    self._one(connection)

    @property
    def transfers(self) -> int:
        """Those that were tried."""
        return self._done

    def _one(self, connection: Any) -> None:
        self._done += 1
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


class Builder:
    """Alters a bank's tables while it runs, makes others and empties some: one step after another, from a seed."""

    def __init__(self, database: Postgresql, rng: random.Random, say: Callable[[str], None]) -> None:
        self._database, self._rng, self._say = database, rng, say
        self._number = 0
        self.done: Counter[str] = Counter()

    def run(self, stop: Event, longest_pause_s: float) -> None:
        """Steps until then. One whose server dies may have been done or not, and nobody asks."""
        steps = (self._add, self._add, self._drop, self._make, self._empty)
        while not stop.wait(self._rng.uniform(0.1, longest_pause_s)):
            step = self._rng.choice([step for step in steps if not self.done[step.__name__]] or steps)
            self._number += 1
            try:
                statements = step()
                if self._rng.random() < 0.5:
                    statements = ["BEGIN", *statements, "COMMIT"]
                self._database.query(*statements)
            except LOST as error:
                self._say(f"{step.__name__}: {str(error)[:160]}")
            else:
                self.done[step.__name__] += bool(statements)

    def _add(self) -> list[str]:
        table, column = self._table(), f"extra_{self._number}"
        kind = self._rng.choice(("int", "text", "numeric(12, 2)"))
        return [
            f"ALTER TABLE bank.{table} ADD COLUMN {column} {kind}",
            f"UPDATE bank.{table} SET {column} = {self._number}::{kind} WHERE id % 5 = {self._number % 5}",
        ]

    def _drop(self) -> list[str]:
        extra = [found for found in self._database.query(_COLUMNS) if found[1].startswith("extra_")]
        if not extra:
            return []
        table, column = self._rng.choice(extra)
        return [f"ALTER TABLE bank.{table} DROP COLUMN {column}", f"UPDATE bank.{table} SET id = id WHERE id < 5"]

    def _make(self) -> list[str]:
        table = f"made_{self._number}"
        return [
            f"CREATE TABLE bank.{table} (id int PRIMARY KEY, v text)",
            f"ALTER TABLE bank.{table} REPLICA IDENTITY FULL",
            f"INSERT INTO bank.{table} SELECT n, 'made ' || n FROM generate_series(1, 30) n",
            f"DELETE FROM bank.{table} WHERE id % 7 = 0",
        ]

    def _empty(self) -> list[str]:
        names = self._rng.choice(("bank.notes", "bank.transfers", "bank.notes, bank.transfers"))
        return [
            f"TRUNCATE {names}",
            "INSERT INTO bank.notes VALUES (2, 'new') ON CONFLICT (id) DO UPDATE SET body = 'newer'",
        ]

    def _table(self) -> str:
        return self._rng.choice(("accounts", "transfers", "notes"))


def tables(database: Postgresql, without: Collection[str] = ()) -> Tables:
    """What the server has now."""
    columns: dict[str, list[str]] = {}
    for table, column in database.query(_COLUMNS):
        if table not in without:
            columns.setdefault(table, []).append(column)
    found: Tables = {}
    for table, names in columns.items():
        rows = database.query(f"SELECT {', '.join(f'{name}::text' for name in names)} FROM bank.{table}")
        found[table] = {row[0]: {n: _NULL if v is None else v for n, v in zip(names, row, strict=True)} for row in rows}
    return found


@dataclass(frozen=True)
class Change:
    """What is done to a row; without one the table is emptied. `version`: of the schema that it has in the files."""

    ts: int
    table: str
    op: str = ""
    row: tuple[tuple[str, str], ...] = ()
    version: int = 0

    @property
    def key(self) -> str:
        return self.row[0][1]


def changes(lake: Path) -> list[Change]:
    """By ts; a table is emptied before its rows of later."""
    csv.field_size_limit(_LONGEST_CELL)
    found = []
    for folder in (lake / "bank").iterdir():
        names: dict[int, list[str]] = {}
        for path in (folder / "meta").glob("schema_*.json"):
            schema = json.loads(path.read_text())
            names[schema["TableVersion"]] = [each["ColumnName"] for each in schema["TableColumns"]]
            if schema["Type"] == Action.TRUNCATE_TABLE:
                found.append(Change(schema["TableVersion"], folder.name))
        for path in folder.rglob("CDC*.csv"):
            version = int(path.relative_to(folder).parts[0])
            with path.open(newline="") as file:
                for op, table, schema_name, ts, *values in csv.reader(file):
                    assert (schema_name, table) == ("bank", folder.name)
                    row = tuple(zip(names[version], values, strict=True))
                    found.append(Change(int(ts), table, op, row, version))
    return sorted(found, key=lambda change: change.ts)


def replayed(found: list[Change]) -> Tables:
    """Fails where a row comes twice at a ts, one is deleted that is not there, or a transaction is not whole."""
    rows: Tables = defaultdict(dict)
    met = Counter((change.table, change.key, change.ts) for change in found if change.op)
    assert not [each for each, count in met.items() if count > 1]
    total = 0
    for number, change in enumerate(found):
        here = rows[change.table]
        if not change.op:
            here.clear()
            continue
        before = here.pop(change.key, None)
        assert (before is None) == (change.op == "I"), change
        if change.op != "D":
            here[change.key] = dict(change.row)
        if change.table == "accounts":
            total += int(here.get(change.key, {}).get("balance", 0)) - int((before or {}).get("balance", 0))
        if number + 1 == len(found) or found[number + 1].ts > change.ts:
            assert total in (0, ACCOUNTS * BALANCE), f"{total} at {change.ts}"
    return dict(rows)


def differences(here: Tables, there: Tables) -> list[tuple[str, str, Row, Row]]:
    """Rows that are not as they are there; what was not said of a column of theirs is NULL."""
    found = []
    for table, rows in there.items():
        columns = {name for row in rows.values() for name in row}
        for key in here.get(table, {}).keys() | rows.keys():
            mine, theirs = here.get(table, {}).get(key, {}), rows.get(key, {})
            if {name: mine.get(name, _NULL) for name in columns if mine} != theirs:
                found.append((table, key, mine, theirs))
    return found
