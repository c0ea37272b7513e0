from __future__ import annotations

import owner_segments as s
import pytest
from changefeed.errors import ProtocolViolation
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.checkpoint import Checkpoint, DispatcherProgress
from changefeed.sink.contract import Ddl
from hypothesis import given
from hypothesis import strategies as st

TABLE, OTHER = 1, 2


def idle(resolved_ts: int, flushed: int = 100) -> DispatcherProgress:
    return DispatcherProgress(flushed, resolved_ts, is_open=False, first_unplanned_ts=None)


def at(resolved_ts: int, target_ts: int | None = None) -> Barrier:
    barrier = Barrier(100, target_ts)
    barrier.on_resolved(resolved_ts)
    return barrier


def alter(ts: int, job_id: int = 1, *involved: int) -> Ddl:
    return Ddl(ts, job_id, description="alter table t", involved=frozenset(involved or (TABLE,)))


def test_rule_1_nothing_passes_the_ddl_span() -> None:
    barrier = at(90 + 100)
    assert barrier.limit(TABLE) == 190
    assert Checkpoint(100).next([idle(210)], barrier) == 190
    assert not barrier.stopped([TABLE])


def test_rule_1_without_dispatchers_the_ddl_span_is_the_checkpoint() -> None:
    assert Checkpoint(100).next([], at(150)) == 150
    assert Checkpoint(100).next([], at(150, target_ts=140)) == 140


def test_rule_1_the_ddl_spans_resolved_ts_does_not_go_back() -> None:
    barrier = at(150)
    barrier.on_resolved(120)
    assert barrier.limit(TABLE) == 150


def test_rule_9_a_ddl_lets_rows_at_its_ts_pass_and_holds_the_checkpoint_below() -> None:
    barrier = at(120)
    barrier.on_ddl(alter(150))
    assert (barrier.limit(TABLE), barrier.stopped([TABLE])) == (120, frozenset())
    barrier.on_resolved(200)
    assert (barrier.limit(TABLE), barrier.stopped([TABLE]), barrier.checkpoint_limit()) == (150, {TABLE}, 149)
    checkpoint = Checkpoint(100)
    assert checkpoint.next([idle(300)], barrier) == 149
    assert checkpoint.next([], barrier) == 149


def test_rule_9_the_lowest_limit_is_that_of_the_first_ddl_that_involves_one_of_them() -> None:
    barrier = at(120)
    barrier.on_ddl(alter(150))
    barrier.on_ddl(alter(160, 2, OTHER))
    for resolved_ts, lowest in ((140, (140, 140, 140)), (200, (150, 160, 200))):
        barrier.on_resolved(resolved_ts)
        assert (barrier.limit(TABLE), barrier.limit(OTHER), barrier.limit(3)) == lowest
        assert barrier.lowest_limit({TABLE, OTHER, 3}) == lowest[0]
        assert barrier.lowest_limit({OTHER, 3}) == lowest[1]
        assert barrier.lowest_limit({3}) == barrier.lowest_limit(set()) == lowest[2]


def test_rule_9_tables_that_a_ddl_does_not_involve_go_on_and_the_checkpoint_does_not() -> None:
    barrier = at(120)
    barrier.on_ddl(alter(150))
    barrier.on_resolved(200)
    assert barrier.limit(OTHER) == 200
    assert OTHER not in barrier.stopped([TABLE, OTHER])
    assert Checkpoint(100).next([idle(300), idle(300, flushed=200)], barrier) == 149


def test_rule_9_it_is_due_once_all_that_it_involves_is_flushed_to_it() -> None:
    barrier = at(200)
    barrier.on_ddl(alter(250, 1, TABLE, OTHER))
    flushed = {TABLE: 260, OTHER: 250}
    assert barrier.due(flushed.__getitem__) is None, "an earlier DDL may still come"
    barrier.on_resolved(251)
    assert barrier.due({**flushed, OTHER: 249}.__getitem__) is None
    assert barrier.due(flushed.__getitem__) == alter(250, 1, TABLE, OTHER)
    assert barrier.executed() == alter(250, 1, TABLE, OTHER)
    assert barrier.due(flushed.__getitem__) is None
    assert (barrier.limit(TABLE), barrier.checkpoint_limit()) == (251, 251)


def test_rule_9_ddls_are_due_in_the_order_of_ts_and_job_id_and_drain_meanwhile() -> None:
    barrier = at(100)
    for ddl in (alter(150, 3), alter(150, 9), alter(180, 4, OTHER)):
        barrier.on_ddl(ddl)
    barrier.on_resolved(200)
    assert (barrier.limit(TABLE), barrier.limit(OTHER)) == (150, 180)
    assert barrier.due({TABLE: 149, OTHER: 180}.__getitem__) is None
    done = []
    while ddl := barrier.due(lambda _: 200):
        done.append(ddl.order)
        assert barrier.checkpoint_limit() == ddl.ts - 1
        barrier.executed()
    assert done == [(150, 3), (150, 9), (180, 4)]


def test_rule_1_a_ddl_below_the_resolved_ts_or_out_of_order_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="job 1 at 150"):
        at(150).on_ddl(alter(150))
    barrier = at(150)
    barrier.on_ddl(alter(160, 2))
    with pytest.raises(ProtocolViolation, match="job 2 at 160"):
        barrier.on_ddl(alter(160, 2))


def test_rule_24_ranges_are_up_to_the_target() -> None:
    barrier = at(100, target_ts=180)
    barrier.on_ddl(alter(181))
    barrier.on_resolved(300)
    assert (barrier.limit(TABLE), barrier.stopped([TABLE, OTHER]), barrier.checkpoint_limit()) == (
        180,
        {TABLE, OTHER},
        180,
    )
    assert barrier.due(lambda _: 400) is None
    assert [barrier.is_finished(ts) for ts in (179, 180)] == [False, True]
    assert not at(500).is_finished(499)


def test_rule_24_a_ddl_at_the_target_comes_before_the_end() -> None:
    barrier = at(100, target_ts=180)
    barrier.on_ddl(alter(180))
    barrier.on_resolved(300)
    assert not barrier.is_finished(Checkpoint(100).next([idle(400)], barrier))
    assert barrier.due(lambda _: 180) is not None
    barrier.executed()
    assert barrier.is_finished(Checkpoint(100).next([idle(400)], barrier))


def test_the_checkpoint_stays_below_rows_that_are_not_written() -> None:
    barrier, checkpoint = at(500), Checkpoint(100)
    open_ = DispatcherProgress(120, 400, is_open=True, first_unplanned_ts=None)
    waiting = DispatcherProgress(120, 400, is_open=False, first_unplanned_ts=151)
    assert checkpoint.next([idle(300), open_], barrier) == 120
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
    barrier.on_ddl(alter(175))
    for flushed, resolved, is_open, first in values:
        one = DispatcherProgress(flushed, resolved, is_open, first)
        ts = checkpoint.next([one], barrier)
        assert ts >= last
        if ts > last:
            assert ts <= min(170, max(flushed, resolved))
            assert not is_open or ts <= flushed
            assert first is None or ts < first or ts <= flushed
        checkpoint.recorded(0.0, ts)
        last = ts
