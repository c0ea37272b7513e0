"""The feed of a slot on real servers: whenever its reader ends, and wherever it begins anew, rows are the same."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pg8000.native
import pyarrow as pa
import pytest
from changefeed.errors import NeedsHuman, SnapshotLostByGC, Transient, Unavailable
from changefeed.model.position import OP_DELETE
from changefeed.upstream.contract import Data, FeedEvent, Resolved, SchemaNews, SubscriptionFailed
from changefeed.upstream.postgresql.feed import SlotFeed
from changefeed.upstream.postgresql.pgoutput import held_rows
from changefeed.upstream.postgresql.schema.news import read_content
from changefeed.upstream.postgresql.slot.lease import SlotLease
from changefeed.upstream.scratch import Scratch, ScratchFile, scratch_in
from conftest import wait_for
from integration_postgresql import PROGRAMS, Postgresql, reached, running

USER, PASSWORD = "keeper", "p@ss/word"
ACCOUNTS, BALANCE = 20, 100
COLUMNS = {
    "left_accounts": "id, balance",
    "right_accounts": "id, balance",
    "transfers": "number, giver, taker, amount",
    "letters": "number, text",
}
LIVES, CLERKS = 20, 3
_PATIENCE_S = 60.0


@pytest.fixture(params=PROGRAMS)
def database(request: pytest.FixtureRequest) -> Iterator[Postgresql]:
    options = ("-c", "logical_decoding_work_mem=64kB")  # what is larger the server has on its disk
    with running(USER, PASSWORD, options=options, of=request.param) as server:
        yield server


@pytest.fixture
def newest() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of="newest") as server:
        yield server


def lease_of(database: Postgresql) -> SlotLease:
    return SlotLease(reached(database), "s", "changefeed-default-test-1")


def oid_of(database: Postgresql, table: str) -> int:
    ((oid,),) = database.query(f"SELECT '{table}'::regclass::oid::bigint")
    return int(oid)


def confirmed(database: Postgresql) -> int:
    ((position,),) = database.query(
        "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = 's'"
    )
    return int(position)


class Heard:
    """What feeds have told, of all lives together. `sub_ids` are used once."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[tuple[int, bytes], tuple[Any, ...]]] = {}  # by table; by ts and key
        self.resolved: dict[int, int] = {}  # by table
        self.news: list[SchemaNews] = []
        self.failed: dict[int, Exception] = {}
        self.tables: dict[int, int] = {}  # by sub_id
        self.repeated = 0
        self._events = 0
        self._event = asyncio.Event()

    async def hear(self, event: FeedEvent) -> None:
        match event:
            case Data(sub_id, table, batch):
                assert self.tables[sub_id] == table
                await asyncio.sleep(0)  # others have their turn in the middle of what has arrived
                for row in batch.to_pylist():
                    self._row(table, row)
            case Resolved(sub_id, ts):
                table = self.tables[sub_id]
                self.resolved[table] = max(self.resolved.get(table, 0), ts)
            case SchemaNews():
                self.news.append(event)
            case SubscriptionFailed(sub_id, error):
                self.failed[sub_id] = error
        self._events += 1
        self._event.set()

    def _row(self, table: int, row: dict[str, Any]) -> None:
        found = row["op"], row["value"], row["old_value"], row["start_ts"]
        known = self.rows.setdefault(table, {})
        at = row["commit_ts"], row["key"]
        if at in known:
            assert known[at] == found, "a row that comes again is the same"
            self.repeated += 1
        else:
            assert row["commit_ts"] > self.resolved.get(table, 0), "no row comes behind its resolved-ts"
            assert row["commit_ts"] <= self.news[-1].ts, "news come ahead of rows"
            known[at] = found

    async def more(self, count: int) -> None:
        """Wait for so many events."""
        await self.until(lambda end=self._events + count: self._events >= end)  # type: ignore[misc]

    async def until(self, is_so: Callable[[], Any]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not is_so():
                self._event.clear()
                await self._event.wait()

    def subscribe(self, feed: SlotFeed, table: int, start_ts: int) -> int:
        sub_id = len(self.tables)
        self.tables[sub_id] = table
        feed.subscribe(sub_id, table, b"", b"", start_ts)
        return sub_id

    def state(self, table: int) -> list[bytes]:
        """The rows that there are after all changes, in the order of their bytes."""
        now: dict[bytes, bytes] = {}
        for (_, key), (op, value, _, _) in sorted(self.rows.get(table, {}).items()):
            if op == OP_DELETE:
                del now[key]
            else:
                now[key] = value
        return sorted(now.values())


class Clerks:
    """They move money between two tables, and write down what they have moved; a server that is away they wait for."""

    def __init__(self, database: Postgresql) -> None:
        self._database = database
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=[number]) for number in range(CLERKS)]

    def __enter__(self) -> Clerks:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        rng = random.Random(number)
        while not self._over.wait(0.01):
            with suppress(pg8000.native.InterfaceError, pg8000.native.DatabaseError, OSError):
                connection = self._database.connect()
                with closing(connection):
                    while not self._over.wait(0.01):
                        if rng.randrange(60):
                            self._transfer(connection, rng)
                        else:
                            self._write_letters(connection, rng)

    def _transfer(self, connection: Any, rng: random.Random) -> None:
        giver, taker, amount = rng.randrange(ACCOUNTS), rng.randrange(ACCOUNTS), rng.randrange(5)
        connection.run(
            f"WITH given AS (UPDATE left_accounts SET balance = balance - {amount} WHERE id = {giver}), "
            f"taken AS (UPDATE right_accounts SET balance = balance + {amount} WHERE id = {taker}) "
            f"INSERT INTO transfers (giver, taker, amount) VALUES ({giver}, {taker}, {amount})"
        )

    def _write_letters(self, connection: Any, rng: random.Random) -> None:
        """Many at once, of which some are torn up before anybody has seen them."""
        insert = "INSERT INTO letters (text) SELECT repeat('x', 100) FROM generate_series(1, 300)"
        for statement in ("BEGIN", insert, "SAVEPOINT s", insert, "ROLLBACK TO s", insert):
            connection.run(statement)
        connection.run(rng.choice(("COMMIT", "COMMIT", "ROLLBACK")))


class Reader:
    """One life after the other."""

    def __init__(
        self, database: Postgresql, heard: Heard, tables: list[int], start_ts: int, seed: int, scratch: Scratch
    ) -> None:
        self._database, self._heard, self._tables, self._scratch = database, heard, tables, scratch
        self._lease = lease_of(database)
        self._held = start_ts
        self._rng = random.Random(seed)

    def feed(self, **options: Any) -> SlotFeed:
        where = (reached(self._database), "s", "p")
        return SlotFeed(*where, self._heard.hear, scratch=self._scratch, gather_s=0.02, **options)

    async def life(self) -> None:
        """Until it is cancelled."""
        rng, heard = self._rng, self._heard
        async with self.feed() as feed:
            subscribed = {}
            for table in rng.sample(self._tables, len(self._tables)):
                subscribed[table] = heard.subscribe(feed, table, self._start(table))
                await heard.more(rng.choice((0, 0, 1, 20)))
            while True:
                table = rng.choice(self._tables)
                match rng.randrange(5):
                    case 0:
                        feed.release(subscribed[table])
                        subscribed[table] = heard.subscribe(feed, table, self._start(table))
                    case 1:
                        feed.hold(subscribed[table])
                        await heard.more(rng.randrange(5))
                        feed.resume(subscribed[table])
                    case 2:
                        for sub_id in subscribed.values():
                            feed.hold(sub_id)
                        await asyncio.sleep(0)
                        for sub_id in subscribed.values():
                            feed.resume(sub_id)
                    case _:
                        await self.hold()
                await heard.more(rng.randrange(10))

    async def hold(self) -> None:
        """What all tables have is durable."""
        if len(self._heard.resolved) == len(self._tables):
            self._held = max(self._held, min(self._heard.resolved.values()))
            with suppress(Transient, Unavailable):  # the server is being killed
                await self._lease.hold(self._held)

    def _start(self, table: int) -> int:
        reached = self._heard.resolved.get(table, self._held)
        return self._rng.choice((self._held, reached, self._rng.randint(self._held, reached)))


def first_message(database: Postgresql) -> bytes:
    """What follows the Begin of the first transaction that the slot would send."""
    rows = database.query(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, 1, 'proto_version', '1', 'publication_names', "
        "'p', 'messages', 'true') LIMIT 2"
    )
    return bytes(rows[1][0])


async def during(life: asyncio.Task[None], wanted: Awaitable[None]) -> None:
    """Wait for something, unless the reader fails."""
    waits = asyncio.ensure_future(wanted)
    await asyncio.wait({life, waits}, return_when=asyncio.FIRST_COMPLETED)
    if life.done():
        waits.cancel()
        life.result()
    await waits


async def when_free(database: Postgresql, call: Callable[[], Any]) -> Any:
    """The server notices a moment later that the reader is gone."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                return await asyncio.to_thread(call)
            except pg8000.native.DatabaseError as error:
                if error.args[0]["C"] != "55006":
                    raise
                await asyncio.sleep(0.05)


async def test_every_row_comes_the_same_whenever_the_reader_ends(
    database: Postgresql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: each row has one ts, op and content in every life, none is missing, a resolved-ts is kept, and each life
    begins at an anchor at or below what is held.
    """
    database.query(
        "CREATE TABLE left_accounts (id int PRIMARY KEY, balance int)",
        "CREATE TABLE right_accounts (id int PRIMARY KEY, balance int)",
        "CREATE TABLE transfers (number serial PRIMARY KEY, giver int, taker int, amount int)",
        "CREATE TABLE letters (number serial PRIMARY KEY, text text)",
        "ALTER TABLE right_accounts REPLICA IDENTITY FULL",
        "CREATE TABLE unwanted (id int)",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    start_ts = await lease_of(database).begin()
    for table in ("left_accounts", "right_accounts"):
        database.query(f"INSERT INTO {table} SELECT i, {BALANCE} FROM generate_series(0, {ACCOUNTS - 1}) i")
    database.query("INSERT INTO unwanted VALUES (1), (1)")
    tables = [oid_of(database, table) for table in COLUMNS]
    heard = Heard()
    monkeypatch.setattr(held_rows, "PART_BYTES", 16 << 10)
    reader = Reader(database, heard, tables, start_ts, seed=database.port, scratch=scratch_in(tmp_path))
    rng = random.Random(database.port)
    positions = [confirmed(database)]
    with Clerks(database):
        for number in range(LIVES):
            life = asyncio.create_task(reader.life())
            await during(life, heard.more(rng.choice((0, 1, 5, 30, 60))))
            if number in (7, 14):
                await asyncio.to_thread(database.kill)
                await asyncio.to_thread(database.start)
                await during(life, heard.more(20))
            life.cancel()
            with suppress(asyncio.CancelledError):
                await life
            assert b'{"ts"' in await when_free(database, lambda: first_message(database))
            positions.append(confirmed(database))
    end_ts = await lease_of(database).begin()
    async with reader.feed() as feed:
        for table in tables:
            heard.subscribe(feed, table, reader._held)
        await heard.until(lambda: min(heard.resolved.values()) >= end_ts)
        await reader.hold()
        before = max(positions)
        await heard.until(lambda: confirmed(database) > before)
    assert not heard.failed
    assert heard.repeated > 100
    assert len(set(positions)) > 2
    assert heard.news[-1].content == b""
    described = {read_content(news.content).oid for news in heard.news if news.content}  # type: ignore[union-attr]
    assert described == {*tables, oid_of(database, "unwanted")}
    for (table, columns), oid in zip(COLUMNS.items(), tables, strict=True):
        rows = database.query(f"SELECT {columns} FROM {table}")
        assert heard.state(oid) == sorted(cells(row) for row in rows)
    for oid in tables:
        assert OP_DELETE not in {op for op, *_ in heard.rows[oid].values()}, "an account keeps its key"
    changes = [{ts for ts, _ in heard.rows[oid]} for oid in tables]
    assert changes[2] <= changes[0] & changes[1]
    assert len(changes[2]) == database.query("SELECT count(*) FROM transfers")[0][0]


def cells(row: list[Any]) -> bytes:
    """As pgoutput has a row."""
    texts = [str(value).encode() for value in row]
    return len(row).to_bytes(2) + b"".join(b"t" + len(text).to_bytes(4) + text for text in texts)


class Simple:
    """One table `t`, whose history begins with the slot."""

    def __init__(self, database: Postgresql) -> None:
        self.database, self.heard = database, Heard()

    async def begun(self) -> Simple:
        self.database.query(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE PUBLICATION p FOR ALL TABLES",
        )
        self.table = oid_of(self.database, "t")
        self.start_ts = await lease_of(self.database).begin()
        return self

    def feed(self) -> SlotFeed:
        return SlotFeed(reached(self.database), "s", "p", self.heard.hear, gather_s=0.02)

    def rows(self) -> list[bytes]:
        return self.heard.state(self.table)


@pytest.fixture
async def simple(newest: Postgresql) -> Simple:
    return await Simple(newest).begun()


def row(number: int, text: str) -> bytes:
    return cells([number, text])


async def test_news_of_the_schema_stand_just_before_the_rows(simple: Simple) -> None:
    """Promise: a change of columns, or a TRUNCATE, has a ts of its own below the rows behind it, and comes first."""
    simple.database.query(
        "INSERT INTO t VALUES (1, 'a')",
        "TRUNCATE t",
        "ALTER TABLE t ADD COLUMN w int",
        "INSERT INTO t VALUES (2, 'b', 3)",
    )
    heard = simple.heard
    async with simple.feed() as feed:
        heard.subscribe(feed, simple.table, simple.start_ts)
        await heard.until(lambda: cells([2, "b", 3]) in simple.rows())
    told = [(news.ts, read_content(news.content)) for news in heard.news if news.content]
    first, second = sorted(ts for ts, _ in heard.rows[simple.table])
    (begin, old), (emptied, oids), (altered, new) = told
    assert (begin, altered) == (first - 1, second - 1)
    assert first < emptied < altered
    assert oids == (simple.table,)
    assert [[column.name for column in each.columns] for each in (old, new)] == [  # type: ignore[union-attr]
        ["id", "v"],
        ["id", "v", "w"],
    ]


async def test_rows_of_two_definitions_in_one_transaction_are_not_followed(simple: Simple) -> None:
    """Unhappy path: they would have one ts, and a table has one definition at a ts. Other tables go on."""
    simple.database.query("CREATE TABLE u (id int PRIMARY KEY)")
    other = oid_of(simple.database, "u")
    with closing(simple.database.connect()) as connection:
        for statement in (
            "BEGIN",
            "INSERT INTO t VALUES (1, 'a')",
            "ALTER TABLE t ADD COLUMN w int",
            "INSERT INTO t VALUES (2, 'b', 3)",
            "INSERT INTO u VALUES (1)",
            "COMMIT",
        ):
            connection.run(statement)
    heard = simple.heard
    async with simple.feed() as feed:
        for table in (simple.table, other):
            heard.subscribe(feed, table, simple.start_ts)
        await heard.until(lambda: other in heard.resolved and heard.failed and heard.state(other))
    assert list(heard.failed) == [0]
    assert isinstance(heard.failed[0], NeedsHuman)
    assert "public.t, then its columns" in str(heard.failed[0])
    ((ts, _),) = heard.rows[other]
    assert heard.resolved.get(simple.table, 0) < ts


@pytest.mark.parametrize("changed", [False, True])
async def test_a_transaction_larger_than_memory_is_handed_on_in_small_parts(
    newest: Postgresql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """Promise: what is in memory of a transaction is bounded, and so is what is handed on; all rows have its ts."""
    rows, part_bytes = 200_000, 4 << 20
    monkeypatch.setattr(held_rows, "PART_BYTES", part_bytes)
    files: list[ScratchFile] = []
    batches: list[Data] = []

    def scratch() -> ScratchFile:
        files.append(scratch_in(tmp_path)())
        return files[-1]

    async def hear(event: FeedEvent) -> None:
        if isinstance(event, Data):
            assert heard.resolved == {}, "no row comes behind its resolved-ts"
            batches.append(event)
        elif isinstance(event, Resolved) and batches:
            await heard.hear(event)

    newest.query(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, v char(84))",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    start_ts = await lease_of(newest).begin()
    change = ["UPDATE t SET b = id, id = id + 7"] if changed else []
    insert = f"INSERT INTO t SELECT -n, n, -n, 'v' FROM generate_series(1, {rows}) n"
    newest.query("BEGIN", insert, *change, "COMMIT")
    heard = Heard()
    async with SlotFeed(reached(newest), "s", "p", hear, scratch=scratch, gather_s=0.02) as feed:
        heard.subscribe(feed, oid_of(newest, "t"), start_ts)
        await heard.until(lambda: heard.resolved)
    assert len(files) == (2 if changed else 1)
    assert max(batch.bytes for batch in batches) < 3 * part_bytes  # a read is of twice as much
    assert len({ts for batch in batches for ts in batch.batch["commit_ts"].to_pylist()}) == 1
    values = pa.concat_arrays([batch.batch["value"] for batch in batches]).to_pylist()
    moved = 7 if changed else 0
    assert sorted(values) == sorted(cells([moved - n, n, -n, f"{'v':84}"]) for n in range(1, rows + 1))


async def test_history_that_is_gone_is_said(simple: Simple) -> None:
    """Unhappy path: a start before the slot's, a slot that is dropped under its reader, a slot that is not there."""
    heard, lease = simple.heard, lease_of(simple.database)
    async with simple.feed() as feed:
        heard.subscribe(feed, simple.table, 1)
        later = heard.subscribe(feed, simple.table, simple.start_ts)
        await heard.until(lambda: heard.failed and heard.resolved)
        assert list(heard.failed) == [0]
        assert "Slot s has history from ts" in str(heard.failed[0])
        await lease.remove()
        await lease.remove()
        await heard.until(lambda: later in heard.failed)
        assert "there is no slot s" in str(heard.failed[later])
        assert all(isinstance(error, SnapshotLostByGC) for error in heard.failed.values())
        await lease.begin()
        again = heard.subscribe(feed, simple.table, simple.start_ts)
        await heard.until(lambda: again in heard.failed)
    await lease.remove()
    with pytest.raises(SnapshotLostByGC, match="there is no slot s"):
        await lease.hold(simple.start_ts)
    with pytest.raises(SnapshotLostByGC):
        async with simple.feed():
            await asyncio.Event().wait()


async def test_the_reader_that_began_last_has_the_slot(simple: Simple) -> None:
    """Promise: a task that is left over can't take the slot from the one in its place, and is told who has it."""
    heard, old = simple.heard, Heard()
    async with SlotFeed(reached(simple.database), "s", "p", old.hear, gather_s=0.02) as left_over:
        old.subscribe(left_over, simple.table, simple.start_ts)
        await old.until(lambda: old.resolved)
        async with simple.feed() as feed:
            heard.subscribe(feed, simple.table, simple.start_ts)
            await heard.until(lambda: heard.resolved)
            simple.database.query("INSERT INTO t VALUES (1, 'a')")
            await heard.until(lambda: left_over.stopped() is not None)
            await heard.until(lambda: simple.rows() == [row(1, "a")])
            assert feed.metrics.errors == {}
            stopped = left_over.stopped()
            assert stopped is not None
            assert "55006" in stopped.message
            assert old.state(simple.table) == []


async def test_who_has_no_room_for_rows_keeps_the_connection(newest: Postgresql) -> None:
    """Unhappy path: for longer than the server waits for a sign of life."""
    newest.query(f"ALTER ROLE {USER} SET wal_sender_timeout = '2s'")
    simple = await Simple(newest).begun()
    heard, has_room = simple.heard, asyncio.Event()
    has_room.set()

    async def room() -> None:
        await has_room.wait()

    def is_old() -> bool:
        return newest.query("SELECT now() - backend_start > '5 s' FROM pg_stat_replication") == [[True]]

    async with SlotFeed(reached(newest), "s", "p", heard.hear, gather_s=0.02, room=room) as feed:
        heard.subscribe(feed, simple.table, simple.start_ts)
        await heard.until(lambda: heard.resolved)
        has_room.clear()
        await asyncio.to_thread(wait_for, is_old, "an age of five seconds")
        has_room.set()
        newest.query("INSERT INTO t VALUES (1, 'a')")
        await heard.until(lambda: simple.rows() == [row(1, "a")])
        assert feed.metrics.errors == {}
