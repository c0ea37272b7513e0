"""`changefeed verify` with a real PostgreSQL: what is right holds, and each harm to the files is found and named."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.errors import InvalidSpec, Unavailable
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.layout.files import checkpoint
from changefeed.reading.progress import NoProgress
from changefeed.reading.scratch import scratch_database
from changefeed.routing.routes import Routes
from changefeed.spec.filter.filters import Filter
from changefeed.upstream import choice
from changefeed.upstream.postgresql.database import PostgresqlDatabase
from changefeed.upstream.postgresql.reading import snapshot
from changefeed.upstream.postgresql.reading.snapshot import DatabaseSnapshot
from changefeed.verify.choice import verify_sink
from changefeed.verify.result import SnapshotVerdict
from changefeed.verify.snapshot import reached, report
from changefeed.verify.snapshot.standing import InFiles, read_standing
from changefeed.verify.storage.report import open_folder, sink_of
from integration_inprocess import Run
from integration_postgresql import running
from integration_postgresql_bank import ACCOUNTS, PUBLICATION, TABLES, Bank
from integration_postgresql_world import PASSWORD, USER, World

TYPES = (
    "CREATE TYPE bank.mood AS ENUM ('glad', 'sad')",
    "CREATE TYPE bank.pair AS (a int, b text)",
    "CREATE DOMAIN bank.positive AS int CHECK (VALUE > 0)",
    "CREATE TABLE bank.types (code char(5), day date, yes boolean, small smallint, whole bank.positive, price "
    "numeric(10, 2), free numeric, single real, twice double precision, words varchar(30), bytes bytea, id uuid, stamp "
    "timestamp(3), zoned timestamptz, clock time(2), bits bit(9), doc json, docb jsonb, net inet, list text[], mood "
    "bank.mood, pair bank.pair, span interval, money money, PRIMARY KEY (day, code))",
    "ALTER TABLE bank.types REPLICA IDENTITY FULL",
)
ROWS = (
    "INSERT INTO bank.types (day, code) VALUES ('2020-02-29', 'none')",
    "INSERT INTO bank.types VALUES ('ab', '2024-01-31', true, -3, 7, 1.5, 1.500, 0.1, 'NaN', E'a \"b\", c\\n\\\\N', "
    "'\\x00ff', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2024-10-27 02:30:00.5', '2024-10-27 01:30:00.25+00', "
    "'23:59:59.9', B'101010101', '{\"b\": 1,  \"a\": 1.0}', '{\"b\": 1,  \"a\": 1.0}', '10.0.0.1', "
    "ARRAY['x', NULL], 'sad', ROW(NULL, NULL), '1 day 2 hours', 12.5)",
    "INSERT INTO bank.types (day, code, words, single, twice) VALUES ('2024-03-01', '李', '', '-0', 'Infinity')",
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES, *TYPES, PUBLICATION)
        yield World(server, tmp_path)


async def begun(world: World, **spec: Any) -> Run:
    run = world.run(**spec)
    published = world.lake / "metadata"
    await run.until(lambda: run.driver is not None and published.exists(), "a checkpoint is published")
    return run


async def verified(world: World, **spec: Any) -> SnapshotVerdict:
    result = await verify_sink(world.changefeed(**spec), world.secrets, None, NoProgress())
    assert isinstance(result, SnapshotVerdict)
    return result


def storage(world: World, **options: Any) -> dict[str, Any]:
    return {"storage": {"uri": world.lake.as_uri(), "flushInterval": "100ms", **options}}


async def test_a_bank_that_rests_is_verified_by_the_command(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    world.database.query("INSERT INTO bank.notes VALUES (-1, 'of before'), (-2, 'of before')")
    run = await begun(world)
    bank = Bank(world.database)
    await asyncio.to_thread(bank.open)
    await asyncio.to_thread(bank.transfer, 40)
    await asyncio.to_thread(
        world.database.query,
        "UPDATE bank.notes SET body = 'known now' WHERE id = -2",
        "ALTER TABLE bank.accounts ADD COLUMN since date DEFAULT '2020-01-01'",
        "UPDATE bank.accounts SET owner = 'x' WHERE id = 1",
        "CREATE TABLE bank.later (id int PRIMARY KEY)",
        "ALTER TABLE bank.later REPLICA IDENTITY FULL",
        "INSERT INTO bank.later VALUES (1), (2)",
        "TRUNCATE bank.later",
        "INSERT INTO bank.later VALUES (2), (3)",
        "ALTER TABLE bank.transfers ADD COLUMN of_nobody int",
    )
    file = world.folder / "changefeed.json"
    file.write_text(json.dumps(world.resource()))
    arguments = ["verify", "-f", str(file), "--secrets-dir", str(world.secrets), "--json"]
    code = await asyncio.to_thread(main, arguments)
    result = json.loads(capfd.readouterr().out)
    await run.killed()
    assert (code, result["ok"], result["first_problem"]) == (0, True, None)
    (notes,) = world.database.query("SELECT count(*) FROM bank.notes")
    (transfers,) = world.database.query("SELECT count(*) FROM bank.transfers")
    assert result["tables"] == 5
    assert result["consumed"] == 20 + notes[0] - 1 + transfers[0] + 2
    said = "\n".join(result["notes"])
    assert "1 rows of bank.notes are in no file" in said
    assert "19 rows of bank.accounts have not changed since it got since" in said
    assert "of bank.transfers is another one than its newest change has: of_nobody was not compared" in said


Lines = list[bytes]


def edited(path: Path, change: Callable[[Lines], Lines]) -> Callable[[], object]:
    lines = path.read_bytes().split(b"\r\n")[:-1]
    return lambda: path.write_bytes(b"".join(line + b"\r\n" for line in change(lines)))


def harms(lake: Path) -> dict[str, tuple[Path, Callable[[], object], str, str]]:
    """By name: the file, what is done to it, what is counted once, and what is said first."""

    def holding(text: bytes) -> tuple[Path, Callable[[Lines], bytes]]:
        (path,) = (path for path in lake.rglob("CDC*.csv") if text in path.read_bytes())
        return path, lambda lines: next(line for line in lines if text in line)

    accounts, changed = holding(b',3,"last"')
    notes, deleted = holding(b'"D","notes"')
    emptied, kept = holding(b'"kept"')
    file = accounts.relative_to(lake).as_posix()
    return {
        "changed": (
            accounts,
            edited(accounts, lambda rows: [row.replace(b'"last"', b'"lost"') for row in rows]),
            "consumed_different",
            "give id='3', owner='lost'",
        ),
        "removed": (
            accounts,
            edited(accounts, lambda rows: [row for row in rows if row != changed(rows)]),
            "consumed_different",
            "give id='3', owner='first'",
        ),
        "doubled": (
            accounts,
            edited(accounts, lambda rows: [*rows, changed(rows)]),
            "duplicate",
            "A change of bank.accounts appears again: U, commit ts",
        ),
        "invented": (
            accounts,
            edited(accounts, lambda rows: [*rows, changed(rows).replace(b",3,", b",333,")]),
            "consumed_extra",
            "the upstream has no such row",
        ),
        "late": (
            accounts,
            edited(accounts, lambda rows: [*rows[:-2], *rows[:-3:-1]]),
            "out_of_order",
            "A change of bank.accounts comes after a later one: ",
        ),
        "kept": (
            notes,
            edited(notes, lambda rows: [row for row in rows if row != deleted(rows)]),
            "consumed_extra",
            "the upstream has no such row",
        ),
        "unbelievable": (
            notes,
            edited(notes, lambda rows: [row.replace(b'"D"', b'"I"') for row in rows]),
            "unexpected",
            "A change of bank.notes can't be there: I, commit ts",
        ),
        "lost": (
            emptied,
            edited(emptied, lambda rows: [row for row in rows if row != kept(rows)]),
            "consumed_missing",
            "give no such row; the upstream has id='1', v='kept'",
        ),
        "deleted": (accounts, accounts.unlink, "", f"{file} is missing"),
    }


Found = dict[str, tuple[int, str | None]]


def harmed(world: World, snapshot: DatabaseSnapshot) -> Found:
    """By harm: how often it is counted, and what is said first if that is not what has to be. Nothing writes."""
    sink = sink_of(world.changefeed(), world.secrets)
    store = open_folder(sink)
    published, found = checkpoint(store), Found()
    with scratch_database() as db:
        standing = read_standing(snapshot, db, InFiles("UTC"), NoProgress(), Routes(Filter()))
        rests = replace(standing, after_ts=published, before_ts=published)
        for name, (path, harm, count, said) in harms(world.lake).items():
            before = path.read_bytes()
            harm()
            result = report.check_files(sink, store, rests, db, NoProgress())
            path.write_bytes(before)
            first = str(result.first_problem)
            found[name] = getattr(result, count, 0), None if said in first else first
        result = report.check_files(sink, store, rests, db, NoProgress())
        found["none"] = result.consumed_missing, result.first_problem
    return found


async def test_each_harm_to_the_files_is_found(world: World) -> None:
    run = await begun(world)
    bank = Bank(world.database)
    await asyncio.to_thread(bank.open)
    await asyncio.to_thread(bank.transfer, 30)
    await asyncio.to_thread(
        world.database.query,
        "CREATE TABLE bank.later (id int PRIMARY KEY, v text)",
        "ALTER TABLE bank.later REPLICA IDENTITY FULL",
        "INSERT INTO bank.later VALUES (1, 'gone')",
        "TRUNCATE bank.later",
        "INSERT INTO bank.later VALUES (1, 'kept')",
        "DELETE FROM bank.notes WHERE id = 11",
        "UPDATE bank.accounts SET owner = 'first' WHERE id = 3",
        "UPDATE bank.accounts SET owner = 'last' WHERE id = 3",
    )
    assert (await verified(world)).first_problem is None
    await run.killed()
    upstream = await choice.access_of(world.changefeed(), world.secrets).connect()
    assert isinstance(upstream, PostgresqlDatabase)
    found = harmed(world, upstream.snapshot(lambda schema, _: schema == "bank"))
    await upstream.close()
    assert found == {name: (name not in ("deleted", "none"), None) for name in found}


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "csv", "csv": {"includeCommitTs": True}},
        {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}},
        {"protocol": "parquet"},
    ],
    ids=lambda options: options["protocol"],
)
async def test_values_of_all_types_are_those_of_the_files(world: World, options: dict[str, Any]) -> None:
    spec = {"sink": storage(world, **options), "timeZone": "Europe/Berlin"}
    run = await begun(world, **spec)
    await asyncio.to_thread(world.database.query, *ROWS)
    result = await verified(world, **spec)
    await run.killed()
    assert (result.first_problem, result.consumed) == (None, len(ROWS))
    assert len(result.notes) == 1


async def test_masked_columns_of_all_types_are_compared_as_they_are_written(world: World) -> None:
    """A time with a zone has one hash, whatever zone it is written in."""
    key = b"tests-of-postgresql-mask-by-this"
    (world.secrets / "masking").mkdir()
    (world.secrets / "masking" / "key").write_bytes(key)
    hashed = {"hash": {"secretRef": {"name": "masking"}}}
    columns = [
        {"match": ["bank.types"], "columns": ["single", "twice"], "setNull": True},
        {"match": ["bank.types"], "columns": ["words"], "truncate": 1},
        {"match": ["bank.types"], "columns": ["bits"], "drop": True},
        {"match": ["bank.*"], "columns": ["*", "!day"], **hashed},
    ]
    options = {"protocol": "csv", "csv": {"includeCommitTs": True, "outputFieldHeader": True}}
    spec = {"sink": storage(world, **options), "timeZone": "Europe/Berlin", "columns": columns}
    run = await begun(world, **spec)
    more = (
        "INSERT INTO bank.notes VALUES (1, 'hush-body')",
        "UPDATE bank.notes SET body = 'hush-other'",
        "ALTER TABLE bank.notes ADD COLUMN author text",
        "INSERT INTO bank.notes VALUES (2, NULL, 'hush-author')",
    )
    await asyncio.to_thread(world.database.query, *ROWS, *more)
    result = await verified(world, **spec)
    await run.killed()
    assert (result.first_problem, result.consumed) == (None, len(ROWS) + 2)
    text = "".join(path.read_text() for path in world.lake.rglob("*") if path.is_file())
    assert "hush" not in text
    assert key.decode() not in text
    for value in ("ab   ", "2024-10-27 01:30:00.250000", "hush-author", "2", "7", "1.50"):
        assert hmac.new(key, value.encode(), "sha256").hexdigest() in text, value


async def test_rows_that_change_meanwhile_are_no_fault(world: World) -> None:
    run = await begun(world)
    bank = Bank(world.database)
    await asyncio.to_thread(bank.open)
    writing = asyncio.create_task(asyncio.to_thread(bank.transfer, 600))
    results = [await verified(world) for _ in range(2)]
    await writing
    await run.killed()
    assert [result.first_problem for result in results] == [None, None]
    assert results[1].consumed > results[0].consumed


async def test_a_changefeed_that_does_not_run_can_not_be_verified(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reached, "STANDS_STILL_S", 0.0)
    run = await begun(world)
    await asyncio.to_thread(Bank(world.database).open)
    await run.killed()
    with pytest.raises(NotVerifiable, match="stands still at"):
        await verified(world)
    with pytest.raises(InvalidSpec, match="--conserved"):
        await verify_sink(world.changefeed(), world.secrets, "balance", NoProgress())


async def test_an_open_transaction_is_waited_for_as_its_commit_may_be_in_the_files_already(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await begun(world)
    await asyncio.to_thread(Bank(world.database).open)
    with world.database.connect() as connection:
        connection.run("BEGIN")
        connection.run("UPDATE bank.accounts SET owner = 'x' WHERE id = 1")
        with monkeypatch.context() as hurried:
            hurried.setattr(snapshot, "PATIENCE_S", 0.0)
            with pytest.raises(Unavailable, match="a transaction that has written is open"):
                await verified(world)
        verifying = asyncio.create_task(verified(world))
        connection.run("COMMIT")
        result = await verifying
    await run.killed()
    assert (result.first_problem, result.consumed) == (None, ACCOUNTS + 2)


async def test_names_that_sql_has_a_meaning_for_partitions_and_filters_of_rows_are_read(world: World) -> None:
    name = 'bank."od:d %s ""{x}"" "'
    await asyncio.to_thread(
        world.database.query,
        f'CREATE TABLE {name} ("a:b" int PRIMARY KEY, "%" text, "select" int) PARTITION BY LIST ("a:b")',
        f"CREATE TABLE bank.part_1 PARTITION OF {name} DEFAULT",
        f"ALTER TABLE {name} REPLICA IDENTITY FULL",
        "ALTER TABLE bank.part_1 REPLICA IDENTITY FULL",
        "DROP PUBLICATION changefeed",
        f"CREATE PUBLICATION changefeed FOR TABLE {name}, TABLE bank.notes WHERE (id > 5 OR body = ':x') "
        "WITH (publish_via_partition_root = true)",
    )
    run = await begun(world, filter={"rules": ["bank.od*", "bank.notes"]})
    await asyncio.to_thread(
        world.database.query,
        f"INSERT INTO {name} VALUES (1, 'x', 2), (2, NULL, NULL)",
        "INSERT INTO bank.notes VALUES (1, 'not sent'), (2, ':x'), (7, 'sent'), (8, 'sent')",
        "UPDATE bank.notes SET id = 3 WHERE id = 7",
    )
    result = await verified(world, filter={"rules": ["bank.od*", "bank.notes"]})
    await run.killed()
    assert (result.first_problem, result.consumed) == (None, 4)
    assert len(result.notes) == 1


async def test_rows_of_before_that_are_copied_are_compared(world: World) -> None:
    world.database.query("INSERT INTO bank.notes SELECT n, 'note ' || n FROM generate_series(-50, -1) n")
    run = await begun(world, initialCopy=True)
    bank = Bank(world.database)
    await asyncio.to_thread(bank.open)
    await asyncio.to_thread(bank.transfer, 20)
    await asyncio.to_thread(world.database.query, "DELETE FROM bank.notes WHERE id = -7")
    result = await verified(world, initialCopy=True)
    await run.killed()
    rows = world.database.query(
        "SELECT (SELECT count(*) FROM bank.notes) + (SELECT count(*) FROM bank.accounts) "
        "+ (SELECT count(*) FROM bank.transfers)"
    )
    assert (result.first_problem, result.consumed) == (None, rows[0][0])
    assert len(result.notes) == 1
