"""What filters and selectors leave out is in no file, and verify says so of what is there and of what is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.reading.failures import NotVerifiable
from changefeed.verify.result import Result
from changefeed.verify.storage.report import verify
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import World, new_world, resource

PEOPLE = (NewColumn("id", "bigint"), NewColumn("name", "varchar(20)", unique=True), NewColumn("secret", "varchar(20)"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def filtered(**rule: Any) -> dict[str, Any]:
    return {"filter": {"rules": ["shop.*"], "eventFilters": [{"matcher": ["shop.*"], **rule}]}}


def selecting(world: World, *columns: str) -> dict[str, Any]:
    sink = resource("", 0, world.folder)["spec"]["sink"]
    sink["storage"]["csv"]["outputFieldHeader"] = True
    sink["storage"]["columnSelectors"] = [{"matcher": ["shop.people"], "columns": list(columns)}]
    return {"sink": sink}


async def replicated(world: World, **spec: Any) -> Result:
    """All that was written until now, and what verify says of it."""
    run, end = world.run(**spec), world.tidb.now()
    await run.until(lambda: world.checkpoint() > end, "the checkpoint passes")
    await run.drained()
    return await verify(world.lake.as_uri(), [world.cluster.pd_address])


def lines(world: World) -> list[str]:
    files = sorted(world.lake.rglob("CDC*.csv"))
    return [",".join(line.split(",")[:1] + line.split(",")[4:]) for f in files for line in f.read_text().splitlines()]


async def test_changes_that_event_filters_drop_are_not_missed(world: World) -> None:
    tidb, orders = world.tidb, world.orders
    with tidb.begin() as txn:
        txn.insert(orders, {"id": 1, "name": "keep"})
        txn.insert(orders, {"id": 2, "name": "drop"})
    with tidb.begin() as txn:
        txn.update(orders, {"id": 1, "name": "drop"})
        txn.update(orders, {"id": 2, "name": "keep"})
    with tidb.begin() as txn:
        txn.delete(orders, 1)
    rule = {"ignoreEvent": ["delete"], "ignoreInsertValueExpr": "name = 'drop'"}
    result = await replicated(world, **filtered(**rule))
    assert result.ok, result
    assert lines(world) == ['"I",1,"keep"', '"U",1,"drop"', '"U",2,"keep"']
    assert (result.rows, result.replayed) == (3, 0)
    assert any("leave changes of shop.orders out" in note for note in result.notes)
    with pytest.raises(NotVerifiable, match="the sum of id can't be followed"):
        await verify(world.lake.as_uri(), [world.cluster.pd_address], "id")

    (file,) = world.lake.rglob("CDC*.csv")
    first, *others = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first.replace(b'"I"', b'"D"'), *others]))
    spoilt = await verify(world.lake.as_uri(), [world.cluster.pd_address])
    assert (spoilt.missing, spoilt.unexpected) == (1, 1)


async def test_halves_of_an_update_are_filtered_as_what_they_are(world: World) -> None:
    people = world.tidb.create_table("shop", "people", PEOPLE)
    with world.tidb.begin() as txn:
        txn.insert(people, {"id": 1, "name": "Ada", "secret": "x"})
    with world.tidb.begin() as txn:
        txn.update(people, {"id": 1, "name": "Eva"})
    result = await replicated(world, **filtered(ignoreEvent=["delete"]))
    assert result.ok, result
    assert lines(world) == ['"I",1,"Ada","x"', '"I",1,"Eva","x"']


async def test_columns_that_are_not_selected_are_not_missed(world: World) -> None:
    people = world.tidb.create_table("shop", "people", PEOPLE)
    for secret in ("x", "y"):
        with world.tidb.begin() as txn:
            row = {"id": 1, "name": "Ada", "secret": secret}
            txn.insert(people, row) if secret == "x" else txn.update(people, row)
    result = await replicated(world, **selecting(world, "*", "!secret"))
    assert result.ok, result
    assert lines(world)[1:] == ['"I",1,"Ada"', '"U",1,"Ada"']
    assert result.replayed == 1


async def test_a_ddl_that_is_kept_from_readers_is_not_missed(world: World) -> None:
    people = world.tidb.create_table("shop", "people", PEOPLE)
    world.tidb.truncate_table(people)
    world.tidb.add_column(world.orders, NewColumn("late", "int", nullable=True))
    result = await replicated(world, **filtered(ignoreEvent=["truncate table", "add column"]))
    assert result.ok, result
    assert len(list((world.lake / "shop" / "people" / "meta").iterdir())) == 2


async def test_filters_that_were_changed_are_not_verifiable(world: World) -> None:
    world.insert(range(1, 3))
    await replicated(world, **filtered(ignoreEvent=["delete"]))
    with pytest.raises(NotVerifiable, match="Event filters or column selectors was changed"):
        await replicated(world, **filtered(ignoreEvent=["update"]))


async def test_a_rule_that_matches_nothing_is_told_until_a_ddl_brings_its_table(world: World) -> None:
    def reason() -> str:
        rules = run.view.progress[-1].rules if run.driver is not None and run.view.progress else None
        return rules.reason if rules is not None else ""

    run = world.run(filter={"rules": ["shop.orders", "shop.people"]})
    await run.until(lambda: reason() == "TableMissing", "it is told")
    people = world.tidb.create_table("shop", "people", PEOPLE)
    await run.until(lambda: reason() == "AllMatch", "the table has come")
    world.tidb.drop_table(people)
    await run.until(lambda: reason() == "TableMissing", "the table has gone")
    world.tidb.drop_table(world.orders)
    await run.until(lambda: reason() == "NothingSelected", "nothing is left")
    assert run.driver is not None
    (first, *_) = json.loads(run.driver.status())["findings"]
    assert first == "spec.filter.rules select none of the tables of TiDB."
    await run.drained()
