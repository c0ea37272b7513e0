"""`changefeed restore` of the bank: at any ts exactly the rows that the upstream's snapshot has, from files alone.

`CHANGEFEED_EVIDENCE=FILE`: 50 random ts of each format instead of 4, and what was compared goes there;
`CHANGEFEED_SEED=123` draws the same.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration_inprocess import World, new_world
from integration_restore import FORMATS, BankStory, restored, running

EVIDENCE = os.environ.get("CHANGEFEED_EVIDENCE")
SEED = int(os.environ.get("CHANGEFEED_SEED") or random.SystemRandom().randrange(1 << 30))
MOMENTS = 50 if EVIDENCE else 4


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
