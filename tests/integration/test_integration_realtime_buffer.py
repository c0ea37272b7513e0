"""A buffer that overflows again and again while pullers die: readers go to the archive, come back, and all is right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from changefeed import errors
from changefeed.eventstore import writer as segment_writer
from changefeed.eventstore.arena import can_share_memory
from changefeed.puller.task import Limits
from changefeed_devcluster.server import DevCluster
from integration_failing_store import ROLL_S, Feed, running_feed
from integration_inprocess import TASK_ATTEMPTS, Run

BUFFER_BYTES = 24_000  # a few small segments
CALM = 4.0  # rows a second, so that they are released before the buffer is full
CYCLES = int(os.environ.get("CHANGEFEED_BUFFER_CYCLES", "4"))  # of two switches and more
DEATHS = TASK_ATTEMPTS - 1

pytestmark = [
    pytest.mark.skipif(not can_share_memory(), reason="this system has no memory without a name to share"),
    pytest.mark.timeout(60 + 20 * CYCLES),
]

SWITCHES = "changefeed_event_store_mode_switches_total"
OVERFLOWS = "changefeed_event_store_buffer_overflows_total"


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each one in it is a puller's end at its next segment, with all that it has in memory."""
    left: list[bool] = []
    real = segment_writer.sort_segment

    def sort_segment(*arguments: Any) -> Any:
        if left:
            left.pop()
            raise errors.Unavailable("The machine is gone.")
        return real(*arguments)

    monkeypatch.setattr(segment_writer, "sort_segment", sort_segment)
    limits = Limits(roll_interval=ROLL_S, buffer_bytes=BUFFER_BYTES)
    monkeypatch.setattr("integration_inprocess.LIMITS", limits)
    monkeypatch.setattr("changefeed.owner.alive.FRESH_MS", 0)
    return left


def total(run: Run, metric: str) -> float:
    assert run.driver is not None
    return run.driver.registry.total(metric)


def in_buffer(run: Run) -> bool:
    assert run.driver is not None
    readers = run.driver.owner.spans.files.readers
    return 0 in readers and readers[0].in_buffer


async def test_rule_3_overflow_fall_back_and_return_while_pullers_die(tmp_path: Path, deaths: list[bool]) -> None:
    with DevCluster(stores=2, min_ts_interval=0.2) as cluster:
        feed = Feed(cluster, tmp_path, lambda path: (tmp_path / path[1:]).as_uri())
        async with running_feed(feed) as run:
            for cycle in range(CYCLES):
                await run.until(lambda: in_buffer(run), "the buffer is read")
                before = total(run, OVERFLOWS)
                with feed.more():
                    await run.until(lambda least=before: total(run, OVERFLOWS) > least, "it overflows")
                    if cycle < DEATHS:
                        deaths.append(True)
                        await run.until(lambda: not deaths, "the puller dies")
                feed.rate = CALM
            await run.until(lambda: in_buffer(run), "the buffer is read")
            await run.until(lambda: total(run, SWITCHES) > 2 * CYCLES, "its switches are counted")
        assert len(run.execution.puller_attempts) == 1 + DEATHS
        await feed.holds()
