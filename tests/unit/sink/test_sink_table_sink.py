"""How far a table is written, and what is told of its entries, whatever the order in which they are."""

from __future__ import annotations

import pytest
from changefeed.errors import ChangefeedError
from changefeed.sink.contract import Entry, Event, Written
from changefeed.sink.table_sink import TableSink
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
    sink.update_resolved_ts(upto)


def test_entries_are_told_in_their_order() -> None:
    sink, late, told = table()
    for upto in (10, 20, 30):
        append(sink, upto)
    for number, expected in ((1, []), (2, []), (0, [10, 20, 30])):
        event = late.events[number]
        event.written(Written(event.entry.upto))
        assert told == expected
    assert sink.checkpoint_ts == 30


def test_the_checkpoint_is_the_last_resolved_ts_below_what_is_not_written() -> None:
    sink, late, told = table()
    sink.update_resolved_ts(5)
    assert sink.checkpoint_ts == 5
    append(sink, 10)
    sink.update_resolved_ts(15)
    append(sink, 20)
    assert sink.checkpoint_ts == 5
    late.events[0].written(Written(10))
    assert (sink.checkpoint_ts, told) == (15, [10])


def test_an_entry_that_is_written_before_its_end_is_resolved_waits_for_that() -> None:
    sink, late, told = table()
    sink.append(entry_of(upto=10), [])
    late.events[0].written(Written(10))
    assert told == []
    sink.update_resolved_ts(10)
    assert told == [10]


def test_what_is_before_a_failure_is_still_told() -> None:
    sink, late, told = table()
    append(sink, 10)
    late.error = ChangefeedError("no")
    with pytest.raises(ChangefeedError, match="no"):
        append(sink, 20)
    late.events[0].written(Written(10))
    assert (sink.checkpoint_ts, told) == (10, [10])
