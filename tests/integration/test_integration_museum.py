"""Bugs of others that ours must not have, where no other test would show it; all stand in docs/guarantees.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from changefeed.errors import ChangefeedError, InvalidSpec, Unavailable
from changefeed.objectstore import Location
from changefeed.pipeline.task import PipelineJob, write_files
from changefeed.sink.storage.event_sink import StorageJob
from changefeed.upstream.tikv.client.safepoint import Safepoint
from changefeed.wire.owner import OwnerAddress, RunKey
from changefeed.wire.owner_client import reporting
from integration_inprocess import World, new_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


async def test_museum_upstream_history_is_released_before_the_own_checkpoint_is_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RisingWave 25071, Debezium DBZ-5739. Ours holds at the checkpoint that stands in the log, never at a later ts."""
    held: list[tuple[int, int]] = []  # (ts, the checkpoint in the log by then)
    hold = Safepoint.hold

    async def noted(self: Safepoint, ts: int) -> int:
        recorded = [int(record["checkpoint_ts"]) for record in world.records("commit")]
        held.append((ts, recorded[-1] if recorded else world.start_ts))
        return await hold(self, ts)

    def follows(ts: int) -> bool:
        return bool(held) and held[-1][0] >= ts

    monkeypatch.setattr(Safepoint, "hold", noted)
    run = world.run(pace={"safepoint_s": 0.01})
    for step in range(3):
        last = world.insert(range(step * 10 + 1, step * 10 + 11))
        await run.until(partial(follows, last), "the hold has followed the checkpoint")
    await run.drained()
    assert all(ts <= recorded for ts, recorded in held)
    assert len({ts for ts, _ in held}) > 2


@pytest.mark.parametrize(
    ("sink", "kind", "says"),
    [
        ("gopher://lake", InvalidSpec, r"spec\.sink\.storage\.uri"),
        ("file:///nowhere", Unavailable, "The owner ended the pipeline task's stream: UNAVAILABLE"),
    ],
    ids=["a task can't be made", "nobody is there to hear it"],
)
def test_museum_a_constructors_failure_is_masked(sink: str, kind: type[ChangefeedError], says: str) -> None:
    """PySpark 4.3.0 stops a reader that was never made, and its error hides the first. Of ours the first error counts,
    also when the report of it comes to nothing.
    """
    nobody = OwnerAddress("127.0.0.1:1", 1, "nonce", "token", b"", RunKey(b"", b""))
    job = PipelineJob("shop/feed", Location("file:///nowhere"), StorageJob(Location(sink)))
    with pytest.raises(kind, match=says), reporting(nobody):
        write_files(nobody, 0, job)
