"""A storm of DDLs of all classes, on tables that are written all the while, and a run that is ended again and again.

`CHANGEFEED_SEED=123` draws the same storm again. `CHANGEFEED_EVIDENCE=FILE` makes both as long as they are promised to
hold: 300 DDLs, 20 kills; what came out is written there.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from changefeed.verify.storage.report import verify
from changefeed_devcluster.workload.ddl_storm import DdlStorm
from conftest import Changefeed, Upstream, wait_for
from integration_inprocess import Run, World, new_world
from integration_killer import Killer
from integration_nemesis import Nemesis
from integration_observer import watching
from integration_story import Story

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
RULES = ["storm*.*"]
TABLES = 16
ROWS_A_SECOND = 400.0
ROWS_A_SECOND_HERE = 150.0  # by a thread of this process, beside the cluster, the driver, its pullers and its tasks
PULLERS = 2
MOVES = {"split": 5, "merge": 3, "transfer": 4, "cut": 2, "repeat": 1, "reorder": 1}
DEATHS = ("driver killed", "driver killed", "puller killed", "jvm killed")

pytestmark = pytest.mark.timeout(3600 if EVIDENCE else 300)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


@pytest.fixture
def rng() -> random.Random:
    return random.Random(Story().seed)


def new_storm(upstream: World | Upstream, rng: random.Random, limit: int) -> DdlStorm:
    return DdlStorm(upstream.tidb, TABLES, seed=rng.getrandbits(32), metadata_lock=rng.random() < 0.5, limit=limit)


@contextmanager
def at_work(*workers: Callable[[threading.Event], object]) -> Iterator[None]:
    """They run inside, each in a thread of its own; what fails there fails here."""
    stop, failed = threading.Event(), list[BaseException]()

    def run(worker: Callable[[threading.Event], object]) -> None:
        try:
            worker(stop)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]


def made(run: Run) -> float:
    """How many plans the run has recorded so far."""
    return run.driver.registry.total("changefeed_owner_plans_total") if run.driver is not None else 0.0


async def test_rule_1_and_9_a_storm_of_ddls_is_followed_by_a_run_that_is_killed_again_and_again(
    world: World, rng: random.Random
) -> None:
    ddls, kills = (300, 20) if EVIDENCE else (45, 3)
    storm = new_storm(world, rng, ddls)
    storm.create()
    world.start_ts = world.tidb.now()
    storm.load(threading.Event())
    with at_work(lambda stop: storm.run(stop, ROWS_A_SECOND_HERE)):
        for number in range(kills):
            run = world.run(filter={"rules": RULES})
            plans, due = rng.randint(1, 12 if EVIDENCE else 4), (number + 1) * ddls // (kills + 1)
            await run.until(lambda: made(run) > plans, f"{plans} plans are made")  # noqa: B023
            await run.until(lambda: storm.done.total() >= due, f"{due} DDLs are run")  # noqa: B023
            await run.killed()
        run = world.run(filter={"rules": RULES})
        await run.until(lambda: storm.done.total() >= ddls, "the last DDL is run")
    end = world.tidb.now()
    await run.until(lambda: world.checkpoint() > end, "the checkpoint passes the last transaction")
    await run.drained()
    print(dict(storm.done), dict(storm.refused))  # noqa: T201 - what a failing run shows
    result = await verify(world.lake.as_uri(), [world.cluster.pd_address])
    assert result.ok, f"{result.first_problem} ({result})"
    assert len(storm.done) > 15


def test_rule_1_9_and_21_a_storm_under_splits_moves_and_sigkills(
    upstream: Upstream, new_changefeed: Callable[..., Changefeed], rng: random.Random
) -> None:
    ddls, kills = (300, 20) if EVIDENCE else (24, 2)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.2f} {line}")  # noqa: T201 - what a failing run shows

    storm = new_storm(upstream, rng, 0)
    storm.create()
    changefeed = new_changefeed(RULES)
    changefeed.spec["startTs"] = str(upstream.tidb.now())
    changefeed.spec["spark"] = {"pullers": {"count": PULLERS}, "executor": {"instances": 1, "cores": PULLERS + 2}}
    changefeed.spec["sink"]["storage"]["flushInterval"] = "1s"
    storm.load(threading.Event())
    nemesis = Nemesis(upstream.cluster, storm.tables, 100, random.Random(rng.random()), say, MOVES)
    killer = Killer(upstream, changefeed, PULLERS, say)
    with watching(changefeed.lake.as_uri(), every_s=1.0 if EVIDENCE else 0.2):
        with at_work(lambda stop: storm.run(stop, ROWS_A_SECOND), nemesis.run):
            killer.start()
            killer.wait_until_passed()
            for number in range(kills):
                storm.limit = (number + 1) * ddls // kills
                event = DEATHS[number % len(DEATHS)]
                say(f"{event} after {storm.limit} DDLs")
                wait_for(lambda: storm.done.total() >= (storm.limit or 0) - 3, "the DDLs are run")  # some are under way
                killer.harm(event)
            wait_for(lambda: storm.done.total() >= ddls, "the last DDL is run")
        killer.wait_until_passed()
        code, _, err = changefeed.drain()
    assert code == 0, err
    say(f"{dict(storm.done)} {dict(storm.refused)} {dict(nemesis.done)}")
    code, verdict = changefeed.verify()
    say(f"{verdict}")
    assert code == 0, verdict
    assert nemesis.done.total() > kills
    if EVIDENCE:
        record = {"ddls": dict(storm.done), "harm": dict(nemesis.done), "kills": kills, "verified": verdict}
        Path(EVIDENCE).write_text(json.dumps({**record, "seconds": round(time.monotonic() - began)}, indent=1) + "\n")
