from __future__ import annotations

import owner_segments as s
import pytest
from changefeed.errors import ProtocolViolation
from changefeed.owner.planning.barrier import Barrier, Ddl
from changefeed.owner.planning.checkpoint import Checkpoint, Progress, flushed_ts
from hypothesis import given
from hypothesis import strategies as st


def idle(resolved_ts: int, flushed: int = 100) -> Progress:
    return Progress(flushed, resolved_ts, in_plan=False, first_unplanned_ts=None)


def at(resolved_ts: int, target_ts: int | None = None) -> Barrier:
    barrier = Barrier(100, target_ts)
    barrier.on_resolved(resolved_ts)
    return barrier


def test_rule_1_nothing_passes_the_ddl_span() -> None:
    barrier = at(90 + 100)
    assert barrier.limit() == 190
    assert Checkpoint(100).next([idle(210)], barrier) == 190
    assert barrier.edge() is None


def test_rule_1_without_dispatchers_the_ddl_span_is_the_checkpoint() -> None:
    assert Checkpoint(100).next([], at(150)) == 150
    assert Checkpoint(100).next([], at(150, target_ts=140)) == 140


def test_rule_1_the_ddl_spans_resolved_ts_does_not_go_back() -> None:
    barrier = at(150)
    barrier.on_resolved(120)
    assert barrier.limit() == 150


def test_rule_9_a_ddl_lets_rows_at_its_ts_pass_and_holds_the_checkpoint_below() -> None:
    barrier = at(120)
    barrier.on_ddl(150, 1, True, "alter table t")
    assert (barrier.limit(), barrier.edge()) == (120, None)
    barrier.on_resolved(200)
    assert (barrier.limit(), barrier.edge(), barrier.checkpoint_limit()) == (150, 150, 149)
    checkpoint = Checkpoint(100)
    assert checkpoint.next([idle(300)], barrier) == 149
    assert checkpoint.next([], barrier) == 149


def test_rule_9_it_stops_once_every_dispatcher_is_flushed_to_the_ddl() -> None:
    barrier = at(200)
    barrier.on_resolved(120)
    barrier.on_ddl(250, 1, True, "alter table t")
    behind, there = idle(249), idle(260)
    assert barrier.stopped_at(flushed_ts([there], barrier.limit())) is None  # an earlier DDL may still come
    barrier.on_resolved(251)
    assert barrier.stopped_at(flushed_ts([behind, there], barrier.limit())) is None
    assert barrier.stopped_at(flushed_ts([there], barrier.limit())) == Ddl(250, 1, "alter table t")
    rows_at_250 = Progress(240, 260, in_plan=False, first_unplanned_ts=250)
    assert barrier.stopped_at(flushed_ts([rows_at_250], barrier.limit())) is None


def test_rule_9_the_first_ddl_by_ts_then_job_id_decides() -> None:
    barrier = at(100)
    for ts, job in ((180, 4), (150, 9), (150, 3)):
        barrier.on_ddl(ts, job, True, f"job {job}")
    barrier.on_resolved(200)
    assert barrier.stopped_at(150) == Ddl(150, 3, "job 3")


def test_rule_9_a_repeated_ddl_is_one_and_others_do_not_block() -> None:
    barrier = at(100)
    barrier.on_ddl(150, 1, True, "alter")
    barrier.on_ddl(140, 2, False, "another table")
    barrier.on_resolved(200)
    barrier.on_ddl(150, 1, True, "alter")
    barrier.on_ddl(140, 2, False, "another table")
    assert barrier.limit() == 150


def test_rule_1_a_ddl_below_the_resolved_ts_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="job 1 at 150"):
        at(150).on_ddl(150, 1, True, "alter")


def test_rule_24_ranges_are_after_start_and_up_to_target() -> None:
    barrier = at(100, target_ts=180)
    barrier.on_ddl(100, 1, True, "part of the schema at start_ts")
    barrier.on_ddl(181, 2, True, "after the target")
    barrier.on_resolved(300)
    assert (barrier.limit(), barrier.edge(), barrier.checkpoint_limit()) == (180, 180, 180)
    assert barrier.stopped_at(180) is None
    assert [barrier.is_finished(ts) for ts in (179, 180)] == [False, True]
    assert not at(500).is_finished(499)


def test_rule_24_a_ddl_at_the_target_comes_before_the_end() -> None:
    barrier = at(100, target_ts=180)
    barrier.on_ddl(180, 1, True, "alter")
    barrier.on_resolved(300)
    assert not barrier.is_finished(Checkpoint(100).next([idle(400)], barrier))
    assert barrier.stopped_at(180) is not None


def test_the_checkpoint_stays_below_rows_that_are_not_written() -> None:
    barrier, checkpoint = at(500), Checkpoint(100)
    in_plan = Progress(120, 400, in_plan=True, first_unplanned_ts=None)
    waiting = Progress(120, 400, in_plan=False, first_unplanned_ts=151)
    assert checkpoint.next([idle(300), in_plan], barrier) == 120
    assert checkpoint.next([idle(300), waiting], barrier) == 150
    assert checkpoint.next([idle(300)], barrier) == 300


def test_the_checkpoint_does_not_go_back() -> None:
    checkpoint = Checkpoint(100)
    checkpoint.recorded(0.0, 300)
    assert checkpoint.next([idle(200)], at(500)) == 300


def test_rule_11_a_checkpoint_without_files_is_due_at_most_every_two_seconds() -> None:
    checkpoint = Checkpoint(100)
    assert not checkpoint.is_due(10.0, 100)
    assert checkpoint.is_due(10.0, 101)
    checkpoint.recorded(10.0, 101)
    assert not checkpoint.is_due(11.9, 150)
    assert checkpoint.is_due(12.0, 150)
    assert not checkpoint.is_due(99.0, 101)


@s.STEADY
@given(
    st.lists(st.tuples(st.integers(100, 200), st.integers(100, 200), st.booleans(), st.none() | st.integers(101, 220)))
)
def test_the_checkpoint_is_below_every_unwritten_row_whatever_the_order(
    values: list[tuple[int, int, bool, int | None]],
) -> None:
    barrier, checkpoint, last = at(170), Checkpoint(100), 100
    barrier.on_ddl(175, 1, True, "alter")
    for flushed, resolved, in_plan, first in values:
        one = Progress(flushed, resolved, in_plan, first)
        ts = checkpoint.next([one], barrier)
        assert ts >= last
        if ts > last:
            assert ts <= min(170, max(flushed, resolved))
            assert not in_plan or ts <= flushed
            assert first is None or ts < first or ts <= flushed
        checkpoint.recorded(0.0, ts)
        last = ts
