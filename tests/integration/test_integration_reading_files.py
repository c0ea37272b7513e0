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


class Place(NamedTuple):
    world: World
    bank: Bank
    folder: Path
    checkpoint: int  # in the middle of the history


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A bank with some history, and a folder for what is written of it."""
    folder = tmp_path_factory.mktemp("reading")
    with new_world(folder) as world:
        bank = Bank(world.tidb, tables=1, regions=2, accounts=200)
        bank.create()
        world.start_ts = world.tidb.now()
        bank.load(threading.Event())
        for _ in range(150):
            bank.step()
        checkpoint = world.tidb.now()
        for _ in range(150):
            bank.step()
        yield Place(world, bank, folder, checkpoint)


async def written(place: Place, name: str) -> dict[int, tuple[Any, ...]]:
    """Lets a changefeed write `name`; gives the table as it was at a checkpoint above which more already exists."""
    world, folder = place.world, place.folder
    sink = {"uri": (folder / name).as_uri(), "flushInterval": "100ms", **FORMATS[name]}
    run = world.run(
        filter={"rules": ["bank.*"]}, state={"uri": (folder / f"state-{name}").as_uri()}, sink={"storage": sink}
    )
    now = world.tidb.now()
    await run.until(lambda: run.driver is not None and run.driver._publication.checkpoint_ts >= now, "all is published")
    await run.drained()
    (folder / name / "metadata").write_text(json.dumps({"checkpoint-ts": place.checkpoint}))
    rows = world.tidb.snapshot(place.bank.tables[0], place.checkpoint)
    return {key: (row["owner"], row["balance"]) for key, row in rows.items()}


async def test_duckdb(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await written(place, "lake")
    monkeypatch.chdir(place.folder)
    with duckdb.connect() as connection:
        found = connection.execute(recipe("DuckDB")).fetchall()
    assert {row[0]: row[1:] for row in found} == expected


async def test_python(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await written(place, "lake")
    monkeypatch.chdir(place.folder)
    names: dict[str, Any] = {}
    exec(recipe("Python, without a library"), names)
    assert names["accounts"] == {key: (r"\N" if owner is None else owner, n) for key, (owner, n) in expected.items()}
    assert list(names["reader"].read()) == []


async def test_spark(place: Place) -> None:
    expected = await written(place, "lake-json")
    told = recipe("Spark") + "\nprint(json.dumps([row.asDict() for row in accounts.collect()]))\n"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", told], cwd=place.folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {row["id"]: (row["owner"], row["balance"]) for row in found} == expected
