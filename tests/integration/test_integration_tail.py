"""`changefeed tail` over files that a changefeed writes meanwhile: every change once, in order.

`CHANGEFEED_EVIDENCE=FILE`: the command is run 200 times over each format instead of twice, and how it ended goes there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.objectstore.open import open_store
from changefeed.reading.failures import NotVerifiable
from changefeed.reading.known import known_of
from changefeed.tail.changes import TailedChange, TailedChanges
from changefeed_devcluster.tidb.schema import NewColumn
from integration_inprocess import Run, World, new_world

FORMATS = [
    {"protocol": "csv", "csv": {"includeCommitTs": True}},
    {"protocol": "csv", "csv": {"includeCommitTs": True, "outputFieldHeader": True, "delimiter": ";"}},
    {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}},
    {"protocol": "parquet"},
]
EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
RUNS = 200 if EVIDENCE else 2


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        virtual = NewColumn("twice", "bigint", nullable=True, generated="`id` * 2")
        indexed = NewColumn("_V$_lower_0", "varchar(64)", nullable=True, generated="lower(`name`)")
        columns = (NewColumn("id", "bigint"), virtual, indexed, NewColumn("name", "varchar(64)", nullable=True))
        made.bills = made.tidb.create_table("shop", "bills", columns)  # type: ignore[attr-defined]
        made.start_ts = made.tidb.now()
        yield made


def running(world: World, options: dict[str, Any]) -> Run:
    return world.run(sink={"storage": {"uri": world.lake.as_uri(), "flushInterval": "100ms", **options}})


def write(world: World, number: int) -> int:
    """Both tables in a transaction."""
    with world.tidb.begin() as txn:
        txn.insert(world.orders, {"id": number, "name": None})
        txn.insert(world.bills, {"id": number, "name": f'the "{number}"'})  # type: ignore[attr-defined]
    return txn.commit_ts


async def published(run: Run, ts: int) -> None:
    await run.until(lambda: run.driver is not None and run.driver.publication.checkpoint_ts >= ts, f"{ts} is published")


def shown(changes: list[TailedChange]) -> list[tuple[Any, ...]]:
    return [
        (each.commit_ts, each.table, each.row.op, each.row.values) if each.row else (each.table, each.query)
        for each in changes
    ]


@pytest.mark.parametrize("options", FORMATS, ids=["csv", "csv with a header", "canal-json", "parquet"])
async def test_each_round_has_what_has_come_since_the_last_one(world: World, options: dict[str, Any]) -> None:
    run = running(world, options)
    first = [write(world, number) for number in range(3)]
    await published(run, first[-1])
    store = open_store(world.lake.as_uri())
    known = known_of(store)
    assert not known.unknown
    everything = TailedChanges(store, known.format_of, 0, lambda schema, table: True)
    found = shown(list(everything.round()))
    from_now = TailedChanges(store, known.format_of, None, lambda schema, table: table == "orders")
    world.orders = world.tidb.add_column(world.orders, NewColumn("note", "varchar(8)", nullable=True))
    later = [write(world, number) for number in range(3, 6)]
    await published(run, later[-1])
    found += shown(list(everything.round()))
    only_new = shown(list(from_now.round()))
    await run.drained()
    ddl = ("orders", "ALTER TABLE `shop`.`orders` ADD COLUMN `note` varchar(8) NULL")
    assert [each for each in found if len(each) == 2] == [ddl]
    rows = [each for each in found if len(each) == 4]
    expected = [(ts, table) for ts in (*first, *later) for table in ("bills", "orders")]
    assert [each[:2] for each in rows] == expected
    assert rows[0][2:] == ("I", {"id": "0", "name": 'the "0"'})
    assert rows[-1][2:] == ("I", {"id": "5", "name": None, "note": None})
    assert found.index(ddl) == len(first) * 2
    assert only_new == [each for each in found[found.index(ddl) :] if each[-3 if len(each) == 4 else 0] == "orders"]
    assert list(everything.round()) == []


async def test_the_command_prints_a_line_for_each_change_and_ends_with_its_reader(world: World) -> None:
    run = running(world, FORMATS[0])
    ts = [write(world, number) for number in range(200)][-1]
    await published(run, ts)
    await run.drained()
    command = [sys.executable, "-m", "changefeed.cli.main", "tail", world.lake.as_uri(), "--no-follow"]
    done = await asyncio.to_thread(subprocess.run, [*command, "--table", "shop.bills"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["data"]["id"] for line in lines] == [str(number) for number in range(200)]
    assert lines[-1] | {"time": ""} == {
        "commitTs": str(ts),
        "time": "",
        "op": "insert",
        "schema": "shop",
        "table": "bills",
        "data": {"id": "199", "name": 'the "199"'},
    }
    piped = f"{' '.join(command)} | head -1"
    one = await asyncio.to_thread(subprocess.run, piped, shell=True, capture_output=True, text=True)
    assert (len(one.stdout.splitlines()), one.stderr) == (1, "")


def note(line: dict[str, Any]) -> None:
    with Path(EVIDENCE or os.devnull).open("a") as out:
        out.write(json.dumps(line) + "\n")


@pytest.mark.timeout(3600 if EVIDENCE else 120)
@pytest.mark.parametrize("options", [FORMATS[0], *FORMATS[2:]], ids=["csv", "canal-json", "parquet"])
async def test_the_command_ends_well_each_time(world: World, options: dict[str, Any]) -> None:
    run = running(world, options)
    await published(run, [write(world, number) for number in range(50)][-1])
    await run.drained()
    command = [sys.executable, "-m", "changefeed.cli.main", "tail", world.lake.as_uri(), "--no-follow"]
    ends: Counter[tuple[int, str, int]] = Counter()
    for _ in range(RUNS):
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        ends[done.returncode, done.stderr, len(done.stdout.splitlines())] += 1
    note({"test": "tail", "protocol": options["protocol"], "runs": RUNS, "right": ends[0, "", 100]})
    assert ends == {(0, "", 100): RUNS}


def test_what_is_no_sink_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotVerifiable, match="has no `metadata`: nothing is published there yet"):
        TailedChanges(open_store(tmp_path.as_uri()), lambda path: pytest.fail(path), None, lambda schema, table: True)


def test_a_sink_whose_log_is_elsewhere_is_read_by_ticdcs_defaults(tmp_path: Path) -> None:
    known = known_of(open_store(tmp_path.as_uri()))
    assert "belongs to no changefeed" in known.unknown
    for name, expected in (
        ("csv", ("csv", "none")),
        ("json.gz", ("canal-json", "gzip")),
        ("csv.zst", ("csv", "zstd")),
        ("parquet", ("parquet", "none")),
    ):
        found = known.format_of(f"a.b/CDC1.{name}")
        assert (found.protocol, found.compression) == expected
