"""Updates and deletes in the formats that show the row before, from TiKV's events to files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration_inprocess import World, new_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def changes(world: World) -> int:
    """Two inserts, an update and a delete; the last commit ts."""
    world.insert(range(1, 3))
    with world.tidb.begin() as txn:
        txn.update(world.orders, {"id": 1, "name": 'a "new" <name>'})
    with world.tidb.begin() as txn:
        txn.delete(world.orders, 2)
    return txn.commit_ts


async def written(world: World, target: int, **storage: Any) -> list[str]:
    """The lines of the data files of a changefeed that ends at `target`, each file with its version's schema file."""
    sink = {"storage": {"uri": world.lake.as_uri(), "flushInterval": "100ms", "terminator": "\n"} | storage}
    outcome = await world.run(targetTs=str(target), sink=sink).outcome()
    assert (outcome.state, outcome.checkpoint_ts) == ("finished", target)
    files = sorted(path for path in world.lake.rglob("CDC*") if path.suffix != ".index")
    for path in files:
        assert list((world.lake / "shop" / "orders" / "meta").glob(f"schema_{path.parts[-3]}_*.json"))
        assert (path.parent / "meta" / "CDC.index").read_text() == f"{files[-1].name}\n"
    return [line for path in files for line in path.read_text().splitlines()]


async def test_canal_json_of_inserts_updates_and_deletes(world: World) -> None:
    target = changes(world)
    lines = await written(world, target, protocol="canal-json", canalJson={"enableTidbExtension": True})
    messages = [json.loads(line) for line in lines]
    order_1, order_2 = {"id": "1", "name": "order 1"}, {"id": "2", "name": "order 2"}
    assert [(message["type"], message["old"], message["data"]) for message in messages] == [
        ("INSERT", None, [order_1]),
        ("INSERT", None, [order_2]),
        ("UPDATE", [order_1], [{"id": "1", "name": 'a "new" <name>'}]),
        ("DELETE", None, [order_2]),
    ]
    plans = {record["pd_ms"] for record in world.records("plan")}
    for message in messages:
        assert message["_tidb"]["commitTs"] >> 18 == message["es"]
        assert message["ts"] in plans
    assert messages[-1]["_tidb"]["commitTs"] == target
    assert all(record["codec"].startswith("canal-json-1 ") for record in world.records("plan"))
    assert {path.suffix for path in world.lake.rglob("CDC0*")} == {".json"}


async def test_csv_with_old_values_shows_an_update_as_two_records(world: World) -> None:
    target = changes(world)
    lines = await written(world, target, protocol="csv", csv={"outputOldValue": True})
    assert [(row[0], row[3], row[5]) for row in csv.reader(lines)] == [
        ("I", "false", "order 1"),
        ("I", "false", "order 2"),
        ("D", "true", "order 1"),
        ("I", "true", 'a "new" <name>'),
        ("D", "false", "order 2"),
    ]
