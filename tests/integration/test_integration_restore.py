"""`changefeed restore` of the bank: at any ts exactly the rows that the upstream's snapshot has, from files alone.

`CHANGEFEED_EVIDENCE=FILE`: 50 random ts of each format instead of 4, and what was compared goes there;
`CHANGEFEED_SEED=123` draws the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conftest import wait_for
from integration_inprocess import World, new_world
from integration_restore import FORMATS, BankStory, restored, rows_in, running

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
SEED = int(os.environ.get("CHANGEFEED_SEED") or random.SystemRandom().randrange(1 << 30))
MOMENTS = 50 if EVIDENCE else 4

pytestmark = pytest.mark.timeout(900 if EVIDENCE else 120)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


@pytest.mark.parametrize("protocol", FORMATS)
async def test_any_moment_of_the_bank_is_the_upstreams_snapshot(world: World, tmp_path: Path, protocol: str) -> None:
    story = BankStory(world, random.Random(SEED))
    bank = story.begin()
    run = running(world, protocol)
    story.steps(bank, 300)
    ddl_ts = story.add_column(bank)
    story.steps(bank, 300)
    last_ts = world.tidb.now()
    checkpoint_ts = await story.written(run)
    await run.drained()
    drawn = [story.draw.randrange(story.first_ts, last_ts) for _ in range(MOMENTS)]
    compared = 0
    for ts in [story.first_ts, ddl_ts - 1, ddl_ts, checkpoint_ts, *drawn]:
        found, report = restored(world, ts, tmp_path / f"at-{ts}")
        wanted = story.tables_at(ts)
        assert found == wanted, f"seed {SEED}, ts {ts}"
        assert [left.table for left in report.left] == ["shop.orders"], "it was there before"
        assert sum(row["balance"] for rows in found.values() for row in rows.values()) == 0, f"seed {SEED}, ts {ts}"
        compared += sum(map(len, found.values()))
    note({"test": "restore", "protocol": protocol, "moments": len(drawn) + 4, "rows": compared})


def note(line: dict[str, object]) -> None:
    if EVIDENCE:
        with Path(EVIDENCE).open("a") as out:
            out.write(json.dumps({**line, "seed": SEED}) + "\n")


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "changefeed.cli.main", *arguments]
    return subprocess.run(program, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


async def test_the_command_writes_tables_and_names_those_that_it_has_not(world: World, tmp_path: Path) -> None:
    story = BankStory(world, random.Random(SEED))
    bank = story.begin()
    run = running(world, "csv")
    story.steps(bank, 50)
    await story.written(run)
    await run.drained()
    ms = (story.first_ts >> 18) + 1
    time = datetime.fromtimestamp(ms / 1000, UTC).isoformat()
    lake, out = world.lake.as_uri(), tmp_path / "out"

    some = await asyncio.to_thread(command, "restore", lake, "--to-ts", time, "--into", str(out))
    assert some.returncode == 3, some
    assert "bank.accounts_0: 60 rows" in some.stdout
    assert "shop.orders can't be rebuilt: it existed when the changefeed started" in some.stderr
    assert rows_in(out) == story.tables_at(ms << 18)
    script = (out / "bank" / "accounts_0.sql").read_text()
    assert "USE `bank`;\nCREATE TABLE `bank`.`accounts_0` (`id` bigint NOT NULL, `owner` varchar(32)" in script

    again = await asyncio.to_thread(command, "restore", lake, "--to-ts", time, "--into", str(out))
    assert again.returncode == 2, again
    assert f"{out} already exists" in again.stderr

    rules = ("--table", "!shop.*", "--json")
    rest = await asyncio.to_thread(command, "restore", lake, "--to-ts", time, "--into", str(tmp_path / "rest"), *rules)
    assert rest.returncode == 0, rest
    answer = json.loads(rest.stdout)
    assert (answer["ok"], answer["left"], answer["to_ts"]) == (True, [], str(ms << 18))

    dry = await asyncio.to_thread(command, "flashback", lake, "--to-ts", str(story.first_ts), "--table", "bank.*")
    assert dry.returncode == 0, dry
    assert " to update, 0 to delete" in dry.stdout
    assert "Nothing was changed." in dry.stdout


def killed_when(begun: Callable[[], bool], *arguments: str) -> None:
    """The command, by SIGKILL, if it has not ended by then."""
    with subprocess.Popen([sys.executable, "-m", "changefeed.cli.main", *arguments]) as process:
        wait_for(lambda: begun() or process.poll() is not None, "it has begun")
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--to-ts", "yesterday"), "'yesterday' is not a time"),
        (("--to-ts", "2026-01-31T12:00:00"), "has no time zone"),
        (("--to-ts", "99999999999999999999"), "is not a ts"),
        (("--to-ts", "1", "--table", "bad"), "--table"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    done = command("restore", tmp_path.as_uri(), *arguments, "--into", "out")
    assert done.returncode == 2, done
    assert why in done.stderr


async def test_a_password_in_a_uri_is_refused_and_not_shown(world: World, tmp_path: Path) -> None:
    story = BankStory(world, random.Random(SEED))
    bank = story.begin()
    run = running(world, "csv")
    story.steps(bank, 5)
    await story.written(run)
    await run.drained()
    target = "mysql://root:hunter2@127.0.0.1:1"
    ts = str(story.first_ts)
    for verb in (("restore", "--into", target), ("flashback", "--apply", target)):
        done = await asyncio.to_thread(command, verb[0], world.lake.as_uri(), "--to-ts", ts, *verb[1:])
        assert done.returncode == 2, done
        assert "hunter2" not in done.stdout + done.stderr
        assert "MYSQL_PWD" in done.stderr


async def test_a_restore_that_is_killed_leaves_no_folder_and_is_run_again(world: World, tmp_path: Path) -> None:
    story = BankStory(world, random.Random(SEED))
    bank = story.begin()
    run = running(world, "csv")
    story.steps(bank, 100)
    ts = await story.written(run)
    await run.drained()
    out = tmp_path / "out"
    arguments = ("restore", world.lake.as_uri(), "--to-ts", str(ts), "--into", str(out), "--table", "bank.*")
    beside = tmp_path / ".out.restoring"
    await asyncio.to_thread(killed_when, beside.exists, *arguments)
    assert not out.exists() or rows_in(out) == story.tables_at(ts), "all of it or nothing"
    if not out.exists():
        done = await asyncio.to_thread(command, *arguments)
        assert done.returncode == 0, done
    assert rows_in(out) == story.tables_at(ts)
    assert not beside.exists()
