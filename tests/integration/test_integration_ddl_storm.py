"""A storm of DDLs of all classes, on tables that are written all the while, and a run that is ended again and again.

`CHANGEFEED_SEED=123` draws the same storm again; `CHANGEFEED_DDLS=300` makes it that long.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from changefeed.verify.report import verify
from changefeed_devcluster.workload.ddl_storm import DdlStorm
from integration_inprocess import Run, World, new_world

DDLS = int(os.environ.get("CHANGEFEED_DDLS", "60"))
KILLS = DDLS // 15
RULES = ["storm*.*"]

pytestmark = pytest.mark.timeout(120 + 4 * DDLS)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


@contextmanager
def storming(storm: DdlStorm) -> Iterator[None]:
    """It writes inside, in a thread of its own; what fails there fails here."""
    stop, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            storm.run(stop, rate=400.0)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=run, name="storm")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if failed:
            raise failed[0]


async def kill(run: Run) -> None:
    """Without a word, as SIGKILL."""
    assert run._outcome is not None
    run._outcome.cancel()
    await asyncio.wait([run._outcome])


async def test_rule_1_and_9_a_storm_of_ddls_is_followed_by_a_run_that_is_killed_again_and_again(world: World) -> None:
    seed = int(os.environ.get("CHANGEFEED_SEED") or random.SystemRandom().getrandbits(32))
    print(f"CHANGEFEED_SEED={seed}")  # noqa: T201 - what a failing run shows
    rng = random.Random(seed)
    storm = DdlStorm(world.tidb, seed=seed, metadata_lock=bool(seed % 2), limit=DDLS)
    storm.create()
    world.start_ts = world.tidb.now()
    storm.load(threading.Event())
    with storming(storm):
        for number in range(KILLS):
            run = world.run(filter={"rules": RULES})
            plans, ddls = rng.randint(1, 12), (number + 1) * DDLS // (KILLS + 1)
            await run.until(lambda: len(run.execution.executed) > plans, f"{plans} plans are executed")  # noqa: B023
            await run.until(lambda: storm.done.total() >= ddls, f"{ddls} DDLs are run")  # noqa: B023
            await kill(run)
        run = world.run(filter={"rules": RULES})
        await run.until(lambda: storm.done.total() >= DDLS, "the last DDL is run")
    end = world.tidb.now()
    await run.until(lambda: world.checkpoint() > end, "the checkpoint passes the last transaction")
    await run.drained()
    print(dict(storm.done), dict(storm.refused))  # noqa: T201 - what a failing run shows
    result = await verify(world.lake.as_uri(), [world.cluster.pd_address])
    assert result.ok, f"{result.first_problem} ({result})"
    assert len(storm.done) > 15
