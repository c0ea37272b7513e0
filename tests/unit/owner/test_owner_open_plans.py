"""What the log says of plans some of whose files are in no commit record, of several at a time."""

from __future__ import annotations

from typing import Any

import owner_records as made
import pytest
from changefeed.errors import NeedsHuman
from changefeed.log.history import apply
from changefeed.log.records import DdlRecord, FileCommitted, Record
from changefeed.log.state import State, restore, snapshot
from changefeed.model.position import Position


def refused(state: State, record: Record, why: str) -> None:
    with pytest.raises(NeedsHuman, match=rf"Record {record.n} of the log \({record.kind}.*{why}"):
        apply(state, record)


def planned(state: State, *ends: tuple[int, int]) -> State:
    """A plan with a file of each (dispatcher, to), no dispatcher twice."""
    entries = (made.entry(state, to, number, dispatcher) for number, (dispatcher, to) in enumerate(ends))
    return apply(state, made.plan(state, *entries))


def committed(state: State, *files: FileCommitted, checkpoint_ts: int | None = None) -> State:
    ts = state.checkpoint_ts if checkpoint_ts is None else checkpoint_ts
    return apply(state, made.commit(state, ts, files=files))


def two_plans() -> State:
    """Plan 3: files of dispatchers 1 and 2 to 110. Plan 4: of 1 to 120 and of 3 to 115. All begin at 100."""
    return planned(planned(made.begun(), (1, 110), (2, 110)), (1, 120), (3, 115))


def open_files(state: State) -> list[tuple[int, int]]:
    return [(plan, entry.entry) for plan, entry in state.open_entries()]


def test_plans_are_open_until_the_last_of_their_files_is_committed() -> None:
    state = two_plans()
    assert open_files(state) == [(3, 0), (3, 1), (4, 0), (4, 1)]
    state = committed(state, made.file(3, 1, rows=2), made.file(4, 1, rows=3))
    assert [(each.plan.n, each.committed) for each in state.plans] == [(3, (1,)), (4, (1,))]
    assert [state.flushed_ts(dispatcher) for dispatcher in (1, 2, 3)] == [100, 110, 115]
    assert [state.planned_ts(dispatcher) for dispatcher in (1, 2, 3)] == [120, 110, 115]
    state = committed(state, made.file(3, 0, rows=5))
    assert open_files(state) == [(4, 0)]
    assert (state.flushed_ts(1), state.rows) == (110, 10)
    state = committed(state, made.file(4, 0))
    assert (state.plans, state.flushed_ts(1), state.rows) == ((), 120, 11)


def test_files_of_different_dispatchers_are_committed_in_any_order() -> None:
    state = committed(two_plans(), made.file(4, 1))
    assert open_files(state) == [(3, 0), (3, 1), (4, 0)]
    together = committed(two_plans(), made.file(4, 0), made.file(3, 0))
    assert (open_files(together), together.flushed_ts(1)) == ([(3, 1), (4, 1)], 120)


@pytest.mark.parametrize("start", [100, 109, 111])
def test_rule_15_a_second_plan_goes_on_where_the_first_one_ends(start: int) -> None:
    state = planned(made.begun(), (1, 110))
    second = made.entry(state, 120)
    assert (second.from_, second.output["index"]) == (Position.end_of(110), 2)
    assert apply(state, made.plan(state, second)).position(1) == Position.end_of(120)
    refused(state, made.plan(state, made.entry(state, 120, from_ts=start)), "but what is before it ends at")


def test_rule_15_a_second_plan_names_no_file_of_the_first_one() -> None:
    state = planned(made.begun(), (1, 110))
    refused(state, made.plan(state, made.entry(state, 130, index=1)), "is written to .*, as the one before it is")
    tomorrow: dict[str, Any] = {"date": "2026-01-02", "directory": "t1/1/2026-01-02"}
    state = apply(state, made.plan(state, made.entry(state, 120, index=1, **tomorrow)))
    again = made.entry(state, 130, index=1, **tomorrow)
    refused(state, made.plan(state, again), "is written to .*, as the one before it is")


def test_rule_8_a_file_is_not_committed_before_those_of_its_dispatcher_that_come_before_it() -> None:
    state = two_plans()
    refused(state, made.commit(state, 100, files=(made.file(4, 0),)), "what dispatcher 1 has before it")
    begun = made.begun()
    first, second = made.entry(begun, 110), made.entry(begun, 120, 1, from_ts=110, index=2)
    one_plan = apply(begun, made.plan(begun, first, second))
    refused(one_plan, made.commit(one_plan, 100, files=(made.file(3, 1),)), "what dispatcher 1 has before it")
    half = committed(one_plan, made.file(3, 0))
    assert (half.flushed_ts(1), half.planned_ts(1)) == (110, 120)
    assert committed(half, made.file(3, 1)).plans == ()


def test_rule_20_a_commit_names_open_files_and_each_once() -> None:
    state = committed(two_plans(), made.file(3, 1))

    def with_files(why: str, *files: FileCommitted) -> None:
        refused(state, made.commit(state, 100, files=files), why)

    with_files("names a file twice", made.file(3, 0), made.file(3, 0, rows=9))
    with_files("plan 3 has no open entry 1", made.file(3, 1))
    with_files("plan 3 has no open entry 2", made.file(3, 0), made.file(3, 2))
    with_files("plan 5 has no open entry 0", made.file(5))
    state = committed(state, made.file(3, 0))
    with_files("plan 3 has no open entry 0", made.file(3, 0))


@pytest.mark.parametrize("files", [(), (made.file(4, 1),), (made.file(3, 1), made.file(4, 1))])
def test_the_checkpoint_does_not_pass_the_start_of_an_open_file(files: tuple[FileCommitted, ...]) -> None:
    state = two_plans()
    refused(state, made.commit(state, 101, files=files), "plan 3 still has to write rows above 100")
    assert committed(state, *files, checkpoint_ts=100).checkpoint_ts == 100


def test_the_checkpoint_follows_the_first_open_file_of_each_dispatcher() -> None:
    state = two_plans()
    files = [made.file(3, 0), made.file(3, 1)]
    refused(state, made.commit(state, 101, files=files), "plan 4 still has to write rows above 100")
    files.append(made.file(4, 1))
    refused(state, made.commit(state, 111, files=files), "plan 4 still has to write rows above 110")
    state = committed(state, *files, checkpoint_ts=110)
    refused(state, made.commit(state, 111, files=()), "plan 4 still has to write rows above 110")
    assert committed(state, made.file(4, 0), checkpoint_ts=120).checkpoint_ts == 120


def test_a_changefeed_is_not_finished_while_files_are_open() -> None:
    state = two_plans()
    some = (made.file(3, 0), made.file(3, 1))
    refused(state, made.commit(state, 100, files=some, finished=True), "2 files are not written yet")
    refused(state, made.commit(state, 100, files=(), finished=True), "4 files are not written yet")
    assert apply(state, made.commit(state, 120, finished=True)).finished


def cut_in_a_transaction() -> State:
    """Two files of dispatcher 1 part a transaction of commit ts 110."""
    begun, middle = made.begun(), Position(110, 5, 1, b"k")
    first = made.entry(begun, 110).model_copy(update={"to": middle})
    second = made.entry(begun, 120, 1, index=2).model_copy(update={"from_": middle})
    return apply(begun, made.plan(begun, first, second))


def test_the_checkpoint_does_not_pass_a_transaction_one_of_whose_files_is_open() -> None:
    state = cut_in_a_transaction()
    refused(state, made.commit(state, 110, files=(made.file(3, 0),)), "still has to write rows above 109")
    half = committed(state, made.file(3, 0), checkpoint_ts=109)
    assert half.flushed_ts(1) == 109
    refused(half, made.commit(half, 110, files=()), "still has to write rows above 109")
    assert committed(half, made.file(3, 1), checkpoint_ts=120).flushed_ts(1) == 120


def test_rule_10_each_plan_keeps_the_config_that_recorded_it() -> None:
    state = planned(made.begun(), (1, 110))
    state = apply(state, made.epoch(state, "b", config={"fileSize": "other"}))
    state = planned(state, (1, 120), (2, 110))
    state = apply(state, made.epoch(state, "c", config={"fileSize": "third"}))
    state = committed(state, made.file(5, 1))
    assert state.epoch.config == {"fileSize": "third"}
    for each in (state, restore(snapshot(state))):
        assert [(one.plan.n, one.config) for one in each.plans] == [(3, {"fileSize": "a"}), (5, {"fileSize": "other"})]
    assert committed(state, made.file(3, 0), made.file(5, 0)).plans == (), "by the driver of another epoch"


def test_rule_9_a_ddl_waits_for_the_open_files_of_all_plans() -> None:
    def alter(state: State, *dispatchers: int) -> DdlRecord:
        at = made.owned(state)
        return DdlRecord(**at, ts=150, job_id=3, query="alter", involved=dispatchers, dispatchers=dispatchers)

    state = two_plans()
    refused(state, alter(state, 1), "entry 0 of plan 3 has not drained")
    refused(state, alter(state, 3), "entry 1 of plan 4 has not drained")
    refused(state, alter(state, 2, 5), "entry 1 of plan 3 has not drained")
    refused(state, alter(state, 2).model_copy(update={"dispatchers": ()}), "entry 1 of plan 3 has not drained")
    drop = alter(state).model_copy(update={"left": (3,)})
    refused(state, drop, "entry 1 of plan 4 has not drained")
    joins = alter(state).model_copy(update={"dispatchers": (2,)})
    refused(state, joins, "entry 1 of plan 3 has not drained")

    half = committed(state, made.file(3, 0))
    refused(half, alter(half, 1), "entry 0 of plan 4 has not drained")
    drained = committed(half, made.file(4, 0))
    altered = apply(drained, alter(drained, 1))
    assert open_files(altered) == [(3, 1), (4, 1)], "of dispatchers that it does not involve"
    assert (altered.flushed_ts(1), altered.position(1)) == (150, Position.end_of(150))


def test_a_snapshot_has_the_open_plans() -> None:
    state = committed(two_plans(), made.file(3, 1))
    again = restore(snapshot(state))
    assert again == state
    assert snapshot(again) == snapshot(state)
    for each in (state, again):
        assert open_files(each) == [(3, 0), (4, 0), (4, 1)]
        assert each.position(1) == Position.end_of(120)
        assert committed(each, *made.files(each), checkpoint_ts=110).plans == ()


def test_table_infos_are_kept_while_an_open_file_needs_them() -> None:
    state = planned(made.begun(), (1, 110), (2, 110))
    state = apply(state, made.plan(state, made.entry(state, 120, table_info="newer")))
    assert state.dispatchers[1].table_info == "newer"
    assert set(committed(state, made.file(3, 1)).table_infos) == {"info1", "info2", "newer"}
    assert set(committed(state, made.file(3, 0)).table_infos) == {"info2", "newer"}
    assert set(committed(state, *made.files(state)).table_infos) == {"info2", "newer"}
