"""Entries of a dispatcher one behind the other, those of several side by side; and what the blackhole refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from changefeed.errors import ChangefeedError, ProtocolViolation
from changefeed.objectstore.patience import Patience
from changefeed.sink.blackhole import BlackholeSink
from changefeed.sink.contract import Entry, Event, Surroundings, Written
from changefeed.sink.lanes import Lanes
from changefeed.sink.records import Records
from sink_entries import entry_of, records

DEADLINE_S = 10.0


class Writer:
    """Holds back the dispatchers that it is told to; counts what it was given."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.held: set[int] = set()
        self.begun: list[tuple[int, int]] = []
        self.error: ChangefeedError | None = None
        self.is_closed = False

    def write(self, entry: Entry, chunks: Iterator[Records]) -> Written:
        with self.changed:
            self.begun.append((entry.claim.dispatcher, entry.id.entry))
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: entry.claim.dispatcher not in self.held, DEADLINE_S)
            if self.error is not None:
                raise self.error
        return Written(sum(len(chunk.op) for chunk in chunks))

    def close(self) -> None:
        self.is_closed = True

    def let_go(self, dispatcher: int) -> None:
        with self.changed:
            self.held.discard(dispatcher)
            self.changed.notify_all()

    def until_begun(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, DEADLINE_S), self.begun


class Told:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sizes: list[int] = []
        self.failures: list[BaseException] = []

    def written(self, written: Written) -> None:
        with self.changed:
            self.sizes.append(written.bytes)
            self.changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def until(self, sizes: int = 0, failures: int = 0) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.sizes) >= sizes and len(self.failures) >= failures, DEADLINE_S
            ), (self.sizes, self.failures)


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def lanes(writer: Writer, told: Told, tmp_path: Path) -> Iterator[Lanes]:
    made = Lanes(writer, Surroundings("shop/feed", tmp_path, Patience(), Patience(), told.failed))
    yield made
    for dispatcher in list(writer.held):
        writer.let_go(dispatcher)
    made.close()
    assert writer.is_closed
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane")]


def event(told: Told, dispatcher: int = 7, number: int = 0, chunks: int = 1) -> Event:
    return Event(entry_of(dispatcher, number), [records(1, 2)] * chunks, told.written)


def test_a_dispatcher_that_is_slow_holds_back_itself_alone(lanes: Lanes, writer: Writer, told: Told) -> None:
    writer.held = {7}
    for number in range(2):
        for dispatcher in (7, 8):
            lanes.write(event(told, dispatcher, number, chunks=0))
    told.until(sizes=2)
    writer.until_begun(3)
    assert sorted(writer.begun) == [(7, 0), (8, 0), (8, 1)]
    writer.let_go(7)
    told.until(sizes=4)
    assert writer.begun[-1] == (7, 1)


def test_no_more_than_some_chunks_wait_for_a_writer(lanes: Lanes, writer: Writer, told: Told) -> None:
    writer.held = {7}
    taken = threading.Semaphore(0)

    def chunks() -> Iterator[Records]:
        for _ in range(5):
            taken.release()
            yield records(1)

    feeding = threading.Thread(target=lanes.write, args=(Event(entry_of(), chunks(), told.written),))
    feeding.start()
    for _ in range(3):  # two wait, the third is on its way
        assert taken.acquire(timeout=DEADLINE_S)
    assert not taken.acquire(blocking=False)
    writer.let_go(7)
    feeding.join(DEADLINE_S)
    told.until(sizes=1)
    assert told.sizes == [5]


def test_what_the_chunks_raise_is_raised_and_the_entry_is_not_told(lanes: Lanes, writer: Writer, told: Told) -> None:
    def broken() -> Iterator[Records]:
        yield records(1)
        raise ChangefeedError("gone")

    with pytest.raises(ChangefeedError, match="gone"):
        lanes.write(Event(entry_of(), broken(), told.written))
    lanes.write(event(told, number=1))
    told.until(sizes=1)
    assert (told.sizes, told.failures) == ([2], [])


def test_a_failure_is_told_once_and_ends_all_lanes(lanes: Lanes, writer: Writer, told: Told) -> None:
    writer.error = ChangefeedError("no")
    lanes.write(event(told, 7, chunks=0))
    told.until(failures=1)
    with pytest.raises(ChangefeedError, match="no"):
        lanes.write(event(told, 8))
    assert (told.sizes, told.failures) == ([], [writer.error])


def test_the_blackhole_refuses_what_is_out_of_order() -> None:
    told, sink = Told(), BlackholeSink()
    sink.write(Event(entry_of(number=1, upto=10), [records(4, 5), records(6)], told.written))
    assert len(told.sizes) == 1
    for number, chunks, why in (
        (1, [records(11)], "came after"),
        (2, [records(12, 11)], "out of order"),
        (2, [records(12), records(11)], "out of order"),
        (2, [records(21)], "above 20"),
        (2, [records(9)], "out of order"),
    ):
        with pytest.raises(ProtocolViolation, match=why):
            sink.write(Event(entry_of(number=number, upto=20), chunks, told.written))
    assert len(told.sizes) == 1
    sink.write(Event(entry_of(number=1, upto=10, writer=2), [records(4)], told.written))
    assert len(told.sizes) == 2, "another writer begins again"
