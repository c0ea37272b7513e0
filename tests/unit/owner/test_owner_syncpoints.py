from __future__ import annotations

import pytest
from changefeed.model.tso import compose
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.checkpoint import Checkpoint, DispatcherProgress
from changefeed.owner.planning.syncpoints import Syncpoints
from changefeed.sink.contract import Ddl

TABLE, OTHER = 1, 2
START_TS = compose(10_500)
FIRST, SECOND = compose(11_000), compose(12_000)


def at(resolved_ts: int, target_ts: int | None = None) -> Barrier:
    barrier = Barrier(START_TS, target_ts, Syncpoints(1_000, START_TS, START_TS))
    barrier.on_resolved(resolved_ts)
    return barrier


def flushed(ts: int) -> DispatcherProgress:
    return DispatcherProgress(ts, ts, is_open=False, first_unplanned_ts=None)


@pytest.mark.parametrize(
    ("checkpoint_ts", "reached_ts", "first"),
    [
        (compose(10_500), compose(10_500), FIRST),
        (FIRST - 1, FIRST - 1, FIRST),
        (FIRST - 1, FIRST, FIRST),  # all stands there, and nobody has been told
        (FIRST, FIRST, SECOND),
        (compose(10_500), FIRST + 1, SECOND),  # some table is beyond it
        (compose(10_500), compose(14_500), compose(15_000)),
    ],
)
def test_the_first_one_is_above_the_checkpoint_and_no_table_has_passed_it(
    checkpoint_ts: int, reached_ts: int, first: int
) -> None:
    assert Syncpoints(1_000, checkpoint_ts + 1, reached_ts).next_ts == first


def test_rule_9_no_table_passes_it_and_the_checkpoint_stays_below_until_it_is_written() -> None:
    barrier = at(compose(11_500))
    assert [barrier.limit(TABLE), barrier.lowest_limit({TABLE, OTHER}), barrier.ceiling()] == [FIRST] * 3
    assert barrier.stopped([TABLE, OTHER]) == {TABLE, OTHER}
    assert barrier.syncpoint() == FIRST
    assert Checkpoint(START_TS).next([flushed(compose(11_500))], barrier) == FIRST - 1
    barrier.syncpoint_written()
    assert barrier.limit(TABLE) == barrier.checkpoint_limit() == compose(11_500)
    assert not barrier.stopped([TABLE])
    assert barrier.syncpoint() is None


def test_it_is_not_due_before_the_ddl_span_has_reached_it() -> None:
    barrier = at(FIRST - 1)
    assert (barrier.syncpoint(), barrier.limit(TABLE), barrier.checkpoint_limit()) == (None, FIRST - 1, FIRST - 1)
    assert not barrier.stopped([TABLE])


def test_rule_9_a_ddl_at_its_ts_comes_before_it_and_a_later_one_after_it() -> None:
    barrier = at(START_TS)
    at_it, later = (Ddl(ts, 1, involved=frozenset({TABLE})) for ts in (FIRST, FIRST + 1))
    unheard = Ddl(FIRST + 2, 1)  # it concerns no table that is there yet
    for ddl in (at_it, later, unheard):
        barrier.on_ddl(ddl)
    barrier.on_resolved(SECOND - 1)
    assert barrier.syncpoint() is None
    assert barrier.due(lambda _: FIRST) == at_it
    barrier.executed()
    assert barrier.due(lambda _: SECOND) is None
    assert barrier.syncpoint() == FIRST
    barrier.syncpoint_written()
    assert barrier.due(lambda _: FIRST + 1) == later
    barrier.executed()
    assert barrier.due(lambda _: FIRST) == unheard


def test_rule_24_one_at_the_target_is_written_before_it_is_finished() -> None:
    barrier = at(SECOND, target_ts=FIRST)
    assert barrier.syncpoint() == FIRST
    assert not barrier.is_finished(barrier.checkpoint_limit())
    barrier.syncpoint_written()
    assert barrier.is_finished(barrier.checkpoint_limit())


def test_rule_24_one_beyond_the_target_is_none() -> None:
    barrier = at(SECOND, target_ts=FIRST - 1)
    assert (barrier.syncpoint(), barrier.checkpoint_limit(), barrier.is_at_target()) == (None, FIRST - 1, True)
