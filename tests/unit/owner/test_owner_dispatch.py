"""Which pipeline task is given which file."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from changefeed.owner.writing.dispatch import Dispatch
from changefeed.owner.writing.open_entries import EntryKey

MIB = 1 << 20


def key(text: str) -> EntryKey:
    return EntryKey(*map(int, text.split("/")))


def opened(*sizes: int, tasks: int = 0, plan: int = 3) -> Dispatch:
    """The files of one plan, in order, and tasks 0, 1, ..."""
    dispatch = Dispatch()
    for number, size in enumerate(sizes):
        dispatch.opened(EntryKey(plan, number), number, size)
    for task in range(tasks):
        dispatch.joined(task)
    return dispatch


def given(dispatch: Dispatch, but: Iterable[str] = ()) -> dict[int, str]:
    """What `give` gives each task, when all can be written `but` these."""
    closed = set(map(key, but))
    found = dispatch.give(lambda each: each not in closed)
    return {task: " ".join(f"{each.plan}/{each.entry}" for each in files) for task, files in sorted(found.items())}


@pytest.mark.parametrize(
    ("sizes", "tasks", "expected"),
    [
        ([], 2, {}),
        ([5, 5], 0, {}),
        ([5], 2, {0: "3/0"}),
        ([5, 5], 2, {0: "3/0", 1: "3/1"}),
        ([9, 2, 2, 2], 2, {0: "3/0", 1: "3/1 3/2 3/3"}),
        ([1, 5, 1, 1, 1, 1], 2, {0: "3/0 3/2 3/3 3/4 3/5", 1: "3/1"}),
        ([0, 0, 0, 0], 2, {0: "3/0 3/2", 1: "3/1 3/3"}),  # by their number, when all weigh the same
    ],
)
def test_a_file_goes_to_the_task_with_the_least_to_write(
    sizes: list[int], tasks: int, expected: dict[int, str]
) -> None:
    assert given(opened(*sizes, tasks=tasks)) == expected


@pytest.mark.parametrize(
    ("size", "ahead"),
    [
        (300 * MIB, 2),  # a few, however large
        (8 * MIB, 2),
        (4 * MIB, 2),
        (3 * MIB, 3),  # 8 MiB are passed with the third
        (1 * MIB, 8),
        (1, 64),
    ],
)
def test_a_task_is_given_so_much_ahead(size: int, ahead: int) -> None:
    dispatch = opened(*[size] * 200, tasks=1)
    assert len(given(dispatch)[0].split()) == ahead
    assert given(dispatch) == {}
    dispatch.done(key("3/0"))
    assert given(dispatch) == {0: f"3/{ahead}"}, "one is done, one more is given"


def test_every_task_has_its_own_room() -> None:
    dispatch = opened(*[100 * MIB] * 5, tasks=2)
    assert given(dispatch) == {0: "3/0 3/2", 1: "3/1 3/3"}
    dispatch.done(key("3/3"))
    assert given(dispatch) == {1: "3/4"}


def test_what_can_not_be_written_yet_is_passed_over_and_given_later_in_its_order() -> None:
    dispatch = opened(1, 1, 1, 1, tasks=1)
    assert given(dispatch, but=["3/0", "3/2"]) == {0: "3/1 3/3"}
    assert given(dispatch, but=["3/0", "3/2"]) == {}
    dispatch.opened(key("4/0"), 0, 1)
    assert given(dispatch, but=["3/2"]) == {0: "3/0 4/0"}
    assert given(dispatch) == {0: "3/2"}


def test_files_that_can_not_be_written_take_no_room() -> None:
    dispatch = opened(*[100 * MIB] * 6, tasks=1)
    assert given(dispatch, but=["3/0", "3/1", "3/2"]) == {0: "3/3 3/4"}


def test_what_a_lost_task_was_given_is_given_again_before_what_was_planned_later() -> None:
    dispatch = opened(*[100 * MIB] * 6, tasks=2)
    assert given(dispatch) == {0: "3/0 3/2", 1: "3/1 3/3"}
    dispatch.left(0)
    assert dispatch.tasks == 1
    dispatch.done(key("3/1"))
    assert given(dispatch) == {1: "3/0"}
    dispatch.joined(2)
    assert given(dispatch) == {2: "3/2 3/4"}


def test_what_a_lost_task_has_written_is_not_given_again() -> None:
    dispatch = opened(1, 1, tasks=1)
    given(dispatch)
    dispatch.done(key("3/0"))
    dispatch.left(0)
    dispatch.joined(1)
    assert given(dispatch) == {1: "3/1"}


def test_a_task_that_nobody_knows_may_leave() -> None:
    dispatch = opened(1, tasks=1)
    dispatch.left(7)
    assert given(dispatch) == {0: "3/0"}


def test_a_file_that_another_task_has_written_frees_the_room_of_the_one_that_has_it() -> None:
    dispatch = opened(*[100 * MIB] * 4, tasks=1)
    assert given(dispatch) == {0: "3/0 3/1"}
    dispatch.left(0)
    dispatch.joined(1)
    assert given(dispatch) == {1: "3/0 3/1"}
    dispatch.done(key("3/0"))  # by task 0, which was at it still
    assert given(dispatch) == {1: "3/2"}
    dispatch.done(key("3/0"))
    assert given(dispatch) == {}, "known already"


def test_a_file_that_is_done_while_it_waits_is_given_to_nobody() -> None:
    dispatch = opened(1, 1, tasks=1)
    given(dispatch)
    dispatch.left(0)
    dispatch.done(key("3/0"))
    dispatch.joined(1)
    assert given(dispatch) == {1: "3/1"}


def test_a_loss_changes_nothing_for_the_others() -> None:
    dispatch = opened(*[100 * MIB] * 4, tasks=2)
    given(dispatch)
    dispatch.left(0)
    assert given(dispatch) == {}, "task 1 has its two"
    dispatch.done(key("3/1"))
    dispatch.done(key("3/3"))
    assert given(dispatch) == {1: "3/0 3/2"}


# In order.


def ordered(*dispatchers: int, tasks: int = 2) -> Dispatch:
    """One entry of each, in this order; those of one dispatcher one behind the other."""
    dispatch = Dispatch(in_order=True)
    for number, dispatcher in enumerate(dispatchers):
        dispatch.opened(EntryKey(3, number), dispatcher, 1)
    for task in range(tasks):
        dispatch.joined(task)
    return dispatch


def test_in_order_a_dispatchers_entries_go_to_one_task() -> None:
    dispatch = ordered(7, 8, 7, 8, 7)
    assert given(dispatch) == {0: "3/0 3/2 3/4", 1: "3/1 3/3"}
    assert (dispatch.writer(7), dispatch.writer(8)) == (1, 2)


def test_in_order_nothing_passes_an_entry_that_waits() -> None:
    dispatch = ordered(7, 8, 7)
    assert given(dispatch, but=["3/0"]) == {0: "3/1"}
    assert given(dispatch) == {1: "3/0 3/2"}


def test_in_order_a_holder_without_room_is_waited_for() -> None:
    dispatch = Dispatch(in_order=True)
    for number in range(3):
        dispatch.opened(EntryKey(3, number), 7, 100 * MIB)
    dispatch.joined(0)
    dispatch.joined(1)
    assert given(dispatch) == {0: "3/0 3/1"}
    dispatch.done(key("3/0"))
    assert given(dispatch) == {0: "3/2"}
    assert dispatch.writer(7) == 1


def test_in_order_a_dispatcher_that_has_nothing_unwritten_stays_where_it_was_if_there_is_room() -> None:
    dispatch = ordered(7, tasks=2)
    assert given(dispatch) == {0: "3/0"}
    dispatch.done(key("3/0"))
    dispatch.opened(EntryKey(4, 0), 8, 1)
    assert given(dispatch) == {0: "4/0"}
    dispatch.opened(EntryKey(5, 0), 7, 1)
    assert given(dispatch) == {0: "5/0"}, "though the other one has nothing to do"
    assert dispatch.writer(7) == 1


def test_rule_25_who_follows_a_lost_task_has_another_number() -> None:
    dispatch = ordered(7, 7)
    assert given(dispatch) == {0: "3/0 3/1"}
    dispatch.done(key("3/0"))
    dispatch.left(0)
    assert given(dispatch) == {1: "3/1"}
    assert dispatch.writer(7) == 2
    dispatch.left(1)
    dispatch.joined(1)
    assert given(dispatch) == {1: "3/1"}, "the same number of a task, another task"
    assert dispatch.writer(7) == 3


def test_in_order_what_is_behind_an_entry_that_is_given_back_is_waited_for() -> None:
    dispatch = ordered(7, 7, 7)
    assert given(dispatch, but=["3/2"]) == {0: "3/0 3/1"}
    dispatch.given_back(0, key("3/0"))
    assert given(dispatch) == {}, "the task still has 3/1, and will give it back"
    dispatch.given_back(0, key("3/1"))
    assert given(dispatch) == {0: "3/0 3/1 3/2"}
    assert dispatch.writer(7) == 2
