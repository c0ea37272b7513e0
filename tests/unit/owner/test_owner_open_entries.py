"""Which files of the open plans are unwritten, done, and may be committed."""

from __future__ import annotations

import owner_records as made
import pytest
from changefeed.log.history import apply
from changefeed.log.records import FileCommitted
from changefeed.log.state import State
from changefeed.owner.writing.open_entries import EntryKey, OpenEntries


def log_of(*plans: str) -> State:
    """A log with plans from record 3 on; each is told by its files' dispatchers: "1 2 1"."""
    state = made.begun()
    for dispatchers in plans:
        entries = []
        after = state
        for number, dispatcher in enumerate(map(int, dispatchers.split())):
            entries.append(made.entry(after, after.planned_ts(dispatcher) + 10, number, dispatcher))
            one = made.plan(state, *entries)
            after = apply(state, one)
        state = after
    return state


def keys(files: list[FileCommitted]) -> str:
    return " ".join(f"{file.plan}/{file.entry}" for file in files)


def file(key: str) -> FileCommitted:
    plan, entry = map(int, key.split("/"))
    return made.file(plan, entry)


def done(state: State, files: str) -> OpenEntries:
    entries = OpenEntries(state)
    for key in files.split():
        assert entries.done(file(key))
    return entries


def committable(entries: OpenEntries) -> str:
    return keys([file for file, _ in entries.committable()])


def unwritten(entries: OpenEntries) -> str:
    return " ".join(f"{key.plan}/{key.entry}" for key, _ in entries.unwritten())


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("", ""),
        ("3/0", "3/0"),
        ("3/1", "3/1"),
        ("3/2", ""),  # the second one of dispatcher 1
        ("4/0", ""),  # the third one of it
        ("4/1", ""),  # the second one of dispatcher 2
        ("4/2", "4/2"),  # the first one of dispatcher 3, in the second plan
        ("3/2 3/0", "3/0 3/2"),
        ("4/0 3/0", "3/0"),
        ("4/0 3/2 3/0", "3/0 3/2 4/0"),
        ("4/1 4/0 3/1", "3/1 4/1"),
        ("4/2 4/1 4/0 3/2 3/1 3/0", "3/0 3/1 3/2 4/0 4/1 4/2"),
    ],
)
def test_rule_8_of_each_dispatcher_the_files_up_to_the_first_that_is_not_done(files: str, expected: str) -> None:
    state = log_of("1 2 1", "1 2 3")
    entries = done(state, files)
    assert committable(entries) == expected
    assert entries.can_commit == bool(expected)
    commit = made.commit(state, state.checkpoint_ts, files=[one for one, _ in entries.committable()])
    assert apply(state, commit).rows == len(expected.split()), "the log takes them"


def test_what_is_committable_comes_with_its_entry() -> None:
    state = log_of("1 2")
    pairs = done(state, "3/1 3/0").committable()
    assert [(one.plan, one.entry, entry) for one, entry in pairs] == [
        (3, number, state.plans[0].plan.entries[number]) for number in (0, 1)
    ]


def test_a_file_is_done_once_and_only_while_it_is_open() -> None:
    entries = done(log_of("1 2"), "3/0")
    for key in ("3/0", "3/2", "2/0", "4/0"):
        assert not entries.done(file(key)), key
    assert committable(entries) == "3/0"
    entries.committed([file("3/0")])
    assert not entries.done(file("3/0")), "the log has it"
    assert (committable(entries), entries.can_commit) == ("", False)


def test_the_first_report_of_a_file_counts() -> None:
    entries = done(log_of("1"), "3/0")
    entries.done(made.file(3, 0, rows=7))
    assert [one.rows for one, _ in entries.committable()] == [1]


def test_files_are_unwritten_until_they_are_done_and_open_until_they_are_committed() -> None:
    entries = done(log_of("1 2 1", "2 3"), "")
    assert (unwritten(entries), len(entries), set(entries.dispatchers)) == ("3/0 3/1 3/2 4/0 4/1", 5, {1, 2, 3})
    for key in ("4/0", "3/0"):
        entries.done(file(key))
    assert (unwritten(entries), len(entries)) == ("3/1 3/2 4/1", 5)
    entries.done(file("3/1"))
    entries.committed([file(key) for key in ("3/0", "3/1", "4/0")])
    assert (unwritten(entries), len(entries), set(entries.dispatchers)) == ("3/2 4/1", 2, {1, 3})
    assert [key for key, _ in entries.of(1)] == [EntryKey(3, 2)]
    assert list(entries.of(2)) == []


def test_all_is_done_when_no_open_file_is_left_to_write() -> None:
    entries = done(log_of("1 2", "1"), "3/0 3/1")
    seen = [entries.all_done]
    entries.done(file("4/0"))
    seen.append(entries.all_done)
    entries.committed([file("3/1")])
    seen.append(entries.all_done)
    entries.planned(5, log_of("1").plans[0].plan.entries)
    seen.append(entries.all_done)
    assert seen == [False, True, True, False]


def test_a_new_plan_comes_after_what_is_open() -> None:
    state = log_of("1 2", "1")
    entries = OpenEntries(log_of("1 2"))
    entries.planned(4, state.plans[1].plan.entries)
    assert unwritten(entries) == "3/0 3/1 4/0"
    assert [(key, entry.to.commit_ts) for key, entry in entries.of(1)] == [(EntryKey(3, 0), 110), (EntryKey(4, 0), 120)]
    assert entries.entry(EntryKey(4, 0)) == state.plans[1].plan.entries[0]


def test_what_an_earlier_driver_has_committed_is_not_open() -> None:
    state = log_of("1 2 1", "2")
    state = apply(state, made.commit(state, state.checkpoint_ts, files=[file("3/0"), file("3/1")]))
    entries = OpenEntries(apply(state, made.epoch(state, "b")))
    assert (unwritten(entries), len(entries)) == ("3/2 4/0", 2)
    assert not entries.done(file("3/0"))
    entries.done(file("4/0"))
    assert committable(entries) == "4/0"
