from __future__ import annotations

import owner_records as made
from changefeed.log.history import apply
from changefeed.model.tso import compose
from changefeed.owner.reporting.stage_times import PLAN, PUBLISH, WRITE, StageTimes
from changefeed.owner.writing.open_entries import EntryKey


def test_each_stage_of_a_file_is_told_once() -> None:
    state = made.begun()
    plan = made.plan(state, made.entry(state, compose(1_000)))
    file, key = made.file(plan.n), EntryKey(plan.n, 0)
    times = StageTimes()
    assert list(times.planned(plan, 3_500)) == [(PLAN, 2.5)]
    assert list(times.written(key, 4_500)) == [(WRITE, 1.0)]
    assert list(times.written(key, 9_500)) == []
    assert list(times.committed([file], 4_750)) == [(PUBLISH, 0.25)]
    assert list(times.committed([file], 4_750)) == []


def test_a_file_that_an_earlier_run_has_planned_is_not_told_of() -> None:
    state = made.begun()
    state = apply(state, made.plan(state, made.entry(state, 200)))
    (file,) = made.files(state)
    times = StageTimes()
    assert list(times.written(EntryKey(file.plan, file.entry), 4_500)) == []
    assert list(times.committed([file], 4_750)) == []


def test_no_stage_takes_less_than_no_time() -> None:
    state = made.begun()
    plan = made.plan(state, made.entry(state, compose(9_000)))
    assert list(StageTimes().planned(plan, 3_500)) == [(PLAN, 0.0)]
