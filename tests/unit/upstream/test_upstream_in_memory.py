"""A second kind of upstream runs the owner, the puller, the pipeline and a sink by the contract alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo
from changefeed.spec.parse import parse
from changefeed.upstream import choice, decoders
from integration_inprocess import InProcessExecution, Run, resource
from upstream_in_memory import InMemory, JsonRows

ORDERS = 11


def orders(*more: str) -> TableInfo:
    columns = [("id", SqlType.BIGINT, 3), ("name", SqlType.VARCHAR, 0), *((name, SqlType.VARCHAR, 0) for name in more)]
    cols = [
        {"id": n + 1, "name": name, "offset": n, "type": {"Tp": tp, "Flag": flag, "Charset": "utf8mb4"}, "state": 5}
        for n, (name, tp, flag) in enumerate(columns)
    ]
    return TableInfo.from_json(
        {"schema_name": "", "id": ORDERS, "name": "orders", "cols": cols, "state": 5, "upstream": "memory"}
    )


@pytest.fixture(params=[False, True], ids=["changes beside rows", "changes among rows"])
def upstream(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> InMemory:
    made = InMemory(is_among_rows=request.param)
    monkeypatch.setattr(choice, "access_of", lambda *_: made)
    monkeypatch.setitem(decoders.DECODERS, "memory", JsonRows())
    made.change(SchemaChange(id=1, type=Action.CREATE_TABLE, schema_id=1, table_id=ORDERS, table_info=orders()))
    return made


async def test_transactions_and_a_schema_change_are_written_once_under_a_killed_driver(
    upstream: InMemory, tmp_path: Path
) -> None:
    start_ts = await upstream.now()

    def run(**more: Any) -> Run:
        return Run(parse(json.dumps(resource("memory:1", start_ts, tmp_path, **more))), InProcessExecution()).start()

    inserted = upstream.commit(ORDERS, a={"id": 1, "name": "first"}, b={"id": 2, "name": "second"})
    first = run()
    await first.until(lambda: first.driver is not None and first.view.progress, "the driver runs")
    updated = upstream.commit(ORDERS, a={"id": 1, "name": "again"})
    await first.killed()
    added = SchemaChange(
        id=2, type=Action.ADD_COLUMN, schema_id=1, table_id=ORDERS, table_info=orders("note"), query="ALTER TABLE …"
    )
    altered = upstream.change(added)
    deleted = upstream.commit(ORDERS, b=None, c={"id": 3, "name": "third", "note": "new"})
    outcome = await run(targetTs=str(await upstream.now())).outcome()
    assert outcome.state == "finished"
    versions: dict[str, list[str]] = {}
    for file in (tmp_path / "lake" / "shop" / "orders").rglob("*.csv"):
        versions.setdefault(file.relative_to(tmp_path).parts[3], []).extend(file.read_text().splitlines())
    assert {version: sorted(lines) for version, lines in versions.items()} == {
        str(start_ts): [
            f'"I","orders","shop",{inserted},1,"first"',
            f'"I","orders","shop",{inserted},2,"second"',
            f'"U","orders","shop",{updated},1,"again"',
        ],
        str(altered): [
            f'"D","orders","shop",{deleted},2,"second",\\N',
            f'"I","orders","shop",{deleted},3,"third","new"',
        ],
    }


async def test_a_start_tells_the_upstream_which_definitions_the_log_has(upstream: InMemory, tmp_path: Path) -> None:
    start_ts = await upstream.now()

    async def run_to(ts: int) -> dict[int, TableInfo]:
        run = Run(parse(json.dumps(resource("memory:1", start_ts, tmp_path))), InProcessExecution()).start()
        await run.until(lambda: run.driver is not None and run.driver.owner.state.checkpoint_ts >= ts, "it is written")
        await run.drained()
        return dict(upstream.known[-1])

    assert await run_to(upstream.commit(ORDERS, a={"id": 1, "name": "first"})) == {}
    added = SchemaChange(id=2, type=Action.ADD_COLUMN, schema_id=1, table_id=ORDERS, table_info=orders("note"))
    upstream.change(added)
    written = upstream.commit(ORDERS, b={"id": 2, "name": "second", "note": "new"})
    assert [column.name for column in (await run_to(written))[ORDERS].columns] == ["id", "name"]
    assert [column.name for column in (await run_to(written))[ORDERS].columns] == ["id", "name", "note"]


async def test_a_table_without_rows_begins_as_it_did_before_though_it_was_altered_while_no_driver_ran(
    upstream: InMemory, tmp_path: Path
) -> None:
    start_ts = await upstream.now()

    async def run_to(ts: int) -> None:
        run = Run(parse(json.dumps(resource("memory:1", start_ts, tmp_path))), InProcessExecution()).start()
        await run.until(lambda: run.driver is not None and run.driver.owner.state.checkpoint_ts >= ts, "it is read")
        await run.drained()

    await run_to(await upstream.now())
    added = SchemaChange(id=2, type=Action.ADD_COLUMN, schema_id=1, table_id=ORDERS, table_info=orders("note"))
    altered = upstream.change(added)
    await run_to(upstream.commit(ORDERS, a={"id": 1, "name": "first", "note": "new"}))
    found = [json.loads(path.read_text()) for path in (tmp_path / "lake" / "shop" / "orders").rglob("schema_*.json")]
    told = {each["TableVersion"]: [column["ColumnName"] for column in each["TableColumns"]] for each in found}
    assert told == {start_ts: ["id", "name"], altered: ["id", "name", "note"]}
    assert len(found) == len(told)


async def test_a_change_that_can_not_be_followed_ends_the_run(upstream: InMemory, tmp_path: Path) -> None:
    run = Run(parse(json.dumps(resource("memory:1", await upstream.now(), tmp_path))), InProcessExecution()).start()
    await run.until(lambda: run.driver is not None and run.view.progress, "the driver runs")
    upstream.change(SchemaChange(id=2, type=Action.FLASHBACK_CLUSTER))
    with pytest.raises(NeedsHuman, match="changes tables in a way that a changefeed cannot follow"):
        await run.outcome()


async def test_a_copy_is_refused_where_no_table_can_be_read_as_of_a_ts(upstream: InMemory, tmp_path: Path) -> None:
    changefeed = parse(json.dumps(resource("memory:1", await upstream.now(), tmp_path, initialCopy=True)))
    with pytest.raises(InvalidSpec, match=r"spec\.initialCopy: not possible from memory"):
        await Run(changefeed, InProcessExecution()).start().outcome()
    assert not list((tmp_path / "state").rglob("log/*.json")), "refused before anything is recorded"
