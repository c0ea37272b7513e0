"""The driver hears of changes of schema: each is told once, at a ts of its own, and nothing passes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from changefeed.errors import ChangefeedError, NeedsHuman, Refused, Unavailable
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.contract import Resolved, SchemaEvent, SchemaStep, SubscriptionFailed
from changefeed.upstream.postgresql.failures import AWAY, REFUSED
from changefeed.upstream.postgresql.pgoutput.messages import Truncate
from changefeed.upstream.postgresql.schema import relation_feed
from changefeed.upstream.postgresql.schema.catalog import PublishedTables
from changefeed.upstream.postgresql.schema.definitions import schema_of
from changefeed.upstream.postgresql.schema.news import TICKS, content_of
from changefeed.upstream.postgresql.schema.relation_feed import RelationFeed
from changefeed.upstream.postgresql.server import PostgresqlServer
from postgresql_tables import ID, A, B, Table, catalog

ORDERS, ITEMS = Table(100, "orders", (ID, A, B)), Table(200, "items", (ID, A))
SERVER = PostgresqlServer("db", 5432, "shop", "me", "secret")
START = 1_000_000
FIRST = START + 5 * TICKS - 1  # news of the fifth commit behind the start
FIRST_CHANGE = FIRST - TICKS + 2
DEADLINE_S = 30.0


@dataclass
class Server:
    """What the catalog has, or what is raised in its place, once each."""

    now: PublishedTables
    failures: list[ChangefeedError] = field(default_factory=list)
    reads: int = 0

    async def read(self, server: PostgresqlServer, publication: str) -> PublishedTables:
        assert (server, publication) == (SERVER, "p")
        self.reads += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.now


class Driver:
    """Applies what it is told, as the owner does, and remembers it."""

    def __init__(self, schema: SchemaHistory) -> None:
        self.schema = schema
        self.events: list[SchemaEvent] = []
        self.changed = asyncio.Event()

    async def emit(self, event: SchemaEvent) -> None:
        if isinstance(event, SchemaStep):
            self.schema.apply(event.change, event.ts)
        self.events.append(event)
        self.changed.set()

    async def until(self, count: int) -> list[tuple[int, str]]:
        """The first events, once there are so many."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.events) < count:
                self.changed.clear()
                await self.changed.wait()
        return [_shown(event) for event in self.events]


def _shown(event: SchemaEvent) -> tuple[int, str]:
    match event:
        case SchemaStep(change, ts):
            assert change.id == ts
            return ts, change.type_name
        case Resolved(ts=ts):
            return ts, "resolved"
        case SubscriptionFailed(error=error):
            return 0, type(error).__name__


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server(catalog(ORDERS, ITEMS))
    monkeypatch.setattr(relation_feed, "read_catalog", made.read)
    monkeypatch.setattr(relation_feed, "_RETRY_S", 0.0)
    return made


@asynccontextmanager
async def listening(
    server: Server, start_ts: int = START, known: Mapping[int, TableInfo] | None = None
) -> AsyncIterator[tuple[Driver, RelationFeed]]:
    driver = Driver(schema_of(server.now, start_ts, known or {}))
    async with RelationFeed(SERVER, "p", driver.schema, driver.emit) as feed:
        yield driver, feed


def tell(feed: RelationFeed, ts: int, *tables: Table) -> None:
    """The news of a commit, and that it was all."""
    for table in tables:
        feed.hear(ts, content_of(table.said))
    feed.hear(ts, b"")


def column_names(driver: Driver, table: Table, ts: int) -> Sequence[str]:
    found = driver.schema.table(table.oid, ts)
    assert found is not None
    return [column.name for column in found.columns]


async def test_silence_is_passed_on() -> None:
    driver = Driver(schema_of(catalog(), START, {}))
    async with RelationFeed(SERVER, "p", driver.schema, driver.emit) as feed:
        for ts in (START - 5, START, START + 7, START + 3, START + 9):
            feed.hear(ts, b"")
        assert await driver.until(2) == [(START + 7, "resolved"), (START + 9, "resolved")]


async def test_changes_of_one_commit_have_a_ts_each_below_its_rows(server: Server) -> None:
    orders, items = ORDERS.having(ID, A), replace(ITEMS, name="things").having(ID)
    async with listening(server) as (driver, feed):
        server.now = catalog(orders, items)
        tell(feed, FIRST, orders, items)
        assert await driver.until(4) == [
            (FIRST_CHANGE, "DROP_COLUMN"),
            (FIRST_CHANGE + 1, "RENAME_TABLE"),
            (FIRST_CHANGE + 2, "DROP_COLUMN"),
            (FIRST, "resolved"),
        ]
        assert column_names(driver, ORDERS, FIRST_CHANGE - 1) == ["id", "a", "b"]
        assert column_names(driver, ORDERS, FIRST) == ["id", "a"], "the rows of the commit are decoded by it"


async def test_what_is_known_asks_nobody(server: Server) -> None:
    async with listening(server) as (driver, feed):
        tell(feed, FIRST, ORDERS, ITEMS)
        assert await driver.until(1) == [(FIRST, "resolved")]
        assert server.reads == 0


async def test_a_stream_that_begins_anew_says_nothing_new(server: Server) -> None:
    """Also while nothing is resolved: the older definition is not one that the table has got again."""
    second, third = ORDERS.having(ID, A), ORDERS.having(ID)
    later = FIRST + TICKS
    async with listening(server) as (driver, feed):
        server.now = catalog(third, ITEMS)
        for _ in range(2):
            feed.hear(FIRST, content_of(second.said))
            feed.hear(FIRST, content_of(Truncate(7, (ITEMS.oid,))))
            feed.hear(later, content_of(third.said))
        feed.hear(FIRST - 10, content_of(ORDERS.said))
        feed.hear(later, b"")
        tell(feed, FIRST, second)
        tell(feed, later, third)
        feed.hear(later + 1, b"")
        assert await driver.until(5) == [
            (FIRST_CHANGE, "TRUNCATE_TABLE"),
            (FIRST_CHANGE + 1, "DROP_COLUMN"),
            (FIRST_CHANGE + TICKS, "DROP_COLUMN"),
            (later, "resolved"),
            (later + 1, "resolved"),
        ]


async def test_a_driver_that_dies_between_two_changes_of_a_commit_has_the_next_one_do_the_rest(server: Server) -> None:
    after = replace(ORDERS, name="sales").having(ID, A)
    async with listening(server) as (driver, feed):
        server.now = catalog(after, ITEMS)
        tell(feed, FIRST, after)
        whole = await driver.until(3)
        renamed = driver.schema.table(ORDERS.oid, FIRST_CHANGE)
    assert whole == [(FIRST_CHANGE, "RENAME_TABLE"), (FIRST_CHANGE + 1, "DROP_COLUMN"), (FIRST, "resolved")]
    assert renamed is not None
    async with listening(server, FIRST_CHANGE, {renamed.id: renamed}) as (driver, feed):
        tell(feed, FIRST, after)
        assert await driver.until(2) == whole[1:]


async def test_a_driver_that_dies_behind_a_truncation_does_not_repeat_it(server: Server) -> None:
    """Nothing that the table is tells of it."""
    after = ORDERS.having(ID)

    async def life(start_ts: int) -> list[tuple[int, str]]:
        async with listening(server, start_ts, {ORDERS.oid: ORDERS.info({})}) as (driver, feed):
            server.now = catalog(after, ITEMS)
            for event in (after.said, Truncate(7, (ITEMS.oid, 999)), Truncate(7, (ORDERS.oid, ITEMS.oid))):
                feed.hear(FIRST, content_of(event))
            feed.hear(FIRST, b"")
            await driver.until(1)
            while driver.events[-1] != Resolved(0, FIRST):
                await driver.until(len(driver.events) + 1)
            return await driver.until(1)

    whole = await life(START)
    assert whole == [
        (FIRST_CHANGE, "TRUNCATE_TABLE"),
        (FIRST_CHANGE + 2, "TRUNCATE_TABLE"),
        (FIRST_CHANGE + 3, "DROP_COLUMN"),
        (FIRST, "resolved"),
    ]
    for done in range(1, 3):
        assert await life(whole[done - 1][0]) == whole[done:]


async def test_a_partition_whose_rows_are_those_of_another_table_leads_to_nothing(server: Server) -> None:
    part = replace(ORDERS, oid=300, name="part")
    async with listening(server) as (driver, feed):
        server.now = catalog(ORDERS, ITEMS, parts=(300,))
        tell(feed, FIRST, part)
        tell(feed, FIRST + TICKS, part.having(ID))
        assert await driver.until(2) == [(FIRST, "resolved"), (FIRST + TICKS, "resolved")]
        assert server.reads == 1


async def test_a_server_that_is_away_is_asked_again(server: Server) -> None:
    seen = []
    after = ORDERS.having(ID)
    async with listening(server) as (driver, feed):
        server.now = catalog(after)
        server.failures = [Unavailable("db: no answer in time.", "Check the server."), Refused("db: no login.")]
        read = server.read

        async def reading(*args: object) -> PublishedTables:
            seen.append(feed.stopped())
            return await read(SERVER, "p")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(relation_feed, "read_catalog", reading)
            tell(feed, FIRST, after)
            assert await driver.until(2) == [(FIRST_CHANGE, "DROP_COLUMN"), (FIRST, "resolved")]
        assert feed.stopped() is None
    assert [stopped and (stopped.reason, stopped.message) for stopped in seen] == [
        None,
        (AWAY, "db: no answer in time. Check the server."),
        (REFUSED, "db: no login."),
    ]


async def test_nothing_passes_a_change_that_can_not_be_followed(server: Server) -> None:
    async with listening(server) as (driver, feed):
        server.failures = [NeedsHuman("db: the publication is gone.", "Make it again.")]
        tell(feed, FIRST, ORDERS.having(ID))
        tell(feed, FIRST + TICKS)
        feed.hear(FIRST + 2 * TICKS, b"{")
        assert await driver.until(1) == [(0, "NeedsHuman")]
    assert len(driver.events) == 1


async def test_what_no_puller_of_ours_tells_is_refused(server: Server) -> None:
    async with listening(server) as (driver, feed):
        feed.hear(FIRST, b"{")
        feed.hear(FIRST, b"")
        assert await driver.until(1) == [(0, "ProtocolViolation")]


async def test_more_changes_than_there_is_room_for_need_a_human(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relation_feed, "TICKS", 4)
    orders, items = replace(ORDERS, name="sales").having(ID), replace(ITEMS, name="things").having(ID)
    async with listening(server) as (driver, feed):
        server.now = catalog(orders, items)
        tell(feed, FIRST, orders, items)
        assert await driver.until(4) == [
            (FIRST - 2, "RENAME_TABLE"),
            (FIRST - 1, "DROP_COLUMN"),
            (FIRST, "RENAME_TABLE"),
            (0, "NeedsHuman"),
        ]
    failed = driver.events[-1]
    assert isinstance(failed, SubscriptionFailed)
    assert isinstance(failed.error, NeedsHuman)


async def test_an_error_of_the_driver_ends_the_block(server: Server) -> None:
    async def emit(event: SchemaEvent) -> None:
        raise ZeroDivisionError

    async def listen() -> None:
        async with RelationFeed(SERVER, "p", schema_of(server.now, START, {}), emit) as feed:
            feed.hear(START + 1, b"")
            await asyncio.Event().wait()

    with pytest.raises(ZeroDivisionError):
        await listen()
