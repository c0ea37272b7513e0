"""Which tasks are killed because they say nothing, which are left alone, and which one takes a puller's place."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from changefeed.owner.serving.vigilance import (
    ASK_LOOKS,
    KILLS,
    SILENT_LOOKS,
    GiveUp,
    Restart,
    StandIn,
    Tasks,
    Vigilance,
)

PULLER, WRITER = 0, 7  # Spark's first task has the id 0
Found = list[Restart | StandIn | GiveUp]


@pytest.fixture
def vigilance() -> Vigilance:
    made = Vigilance()
    hear(made, {PULLER, WRITER})
    return made


def hear(vigilance: Vigilance, tasks: Collection[int]) -> None:
    for task in tasks:
        vigilance.heard("puller" if task == PULLER else "pipeline", 0, task)


def look(vigilance: Vigilance, running: Collection[int], all_pull: bool = True) -> Found:
    return vigilance.judge(Tasks(running)) if vigilance.look(all_pull) else []


def looks(vigilance: Vigilance, times: int, running: Collection[int], heard: Collection[int] = ()) -> Found:
    """What `times` looks find, while those `heard` go on to be."""
    found: Found = []
    for _ in range(times):
        hear(vigilance, heard)
        found += look(vigilance, running)
    return found


def test_spark_is_seldom_asked_while_everybody_is_heard(vigilance: Vigilance) -> None:
    asked = 0
    for _ in range(10 * ASK_LOOKS):
        hear(vigilance, {PULLER, WRITER})
        if vigilance.look(all_pull=True):
            asked += 1
            assert vigilance.judge(Tasks({PULLER, WRITER})) == []
    assert asked == 10


@pytest.mark.parametrize("frozen", [PULLER, WRITER])
def test_a_task_that_is_silent_is_started_again(vigilance: Vigilance, frozen: int) -> None:
    both = {PULLER, WRITER}
    assert looks(vigilance, SILENT_LOOKS - 1, both, heard=both - {frozen}) == []
    assert looks(vigilance, 1, both, heard=both - {frozen}) == [Restart(frozen)]


def test_a_puller_whose_stream_is_over_is_ended_at_once_if_spark_believes_that_it_runs(vigilance: Vigilance) -> None:
    vigilance.left("puller", 0)
    assert look(vigilance, {PULLER, WRITER}, all_pull=False) == [Restart(PULLER)]
    assert look(vigilance, {8, WRITER}, all_pull=False) == []


def test_a_pipeline_task_whose_stream_is_over_is_ended_too(vigilance: Vigilance) -> None:
    vigilance.left("pipeline", 0)
    assert look(vigilance, {PULLER, WRITER}) == [Restart(WRITER)]


def test_a_puller_that_has_never_come_is_started_again_though_nothing_is_known_of_it() -> None:
    vigilance = Vigilance()
    found = [each for _ in range(SILENT_LOOKS + 1) for each in look(vigilance, {3}, all_pull=False)]
    assert found == [Restart(3)]


def test_a_pipeline_task_that_has_never_come_is_started_again_though_nobody_misses_it(vigilance: Vigilance) -> None:
    found = looks(vigilance, ASK_LOOKS + SILENT_LOOKS, {PULLER, WRITER, 9}, heard={PULLER, WRITER})
    assert found == [Restart(9)]


def test_a_task_that_works_for_hours_is_left_alone_and_freezes_later(vigilance: Vigilance) -> None:
    both = {PULLER, WRITER}
    assert looks(vigilance, 10_000, both, heard=both) == []
    assert looks(vigilance, SILENT_LOOKS, both, heard={PULLER}) == [Restart(WRITER)]


def test_the_next_attempt_of_a_task_has_as_much_time_as_the_first(vigilance: Vigilance) -> None:
    assert looks(vigilance, SILENT_LOOKS, {PULLER, WRITER}, heard={PULLER}) == [Restart(WRITER)]
    assert looks(vigilance, SILENT_LOOKS - 1, {PULLER, WRITER + 1}, heard={PULLER}) == []


def test_an_ended_task_is_forgotten(vigilance: Vigilance) -> None:
    assert looks(vigilance, SILENT_LOOKS * 2, {PULLER}, heard={PULLER}) == []


def test_a_task_that_spark_cannot_end_ends_the_run(vigilance: Vigilance) -> None:
    found = looks(vigilance, SILENT_LOOKS * (KILLS + 1), {PULLER, WRITER}, heard={PULLER})
    assert found[:KILLS] == [Restart(WRITER)] * KILLS
    assert [type(each) for each in found[KILLS:]] == [GiveUp]


# When Spark has no room for a puller.


def test_a_pipeline_task_takes_the_place_of_the_only_puller_and_has_time_to_come(vigilance: Vigilance) -> None:
    vigilance.left("puller", 0)
    vigilance.look(all_pull=False)
    assert vigilance.judge(Tasks({WRITER}, has_waiting=True)) == [StandIn(0, puller=0)]
    vigilance.left("pipeline", 0)  # its stream ends, and nobody kills it for that
    for _ in range(SILENT_LOOKS - 1):
        vigilance.look(all_pull=False)
        assert vigilance.judge(Tasks({WRITER}, has_waiting=True)) == []
    vigilance.heard("puller", 0, WRITER)
    assert looks(vigilance, 3, {WRITER}) == []


def test_while_another_pulls_nobody_takes_a_place(vigilance: Vigilance) -> None:
    """The lost one's spans go to it."""
    vigilance.heard("puller", 1, 5)
    vigilance.left("puller", 0)
    vigilance.look(all_pull=False)
    assert vigilance.judge(Tasks({5, WRITER}, has_waiting=True)) == []


def test_while_one_that_may_be_a_puller_has_not_come_yet_nobody_takes_its_place(vigilance: Vigilance) -> None:
    vigilance.left("puller", 0)
    vigilance.look(all_pull=False)
    assert vigilance.judge(Tasks({8, WRITER}, has_waiting=True)) == []


def test_where_there_is_room_nobody_takes_a_place(vigilance: Vigilance) -> None:
    vigilance.left("puller", 0)
    vigilance.look(all_pull=False)
    assert vigilance.judge(Tasks({WRITER}, has_waiting=False)) == []
