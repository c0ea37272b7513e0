"""Tables of a PostgreSQL are copied as of a ts, while they are written: each row is there once, as it was then."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NeedsHuman, Refused
from changefeed.log.state import State
from changefeed.model.position import OP_INSERT
from changefeed.model.table_copy import COPY_TICKS, TableCopy
from changefeed.upstream.contract import Data, FeedEvent, Resolved, SubscriptionFailed
from changefeed.upstream.postgresql.copies import cuts, initial_copy
from changefeed.upstream.postgresql.copies.table_reader import TableReader
from changefeed.upstream.postgresql.feed import SlotFeed
from changefeed.upstream.postgresql.reading import copy_out
from changefeed.upstream.postgresql.schema.catalog import ReadableTable, read_published
from changefeed.upstream.postgresql.server import PostgresqlSession
from changefeed.upstream.postgresql.slot.lease import SlotLease
from integration_postgresql import PROGRAMS, Postgresql, reached, running
from integration_postgresql_bank import PUBLICATION, Change, Rows, changes
from integration_postgresql_world import PASSWORD, USER, World

COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'bank' AND table_name ="
ROWS, BALANCE = 1500, 100
_PATIENCE_S = 60.0
TABLES = (
    "CREATE SCHEMA bank",
    "CREATE TABLE bank.accounts (id bigint PRIMARY KEY, balance bigint NOT NULL, note text)",
    "CREATE TABLE bank.words (lang text, word text, times int, PRIMARY KEY (word, lang))",
    "CREATE TABLE bank.parts (id int, day int, note text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day)",
    *(f"CREATE TABLE bank.parts_{n} PARTITION OF bank.parts FOR VALUES FROM ({n}) TO ({n + 1})" for n in range(3)),
    "CREATE TABLE bank.nothing (id int PRIMARY KEY)",
    *(
        f"ALTER TABLE bank.{table} REPLICA IDENTITY FULL"
        for table in ("accounts", "words", "parts", "parts_0", "parts_1", "parts_2", "nothing")
    ),
    f"INSERT INTO bank.accounts SELECT n - 300, {BALANCE}, 'first' FROM generate_series(1, {ROWS}) n",
    "INSERT INTO bank.words SELECT 'l' || n % 3, repeat(E'\\\\\\t', n % 5) || n, n FROM generate_series(1, 300) n",
    "INSERT INTO bank.parts SELECT n, n % 3, NULL FROM generate_series(1, 300) n",
    PUBLICATION,
)


@pytest.fixture
def newest() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of="newest") as server:
        yield server


class Clerk:
    """Moves money between accounts, opens, closes and renumbers some, and changes rows of the other tables, too."""

    def __init__(self, database: Postgresql, seed: int) -> None:
        self._database, self._chosen = database, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Clerk:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with self._database.connect() as connection:
            number = ROWS
            while not self._over.is_set():
                number += 1
                connection.run("BEGIN")
                for statement in self._statements(number):
                    connection.run(statement)
                connection.run("COMMIT" if number % 9 else "ROLLBACK")

    def _statements(self, number: int) -> Iterator[str]:
        giver, taker, closed, renumbered = (
            f"(SELECT id FROM bank.accounts WHERE id >= {self._chosen.randrange(-300, ROWS)} ORDER BY id LIMIT 1)"
            for _ in range(4)
        )
        yield f"INSERT INTO bank.accounts VALUES ({number}, 0, 'new')"
        yield f"UPDATE bank.accounts SET balance = balance - 5 WHERE id = {giver}"
        yield "UPDATE bank.accounts SET balance = balance + 5 WHERE id = (SELECT max(id) FROM bank.accounts)"
        yield (
            f"WITH gone AS (DELETE FROM bank.accounts WHERE id = {closed} AND id <> {number} RETURNING balance) "
            "UPDATE bank.accounts SET balance = balance + coalesce((SELECT sum(balance) FROM gone), 0) "
            f"WHERE id = {number}"
        )
        yield f"UPDATE bank.accounts SET id = -1000 - {number} WHERE id = {renumbered} AND id <> {taker}"
        yield f"UPDATE bank.words SET times = times + 1 WHERE times % 50 = {number % 50}"
        yield f"UPDATE bank.words SET word = word || 'x' WHERE times % 70 = {number % 70}"
        yield f"DELETE FROM bank.words WHERE times = {number % 300}"
        yield f"UPDATE bank.parts SET day = (day + 1) % 3, note = E'moved\\t\\\\N' WHERE id = {number % 301}"
        yield f"INSERT INTO bank.nothing VALUES ({number})"


def replayed(found: list[Change], copied_ts: int) -> dict[str, Rows]:
    """Fails where a row comes that is there, or one changes that is not, or where accounts lack money."""
    rows: dict[str, Rows] = defaultdict(dict)
    keys = {"words": 2, "parts": 2}
    for number, change in enumerate(found):
        here, key = rows[change.table], "|".join(value for _, value in change.row[: keys.get(change.table, 1)])
        before = here.pop(key, None)
        assert (before is None) == (change.op == "I"), change
        if change.op != "D":
            here[key] = dict(change.row)
        if change.ts >= copied_ts and (number + 1 == len(found) or found[number + 1].ts > change.ts):
            total = sum(int(row["balance"]) for row in rows["accounts"].values())
            assert total == ROWS * BALANCE, f"{total} at {change.ts}"
    return rows


async def test_tables_are_copied_while_they_are_written_and_their_reader_is_killed(
    newest: Postgresql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: nothing is there twice or missing, and the copy is as of one ts, whoever has read it when."""
    monkeypatch.setattr(cuts, "CHUNK_ROWS", 200)
    newest.query(*TABLES)
    world = World(newest, tmp_path)
    said = []
    with Clerk(newest, 7):
        for _ in range(3):
            run, before = world.run(initialCopy=True), written(world.lake)
            await run.until(lambda before=before: written(world.lake) > before, "more is written")  # type: ignore[misc]
            await run.killed()
            said += run.view.progress
        run = world.run(initialCopy=True)
        await run.until(lambda: run.driver is not None and copied(run.driver.owner.state), "all is copied")
        now = await world.now()
        await run.until(lambda: run.driver is not None and run.driver.owner.state.checkpoint_ts > now, "changes follow")
        state = run.driver.owner.state
        await run.killed()
    assert any("; copied " in each.message for each in [*said, *run.view.progress])
    assert (await world.to_the_end(initialCopy=True)).state == "finished"
    chunks = {len(copy.bounds) - 1 for copy in state.copies().values()}
    assert len(state.copies()) == 4
    assert max(chunks) >= 7
    (copied_ts,) = {copy.ts for copy in state.copies().values()}
    found = changes(world.lake)
    assert {change.op for change in found if change.ts <= copied_ts} == {"I"}
    rows = replayed(found, copied_ts)
    assert {table: sorted(map(str, each.values())) for table, each in rows.items()} == {
        table: standing(newest, table) for table in ("accounts", "words", "parts", "nothing")
    }


def standing(database: Postgresql, table: str) -> list[str]:
    """The rows that it has, as the files say them."""
    columns = [name for (name,) in database.query(f"{COLUMNS} '{table}' ORDER BY ordinal_position")]
    rows = database.query(f"SELECT {', '.join(f'{name}::text' for name in columns)} FROM bank.{table}")
    return sorted(str(dict(zip(columns, ["\\N" if v is None else v for v in row], strict=True))) for row in rows)


def written(lake: Path) -> int:
    """How many rows are."""
    return sum(len(path.read_bytes().splitlines()) for path in lake.rglob("CDC*.csv"))


def copied(state: State) -> bool:
    """Nothing is left of what is to be copied."""
    return bool(state.copies()) and all(state.checkpoint_ts >= copy.ts for copy in state.copies().values())


class Heard:
    """What a feed has told of subscription 1 and on."""

    def __init__(self, then: Callable[[FeedEvent], None] = lambda _: None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.resolved: dict[int, list[int]] = defaultdict(list)
        self.failed: dict[int, Exception] = {}
        self._then, self._event = then, asyncio.Event()

    async def hear(self, event: FeedEvent) -> None:
        match event:
            case Data(sub_id, _, batch):
                assert all(ts < row["commit_ts"] for row in batch.to_pylist() for ts in self.resolved[sub_id])
                self.rows += batch.to_pylist()
            case Resolved(sub_id, ts):
                self.resolved[sub_id].append(ts)
            case SubscriptionFailed(sub_id, error):
                self.failed[sub_id] = error
        self._then(event)
        self._event.set()

    async def until(self, is_so: Callable[[], Any]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not is_so():
                self._event.clear()
                await self._event.wait()

    def reached(self, ts: int, sub_id: int = 1) -> bool:
        return bool(self.resolved[sub_id]) and self.resolved[sub_id][-1] >= ts


class Place:
    """A slot that is made before the rows are, and tables that can be copied from it."""

    def __init__(self, database: Postgresql, *statements: str) -> None:
        self._database = database
        database.query(PUBLICATION, *statements)
        self._lease = SlotLease(reached(database), "s", "changefeed-default-test-1")

    async def begin(self, name: str) -> tuple[int, TableCopy]:
        """The OID of a table, and its copy as of now."""
        ts = await self._lease.begin(COPY_TICKS)
        with closing(PostgresqlSession(reached(self._database))) as session:
            (table,) = (each for each in read_published(session, "changefeed").tables if each.name == name)
            return table.id, TableCopy(ts - COPY_TICKS, cuts.bounds(session, "changefeed", table, 1000))

    def feed(self, heard: Heard) -> SlotFeed:
        return SlotFeed(reached(self._database), "s", "changefeed", heard.hear)


TYPES = {
    "flag": ("boolean", "true"),
    "padded": ("char(5)", "'ab'"),
    "address": ("inet", "'10.1.2.3/32'"),
    "price": ("numeric(12, 4)", "1.5"),
    "large": ("numeric", "'NaN'"),
    "near": ("real", "0.1"),
    "far": ("double precision", "1e300"),
    "raw": ("bytea", r"'\x5c09'"),
    "moment": ("timestamptz", "'2026-01-02 03:04:05.6+05'"),
    "span": ("interval", "'1 mon 2 days'"),
    "words": ("text[]", r"ARRAY['a\b', E'c\td', NULL]"),
    "doc": ("jsonb", r"""'{"a": "\\n\t"}'"""),
    "mood": ("bank.mood", "'so-so'"),
    "small": ("bank.small", "7"),
    "body": ("text", r"E'\\N\n\t\r\b\f\v\\' || repeat('long', 20000)"),
    "nothing": ("text", "NULL"),
    "empty": ("varchar(3)", "''"),
    "backslash": ("text", r"'\N'"),
    "money": ("money", "12.5"),
    "relation": ("regclass", "'bank.things'::regclass"),
}


@pytest.mark.parametrize("of", PROGRAMS)
async def test_a_row_that_is_read_is_byte_for_byte_what_the_stream_has_of_it(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: whatever its type is, and in whatever pieces it comes. What is not published is not there."""
    monkeypatch.setattr(copy_out, "PIECE_BYTES", 1000)
    monkeypatch.setattr(copy_out, "RECEIVE_BYTES", 101)
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in TYPES.items())
    values = ", ".join(value for _, value in TYPES.values())
    options = ("-c", "datestyle=German", "-c", "bytea_output=escape", "-c", "timezone=Asia/Tokyo")
    with running(USER, PASSWORD, options=options, of=of) as database:
        place = Place(
            database,
            "CREATE SCHEMA bank",
            "CREATE TYPE bank.mood AS ENUM ('so-so', 'well')",
            "CREATE DOMAIN bank.small AS int CHECK (VALUE < 10)",
            f"CREATE TABLE bank.things (gone int, id int, kind text, {columns}, twice int GENERATED ALWAYS AS (id * 2) "
            "STORED, PRIMARY KEY (kind, id))",
            "ALTER TABLE bank.things DROP COLUMN gone",
            "ALTER TABLE bank.things REPLICA IDENTITY FULL",
            "CREATE TABLE bank.children (more int) INHERITS (bank.things)",
            f"INSERT INTO bank.things SELECT n, 'k' || n, {values} FROM generate_series(1, 9) n",
            f"INSERT INTO bank.children SELECT n, 'k' || n, {values} FROM generate_series(20, 29) n",
            "INSERT INTO bank.things (id, kind) SELECT n, E'\\\\' || n FROM generate_series(10, 12) n",
        )
        left_out = 0
        if of != "oldest":  # which has none
            left_out = 1
            generated = " WITH (publish_generated_columns = stored)" if of == "newest" else ""
            database.query(
                "DROP PUBLICATION changefeed",
                f"CREATE PUBLICATION changefeed FOR TABLE ONLY bank.things WHERE (id <> 3){generated}",
            )
        table, copy = await place.begin("things")
        heard = Heard()
        async with place.feed(heard) as feed:
            feed.subscribe(1, table, b"", b"", copy.from_ts, copy)
            await heard.until(lambda: heard.reached(copy.ts))
            assert {(row["start_ts"], row["op"], row["old_value"]) for row in heard.rows} == {(0, OP_INSERT, None)}
            read = {row["key"]: row["value"] for row in heard.rows}
            heard.rows.clear()
            database.query("UPDATE ONLY bank.things SET kind = kind")
            await heard.until(lambda: len(heard.rows) == 12 - left_out)
        assert {row["key"]: row["value"] for row in heard.rows} == read
        assert {row["key"]: row["old_value"] for row in heard.rows} == read


@pytest.mark.parametrize(("transaction_s", "transactions"), [(0.0, 3), (600.0, 1)], ids=["one-each", "one-for-several"])
async def test_a_chunk_that_is_held_is_read_again_and_one_that_was_told_is_not(
    transaction_s: float, transactions: int, newest: Postgresql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: also by another feed, though all rows are other ones by then. An open transaction is waited for."""
    monkeypatch.setattr(initial_copy, "TRANSACTION_S", transaction_s)
    monkeypatch.setattr(cuts, "CHUNK_ROWS", 10)
    monkeypatch.setattr(initial_copy, "SAID_FROM", 2)
    place = Place(
        newest,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT n, 'old' FROM generate_series(1, 40) n",
    )
    with newest.connect() as open_one:
        table, copy = await place.begin("t")
        assert copy.size == 5
        open_one.run("BEGIN")
        open_one.run("UPDATE t SET v = 'late' WHERE id = 40")
        newest.query("UPDATE t SET v = 'new' WHERE id % 2 = 0 AND id < 40", "DELETE FROM t WHERE id % 5 = 1")

        def hold(event: FeedEvent) -> None:
            match event:
                case Data() if not held:
                    held.append(1)
                    first.hold(1)
                case Resolved(1, ts) if ts == copy.from_ts + 2:
                    first.release(1)

        held: list[int] = []
        heard = Heard(hold)
        async with place.feed(heard) as first:
            first.subscribe(1, table, b"", b"", copy.from_ts, copy)
            await heard.until(lambda: first.stopped() is not None)
            assert "transactions that were open" in str(first.stopped())
            assert not heard.rows
            open_one.run("COMMIT")
            await heard.until(lambda: held)
            assert heard.resolved[1] == []
            first.resume(1)
            await heard.until(lambda: copy.from_ts + 2 in heard.resolved[1])
    newest.query("UPDATE t SET id = -id", "INSERT INTO t SELECT n, 'newer' FROM generate_series(1, 40) n")
    again = Heard()
    begins: list[int] = []
    begin = TableReader.begin

    def counted(reader: TableReader, table: int, seen: int) -> ReadableTable:
        begins.append(table)
        return begin(reader, table, seen)

    monkeypatch.setattr(TableReader, "begin", counted)
    async with place.feed(again) as second:
        second.subscribe(1, table, b"", b"", copy.from_ts + 2, copy)
        now = (await place.begin("t"))[1].ts
        await again.until(lambda: again.reached(now))
    assert {row["commit_ts"] - copy.from_ts for row in again.rows if not row["start_ts"]} == {3, 4, 5}
    assert again.resolved[1][:4] == [copy.from_ts + n for n in (3, 4, 5)] + [copy.ts]
    assert len(begins) == transactions
    read = {(row["commit_ts"], row["key"], row["value"]) for row in heard.rows + again.rows if not row["start_ts"]}
    assert sorted(cells(value) for _, _, value in read) == sorted((str(n), "old") for n in range(1, 41))


def cells(value: bytes) -> tuple[str, ...]:
    """Texts of a row."""
    found, at = [], 2
    while at < len(value):
        size = int.from_bytes(value[at + 1 : at + 5])
        found.append(value[at + 5 : at + 5 + size].decode())
        at += 5 + size
    return tuple(found)


@pytest.mark.parametrize("sampled_pages", [4_000, 12])
def test_a_table_is_cut_into_chunks_of_a_like_size_also_by_a_sample(
    newest: Postgresql, monkeypatch: pytest.MonkeyPatch, sampled_pages: int
) -> None:
    """Promise: each row is in one chunk, and no chunk is much larger than others, whatever numbers there are."""
    monkeypatch.setattr(cuts, "CHUNK_ROWS", 1000)
    monkeypatch.setattr(cuts, "SAMPLED_PAGES", sampled_pages)
    newest.query(
        PUBLICATION,
        "CREATE TABLE numbers (n int, id bigint, PRIMARY KEY (id, n))",
        "INSERT INTO numbers SELECT n, n * n * sign(n) FROM generate_series(-3000, 9000) n",
        "CREATE TABLE ids (id uuid PRIMARY KEY)",
        "INSERT INTO ids SELECT md5(n::text)::uuid FROM generate_series(1, 12001) n",
    )
    with closing(PostgresqlSession(reached(newest))) as session:
        for table in read_published(session, "changefeed").tables:
            bounds = cuts.bounds(session, "changefeed", table, 1000)
            assert 8 <= len(bounds) - 1 <= 30
            reader = TableReader(reached(newest), "changefeed")
            with closing(reader):
                reader.begin(table.id, reader.xid())
                keys = []
                for start, end in pairwise(bounds):
                    found = [key for part, _ in reader.rows(start, end) for key in part.to_pylist()]
                    assert len(found) <= 3000
                    assert all(start <= key < end for key in found)
                    keys += found
            assert len(set(keys)) == len(keys) == 12001
            small = cuts.bounds(session, "changefeed", table, 3)
            assert 3 <= len(small) <= 4


def test_a_user_who_may_select_from_tables_copies_them_and_is_told_of_policies(newest: Postgresql) -> None:
    """Unhappy path: a policy that hides rows is an error, or they would be missing without a word."""
    newest.query(
        PUBLICATION,
        "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'x'",
        "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF whole FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high PARTITION OF whole FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        "INSERT INTO whole SELECT generate_series(0, 199)",
        "INSERT INTO hidden SELECT generate_series(0, 199)",
        "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY half ON hidden USING (id < 100)",
        "GRANT SELECT ON whole, hidden TO reader",
    )
    server = reached(newest, user="reader", password="x")
    with closing(PostgresqlSession(server)) as session, closing(TableReader(server, "changefeed")) as reader:
        whole, hidden = read_published(session, "changefeed").tables
        seen = reader.xid()
        for table in (whole, hidden):
            start, end = cuts.bounds(session, "changefeed", table, 1000)
            assert reader.begin(table.id, seen).info == table
            if table is whole:
                assert sum(len(keys) for keys, _ in reader.rows(start, end)) == 200
                reader.end()
                continue
            with pytest.raises(Refused, match="row-level security"):
                list(reader.rows(start, end))


async def test_a_table_that_is_not_what_it_was_is_not_copied_to_its_end(newest: Postgresql) -> None:
    """Unhappy path: no row is made up, and people are told what to do."""
    wrong = {
        "TRUNCATE a": "emptied by TRUNCATE",
        "ALTER TABLE b ADD COLUMN w int": "was altered",
        "DROP TABLE c": "was dropped",
        "ALTER TABLE d REPLICA IDENTITY DEFAULT; UPDATE d SET v = 2": "has lost its REPLICA IDENTITY FULL",
    }
    place = Place(
        newest,
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)" for name in "abcd"),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in "abcd"),
        *(f"INSERT INTO {name} VALUES (1, 1)" for name in "abcd"),
    )
    found = [await place.begin(name) for name in "abcd"]
    assert {copy.size for _, copy in found} == {1}
    newest.query(*wrong)
    heard = Heard()
    async with place.feed(heard) as feed:
        for number, (table, copy) in enumerate(found):
            feed.subscribe(number, table, b"", b"", copy.from_ts, copy)
        await heard.until(lambda: len(heard.failed) == len(wrong))
    for number, why in enumerate(wrong.values()):
        assert isinstance(heard.failed[number], NeedsHuman)
        assert why in str(heard.failed[number])
        assert "Start a new changefeed" in heard.failed[number].next_step
    assert not heard.rows
