"""A whole changefeed of a real PostgreSQL, into csv files: what is replayed of them is what the tables have."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import NeedsHuman
from changefeed.owner.closing.undriven import close
from changefeed.schema.ddl.actions import Action
from integration_inprocess import Run
from integration_postgresql import Postgresql, running
from integration_postgresql_bank import PUBLICATION, TABLES, Bank, changes, differences, replayed, tables
from integration_postgresql_world import PASSWORD, USER, World


@pytest.fixture
def database() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query(*TABLES)
        yield server


def lines(lake: Path) -> list[list[str]]:
    """Operation, table, schema, ts and columns, by ts."""
    found: list[list[str]] = []
    for path in sorted(lake.rglob("CDC*.csv")):
        with path.open(newline="") as file:
            found.extend(csv.reader(file))
    return sorted(found, key=lambda line: int(line[3]))


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
    assert differences(replayed(changes(world.lake)), tables(world.database)) == []
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


@pytest.mark.parametrize("altered", [False, True])
async def test_a_table_is_defined_as_it_was_described_last_though_it_is_altered_while_nobody_reads(
    world: World, altered: bool
) -> None:
    world.database.query(PUBLICATION)
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    alter = ["ALTER TABLE bank.notes ADD COLUMN author text"] if altered else []
    no_rows = ("BEGIN", "INSERT INTO bank.notes VALUES (1, '')", "DELETE FROM bank.notes", "COMMIT")
    await asyncio.to_thread(world.database.query, *alter, *no_rows)
    now = await world.now()
    await run.until(lambda: run.driver is not None and run.driver.owner.state.checkpoint_ts > now, "all is read")
    await run.killed()
    await asyncio.to_thread(
        world.database.query,
        "INSERT INTO bank.notes VALUES (2, 'before')",
        "ALTER TABLE bank.notes DROP COLUMN body, ADD COLUMN title text",
        "INSERT INTO bank.notes (id, title) VALUES (3, 'after')",
    )
    assert (await world.to_the_end()).state == "finished"
    found = [dict(change.row) for change in changes(world.lake)]
    author = {"author": "\\N"} if altered else {}
    assert found == [{"id": "2", "body": "before"} | author, {"id": "3"} | author | {"title": "after"}]


async def test_an_alter_while_no_driver_runs_of_a_table_that_was_never_written_to_is_told(world: World) -> None:
    world.database.query(PUBLICATION)
    run = world.run()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    await run.killed()
    await asyncio.to_thread(
        world.database.query,
        "ALTER TABLE bank.notes DROP COLUMN body, ADD COLUMN title text",
        "INSERT INTO bank.notes (id, title) VALUES (3, 'after')",
    )
    assert (await world.to_the_end()).state == "finished"
    assert [line[4:] for line in lines(world.lake)] == [["3", "after"]]
    assert types(world.lake, "notes") == [0, Action.MULTI_SCHEMA_CHANGE]
    assert columns(world.lake, "notes") == [["id", "body"], ["id", "title"]]


async def test_a_table_that_another_filter_selects_begins_as_it_is_then_and_its_alters_are_told(world: World) -> None:
    world.database.query(PUBLICATION)
    for rule, column in (("bank.accounts", "early"), ("bank.*", "late")):
        run = world.run(filter={"rules": [rule]})
        await run.until(lambda run=run: run.driver is not None and run.view.progress, "the driver runs")
        await run.killed()
        await asyncio.to_thread(world.database.query, f"ALTER TABLE bank.notes ADD COLUMN {column} int")
    await asyncio.to_thread(world.database.query, "INSERT INTO bank.notes VALUES (3, 'after')")
    assert (await world.to_the_end()).state == "finished"
    assert columns(world.lake, "notes") == [["id", "body", "early"], ["id", "body", "early", "late"]]


async def test_tables_under_other_names_and_a_rule_that_is_ahead_of_its_table(world: World) -> None:
    world.database.query(PUBLICATION)
    routes = [{"match": ["bank.notes"], "schema": "lake", "table": "all_notes"}]
    spec: dict[str, Any] = {"routes": routes, "filter": {"rules": ["bank.notes", "bank.later"]}}
    run = world.run(**spec)
    await run.until(lambda: reason(run) == "TableMissing", "the rule that matches nothing is told")
    rows = (
        "INSERT INTO bank.notes VALUES (1, 'before')",
        "CREATE TABLE bank.later (id int PRIMARY KEY, v int)",
        "ALTER TABLE bank.later REPLICA IDENTITY FULL",
        "INSERT INTO bank.later VALUES (7, 1)",
    )
    await asyncio.to_thread(world.database.query, *rows)
    await run.until(lambda: any(line[1] == "later" for line in lines(world.lake)), "the new table is written")
    assert reason(run) == "AllMatch"
    await run.killed()
    more = ("ALTER TABLE bank.notes ADD COLUMN author text", "INSERT INTO bank.notes VALUES (2, 'new', 'me')")
    await asyncio.to_thread(world.database.query, *more)
    assert (await world.to_the_end(**spec)).state == "finished"
    written = [[line[0], line[2], line[1], *line[4:]] for line in lines(world.lake)]
    assert [line for line in written if line[2] != "later"] == [
        ["I", "lake", "all_notes", "1", "before"],
        ["I", "lake", "all_notes", "2", "new", "me"],
    ]
    told = [json.loads(path.read_text())["Query"] for path in world.lake.rglob("lake/all_notes/meta/schema_*.json")]
    assert any("ALTER TABLE `lake`.`all_notes` ADD COLUMN `author`" in text for text in told)


def reason(run: Run) -> str:
    """The newest of the condition RulesMatch."""
    rules = run.view.progress[-1].rules if run.driver is not None and run.view.progress else None
    return rules.reason if rules is not None else ""


def columns(lake: Path, table: str) -> list[list[str]]:
    """What each version of a table has, in their order."""
    found = [json.loads(path.read_text()) for path in (lake / "bank" / table / "meta").glob("schema_*.json")]
    found.sort(key=lambda each: each["TableVersion"])
    assert len({each["TableVersion"] for each in found}) == len(found), found
    return [[column["ColumnName"] for column in each["TableColumns"]] for each in found]


def types(lake: Path, table: str) -> list[int]:
    """What has led to each version of a table, by the numbers of schema files."""
    found = [json.loads(path.read_text()) for path in (lake / "bank" / table / "meta").glob("schema_*.json")]
    return [each["Type"] for each in sorted(found, key=lambda each: each["TableVersion"])]
