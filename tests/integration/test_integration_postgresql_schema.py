"""Changes of schema out of a real server's stream: what it says of tables, and what the catalog adds to that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.upstream.postgresql.catalog import PublishedTables, read_published
from changefeed.upstream.postgresql.definitions import schema_of
from changefeed.upstream.postgresql.evolution import next_change, truncation
from changefeed.upstream.postgresql.pgoutput.messages import Commit, Relation, Truncate
from changefeed.upstream.postgresql.pgoutput.transactions import TransactionStream
from changefeed.upstream.postgresql.relation_columns import MADE
from changefeed.upstream.postgresql.replication import Replication
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession
from conftest import wait_for
from integration_postgresql import PROGRAMS, Postgresql, running

USER, PASSWORD = "keeper", "p@ss/word"
ORDERS = "`public`.`orders`"
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


def reached(database: Postgresql) -> PostgresqlServer:
    return PostgresqlServer("127.0.0.1", database.port, "postgres", USER, PASSWORD)


def published(database: Postgresql) -> PublishedTables:
    with closing(PostgresqlSession(reached(database))) as session:
        return read_published(session, "p")


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
