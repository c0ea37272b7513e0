"""What is told of a table's entries, whatever the order in which they are written."""

from __future__ import annotations

import pytest
from changefeed.errors import ChangefeedError, NeedsHuman
from changefeed.sink.contract import Entry, Event, Written
from changefeed.sink.table_sink import TableSink
from hypothesis import given
from hypothesis import strategies as st
from sink_entries import entry_of


class Late:
    """An event sink whose events are written when the test says so."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.error: ChangefeedError | None = None

    def write(self, event: Event) -> None:
        if self.error is not None:
            raise self.error
        self.events.append(event)

    def cpu_seconds(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


def table() -> tuple[TableSink, Late, list[int]]:
    """With the ends of the entries that it has told of."""
    told: list[int] = []

    def done(entry: Entry, written: Written) -> None:
        assert written.bytes == entry.upto
        told.append(entry.upto)

    late = Late()
    return TableSink(late, done), late, told


def append(sink: TableSink, upto: int) -> None:
    sink.append(entry_of(upto=upto), [])


@given(st.permutations(range(6)), st.lists(st.booleans(), min_size=12, max_size=12))
def test_an_entry_is_told_once_it_and_all_before_it_are_written(order: list[int], appends: list[bool]) -> None:
    """Entries are appended while others are acknowledged."""
    sink, late, told = table()
    waiting, written, appended = list(order), set[int](), 0
    for is_append in appends + [True] * 6 + [False] * 6:
        known = [number for number in waiting if number < appended]
        if is_append and appended < len(order):
            append(sink, 10 * appended)
            appended += 1
        elif known:
            event = late.events[known[0]]
            event.written(Written(event.entry.upto))
            waiting.remove(known[0])
            written.add(known[0])
        first_missing = next(number for number in range(len(order) + 1) if number not in written)
        assert told == [10 * number for number in range(first_missing)]
    assert len(told) == len(order)


def test_what_is_before_a_failure_is_still_told_and_what_is_after_it_is_not() -> None:
    sink, late, told = table()
    append(sink, 10)
    late.error = ChangefeedError("no")
    with pytest.raises(ChangefeedError, match="no"):
        append(sink, 20)
    late.error = None
    append(sink, 30)
    for event in late.events:
        event.written(Written(event.entry.upto))
    assert told == [10]


def test_what_is_acknowledged_twice_is_a_bug() -> None:
    sink, late, told = table()
    append(sink, 10)
    append(sink, 20)
    for number in (0, 1):
        event = late.events[number]
        event.written(Written(event.entry.upto))
        with pytest.raises(NeedsHuman, match="twice"):
            event.written(Written(event.entry.upto))
    assert told == [10, 20]
