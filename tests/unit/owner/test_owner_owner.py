"""What the owner alone decides, beside the cores that it is made of (stories of those: test_owner_scripts.py)."""

from __future__ import annotations

import owner_records as made
import owner_segments as s
from changefeed.model.tso import compose
from changefeed.owner.owner import Owner, Run
from changefeed.owner.planning.actions import AppendPlan, Publish, WriteDdl
from changefeed.owner.planning.barrier import Barrier, Ddl
from changefeed.owner.planning.planner import Planner, Table
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.transaction_log.history import apply
from changefeed.owner.transaction_log.state import State
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.wire import owner_pb2 as pb

BEGAN_MS = 5_000
INTERVAL_S = 60.0


class Names:
    def date(self, pd_ms: int) -> str:
        return ""

    def directory(self, place: str, date: str) -> str:
        return place

    def place(self, table: TableInfo, dispatcher: int, table_version: int) -> str:
        return f"t{dispatcher}/{table_version}"

    def data_file(self, directory: str, index: int) -> str:
        return f"{directory}/{index}.csv"


def began(quota: int = 1 << 30) -> Owner:
    """Just now, with one span and its puller."""
    state = apply(State(), made.start())
    state = apply(state, made.epoch(state, "a"))
    spans = Spans(1)
    spans.add_span(1, b"a", b"b", made.START_TS)
    owner = Owner(
        state=state,
        run=Run(1, "a", "codec"),
        tables={1: Table(11, "info1", 1, "s/t1/1")},
        table_infos={"info1": {}},
        names=Names(),
        spans=spans,
        barrier=Barrier(made.START_TS),
        planner=Planner(1 << 20, INTERVAL_S),
        quota=Quota(quota),
    )
    owner.puller_joined(0.0, 0)
    owner.begin(BEGAN_MS)
    return owner


def row(owner: Owner, seq: int, ts: int, resolved_ts: int) -> None:
    """It comes, and all up to resolved_ts with it."""
    rows = s.meta(seq, s.share(1, 1, [ts]))
    owner.report(0.0, 0, pb.Report(segments=[rows], resolved=[s.resolved(1, resolved_ts, seq)]))
    owner.barrier.on_resolved(resolved_ts)


def test_what_came_before_the_run_is_planned_as_soon_as_all_of_it_is_there() -> None:
    owner, last = began(), compose(BEGAN_MS)
    row(owner, 1, last - 10, last - 1)
    assert not isinstance(owner.step(0.0, BEGAN_MS), AppendPlan), "there may be more"
    row(owner, 2, last, last)
    action = owner.step(0.0, BEGAN_MS)
    assert isinstance(action, AppendPlan)
    assert [entry.to.commit_ts for entry in action.record.entries] == [last]


def test_what_comes_later_waits_for_its_interval() -> None:
    owner, last = began(), compose(BEGAN_MS)
    row(owner, 1, last, last)
    action = owner.step(0.0, BEGAN_MS)
    assert isinstance(action, AppendPlan)
    owner.recorded(0.0, action, apply(owner.state, action.record))
    row(owner, 2, last + 1, last + 1)
    done = apply(owner.state, made.commit(owner.state, last))
    owner.state = done
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
    owner, last = began(quota=2_000), compose(BEGAN_MS)
    row(owner, 1, last, last)
    action = owner.step(0.0, BEGAN_MS)
    assert isinstance(action, AppendPlan)
    owner.recorded(0.0, action, apply(owner.state, action.record))
    row(owner, 2, last + 1, last + 1)
    commands = [command for _, command in owner.tend(0.0)]
    assert [command.WhichOneof("command") for command in commands] == ["release"], "full: held, and not heard"
    owner.latest()
    (file,) = made.files(1)
    owner.file_done(action.record.n, "a", file)
    published = owner.step(0.0, BEGAN_MS)
    assert isinstance(published, Publish)
    owner.recorded(0.0, published, apply(owner.state, published.record))
    for uri in owner.unneeded_segments():
        owner.spans.files.deleted(uri)
    assert heard(owner) == [2]


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
