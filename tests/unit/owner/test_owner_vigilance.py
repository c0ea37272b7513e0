"""Which tasks are killed because they say nothing, and which are left alone."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from changefeed.owner.serving.vigilance import (
    KILLS,
    QUERY_SILENT_LOOKS,
    SILENT_LOOKS,
    GiveUp,
    Restart,
    Tasks,
    Vigilance,
)

PULLER, WRITER = 0, 7  # Spark's first task has the id 0


@pytest.fixture
def vigilance() -> Vigilance:
    made = Vigilance()
    made.puller_heard(0, PULLER)
    made.query_heard()
    return made


def look(vigilance: Vigilance, running: Collection[int], all_pull: bool = True) -> list[Restart | GiveUp]:
    return vigilance.judge(Tasks(running)) if vigilance.look(all_pull) else []


def looks(
    vigilance: Vigilance, times: int, running: Collection[int], heard: Collection[int] = ()
) -> list[Restart | GiveUp]:
    """What `times` looks find, while those `heard` go on to be."""
    found = []
    for _ in range(times):
        for task in heard:
            if task == PULLER:
                vigilance.puller_heard(0, PULLER)
            else:
                vigilance.heard(task)
        found += look(vigilance, running)
    return found


def test_spark_is_not_asked_while_everybody_is_heard(vigilance: Vigilance) -> None:
    for _ in range(100):
        vigilance.puller_heard(0, PULLER)
        vigilance.query_heard()
        assert not vigilance.look(all_pull=True)


def test_a_puller_that_is_silent_is_started_again(vigilance: Vigilance) -> None:
    assert looks(vigilance, SILENT_LOOKS - 1, {PULLER}) == []
    assert looks(vigilance, 1, {PULLER}) == [Restart(PULLER)]


def test_a_puller_whose_stream_is_over_is_ended_at_once_if_spark_believes_that_it_runs(vigilance: Vigilance) -> None:
    vigilance.puller_left(0)
    assert look(vigilance, {PULLER}, all_pull=False) == [Restart(PULLER)]
    assert look(vigilance, {8}, all_pull=False) == []


def test_a_puller_that_has_never_come_is_started_again_though_nothing_is_known_of_it() -> None:
    vigilance = Vigilance()
    found = [each for _ in range(SILENT_LOOKS + 1) for each in look(vigilance, {3}, all_pull=False)]
    assert found == [Restart(3)]


def test_a_task_that_works_for_hours_is_left_alone_and_freezes_later(vigilance: Vigilance) -> None:
    assert looks(vigilance, 10_000, {PULLER, WRITER}, heard={PULLER, WRITER}) == []
    assert looks(vigilance, SILENT_LOOKS, {PULLER, WRITER}, heard={PULLER}) == [Restart(WRITER)]


def test_a_task_of_a_plan_that_freezes_before_its_first_word_is_started_again(vigilance: Vigilance) -> None:
    found = looks(vigilance, SILENT_LOOKS, {PULLER, WRITER}, heard={PULLER})
    assert found == [Restart(WRITER)]


def test_the_next_attempt_of_a_task_has_as_much_time_as_the_first(vigilance: Vigilance) -> None:
    assert looks(vigilance, SILENT_LOOKS, {PULLER, WRITER}, heard={PULLER}) == [Restart(WRITER)]
    assert looks(vigilance, SILENT_LOOKS - 1, {PULLER, WRITER + 1}, heard={PULLER}) == []


def test_an_ended_task_is_forgotten(vigilance: Vigilance) -> None:
    vigilance.heard(WRITER)
    for _ in range(SILENT_LOOKS * 2):
        vigilance.query_heard()
        assert looks(vigilance, 1, {PULLER}, heard={PULLER}) == []


def test_a_task_that_spark_cannot_end_ends_the_run(vigilance: Vigilance) -> None:
    vigilance.heard(WRITER)
    found = looks(vigilance, SILENT_LOOKS * (KILLS + 1), {PULLER, WRITER}, heard={PULLER})
    assert found[:KILLS] == [Restart(WRITER)] * KILLS
    assert [type(each) for each in found[KILLS:]] == [GiveUp]


def test_a_query_that_asks_for_nothing_and_runs_nothing_ends_the_run(vigilance: Vigilance) -> None:
    found = looks(vigilance, QUERY_SILENT_LOOKS, {PULLER}, heard={PULLER})
    assert [type(each) for each in found] == [GiveUp]


def test_a_query_that_waits_for_a_task_is_left_alone(vigilance: Vigilance) -> None:
    assert looks(vigilance, QUERY_SILENT_LOOKS * 3, {PULLER, WRITER}, heard={PULLER, WRITER}) == []


def test_a_query_whose_tasks_find_no_executor_is_left_alone(vigilance: Vigilance) -> None:
    """A quota, or a full cluster: Spark goes on asking for executors, and another driver would get none either."""
    for _ in range(QUERY_SILENT_LOOKS * 3):
        vigilance.puller_heard(0, PULLER)
        vigilance.look(all_pull=True)
        assert vigilance.judge(Tasks({PULLER}, has_waiting=True)) == []
    assert [type(each) for each in looks(vigilance, QUERY_SILENT_LOOKS, {PULLER}, heard={PULLER})] == [GiveUp]
