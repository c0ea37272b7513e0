"""A changefeed that no driver runs: its history is held, it is closed, and who still drives it then is fenced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import Conflict, Fenced, NeedsHuman, Unavailable
from changefeed.log.log import Log
from changefeed.log.records import EpochRecord
from changefeed.model.tso import physical_ms
from changefeed.objectstore.local import LocalStore
from changefeed.owner.closing import undriven
from changefeed.owner.closing.undriven import NothingToHold, close, hold
from changefeed.owner.driver import RunOptions, run_on_loop
from changefeed.owner.preparation.prepare import check_attempt
from changefeed.upstream.contract import HeldUntil
from changefeed.upstream.tikv.client.safepoint import Safepoint
from changefeed_devcluster.pd.safepoints import GC_WORKER
from integration_inprocess import InProcessExecution, Run, Seen, World, new_world

HOLDER = b"changefeed-default-test-local"
HOUR = 3600


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


def attempt_run(world: World, attempt: int) -> Run:
    return Run(world.changefeed(), InProcessExecution(), RunOptions(metrics_port=0, attempt=attempt)).start()


async def ran(world: World, attempt: int = 0) -> int:
    """One run that has written rows and drained; its checkpoint."""
    run = attempt_run(world, attempt)
    world.insert(range(1, 11))
    await run.until(lambda: len(world.ids()) == 10, "10 rows are in files")
    return (await run.drained()).checkpoint_ts


def held_ts(world: World) -> int | None:
    """After which ts the changefeed holds history now."""
    living = world.cluster.safepoints.living(int(time.time()))
    return next((each.safe_point + 1 for each in living if each.service_id == HOLDER), None)


def kinds(world: World) -> list[str]:
    return [record["kind"] for kind in ("start", "epoch", "closed") for record in world.records(kind)]


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def as_another_driver(log: Log, **changes: Any) -> EpochRecord:
    """The record by which another process would take over."""

    def record(before: Any) -> EpochRecord:
        return EpochRecord(
            n=before.n + 1,
            epoch=before.epoch.number + 1,
            nonce="another",
            host="h",
            pid=1,
            config=before.epoch.config,
            versions={},
            **{"attempt": 0, **changes},
        )

    log.claim_epoch(record)
    return record(log.state)


async def test_rule_14_hold_keeps_history_without_taking_over(world: World) -> None:
    checkpoint = await ran(world)
    world.cluster.safepoints.remove(HOLDER)  # it has lapsed
    before = everything_in(world.log)
    changefeed = world.changefeed(
        upstream={"pdAddresses": [f"http://{world.cluster.pd_address}"], "safepointTtl": "10m"}
    )
    before_ms = physical_ms(world.tidb.now())
    held = await hold(changefeed)
    assert isinstance(held, HeldUntil)
    assert held.ts == checkpoint
    assert before_ms + 600_000 <= held.until_ms <= physical_ms(world.tidb.now()) + 600_000, "by PD's clock"
    assert held_ts(world) == checkpoint
    assert everything_in(world.log) == before


async def test_rule_14_hold_of_lost_history_says_so(world: World) -> None:
    checkpoint = await ran(world)
    world.cluster.safepoints.remove(HOLDER)
    world.cluster.collect_garbage(world.tidb.now())
    with pytest.raises(NeedsHuman, match=f"SnapshotLostByGC: the changes since {checkpoint}"):
        await hold(world.changefeed())


async def test_hold_beside_a_driver_that_has_gone_on_is_no_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await ran(world)
    log = Log(LocalStore(world.log.parent))
    log.read()
    real = Safepoint.hold

    async def overtaken(self: Safepoint, ts: int) -> int:
        as_another_driver(log)
        world.cluster.safepoints.remove(HOLDER)
        world.cluster.safepoints.update(GC_WORKER, HOUR, world.tidb.now(), int(time.time()))
        return await real(self, ts)

    monkeypatch.setattr(Safepoint, "hold", overtaken)
    assert await hold(world.changefeed()) == NothingToHold("a driver is running and keeps renewing it")


async def test_hold_that_meets_a_close_leaves_no_safepoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await ran(world)
    real = Safepoint.hold

    async def closed_meanwhile(self: Safepoint, ts: int) -> int:
        await close(world.changefeed())
        return await real(self, ts)

    monkeypatch.setattr(Safepoint, "hold", closed_meanwhile)
    assert await hold(world.changefeed()) == NothingToHold("it was deleted")
    assert held_ts(world) is None


async def test_hold_of_one_that_has_not_started(world: World) -> None:
    held = await hold(world.changefeed())
    assert isinstance(held, HeldUntil)
    assert held.ts == world.start_ts
    assert held_ts(world) == world.start_ts
    world.cluster.safepoints.remove(HOLDER)
    unset = await hold(world.changefeed(startTs=None))
    assert unset == NothingToHold("it has not started and has no startTs")
    assert held_ts(world) is None


async def test_rule_5_close_ends_the_log_and_lets_gc_go_on(world: World) -> None:
    await ran(world)
    assert held_ts(world) is not None
    assert await close(world.changefeed())
    assert kinds(world) == ["start", "epoch", "epoch", "closed"]
    assert world.records("closed")[0]["epoch"] == 2
    assert held_ts(world) is None
    # Again, as a job that is repeated does: nothing more happens.
    before = everything_in(world.log)
    assert not await close(world.changefeed())
    assert everything_in(world.log) == before
    assert await hold(world.changefeed()) == NothingToHold("it was deleted")
    assert held_ts(world) is None
    assert not list((world.log.parent / "events").glob("*")), "the cache of the deleted one stays"


async def test_rule_6_a_zombie_of_a_closed_changefeed_is_fenced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "hold", lambda self: None)  # as on a store without lock files
    run = attempt_run(world, 1)
    world.insert(range(1, 11))
    await run.until(lambda: len(world.ids()) == 10, "10 rows are in files")
    assert await close(world.changefeed())
    with pytest.raises(Fenced) as caught:
        await run.outcome()
    assert caught.value.exit_code == 75
    lake = everything_in(world.lake)
    # A late one, however high its attempt, does nothing at all.
    state = everything_in(world.log)
    with pytest.raises(Fenced, match="default/test/local was deleted"):
        await run_on_loop(world.changefeed(), RunOptions(metrics_port=0, attempt=99), InProcessExecution(), Seen())
    assert (everything_in(world.lake), everything_in(world.log)) == (lake, state)


async def test_close_of_one_that_has_never_run_keeps_it_from_running(world: World) -> None:
    assert await close(world.changefeed())
    assert kinds(world) == ["start", "epoch", "closed"]
    assert not await close(world.changefeed())
    with pytest.raises(Fenced, match="was deleted"):
        await attempt_run(world, 1).outcome()
    assert not world.lake.exists() or everything_in(world.lake) == {}


async def test_close_is_done_again_when_another_is_faster(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its epoch and its `closed` a driver takes over: that one is taken over in turn."""
    await ran(world, attempt=3)
    claim, other, late = Log.claim_epoch, Log(LocalStore(world.log.parent)), iter([True])

    def overtaken(self: Log, make_record: Any) -> Any:
        state = claim(self, make_record)
        if self is not other and next(late, False):
            as_another_driver(other, attempt=5)
        return state

    monkeypatch.setattr(Log, "claim_epoch", overtaken)
    assert await close(world.changefeed())
    assert [record["attempt"] for record in world.records("epoch")] == [3, 4, 5, 6]
    assert world.records("closed")[0]["epoch"] == 4


async def test_close_while_a_driver_runs_on_this_machine_is_refused(world: World) -> None:
    run = attempt_run(world, 0)
    await run.until(lambda: world.records("epoch"), "it runs")
    with pytest.raises(Conflict):
        await close(world.changefeed())
    assert not world.records("closed")
    await run.drained()


async def test_close_with_pd_away_has_closed_and_may_be_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await ran(world)
    away = world.changefeed(upstream={"pdAddresses": ["http://127.0.0.1:1"]})
    with monkeypatch.context() as impatient:
        impatient.setattr(undriven, "PD_DEADLINE_S", 0.01)
        with pytest.raises(Unavailable):
            await close(away)
    assert kinds(world)[-1] == "closed"
    assert not list((world.log.parent / "events").glob("*")), "what PD has no part in is done"
    assert held_ts(world) is not None
    assert not await close(world.changefeed())
    assert held_ts(world) is None


async def test_rule_6_a_stale_attempt_is_fenced_before_any_side_effect(world: World) -> None:
    await ran(world, attempt=3)
    assert [record["attempt"] for record in world.records("epoch")] == [3]
    world.cluster.safepoints.remove(HOLDER)
    before = everything_in(world.folder)
    for attempt in (1, 3):
        with pytest.raises(Fenced, match=f"is attempt {attempt}; attempt 3 has already started") as caught:
            await run_on_loop(
                world.changefeed(), RunOptions(metrics_port=0, attempt=attempt), InProcessExecution(), Seen()
            )
        assert caught.value.exit_code == 75
    assert everything_in(world.folder) == before
    assert held_ts(world) is None
    check_attempt(world.changefeed(), 4)
    await attempt_run(world, 4).drained()
    assert [record["attempt"] for record in world.records("epoch")] == [3, 4]
