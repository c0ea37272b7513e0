"""docs/reading-files.md as it stands: each recipe gives the table as the upstream had it at the checkpoint."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from changefeed_devcluster.ddl import indexes
from changefeed_devcluster.tidb.schema import NewColumn
from changefeed_devcluster.workload.bank import Bank
from integration_inprocess import World, new_world

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading-files.md"
FORMATS = {
    "lake": {"protocol": "csv", "csv": {"includeCommitTs": True}},
    "lake-json": {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}},
}


def recipe(title: str) -> str:
    """The code below a heading."""
    section = DOCUMENT.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = re.search(r"```\w+\n(.*?)```", section, re.DOTALL)
    assert found is not None, title
    return found[1]


class Home(NamedTuple):
    world: World
    folder: Path
    storage: dict[str, Any]
    checkpoint: int  # in the middle of the history
    rows: dict[int, tuple[Any, ...]]  # as of then


COLUMNS = (NewColumn("id", "bigint"), NewColumn("owner", "varchar(32)", nullable=True), NewColumn("balance", "bigint"))


def settle(world: World) -> None:
    """A bank with some history."""
    bank = Bank(world.tidb, tables=1, regions=2, accounts=200)
    bank.create()
    bank.load(threading.Event())
    for _ in range(150):
        bank.step()


def put(world: World, *ids: int) -> None:
    with world.tidb.begin() as txn:
        for number in ids:
            txn.insert(world.tidb.tables["bank.accounts_0"], {"id": number, "owner": f"o{number}", "balance": number})


def truncate(world: World) -> None:
    table = world.tidb.create_table("bank", "accounts_0", COLUMNS)
    put(world, 1, 2, 3)
    world.tidb.truncate_table(table)
    put(world, 2, 4)


def drop_and_create(world: World) -> None:
    table = world.tidb.create_table("bank", "accounts_0", COLUMNS)
    put(world, 1, 2, 3)
    world.tidb.drop_table(table)
    world.tidb.create_table("bank", "accounts_0", COLUMNS)
    put(world, 3, 5)


def move_between_partitions(world: World) -> None:
    table = world.tidb.create_table("bank", "accounts_0", COLUMNS, partitions={"p0": 10, "p1": None})
    put(world, 1, 2, 11, 12)
    with world.tidb.begin() as txn:
        txn.delete(table, 1)
        txn.insert(table, {"id": 21, "owner": None, "balance": 1})
    truncated = world.tidb.truncate_table(table)
    put(world, 3, 13)
    with world.tidb.begin() as txn:
        txn.delete(truncated, 13)


def change_twice(world: World) -> None:
    """Between two DDLs nothing is written: the file that is planned there has zero bytes."""
    table = world.tidb.create_table("bank", "accounts_0", COLUMNS)
    put(world, 1, 2, 3)
    for name in ("by_owner", "by_balance"):
        table = world.tidb.remember(indexes.add_index(world.tidb, table, name, [name[3:]], is_unique=False))
    put(world, 4)


HISTORIES = {
    settle: {},
    truncate: {},
    drop_and_create: {"dateSeparator": "none"},
    move_between_partitions: {},
    change_twice: {},
}


@pytest.fixture(scope="module", params=HISTORIES.items(), ids=lambda given: given[0].__name__)
def home(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Home]:
    """A history of one table, twice: the checkpoint is between the two."""
    tell, storage = request.param
    folder = tmp_path_factory.mktemp("reading")
    with new_world(folder) as world:
        world.tidb.create_database("bank")
        world.tidb.create_table("bank", "other", COLUMNS)
        world.start_ts = world.tidb.now()
        tell(world)
        checkpoint = world.tidb.now()
        found = world.tidb.snapshot(world.tidb.tables["bank.accounts_0"], checkpoint)
        rows = {key: (row["owner"], row["balance"]) for key, row in found.items()}
        if tell is not settle:
            world.tidb.drop_table(world.tidb.tables["bank.accounts_0"])
        tell(world)
        yield Home(world, folder, storage, checkpoint, rows)


async def written(home: Home, name: str) -> dict[int, tuple[Any, ...]]:
    """Lets a changefeed write `name`; gives the table as it was at a checkpoint above which more already exists."""
    world, folder = home.world, home.folder
    sink = {"uri": (folder / name).as_uri(), "flushInterval": "100ms", **FORMATS[name], **home.storage}
    run = world.run(
        filter={"rules": ["bank.*"]}, state={"uri": (folder / f"state-{name}").as_uri()}, sink={"storage": sink}
    )
    now = world.tidb.now()
    await run.until(lambda: run.driver is not None and run.driver.publication.checkpoint_ts >= now, "all is published")
    await run.drained()
    (folder / name / "metadata").write_text(json.dumps({"checkpoint-ts": home.checkpoint}))
    return home.rows


async def test_duckdb(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await written(home, "lake")
    monkeypatch.chdir(home.folder)
    with duckdb.connect() as connection:
        found = connection.execute(recipe("DuckDB")).fetchall()
    assert {row[0]: row[1:] for row in found} == expected


async def test_python(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await written(home, "lake")
    monkeypatch.chdir(home.folder)
    names: dict[str, Any] = {}
    exec(recipe("Python, without a library"), names)
    assert names["accounts"] == {key: (r"\N" if owner is None else owner, n) for key, (owner, n) in expected.items()}
    assert names["reader"].read() == []


@pytest.mark.parametrize("home", [(settle, {}), (move_between_partitions, {})], indirect=True)
async def test_spark(home: Home) -> None:
    expected = await written(home, "lake-json")
    told = recipe("Spark") + "\nprint(json.dumps([row.asDict() for row in accounts.collect()]))\n"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", told], cwd=home.folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {row["id"]: (row["owner"], row["balance"]) for row in found} == expected
