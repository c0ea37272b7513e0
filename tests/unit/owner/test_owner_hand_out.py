"""What pipeline tasks are given to write, and when what they have written is published."""

from __future__ import annotations

import json

import owner_records as made
import owner_segments as s
import pytest
from changefeed.log.history import apply
from changefeed.log.state import State
from changefeed.owner.owner import Owner
from changefeed.owner.planning.actions import AppendCheckpoint, AppendPlan, Publish, Stop, WriteDdl
from changefeed.pipeline.work import Work
from changefeed.sink.contract import Ddl
from changefeed.sink.storage.driver import ends
from changefeed.wire import owner_pb2 as pb
from owner_run import BEGAN_MS, BEGAN_TS, INTERVAL_S, began, plan, publish, record, row


def with_one_plan(dispatchers: int = 1) -> Owner:
    """Plan 3, with a file of each dispatcher up to BEGAN_TS."""
    owner = began(dispatchers=dispatchers, file_size=100)
    for each in range(1, dispatchers + 1):
        row(owner, 1, BEGAN_TS, BEGAN_TS, each)
    assert plan(owner).record.n == 3
    return owner


def with_two_plans() -> Owner:
    """Plan 4 has one more file of span 1, a full one."""
    owner = with_one_plan(2)
    row(owner, 2, BEGAN_TS + 5, BEGAN_TS + 5, rows=10)
    assert plan(owner).record.n == 4
    return owner


def shown(given: list[tuple[int, Work]]) -> list[tuple[int, int, list[int]]]:
    """(task, plan, entries)"""
    return [(task, work.record, [each.plan_entry.entry for each in work.entries]) for task, work in given]


def indexes(action: Publish) -> list[str]:
    """The last file of each index that is written."""
    written = ends(action.entries)
    assert all(path == f"{directory}/{number}.csv" for directory, number, path in written)
    return [path for _, _, path in written]


def test_a_task_is_given_all_that_it_needs_to_write_a_file() -> None:
    owner = with_one_plan()
    assert owner.hand_out() == [], "there is no task"
    owner.task_joined(4)
    ((task, work),) = owner.hand_out()
    recorded = owner.state.plans[0].plan
    assert (task, work.record, work.epoch, work.nonce) == (4, 3, 1, "run1")
    assert (work.pd_ms, work.codec, json.loads(work.config)) == (BEGAN_MS, "codec", {"fileSize": "run1"})
    assert work.table_infos == {"info1": "{}"}
    (entry,) = work.entries
    assert entry.plan_entry == recorded.entries[0]
    assert [(segment.uri, segment.run, segment.rows) for segment in entry.segments] == [("span1/1.arrow", "1-run1", 1)]
    assert owner.hand_out() == [], "it has it"


def test_files_are_shared_out_among_the_tasks() -> None:
    owner = with_two_plans()
    owner.task_joined(0)
    owner.task_joined(1)
    assert shown(owner.hand_out()) == [(0, 3, [0]), (0, 4, [0]), (1, 3, [1])], "a message has files of one plan"
    assert owner.hand_out() == []


def test_a_task_that_joins_again_has_nothing() -> None:
    owner = with_one_plan(2)
    owner.task_joined(0)
    assert shown(owner.hand_out()) == [(0, 3, [0, 1])]
    owner.task_joined(0)
    assert shown(owner.hand_out()) == [(0, 3, [0, 1])], "what its last stream was given is lost with that"


def test_what_a_lost_task_has_not_written_is_handed_out_again() -> None:
    owner = with_one_plan(2)
    owner.task_joined(0)
    assert shown(owner.hand_out()) == [(0, 3, [0, 1])]
    owner.file_done(0, made.file(3, 1))
    owner.task_left(0)
    owner.task_joined(1)
    assert shown(owner.hand_out()) == [(1, 3, [0])]


def taken_over(before: State) -> Owner:
    """A second run goes on with what the first one has planned."""
    owner = began(state=before, dispatchers=2)
    owner.task_joined(0)
    return owner


def test_rule_3_a_file_of_an_earlier_run_is_handed_out_once_its_rows_are_there_again() -> None:
    owner = taken_over(with_one_plan(2).state)
    assert owner.hand_out() == []
    row(owner, 1, BEGAN_TS, BEGAN_TS - 1, 2)
    assert owner.hand_out() == [], "there may be more"
    row(owner, 2, BEGAN_TS, BEGAN_TS, 2)
    ((task, work),) = owner.hand_out()
    assert shown([(task, work)]) == [(0, 3, [1])], "that of span 1 waits for its own"
    assert {segment.run for segment in work.entries[0].segments} == {"2-run3"}
    row(owner, 1, BEGAN_TS, BEGAN_TS)
    assert shown(owner.hand_out()) == [(0, 3, [0])]
    assert owner.planner.first_unplanned_ts(1) is None, "its rows are planned already"


def test_rule_10_files_of_several_plans_come_each_with_the_config_of_its_own() -> None:
    owner = taken_over(with_one_plan(2).state)
    row(owner, 1, BEGAN_TS, BEGAN_TS + 9)
    row(owner, 2, BEGAN_TS + 9, BEGAN_TS + 9)
    row(owner, 1, BEGAN_TS, BEGAN_TS + 9, 2)
    owner.file_done(0, made.file(3))
    publish(owner)
    later = plan(owner, INTERVAL_S)
    assert [entry.dispatcher for entry in later.record.entries] == [1]
    works = [work for _, work in owner.hand_out()]
    assert [(work.record, json.loads(work.config), list(work.table_infos)) for work in works] == [
        (3, {"fileSize": "run1"}, ["info2"]),
        (later.record.n, {"fileSize": "run3"}, ["info1"]),
    ]
    assert {(work.epoch, work.nonce) for work in works} == {(2, "run3")}, "of the run that writes them"


def test_rule_20_what_is_said_of_a_file_that_is_not_open_is_dropped() -> None:
    owner = with_one_plan()
    for plan_number, entry in ((2, 0), (3, 1), (4, 0)):
        owner.file_done(0, made.file(plan_number, entry))
    assert not isinstance(owner.step(0.0, BEGAN_MS), Publish)
    owner.file_done(0, made.file(3, rows=5))
    owner.file_done(0, made.file(3, rows=6))
    assert [file.rows for file in publish(owner).record.files] == [5]
    owner.file_done(0, made.file(3, rows=7))
    assert not isinstance(owner.step(0.0, BEGAN_MS), Publish)


def test_files_of_several_plans_are_published_together() -> None:
    owner = with_two_plans()
    owner.file_done(0, made.file(4))
    assert not isinstance(owner.step(0.0, BEGAN_MS), Publish), "span 1 has one before it"
    owner.file_done(0, made.file(3))
    action = publish(owner)
    assert [(file.plan, file.entry) for file in action.record.files] == [(3, 0), (4, 0)]
    assert indexes(action) == ["s/t1/1/2.csv"]
    assert action.record.checkpoint_ts == made.START_TS, "span 2 has a file open"
    owner.file_done(0, made.file(3, 1))
    assert publish(owner).record.checkpoint_ts == BEGAN_TS
    assert owner.state.plans == ()


def test_a_span_whose_last_open_file_is_published_brings_the_checkpoint_as_far_as_it_is_resolved() -> None:
    owner = with_one_plan()
    owner.report(0.0, 0, pb.Report(resolved=[s.resolved(1, BEGAN_TS + 9, 0)]))
    owner.barrier.on_resolved(BEGAN_TS + 9)
    owner.file_done(0, made.file(3))
    assert publish(owner).record.checkpoint_ts == BEGAN_TS + 9


def test_files_that_are_done_soon_after_others_wait_a_moment_for_more() -> None:
    owner = with_one_plan(4)
    owner.file_done(0, made.file(3, 3))
    assert [file.entry for file in publish(owner, 10.0).record.files] == [3], "at once: nothing came before"
    assert owner.next_deadline() is None
    owner.file_done(0, made.file(3, 1))
    assert owner.step(10.09, BEGAN_MS) is None
    assert owner.next_deadline() == pytest.approx(10.1)
    owner.file_done(0, made.file(3, 2))
    assert [file.entry for file in publish(owner, 10.11).record.files] == [1, 2]
    owner.file_done(0, made.file(3, 0))
    assert [file.entry for file in publish(owner, 10.12).record.files] == [0], "at once: there are no more"


def test_a_file_that_waits_for_another_asks_for_no_look() -> None:
    """A driver would look again and again for as long as the other takes."""
    owner = with_two_plans()
    owner.file_done(0, made.file(3, 1))
    publish(owner, 10.0)
    owner.file_done(0, made.file(4))
    assert owner.step(20.0, BEGAN_MS) is None
    assert owner.next_deadline() is None


def test_a_span_whose_file_is_slow_gets_no_further_one_until_it_is_full() -> None:
    owner = with_one_plan(2)
    row(owner, 2, BEGAN_TS + 5, BEGAN_TS + 5)
    row(owner, 2, BEGAN_TS + 5, BEGAN_TS + 5, 2)
    owner.file_done(0, made.file(3, 1))
    publish(owner)
    later = plan(owner, INTERVAL_S)
    assert [(entry.dispatcher, entry.reason) for entry in later.record.entries] == [(2, "interval")]
    assert not isinstance(owner.step(9 * INTERVAL_S, BEGAN_MS), AppendPlan)
    row(owner, 3, BEGAN_TS + 6, BEGAN_TS + 6, rows=9)
    full = plan(owner, 9 * INTERVAL_S)
    assert [(entry.dispatcher, entry.reason) for entry in full.record.entries] == [(1, "size")]


@pytest.mark.parametrize("is_there", [False, True])
def test_room_is_kept_for_what_can_be_written_only(is_there: bool) -> None:
    """Else an earlier run's files could keep those that make room for their rows from being planned."""
    state = apply(State(), made.start())
    state = apply(state, made.epoch(state, "earlier"))
    huge = made.entry(state, BEGAN_TS, estimate=1 << 40, directory="s/t1/1", date="")
    state = apply(state, made.plan(state, huge, resolved_ts=BEGAN_TS))
    owner = taken_over(state)
    if is_there:
        row(owner, 1, BEGAN_TS, BEGAN_TS)
    row(owner, 1, BEGAN_TS + 5, BEGAN_TS + 5, 2, rows=1 << 17)
    assert isinstance(owner.step(INTERVAL_S, BEGAN_MS), AppendPlan) is not is_there


def test_segments_that_a_task_may_be_reading_are_not_deleted() -> None:
    owner = with_one_plan()
    owner.task_joined(0)
    assert owner.hand_out()
    owner.spans.hold([1])
    owner.spans.cut_back(1, made.START_TS)
    assert owner.unneeded_segments() == [], "the span is pulled anew, but the file is made from what was there"
    owner.file_done(0, made.file(3))
    publish(owner)
    assert owner.unneeded_segments() == ["span1/1.arrow"]


@pytest.mark.parametrize("joins_again", [False, True], ids=["its stream ends", "its next stream comes first"])
def test_rule_17_segments_of_a_file_that_nobody_writes_any_more_are_not_kept(joins_again: bool) -> None:
    """They are of no use once its span is pulled anew, and what they take up could keep that from being pulled."""
    owner = with_one_plan()
    owner.task_joined(0)
    assert owner.hand_out()
    owner.spans.hold([1])
    owner.spans.cut_back(1, made.START_TS)
    if joins_again:
        owner.task_joined(0)
    else:
        owner.task_left(0)
    assert owner.unneeded_segments() == ["span1/1.arrow"]


def test_rule_9_a_ddl_waits_for_open_files_of_every_plan() -> None:
    owner = with_one_plan()
    owner.barrier.on_ddl(Ddl(BEGAN_TS + 5, 1, involved=frozenset({1})))
    row(owner, 2, BEGAN_TS + 5, BEGAN_TS + 9)
    assert [entry.reason for entry in plan(owner).record.entries] == ["barrier"]
    assert owner.step(0.0, BEGAN_MS) is None
    owner.file_done(0, made.file(4))
    assert owner.step(0.0, BEGAN_MS) is None
    owner.file_done(0, made.file(3))
    assert publish(owner).record.checkpoint_ts == BEGAN_TS + 4
    assert isinstance(owner.step(0.0, BEGAN_MS), WriteDdl)


def test_a_drain_ends_when_the_last_open_file_is_committed() -> None:
    owner = with_one_plan()
    row(owner, 2, BEGAN_TS + 5, BEGAN_TS + 5)
    owner.drain()
    assert [entry.reason for entry in plan(owner).record.entries] == ["shutdown"]
    assert owner.step(0.0, BEGAN_MS) is None
    owner.file_done(0, made.file(3))
    assert publish(owner).record.checkpoint_ts == BEGAN_TS
    assert owner.step(0.0, BEGAN_MS) is None
    owner.file_done(0, made.file(4))
    publish(owner)
    assert isinstance(owner.step(0.0, BEGAN_MS), Stop)


def test_rule_11_the_checkpoint_moves_without_files_up_to_the_first_open_one() -> None:
    owner = with_one_plan(2)
    row(owner, 2, BEGAN_TS + 9, BEGAN_TS + 5)
    owner.file_done(0, made.file(3))
    publish(owner)
    assert owner.step(60.0, BEGAN_MS) is None, "span 2 is open from the start"
    owner.file_done(0, made.file(3, 1))
    assert publish(owner, 60.0).record.checkpoint_ts == BEGAN_TS
    owner.report(0.0, 1, pb.Report(resolved=[s.resolved(2, BEGAN_TS + 5, 0)]))
    action = owner.step(70.0, BEGAN_MS)
    assert isinstance(action, AppendCheckpoint)
    record(owner, action, 70.0)
    assert owner.state.checkpoint_ts == BEGAN_TS + 5
