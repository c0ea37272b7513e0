"""The driver end to end in this process: what ends a run, and what it leaves in the sink and in the log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest
from changefeed import errors
from changefeed.eventstore import writer as segment_writer
from changefeed.owner import driver as driver_module
from changefeed.owner import patience
from changefeed.owner.pulling.spans import Spans
from changefeed.puller.task import PullerJob
from changefeed.sink import file_sink
from changefeed.sink.storage import event_sink
from changefeed.wire.owner import OwnerAddress
from integration_inprocess import TASK_ATTEMPTS, InProcessExecution, Run, World, new_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with new_world(tmp_path) as made:
        yield made


async def written(world: World, run: Run, count: int) -> None:
    await run.until(lambda: len(world.ids()) >= count, f"{count} rows are in files")


async def test_rows_reach_files_once_and_a_second_run_goes_on(world: World) -> None:
    world.insert(range(1, 301))
    run = world.run()
    await written(world, run, 300)
    during = world.insert(range(301, 401))
    await written(world, run, 400)
    outcome = await run.drained()
    assert outcome.state == "drained"
    assert outcome.checkpoint_ts == world.checkpoint() == int(world.records("commit")[-1]["checkpoint_ts"])
    assert during <= outcome.checkpoint_ts
    world.insert(range(401, 501))
    again = world.run()
    await written(world, again, 500)
    await again.drained()
    assert world.ids() == list(range(1, 501))
    assert [record["epoch"] for record in world.records("epoch")] == [1, 2]
    shown = again.view.progress[-1]
    puller, _, _, sink = shown.stages
    assert (puller.rows, sink.rows, shown.table_count) == (100, 100, 1)
    assert puller.bytes > sink.bytes > 0


async def test_a_table_that_is_too_much_for_one_puller_is_pulled_in_parts(world: World) -> None:
    """It has two regions, and rows come in both."""
    pace = {"split_s": 0.05, "split_bytes": 2_000}
    run = world.run(pace=pace, spark={"pullers": {"count": 2}})
    await run.until(lambda: run.driver and run.driver.owner.spans.complete, "the table is pulled")
    assert run.driver is not None
    spans, begun = run.driver.owner.spans, 0
    while spans.splits == 0 and begun < 200:
        begun += 10
        world.insert(range(begun - 9, begun + 1))
        world.insert(range(begun + 491, begun + 501))
        await written(world, run, 2 * begun)
    assert spans.splits == 1
    world.insert(range(begun + 1, 251))
    world.insert(range(begun + 501, 751))
    await written(world, run, 500)
    assert {puller for puller, _ in run.execution.puller_attempts} == {0, 1}
    await run.drained()
    assert sorted(world.ids()) == [*range(1, 251), *range(501, 751)]


async def test_target_ts_finishes_and_a_finished_one_mends_its_metadata(world: World) -> None:
    target = world.insert(range(1, 11))
    world.insert(range(11, 21))
    outcome = await world.run(targetTs=str(target)).outcome()
    assert (outcome.state, outcome.checkpoint_ts) == ("finished", target)
    assert world.ids() == list(range(1, 11))
    # The last run may have died between its last record and metadata.
    (world.lake / "metadata").unlink()
    execution = InProcessExecution()
    outcome = await world.run(execution, targetTs=str(target)).outcome()
    assert (outcome.state, outcome.checkpoint_ts, world.checkpoint()) == ("finished", target, target)
    assert execution.puller_attempts == []


@pytest.mark.parametrize("kind", [errors.OutputConflict, errors.NeedsHuman])
async def test_a_task_that_no_attempt_can_help_ends_the_run_with_its_error(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type[errors.ChangefeedError]
) -> None:
    def create_once(*_: object) -> NoReturn:
        raise kind("The file is not ours.", "Ask around.")

    monkeypatch.setattr(file_sink, "create_once", create_once)
    world.insert(range(1, 11))
    with pytest.raises(errors.ChangefeedError, match="The file is not ours") as caught:
        await world.run().outcome()
    assert type(caught.value) is kind
    assert caught.value.next_step == "Ask around."
    assert world.records("commit") == [r for r in world.records("commit") if not r["files"]]


async def test_rule_10_other_bytes_in_a_files_place_are_an_output_conflict(world: World) -> None:
    first = world.run()
    world.insert(range(1, 11))
    await written(world, first, 10)
    await first.drained()
    (path,) = world.lake.rglob("CDC*.csv")
    stranger = path.with_name(path.name.replace("1.csv", "2.csv"))
    stranger.write_text("somebody else's\n")
    world.insert(range(11, 21))
    with pytest.raises(errors.OutputConflict, match=stranger.name):
        await world.run().outcome()
    assert stranger.read_text() == "somebody else's\n"


async def test_rule_4_an_error_that_attempts_may_help_is_tried_again_then_ends_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def encode_entry(*_: object) -> NoReturn:
        attempts.append(1)
        raise errors.ProtocolViolation("Two copies of a row differ.", "Look at the segments.")

    monkeypatch.setattr(event_sink, "encode_entry", encode_entry)
    world.insert(range(1, 11))
    with pytest.raises(errors.ProtocolViolation, match="Two copies of a row differ") as caught:
        await world.run(InProcessExecution(writers=1)).outcome()
    assert caught.value.next_step == "Look at the segments."
    assert len(attempts) == TASK_ATTEMPTS


async def test_rule_2_a_puller_that_dies_is_replaced_and_nothing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, segments = segment_writer.write_segment, []

    def write_segment(*arguments: Any) -> Any:
        segments.append(1)
        if len(segments) == 2:
            raise errors.Unavailable("The disk is gone.")
        return real(*arguments)

    monkeypatch.setattr(segment_writer, "write_segment", write_segment)
    execution = InProcessExecution()
    run = world.run(execution, spark={"pullers": {"count": 1}})
    for step in range(5):
        world.insert(range(step * 10 + 1, step * 10 + 11))
        await written(world, run, step * 10 + 10)
    await run.drained()
    assert execution.puller_attempts == [(0, 0), (0, 1)]
    assert world.ids() == list(range(1, 51))


@pytest.mark.parametrize(("module", "call"), [(event_sink, "encode_entry"), (file_sink, "create_once")])
async def test_rule_16_what_a_lost_pipeline_task_had_in_hand_is_written_by_another(
    world: World, monkeypatch: pytest.MonkeyPatch, module: ModuleType, call: str
) -> None:
    """Its first file is put by then, and the second is encoded or put when it dies. No row is in two files."""
    real, calls = getattr(module, call), []

    def dies_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise errors.Transient("The machine is gone.")
        return real(*arguments)

    monkeypatch.setattr(module, call, dies_once)
    execution = InProcessExecution(writers=1)
    run = world.run(execution)
    for step in range(4):
        world.insert(range(step * 10 + 1, step * 10 + 11))
        await written(world, run, step * 10 + 10)
    await run.drained()
    assert execution.writer_attempts == [(0, 0), (0, 1)]
    assert world.ids() == list(range(1, 41))
    files = [(file["plan"], file["entry"]) for record in world.records("commit") for file in record["files"]]
    assert len(files) == len(set(files)) == len(list(world.lake.rglob("CDC*.csv"))) == len(calls) - 1


async def test_a_puller_that_stays_away_loses_its_spans_to_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(InProcessExecution):
        """Its puller 0, which is given the only span, never comes."""

        def _pull(self, owner: OwnerAddress, puller: int, job: PullerJob) -> None:
            if puller:
                super()._pull(owner, puller, job)

    monkeypatch.setattr(driver_module, "Spans", partial(Spans, away_s=0.5))
    world.insert(range(1, 11))
    run = world.run(Away(), spark={"pullers": {"count": 2}})
    await written(world, run, 10)
    await run.drained()
    assert world.ids() == list(range(1, 11))


async def test_a_puller_job_that_gives_up_ends_the_run_with_its_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_segment(*_: object) -> NoReturn:
        raise errors.Unavailable("Cannot write segment 1: the disk is full.", "Free space.")

    monkeypatch.setattr(segment_writer, "write_segment", write_segment)
    world.insert(range(1, 11))
    with pytest.raises(errors.Unavailable, match="the disk is full") as caught:
        await world.run(spark={"pullers": {"count": 1}}).outcome()
    assert (caught.value.exit_code, caught.value.next_step) == (69, "Free space.")


async def test_a_report_that_breaks_the_owner_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def report(*_: object) -> NoReturn:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(driver_module.Meter, "report", report)
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        await world.run().outcome()


async def test_a_view_that_breaks_ends_the_run(world: World) -> None:
    run = world.run()

    def update(_: object) -> NoReturn:
        raise BrokenPipeError("nobody reads")

    run.view.update = update  # type: ignore[method-assign]
    with pytest.raises(BrokenPipeError, match="nobody reads"):
        await run.outcome()


async def test_drain_deadline_says_where_it_goes_on(world: World) -> None:
    class Stuck(InProcessExecution):
        """No pipeline task ever comes."""

        def _write(self, *_: object) -> None:
            self._stopping.wait()

    world.insert(range(1, 11))
    run = world.run(Stuck(), drainTimeout="1s")
    await run.until(lambda: world.records("plan"), "a plan is recorded")
    with pytest.raises(errors.Unavailable, match=r"Not drained within 1 s; the checkpoint is \d+.*drainTimeout"):
        await run.drained()
    assert world.ids() == []
    await_files = world.run()
    await written(world, await_files, 10)
    await await_files.drained()
    assert world.ids() == list(range(1, 11))


async def test_a_second_signal_ends_the_process_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    run = world.run()
    await run.until(lambda: run.view.progress, "the driver runs")
    assert run.driver is not None
    run.driver.drain()
    assert codes == []
    run.driver.drain()
    assert codes == [130]
    assert run.view.closed
    await run.outcome()


async def test_upstream_away_for_a_while_is_waited_for(world: World) -> None:
    asked = []

    async def ask() -> int:
        asked.append(1)
        if len(asked) < 3:
            raise errors.Transient("PD does not answer.", retry_after=0.0)
        return 7

    why: list[str] = []
    meter: Any = SimpleNamespace(pd_failed=why.append, next_step="Check PD and the network to it")
    assert await patience.answered(ask, meter) == 7
    assert why == ["PD does not answer."] * 2
    asked.clear()
    with pytest.raises(
        errors.Unavailable, match=r"The upstream has not answered for 0 s\. PD does not answer"
    ) as caught:
        await patience.answered(ask, meter, for_s=0.0)
    assert caught.value.exit_code == 69
    assert caught.value.next_step.startswith("Check PD and the network to it; ")


async def test_rule_14_a_safepoint_that_is_lost_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = world.run(pace={"safepoint_s": 0.01})
    await run.until(lambda: run.view.progress, "the driver runs")

    async def hold(*_: object) -> NoReturn:
        raise errors.NeedsHuman("SnapshotLostByGC: it is gone.")

    assert run.driver is not None
    monkeypatch.setattr(run.driver.prepared.history, "hold", hold)
    with pytest.raises(errors.NeedsHuman, match="SnapshotLostByGC"):
        await run.outcome()


async def test_rule_14_what_a_puller_misses_and_is_written_by_now_is_not_lost(world: World) -> None:
    run = world.run()
    world.insert(range(1, 11))
    await written(world, run, 10)
    assert run.driver is not None
    run.driver.fail(errors.SnapshotLostByGC("SnapshotLostByGC: it is gone."))  # what is before the checkpoint
    with pytest.raises(errors.Unavailable, match="it is gone") as caught:
        await run.outcome()
    assert "Nothing is lost" in caught.value.next_step
    again = world.run()
    world.insert(range(11, 21))
    await written(world, again, 20)
    await again.drained()
    assert world.ids() == list(range(1, 21))


async def test_the_log_is_folded_while_it_runs(world: World) -> None:
    run = world.run(pace={"fold_after": 4})
    for step in range(4):
        world.insert(range(step * 10 + 1, step * 10 + 11))
        await written(world, run, step * 10 + 10)
    await run.drained()
    assert list(world.log.glob("snapshot-*.json"))
    again = world.run()
    world.insert(range(41, 51))
    await written(world, again, 50)
    await again.drained()
    assert world.ids() == list(range(1, 51))


async def test_no_effect_outlives_a_run_that_is_cut_short(world: World) -> None:
    """A blocking call is waited for, however the run ends."""
    done = []
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    gate = asyncio.Event()

    def block() -> None:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        done.append(1)

    task = asyncio.ensure_future(patience.in_thread(block))
    await started.wait()
    task.cancel()
    loop.call_soon(gate.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]
