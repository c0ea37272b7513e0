"""Changes of schema out of a real server's stream: what it says of tables, and what the catalog adds to that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.schema.sql.columns import type_text
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.tables import create_table
from changefeed.upstream.contract import (
    Data,
    FeedEvent,
    Resolved,
    SchemaEvent,
    SchemaNews,
    SchemaStep,
    SubscriptionFailed,
)
from changefeed.upstream.postgresql.feed import SlotFeed
from changefeed.upstream.postgresql.pgoutput.messages import Commit, Relation, Truncate
from changefeed.upstream.postgresql.pgoutput.transactions import TransactionStream
from changefeed.upstream.postgresql.schema.catalog import PublishedTables
from changefeed.upstream.postgresql.schema.definitions import read_schema, schema_of
from changefeed.upstream.postgresql.schema.evolution import next_change, truncation
from changefeed.upstream.postgresql.schema.relation_columns import MADE
from changefeed.upstream.postgresql.schema.relation_feed import RelationFeed
from changefeed.upstream.postgresql.slot.lease import SlotLease
from changefeed.upstream.postgresql.slot.replication import Replication
from changefeed.upstream.postgresql.values.decoder import PgoutputRows
from conftest import wait_for
from integration_mariadb import MariaDb
from integration_postgresql import PROGRAMS, Postgresql, published, reached, running

USER, PASSWORD = "keeper", "p@ss/word"
ORDERS = "`public`.`orders`"
FOR_EVER = 1 << 62
DOWNSTREAM = Dialect("MariaDB", (10, 11, 6))
#: Statements, all in one transaction, and the changes that follow. A row of the table is written behind each.
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "ALTER TABLE orders ADD COLUMN n int NOT NULL DEFAULT 7",
        (f"ALTER TABLE {ORDERS} ADD COLUMN `n` INT NULL DEFAULT '7'",),
    ),
    ("ALTER TABLE orders ALTER COLUMN n DROP NOT NULL", ()),
    ("ALTER TABLE orders RENAME COLUMN v TO w", (f"ALTER TABLE {ORDERS} CHANGE COLUMN `v` `w` INT NULL",)),
    ("ALTER TABLE orders ALTER COLUMN w TYPE bigint", (f"ALTER TABLE {ORDERS} MODIFY COLUMN `w` BIGINT NULL",)),
    (
        "ALTER TABLE orders DROP COLUMN w; ALTER TABLE orders ADD COLUMN w small",
        (f"ALTER TABLE {ORDERS} DROP COLUMN `w`", f"ALTER TABLE {ORDERS} ADD COLUMN `w` DECIMAL(6, 2) NULL"),
    ),
    (
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey; ALTER TABLE orders ADD PRIMARY KEY (id, n)",
        (f"ALTER TABLE {ORDERS} DROP PRIMARY KEY, MODIFY COLUMN `n` INT NOT NULL, ADD PRIMARY KEY (`id`, `n`)",),
    ),
    ("TRUNCATE orders", (f"TRUNCATE TABLE {ORDERS}",)),
    (
        "CREATE SCHEMA attic; ALTER TABLE orders SET SCHEMA attic; CREATE TABLE orders (id int PRIMARY KEY, n int)",
        (
            "CREATE DATABASE `attic`",
            f"RENAME TABLE {ORDERS} TO `attic`.`orders`",
            f"CREATE TABLE {ORDERS} (`id` INT NOT NULL, `n` INT NULL, PRIMARY KEY (`id`)) "
            "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        ),
    ),
    (
        "DROP TABLE orders; CREATE TABLE orders (id int PRIMARY KEY, n int)",
        (
            f"DROP TABLE {ORDERS}",
            f"CREATE TABLE {ORDERS} (`id` INT NOT NULL, `n` INT NULL, PRIMARY KEY (`id`)) "
            "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        ),
    ),
)


@pytest.fixture(params=PROGRAMS)
def database(request: pytest.FixtureRequest) -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of=request.param) as server:
        server.query(
            "CREATE DOMAIN small AS numeric(6, 2)",
            "CREATE TABLE orders (id int PRIMARY KEY, v int)",
            "CREATE PUBLICATION p FOR ALL TABLES",
            "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        )
        yield server


class Followed:
    """A changefeed's definitions, from what the catalog has when it begins."""

    def __init__(self, now: PublishedTables) -> None:
        self.schema: SchemaHistory = schema_of(now, 1, {})
        self._ts = 2

    def follow(self, events: Sequence[Relation | Truncate], now: PublishedTables) -> list[str]:
        told = []
        for event in events:
            if isinstance(event, Truncate):
                emptied = (truncation(self._ts, oid, self.schema) for oid in event.oids)
                told += [self._apply(change) for change in emptied if change is not None]
                continue
            while (change := next_change(self._ts, event, self.schema, now)) is not None:
                told.append(self._apply(change))
        return told

    def _apply(self, change: SchemaChange) -> str:
        self.schema.apply(change, self._ts)
        self._ts += 1
        return change.query


def test_what_is_done_to_tables_is_followed_at_once_or_later(database: Postgresql) -> None:
    """Promise: rows are decoded, and readers told, as the table was. Later, the catalog knows less of it."""
    begins_with = published(database)
    followed, later = Followed(begins_with), Followed(begins_with)
    found: list[list[Relation | Truncate]] = []
    stream = TransactionStream(lambda _: ())
    with closing(Replication(reached(database), "s", ["p"])) as replication:
        for number, (statements, wanted) in enumerate(STEPS, 1):
            with closing(database.connect()) as connection:
                connection.run("BEGIN")
                for statement in statements.split("; "):
                    connection.run(statement)
                connection.run(f"INSERT INTO public.orders (id, n) VALUES ({number}, 1)")
                connection.run("COMMIT")
            events: list[Relation | Truncate] = []
            wait_for(lambda events=events: _take(stream, replication, events), "the commit")  # type: ignore[misc]
            found.append(events)
            assert followed.follow(events, published(database)) == list(wanted), statements
    now = published(database)
    for events in found:
        later.follow(events, now)
    for each in (followed, later):
        tables = {table.full_name: table for table in each.schema.tables_at(1_000)}
        assert {name: [column.name for column in table.columns] for name, table in tables.items()} == {
            "attic.orders": ["id", "n", "w"],
            "public.orders": ["id", "n"],
        }
        assert all(column.id < MADE for table in tables.values() for column in table.columns)


def _take(stream: TransactionStream, replication: Replication, events: list[Relation | Truncate]) -> bool:
    """Until a commit of rows is over."""
    arrived = stream.take(replication.read(0.1, 0.01))
    events += [event for event in arrived.events if isinstance(event, Relation | Truncate)]
    return any(isinstance(event, Commit) for event in arrived.events)


class Writer:
    """Alters one table at random, and puts rows into it; knows each row, and the table's name, as they were then."""

    def __init__(self, database: Postgresql, seed: int) -> None:
        self._connection = database.connect()
        self._dice = random.Random(seed)
        self._columns: dict[str, str] = {"v": "int"}
        self._name = "orders"
        self._number = 0
        self.rows: dict[int, tuple[str, dict[str, object]]] = {}
        self.truncations = 0

    def write(self, steps: int) -> None:
        for _ in range(steps):
            self._connection.run("BEGIN")
            if self._dice.random() < 0.5:
                self._alter()
            for _ in range(self._dice.randrange(3)):
                self._insert()
            self._connection.run("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def _insert(self) -> None:
        self._number += 1
        names = [name for name in self._columns if self._dice.random() < 0.7]
        columns, values = ", ".join(["id", *names]), ", ".join([str(self._number)] * (len(names) + 1))
        ((row,),) = self._connection.run(
            f"INSERT INTO {self._name} ({columns}) VALUES ({values}) RETURNING to_jsonb({self._name})"
        )
        self.rows[self._number] = self._name, row

    def _alter(self) -> None:
        new, old = f"c{self._dice.randrange(5)}", self._dice.choice([*self._columns, ""])
        do = f"ALTER TABLE {self._name}"
        match self._dice.randrange(6):
            case 0 if new not in self._columns:
                self._columns[new] = self._dice.choice(["int", "text", "bigint DEFAULT 5"])
                do += f" ADD COLUMN {new} {self._columns[new]}"
            case 1 if old:
                del self._columns[old]
                do += f" DROP COLUMN {old}"
            case 2 if old and new not in self._columns:
                self._columns = {new if name == old else name: type_ for name, type_ in self._columns.items()}
                do += f" RENAME COLUMN {old} TO {new}"
            case 3 if old:
                self._columns[old] = "text"
                do += f" ALTER COLUMN {old} TYPE text"
            case 4:
                self._name = "sales" if self._name == "orders" else "orders"
                do += f" RENAME TO {self._name}"
            case 5:
                self.truncations += 1
                do = f"TRUNCATE {self._name}"
                self._connection.run(do)
                self._insert()  # a transaction that has only this has its row
                return
            case _:
                return
        self._connection.run(do)


class Life:
    """A driver and its puller, from `start_ts` on."""

    def __init__(self, database: Postgresql, oid: int, start_ts: int, schema: SchemaHistory) -> None:
        self.schema, self._oid, self._start_ts = schema, oid, start_ts
        self._feed = SlotFeed(reached(database), "s", "p", self._pulled, gather_s=0.05)
        self._changes = RelationFeed(reached(database), "p", schema, self._told)
        self._raw: list[dict[str, Any]] = []
        self.changes: list[tuple[int, SchemaChange]] = []
        self._resolved = [start_ts, start_ts]  # of rows, of the schema
        self._event = asyncio.Event()

    async def until(self, rows: int, ts: int) -> int:
        """Until so many rows have come, or all up to a ts; the checkpoint then."""
        async with asyncio.timeout(60), self._changes, self._feed:
            self._feed.subscribe(1, self._oid, b"", b"", self._start_ts)
            while len(self._raw) < rows and min(self._resolved) < ts:
                self._event.clear()
                await self._event.wait()
        return min(self._resolved)

    def rows(self, upto: int) -> dict[int, tuple[str, dict[str, object]]]:
        """By id: its table's name and itself, as the definition of then has it."""
        found = {}
        for row in self._raw:
            if row["commit_ts"] > upto:
                continue
            table = self.schema.table(self._oid, row["commit_ts"] - 1)
            assert table is not None
            cells = PgoutputRows().rows(
                table, pa.array([row["key"]], pa.binary()), pa.array([row["value"]], pa.binary()), "UTC"
            )
            names = (column.name for column in table.output_columns)
            values = dict(zip(names, (cell[0].as_py() for cell in cells), strict=True))
            found[values["id"]] = table.name, values
        return found

    async def _pulled(self, event: FeedEvent) -> None:
        match event:
            case Data(batch=batch):
                self._raw += batch.to_pylist()
            case Resolved(ts=ts):
                self._resolved[0] = ts
            case SchemaNews(ts, content):
                self._changes.hear(ts, content)
            case SubscriptionFailed(error=error):
                raise error
        self._event.set()

    async def _told(self, event: SchemaEvent) -> None:
        match event:
            case SchemaStep(change, ts):
                assert ts > self._resolved[1]
                self.schema.apply(change, ts)
                self.changes.append((ts, change))
            case Resolved(ts=ts):
                self._resolved[1] = ts
            case SubscriptionFailed(error=error):
                raise error
        self._event.set()


@pytest.mark.parametrize("seed", range(3))
async def test_rows_have_the_definition_of_then_in_every_life(
    database: Postgresql, mariadb: MariaDb, seed: int
) -> None:
    """Promise: each row is decoded as the server had it when it was written, and a TRUNCATE has one ts. The statements
    that readers are told give a table downstream the same columns.

    The table is altered while it is read. A life ends anywhere, and the next one begins with what the log knows.
    """
    ((oid,),) = database.query("SELECT 'public.orders'::regclass::oid::bigint")
    lease = SlotLease(reached(database), "s", "changefeed-default-test-1")
    checkpoint = await lease.begin()
    schema = await read_schema(reached(database), "p", checkpoint, {})
    found: dict[int, tuple[str, dict[str, object]]] = {}
    changes = {checkpoint: create_table(Definition.of(schema.tables_at(checkpoint)[0]), DOWNSTREAM)}
    truncated: set[int] = set()
    with closing(Writer(database, seed)) as writer:
        for rows in (5, 25, FOR_EVER):
            life = Life(database, oid, checkpoint, schema)
            writing = asyncio.create_task(asyncio.to_thread(writer.write, 30))
            if rows == FOR_EVER:
                await writing
            checkpoint = await life.until(rows, await lease.begin() if rows == FOR_EVER else FOR_EVER)
            await writing
            found |= life.rows(checkpoint)
            done = [(ts, change) for ts, change in life.changes if ts <= checkpoint]
            changes |= {ts: change.query for ts, change in done}
            truncated |= {ts for ts, change in done if change.type == Action.TRUNCATE_TABLE}
            await lease.hold(checkpoint)
            table = life.schema.table(oid, checkpoint)
            assert table is not None
            schema = await read_schema(reached(database), "p", checkpoint, {oid: table})
    assert found == writer.rows
    assert len(truncated) == writer.truncations
    mariadb.query("DROP DATABASE IF EXISTS `public`", "CREATE DATABASE `public`", *changes.values())
    columns = "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
    there = [[cell.decode() for cell in row] for row in mariadb.query(f"{columns} ORDER BY ordinal_position")]
    assert there == [[table.name, column.name, type_text(column).lower()] for column in table.columns]
