"""Cuts of the planner as entries of plans in the log: their names, where they begin, and that no row is left out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import owner_records as made
import owner_segments as s
import pytest
from changefeed.errors import NeedsHuman
from changefeed.log.history import apply
from changefeed.log.records import PlanRecord
from changefeed.log.state import State
from changefeed.model.position import Position
from changefeed.owner.planning.plan_entries import Table, make_plan
from changefeed.owner.planning.planner import Cut, Planner, Reason, UnderWay
from changefeed.sink.storage.layout import Layout
from hypothesis import given
from hypothesis import strategies as st


def to(limit: int) -> Callable[[int], int]:
    return lambda dispatcher: limit


def entries_of(state: State, cuts: list[Cut], date: str = "2026-01-01", version: int = 1) -> PlanRecord:
    tables = {d: Table(10 + d, f"info{d}", version, f"t{d}/{version}") for d in (cut.dispatcher for cut in cuts)}
    pd_ms = int(datetime.fromisoformat(f"{date}T00:00:00Z").timestamp() * 1000)
    return made.plan(state, *make_plan(state, cuts, tables, Layout("day", 6, ".csv"), pd_ms))


def cut(to_ts: int, from_ts: int = 100, dispatcher: int = 1) -> Cut:
    return Cut(dispatcher, Position.end_of(from_ts), Position.end_of(to_ts), 1, "interval")


def test_rule_15_names_and_dates_come_from_the_log() -> None:
    state = made.begun()
    state = apply(state, entries_of(state, [cut(110), cut(120, 110), cut(110, dispatcher=2)], date="2026-01-02"))
    assert [entry.output["path"] for _, entry in state.open_entries()] == [
        "t1/1/2026-01-02/CDC000001.csv",
        "t1/1/2026-01-02/CDC000002.csv",
        "t2/1/2026-01-02/CDC000001.csv",
    ]
    open_ = entries_of(state, [cut(130, 120)], date="2026-01-02").entries[0]
    assert (open_.output["path"], open_.from_) == ("t1/1/2026-01-02/CDC000003.csv", Position.end_of(120))
    state = apply(state, made.commit(state, 110))
    slow_clock = entries_of(state, [cut(130, 120)], date="2026-01-01").entries[0]
    assert (slow_clock.output["path"], slow_clock.output["date"]) == ("t1/1/2026-01-02/CDC000003.csv", "2026-01-02")
    newer = entries_of(state, [cut(130, 120), cut(140, 130)], date="2026-01-03").entries
    assert [entry.output["index"] for entry in newer] == [1, 2]
    altered = entries_of(state, [cut(130, 120)], date="2026-01-02", version=5)
    assert altered.entries[0].output["path"] == "t1/5/2026-01-02/CDC000001.csv"
    apply(state, altered)


def test_rule_11_a_cut_starts_at_the_checkpoint_of_the_log() -> None:
    state = made.begun()
    state = apply(state, made.commit(state, 150))
    assert entries_of(state, [cut(200)]).entries[0].from_ == Position.end_of(150)
    with pytest.raises(NeedsHuman, match="planned up to 160, in the log up to 150"):
        entries_of(state, [cut(200, from_ts=160)])
    with pytest.raises(NeedsHuman, match="planned up to 100"):
        entries_of(state, [cut(150)])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, list[int]]]:
    rows = st.lists(st.integers(1, 30), min_size=1, max_size=12)
    what = st.sampled_from(
        ["rows", "rows", "rows", "resolve", "resolve", "due", "barrier", "shutdown", "lose", "learn", "commit"]
    )
    return draw(st.lists(st.tuples(what, st.integers(0, 30), rows), min_size=5, max_size=60))


@s.STEADY
@given(histories())
def test_rule_4_and_11_every_row_stands_in_exactly_one_entry(events: list[tuple[str, int, list[int]]]) -> None:
    """Segments overlap, repeat and are lost; limits move; some plans are committed, others stay open.

    The entries partition (start, planned] all the same.
    """
    state = made.begun()
    plans = Planner(60, 5.0, plan_bytes=300, entry_raw_cap=150)
    plans.add(1, state.planned_ts(1))
    now, resolved, delivered = 0.0, 100, list[int]()
    entries: list[tuple[int, int]] = []
    for what, number, rows in events:
        now += 1.0
        if what == "rows":
            ordered = sorted(resolved + row for row in rows)
            delivered += ordered
            plans.on_rows(now, s.segment(1, ordered, point_every=1 + number % 4))
        elif what == "resolve":
            resolved += number
        elif what == "lose":
            stands_at = max(state.flushed_ts(1), resolved - number % 8)
            plans.forget_above(1, stands_at)
            again = sorted(row for row in delivered if row > stands_at)
            if again:
                plans.on_rows(now, s.segment(1, again, point_every=1 + number % 4))
        elif what == "learn":
            plans.learn(1, 100, 10 * number)
        elif what == "commit":
            files = made.files(state)[: 1 + number % 3]
            state = apply(state, made.commit(state, state.checkpoint_ts, files=files))
        else:
            stopped = {1} if what == "barrier" else ()
            all_for: Reason | None = "shutdown" if what == "shutdown" else None
            open_ = {1} if state.plans else ()
            while cuts := plans.due(now, to(resolved), stopped, all_for, UnderWay(open_)):
                assert cuts[-1].to.commit_ts <= resolved
                state = apply(state, entries_of(state, cuts))  # refuses gaps and overlaps
                entries += [(one.from_.commit_ts, one.to.commit_ts) for one in cuts]
            first = plans.first_unplanned_ts(1)
            assert plans.lowest_unplanned_ts() == first
            unplanned = [row for row in delivered if row > state.planned_ts(1)]
            assert not unplanned or (first is not None and first <= min(unplanned))
            if what != "due":
                assert not [row for row in unplanned if row <= resolved]
    assert [start for start, _ in entries] == [100, *[end for _, end in entries]][: len(entries)]
