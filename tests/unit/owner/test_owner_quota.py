"""The event store's quota: who is held, who runs, and what is given up when nothing else helps (rule 17)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from changefeed.owner.pulling.load import even_out
from changefeed.owner.pulling.quota import Quota, Relief
from changefeed.puller.back_pressure import BackPressure

LEAD = 10


def store(used: int, resolved: dict[int, int], held: set[int] = frozenset()) -> Any:  # type: ignore[assignment]
    """Every span has segments."""
    return SimpleNamespace(
        files=SimpleNamespace(bytes=used), held=held, reached=lambda needed: resolved, stored=lambda: set(resolved)
    )


def relieve(
    quota: Quota, spans: Any, limit: int = 10_000, idle: bool = False, needed: tuple[int, ...] = (), now: float = 0.0
) -> tuple[list[int], list[int], dict[int, int]]:
    relief: Relief = quota.relieve(now, spans, needed, lambda span_id: limit, idle)
    held = spans.held | set(relief.hold)
    assert not spans.held & set(relief.hold), "one that is held already is held"
    assert spans.held >= set(relief.resume), "one that runs is resumed"
    assert held >= relief.evict.keys(), "one that runs is cut back"
    quota.check(held - set(relief.resume))
    return relief.hold, relief.resume, dict(relief.evict)


FOUR = {1: 100, 2: 200, 3: 300, 4: 400}


@pytest.mark.parametrize(
    ("used", "hold"), [(79, []), (80, []), (81, [4]), (90, [3, 4]), (99, [2, 3, 4]), (100, [1, 2, 3, 4])]
)
def test_rule_17_the_fuller_the_fewer_run_and_the_lowest_in_the_reserve(used: int, hold: list[int]) -> None:
    assert BackPressure(100).decide(used, FOUR, FOUR, set()) == (hold, [])


def test_rule_17_idle_ones_are_not_held() -> None:
    assert BackPressure(100).decide(99, FOUR, {1, 3}, set()) == ([3], [])


def test_rule_17_held_ones_come_back_at_the_low_mark_only() -> None:
    marks = BackPressure(100, LEAD)
    assert marks.decide(61, FOUR, FOUR, {3, 4}) == ([], [])
    assert marks.decide(60, FOUR, FOUR, {3, 4}) == ([], [3, 4])


def test_rule_17_whoever_has_fallen_behind_takes_a_place() -> None:
    marks = BackPressure(100, LEAD)
    assert marks.decide(90, {1: 109, 2: 100, 3: 120}, {1, 2, 3}, {2}) == ([3], [])
    assert marks.decide(90, {1: 110, 2: 100, 3: 120}, {1, 2, 3}, {2}) == ([3], [2])
    assert marks.decide(100, {1: 110, 2: 100}, {1, 2}, {2})[1] == []
    assert marks.decide(79, {1: 110, 2: 100}, {1, 2}, {1, 2}) == ([], [2])


def test_rule_17_what_cant_be_planned_is_evicted_for_the_lowest() -> None:
    full = store(100, FOUR, held={3, 4})
    assert relieve(Quota(100), full, limit=350)[2] == {}  # a plan is being executed: it will make room
    assert relieve(Quota(100), full, limit=350, idle=True) == ([2], [], {4: 350})
    waiting_for_ddls = relieve(Quota(100), full, limit=100, idle=True)
    assert waiting_for_ddls == ([1, 2], [], {})


def test_rule_17_a_plan_that_waits_for_its_rows_has_the_first_place() -> None:
    spans = store(85, FOUR, held={4})
    relief = Quota(100, LEAD).relieve(0.0, spans, {4}, lambda span_id: 500 if span_id == 4 else 0, True)
    assert (relief.hold, dict(relief.evict)) == ([1, 2, 3], {1: 0, 2: 0, 3: 0})
    assert relieve(Quota(100, LEAD), store(70, FOUR, held={4}), needed=(4,)) == ([], [4], {})


def test_rule_17_the_lowest_alone_gets_an_empty_store_at_last() -> None:
    quota, only = Quota(100, LEAD), {1: 100, 2: 200}
    assert relieve(quota, store(100, only, held={2}), idle=True) == ([1], [], {})
    assert relieve(quota, store(85, only, held={1, 2}), idle=True) == ([], [], {1: 0, 2: 0})
    assert relieve(quota, store(0, only, held={1, 2}), idle=True) == ([], [1], {})
    assert relieve(quota, store(0, {1: 101, 2: 200}, held={2}), idle=True) == ([], [2], {})


def test_rule_17_a_table_that_brings_more_than_the_quota_before_it_is_resolved_passes_it_alone() -> None:
    """Else it would be held, forgotten and pulled again for ever."""
    quota, only = Quota(100, LEAD), {1: 100, 2: 200}
    assert relieve(quota, store(100, only, held={2}), idle=True) == ([1], [], {})
    assert relieve(quota, store(50, only, held={1, 2}), idle=True) == ([], [1], {})
    assert relieve(quota, store(100, only, held={2}), idle=True) == ([], [], {2: 0})
    assert relieve(quota, store(150, {1: 100}), idle=True) == ([], [], {})
    assert relieve(quota, store(150, {1: 101, 2: 200}, held={2}), idle=True) == ([1], [], {})


def test_rule_17_who_has_missed_much_comes_back_alone() -> None:
    """Else all scan, the store is full before one is done, and what the others have brought is forgotten."""
    quota = Quota(100, LEAD)
    assert relieve(quota, store(50, FOUR, held={1, 2, 3, 4})) == ([], [1, 2, 3, 4], {})
    assert relieve(quota, store(90, FOUR)) == ([3, 4], [], {})  # two scans are lost: two may run at a time
    assert relieve(quota, store(50, FOUR, held={3, 4})) == ([], [], {})
    assert relieve(quota, store(99, FOUR, held={3, 4})) == ([2], [], {})
    assert relieve(quota, store(50, FOUR, held={2, 3, 4})) == ([], [], {})
    first_done = {1: 500, 2: 200, 3: 300, 4: 400}
    assert relieve(quota, store(50, first_done, held={2, 3, 4})) == ([], [2], {})
    second_done = {1: 500, 2: 500, 3: 300, 4: 400}
    assert relieve(quota, store(30, second_done, held={3, 4})) == ([], [3, 4], {}), "there was room for two"


def test_rule_17_the_lowest_comes_back_whatever_scans() -> None:
    quota = Quota(100, LEAD)
    relieve(quota, store(50, FOUR, held={2, 3, 4}))
    relieve(quota, store(90, FOUR))
    assert relieve(quota, store(50, FOUR, held={1, 3, 4})) == ([], [1], {})


def test_rule_17_a_scan_that_nothing_comes_of_keeps_the_others_waiting_for_a_while_only() -> None:
    quota = Quota(100, LEAD)
    relieve(quota, store(50, FOUR, held={1, 2, 3}))
    assert relieve(quota, store(99, FOUR)) == ([2, 3, 4], [], {})
    assert relieve(quota, store(10, FOUR, held={2, 3, 4}), now=29.0) == ([], [], {})
    assert relieve(quota, store(10, FOUR, held={2, 3, 4}), now=31.0) == ([], [2], {})


def test_load_is_evened_out_with_the_fewest_moves() -> None:
    assert even_out({0: {1: 1, 2: 1, 3: 1}, 1: {4: 1, 5: 1, 6: 1}, 2: {}}) == [(1, 2), (4, 2)]
    assert even_out({0: {1: 1, 2: 1}, 1: {3: 1}}) == []
    assert even_out({0: {1: 100, 2: 60, 3: 50}, 1: {}}) == [(1, 1)]
    assert even_out({0: {1: 100}, 1: {}}) == []
    assert even_out({0: dict.fromkeys(range(100), 10), 1: dict.fromkeys(range(100, 204), 10)}) == []
    assert even_out({}) == []
