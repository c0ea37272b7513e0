"""`changefeed flashback` against a real MariaDB: its rows are then as they were, also after a run that was killed.

Where the rows come from is `changefeed restore`, whose own tests compare it with the upstream.
`CHANGEFEED_EVIDENCE=FILE`: more moments, and what was set back goes there; `CHANGEFEED_SEED=123` draws the same.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import InvalidSpec
from changefeed.objectstore.open import open_store
from changefeed.reading.progress import NoProgress
from changefeed.restore import reverse
from changefeed.restore.database import Database, Restoring
from changefeed.restore.flashback import flashback
from changefeed.restore.report import RestoreReport
from changefeed.restore.restore import restore
from changefeed.restore.source import RestoreSource
from changefeed.verify.storage.report import verify
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import World, new_world
from integration_mariadb import MariaDb, Proxy
from integration_mariadb import running as mariadb_running
from integration_restore import BankStory, Rows, running
from test_integration_restore import EVIDENCE, SEED, command, note

MOMENTS = 10 if EVIDENCE else 2

pytestmark = pytest.mark.timeout(900 if EVIDENCE else 120)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with mariadb_running(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture
def empty(mariadb: MariaDb) -> MariaDb:
    mariadb.query("DROP DATABASE IF EXISTS bank")
    return mariadb


def source(world: World) -> RestoreSource:
    return RestoreSource(open_store(world.lake.as_uri()))


def of_bank(schema: str, table: str) -> bool:
    return schema == "bank"


def loaded(world: World, server: MariaDb, ts: int) -> RestoreReport:
    database = Database(server.server())
    return restore(source(world), ts, of_bank, lambda tables: Restoring(database, ts, tables), NoProgress())


def rows(server: MariaDb, ts_tables: dict[str, Rows]) -> dict[str, Rows]:
    """What the server has of these tables."""
    found = {}
    for name, wanted in ts_tables.items():
        columns = list(next(iter(wanted.values())))
        given = server.query(f"SELECT {', '.join(columns)} FROM {name}")
        found[name] = {int(row[0]): dict(zip(columns, map(_value, columns, row), strict=True)) for row in given}
    return found


def _value(column: str, value: bytes | None) -> Any:
    return None if value is None else int(value) if column in ("id", "balance") else value.decode()


async def told(world: World, protocol: str = "csv") -> BankStory:
    """The bank has run for a while, and its changefeed has stopped."""
    story = BankStory(world, random.Random(SEED))
    bank = story.begin()
    run = running(world, protocol)
    story.steps(bank, 200)
    story.add_column(bank)
    story.steps(bank, 200)
    await story.written(run)
    await run.drained()
    return story


@pytest.mark.parametrize("protocol", ["csv", "canal-json", "parquet"])
async def test_rows_of_a_database_are_set_back(world: World, empty: MariaDb, protocol: str) -> None:
    story = await told(world, protocol)
    ddl_ts, end_ts = story.definitions[1][0], source(world).checkpoint_ts
    loaded(world, empty, end_ts)
    assert rows(empty, story.tables_at(end_ts)) == story.tables_at(end_ts), "restored into the database"
    drawn = sorted(story.draw.randrange(ddl_ts, end_ts) for _ in range(MOMENTS))
    for ts in [*reversed(drawn), ddl_ts]:  # each from where the last one has left it
        dry, is_applied = flashback(source(world), ts, of_bank, None, NoProgress())
        assert (is_applied, dry.left) == (False, [])
        report, is_applied = flashback(source(world), ts, of_bank, Database(empty.server()), NoProgress())
        assert is_applied
        assert report == dry
        wanted = story.tables_at(ts)
        assert rows(empty, wanted) == wanted, f"seed {SEED}, ts {ts}"
        note({"test": "flashback", "protocol": protocol, "tables": [vars(table) for table in report.tables]})


class Killed(Database):
    """Dies in the middle of its work: what was committed stands, and nothing after that."""

    def __init__(self, server: MariaDb, after: int) -> None:
        super().__init__(server.server())
        self._left = after

    def transact(self, statements: Sequence[bytes]) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        for statement in statements:  # of its last transaction a part as well, as if it had been a smaller one
            super().transact([statement])
            if not self._left:
                raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 3, 6])
async def test_a_flashback_that_was_killed_is_run_again(
    world: World, empty: MariaDb, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(reverse, "AT_ONCE", 9)
    story = await told(world)
    ts, end_ts = story.definitions[1][0], source(world).checkpoint_ts
    loaded(world, empty, end_ts)
    with pytest.raises(KeyboardInterrupt):
        flashback(source(world), ts, of_bank, Killed(empty, after), NoProgress())
    wanted = story.tables_at(ts)
    half_way = rows(empty, wanted)
    assert half_way not in (wanted, story.tables_at(end_ts)), "it was killed half-way"
    note({"test": "flashback killed", "after": after})
    for _ in range(2):  # the second time there is nothing left to do, and nothing is done
        assert flashback(source(world), ts, of_bank, Database(empty.server()), NoProgress())[1]
        assert rows(empty, wanted) == wanted, f"seed {SEED}"


async def test_a_changefeed_of_an_upstream_that_was_set_back_is_verified(world: World, empty: MariaDb) -> None:
    """The development cluster speaks no SQL: a database that equals it is set back, and what that changed is written
    upstream. The changefeed goes on, and its files tell both the way there and the way back."""
    story = await told(world)
    ts, end_ts = story.definitions[1][0], source(world).checkpoint_ts
    loaded(world, empty, end_ts)
    with pytest.raises(KeyboardInterrupt):
        flashback(source(world), ts, of_bank, Killed(empty, 1), NoProgress())
    write_upstream(story, rows(empty, story.tables_at(end_ts)))
    assert flashback(source(world), ts, of_bank, Database(empty.server()), NoProgress())[1]
    write_upstream(story, rows(empty, story.tables_at(ts)))
    run = running(world, "csv")
    now = await story.written(run)
    await run.drained()
    verdict = await verify(world.lake.as_uri(), [world.cluster.pd_address])
    assert verdict.ok, f"seed {SEED}: {verdict.first_problem} ({verdict})"
    assert story.tables_at(now) == story.tables_at(ts) != story.tables_at(end_ts), f"seed {SEED}"
    empty.query("DROP DATABASE bank")
    loaded(world, empty, now)
    assert rows(empty, story.tables_at(ts)) == story.tables_at(ts), f"seed {SEED}"
    note({"test": "flashback, then verify", "rows": verdict.rows})


def write_upstream(story: BankStory, wanted: dict[str, Rows]) -> None:
    """Makes the upstream's rows these, those of each table in one transaction."""
    tidb = story.world.tidb
    for name, now in story.tables_at(tidb.now()).items():
        table = story.definitions[-1][1][name]
        with tidb.begin() as txn:
            for pk in now.keys() - wanted[name].keys():
                txn.delete(table, pk)
            for pk, row in wanted[name].items():
                if pk not in now:
                    txn.insert(table, row)
                elif row != now[pk]:
                    txn.update(table, row)


async def test_a_restore_that_was_killed_leaves_nothing_in_the_way(world: World, empty: MariaDb) -> None:
    await told(world)
    ts = source(world).checkpoint_ts
    database = Killed(empty, 1)
    with pytest.raises(KeyboardInterrupt):
        restore(source(world), ts, of_bank, lambda tables: Restoring(database, ts, tables), NoProgress())
    assert empty.query("SHOW DATABASES LIKE 'bank'") == [], "half a restore is nowhere to be seen"
    loaded(world, empty, ts)
    assert empty.query(
        "SELECT SUM(balance) FROM (SELECT balance FROM bank.accounts_0 UNION ALL SELECT balance FROM bank.accounts_1) b"
    ) == [(b"0",)]
    assert empty.query("SHOW DATABASES LIKE 'changefeed%'") == []
    with pytest.raises(InvalidSpec, match=r"bank\.accounts_0 already exists"):
        loaded(world, empty, ts)


OLD = {
    "canal-json": {},
    "parquet": {"parquet": {"oldValues": True}},
}


@pytest.mark.parametrize("protocol", OLD)
async def test_rows_of_before_the_changefeed_are_set_back_by_old_values(
    world: World, mariadb: MariaDb, protocol: str
) -> None:
    world.insert(range(1, 6))
    world.start_ts = ts = world.tidb.now()
    run = running(world, protocol, **OLD[protocol])
    with world.tidb.begin() as txn:
        txn.update(world.orders, {"id": 1, "name": None})
        txn.update(world.orders, {"id": 2, "name": "it's"})
        txn.delete(world.orders, 3)
        txn.insert(world.orders, {"id": 6, "name": "new"})
    with world.tidb.begin() as txn:
        txn.update(world.orders, {"id": 1, "name": "twice"})
    await BankStory(world, random.Random(SEED)).written(run)
    await run.drained()
    mariadb.query(
        "CREATE DATABASE IF NOT EXISTS shop", "DROP TABLE IF EXISTS shop.orders",
        "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(64))",
        "INSERT INTO shop.orders VALUES (1, 'twice'), (2, 'it''s'), (4, 'order 4'), (5, 'order 5'), (6, 'new')",
    )  # fmt: skip
    database = Database(mariadb.server())
    report, is_applied = flashback(source(world), ts, lambda schema, _: schema == "shop", database, NoProgress())
    assert is_applied, report
    assert [vars(table) for table in report.tables] == [
        {"table": "shop.orders", "inserted": 1, "updated": 2, "deleted": 1}
    ]
    rows_then = world.tidb.snapshot(world.orders, ts)
    found = mariadb.query("SELECT id, name FROM shop.orders")
    assert {int(id_): name.decode() for id_, name in found} == {id_: row["name"] for id_, row in rows_then.items()}


SEATS = (NewColumn("hall", "varchar(9)"), NewColumn("row", "int"), NewColumn("guest", "int", unique=True))


async def test_unique_values_that_rows_have_exchanged_are_given_back(
    world: World, empty: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From wherever a killed run has left it; a row of two key columns, and a connection that is lost in COMMITs."""
    monkeypatch.setattr(reverse, "AT_ONCE", 1)
    tidb = world.tidb
    world.start_ts = tidb.now()
    tidb.create_database("bank")
    run = running(world, "csv")
    seats = tidb.create_table("bank", "seats", SEATS, pk=("hall", "row"))
    with tidb.begin() as txn:
        for number in range(6):
            txn.insert(seats, {"hall": "it's", "row": number, "guest": number})
        txn.insert(seats, {"hall": "it's", "row": 6, "guest": 6})  # who stays
    ts = tidb.now()
    with tidb.begin() as txn:
        for number in range(6):
            txn.delete(seats, ("it's", number))
    with tidb.begin() as txn:
        for number in range(6):
            txn.insert(seats, {"hall": "it's", "row": number, "guest": (number + 1) % 6})
        txn.insert(seats, {"hall": "it's", "row": 7, "guest": 70})
    end_ts = await BankStory(world, random.Random(SEED)).written(run)
    await run.drained()
    for after in (1, 2, 5):
        empty.query("DROP DATABASE IF EXISTS bank")
        loaded(world, empty, end_ts)
        assert b"UNIQUE KEY" in empty.query("SHOW CREATE TABLE bank.seats")[0][1], "as it is upstream"
        with pytest.raises(KeyboardInterrupt):
            flashback(source(world), ts, of_bank, Killed(empty, after), NoProgress())
        proxy = Proxy(empty.port, lambda number: number % 3 == 1)
        try:
            flashback(source(world), ts, of_bank, Database(empty.server(proxy.port)), NoProgress())
            assert proxy.lost > 1
        finally:
            proxy.close()
        found = empty.query("SELECT hall, `row`, guest FROM bank.seats ORDER BY `row`")
        assert found == [(b"it's", str(n).encode(), str(n).encode()) for n in range(7)]


async def test_a_ts_below_the_gc_safepoint_is_refused(world: World) -> None:
    await told(world)
    ts, pd = source(world).checkpoint_ts - 1, ["--pd", f"http://{world.cluster.pd_address}"]
    arguments = ("flashback", world.lake.as_uri(), "--to-ts", str(ts), "--table", "bank.*", *pd)
    done = await asyncio.to_thread(command, *arguments)
    assert done.returncode == 0, done
    world.cluster.safepoints.advance_gc(world.tidb.now())
    done = await asyncio.to_thread(command, *arguments)
    assert done.returncode == 2, done
    assert "is below the upstream's GC safepoint" in done.stderr


async def test_the_commands_work_on_a_database(world: World, empty: MariaDb) -> None:
    story = await told(world)
    ts, end_ts = story.definitions[1][0], source(world).checkpoint_ts
    server, lake = f"mysql://root@127.0.0.1:{empty.port}", world.lake.as_uri()
    only = ("--table", "bank.*")
    into = await asyncio.to_thread(command, "restore", lake, "--to-ts", str(end_ts), "--into", server, *only)
    assert into.returncode == 0, into
    assert rows(empty, story.tables_at(end_ts)) == story.tables_at(end_ts)
    applied = await asyncio.to_thread(command, "flashback", lake, "--to-ts", str(ts), "--apply", server, *only)
    assert applied.returncode == 0, applied
    assert f"Done: these rows are as they were at {ts}." in applied.stdout
    assert rows(empty, story.tables_at(ts)) == story.tables_at(ts)
    whole = await asyncio.to_thread(command, "flashback", lake, "--to-ts", str(ts), "--apply", server, "--json")
    answer = json.loads(whole.stdout)
    assert (whole.returncode, answer["applied"]) == (0, True), "shop.orders has not changed since"
    empty.query("DROP TABLE bank.accounts_1", "UPDATE bank.accounts_0 SET balance = 7")
    partly = await asyncio.to_thread(command, "flashback", lake, "--to-ts", str(ts), "--apply", server, *only)
    assert partly.returncode == 2, partly
    assert "has no bank.accounts_1" in partly.stderr
    assert empty.query("SELECT DISTINCT balance FROM bank.accounts_0") == [(b"7",)], "nothing is written then"
    away = await asyncio.to_thread(
        command, "restore", lake, "--to-ts", str(ts), "--into", "mysql://root@127.0.0.1:1/db", *only
    )
    assert away.returncode == 2, "a server is no database"
