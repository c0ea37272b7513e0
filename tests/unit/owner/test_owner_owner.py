"""What the owner alone decides, beside the stories of test_owner_scripts.py."""

from __future__ import annotations

import owner_records as made
import owner_segments as s
from changefeed.log.history import apply
from changefeed.log.state import State
from changefeed.owner.owner import Owner
from changefeed.owner.planning.actions import AppendPlan, WriteDdl
from changefeed.schema.table_info import parse_table_info
from changefeed.sink.contract import Ddl
from changefeed.wire import owner_pb2 as pb
from owner_run import BEGAN_MS, BEGAN_TS, INTERVAL_S, began, plan, publish, record, row


def test_what_came_before_the_run_is_planned_as_soon_as_all_of_it_is_there() -> None:
    owner, last = began(), BEGAN_TS
    row(owner, 1, last - 10, last - 1)
    assert not isinstance(owner.step(0.0, BEGAN_MS), AppendPlan), "there may be more"
    row(owner, 2, last, last)
    action = owner.step(0.0, BEGAN_MS)
    assert isinstance(action, AppendPlan)
    assert [entry.to.commit_ts for entry in action.record.entries] == [last]


def test_what_comes_later_waits_for_its_interval() -> None:
    owner, last = began(), BEGAN_TS
    row(owner, 1, last, last)
    plan(owner)
    row(owner, 2, last + 1, last + 1)
    owner.file_done(0, made.file(3))
    publish(owner)
    assert not isinstance(owner.step(0.0, BEGAN_MS), AppendPlan)
    assert isinstance(owner.step(INTERVAL_S, BEGAN_MS), AppendPlan)


def heard(owner: Owner) -> list[int]:
    """What a look after the pullers tells puller 0 of its segments."""
    return [command.heard.segment for _, command in owner.tend(0.0) if command.HasField("heard")]


def test_rule_17_pullers_hear_once_what_is_counted() -> None:
    owner = began()
    row(owner, 1, 2_000, 2_000)
    row(owner, 3, 4_000, 4_000)
    assert (heard(owner), heard(owner)) == ([1], [])
    row(owner, 2, 3_000, 3_000)
    assert heard(owner) == [3]
    owner.puller_joined(0.0, 0)
    assert heard(owner) == [], "a new stream counts from 1"


def test_rule_17_nothing_is_written_on_while_the_store_is_full_and_a_plan_makes_room() -> None:
    owner, last = began(quota=2_000), BEGAN_TS
    row(owner, 1, last, last)
    plan(owner)
    row(owner, 2, last + 1, last + 1)
    assert owner.step(0.0, BEGAN_MS) is None
    commands = [command for _, command in owner.tend(0.0)]
    assert [command.WhichOneof("command") for command in commands] == ["release"], "full: held, and not heard"
    owner.task_joined(0)
    assert owner.hand_out()
    owner.file_done(0, made.file(3))
    assert owner.unneeded_segments() == [], "the log does not know of the file"
    publish(owner)
    for uri in owner.unneeded_segments():
        owner.spans.files.deleted(uri)
    assert heard(owner) == [2]


def test_rule_17_the_store_has_room_for_the_rows_that_an_open_file_waits_for() -> None:
    before = apply(State(), made.start())
    before = apply(before, made.epoch(before, "earlier"))
    before = apply(before, made.plan(before, made.entry(before, BEGAN_TS), resolved_ts=BEGAN_TS))
    owner = began(quota=1_000, dispatchers=2, state=before)
    segment = s.meta(1, s.share(2, 2, [BEGAN_TS]), attempt="span2")
    owner.report(0.0, 1, pb.Report(segments=[segment], resolved=[s.resolved(2, BEGAN_TS, 1)]))
    assert owner.step(0.0, BEGAN_MS) is None
    released = [command.release.sub_id for _, command in owner.tend(0.0) if command.HasField("release")]
    assert (released, owner.unneeded_segments()) == ([2], ["span2/1.arrow"])


def lose(owner: Owner) -> None:
    """All that span 1 has, above what is flushed."""
    owner.follow(owner.spans.hold([1]))
    owner.follow(owner.spans.cut_back(1, 0))


def test_rule_17_room_is_kept_for_files_that_can_be_written_now() -> None:
    owner, last = began(), BEGAN_TS
    row(owner, 1, last, last)
    plan(owner)
    assert owner.under_way().bytes == 10
    lose(owner)
    assert owner.under_way().bytes == 0
    ((_, command),) = owner.spans.resume([1]).commands
    again = pb.Report(resolved=[s.resolved(command.subscribe.sub_id, last, 0)])
    owner.report(0.0, 0, again)
    assert owner.under_way().bytes == 10
    owner.file_done(0, made.file(3))
    assert owner.under_way().bytes == 0


def test_rule_17_no_room_is_kept_for_a_file_whose_rows_are_lost_while_its_plan_is_being_recorded() -> None:
    owner, last = began(), BEGAN_TS
    row(owner, 1, last, last)
    action = owner.step(0.0, BEGAN_MS)
    assert isinstance(action, AppendPlan)
    lose(owner)
    record(owner, action)
    assert owner.under_way().bytes == 0


def test_segments_of_a_file_are_not_needed_once_it_is_committed_whatever_the_checkpoint() -> None:
    owner, last = began(dispatchers=2), BEGAN_TS
    for span_id in (1, 2):
        row(owner, 1, last, last, span_id=span_id)
    plan(owner)
    owner.file_done(0, made.file(3, 0))
    before = owner.state.checkpoint_ts
    publish(owner)
    assert owner.state.checkpoint_ts == before
    assert owner.unneeded_segments() == ["span1/1.arrow"]


def test_rule_2_what_a_ddl_brings_is_not_told_to_a_later_stream_of_the_puller() -> None:
    """Segments of an assignment that has ended would leave a gap in the new stream's numbers for ever."""
    owner = began()
    new = parse_table_info({"id": 7, "name": "new", "state": 5}, "shop")
    owner.barrier.on_ddl(Ddl(110, 1, tables={7: new}))
    owner.barrier.on_resolved(120)
    action = owner.step(0.0, BEGAN_MS)
    assert isinstance(action, WriteDdl)
    owner.recorded(0.0, action, apply(owner.state, action.record))
    owner.puller_left(1.0, 0)
    fresh = [command.subscribe.sub_id for command in owner.puller_joined(1.0, 0)]
    assert len(fresh) == 2
    assert not [command for _, command in owner.tend(1.5) if command.HasField("subscribe")]
