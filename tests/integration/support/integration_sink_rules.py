"""The rules of an event sink (sink/contract.py) as checks that any sink can be put to, the real ones and wrong ones.

Rows are of tables `shop.t<dispatcher>` (id BIGINT PRIMARY KEY, v BIGINT). Each check fails with an AssertionError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest
from changefeed.errors import ChangefeedError, Fenced
from changefeed.model.position import OP_INSERT, OP_UPDATE
from changefeed.objectstore.patience import Patience
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import FLAG_NOT_NULL, FLAG_PRI_KEY, TableInfo, parse_table_info
from changefeed.sink.contract import Claim, Entry, EntryId, Event, EventSink, Surroundings, Written
from changefeed.sink.records import Records

DEADLINE_S = 30.0
DISPATCHERS = (101, 102, 103)
Row = tuple[int, int]  # id, v


class World(Protocol):
    """A downstream of the test's own. `remembers`: whether entries count once even for readers of every message;
    `fences`: whether a writer that has been given up is refused.
    """

    name: str
    remembers: bool
    fences: bool
    folder: Path

    def open(self, around: Surroundings) -> EventSink: ...

    def rows(self, dispatcher: int) -> list[Row]:
        """What readers have of it, in the order in which it took effect; of a database its rows by key."""
        ...

    def spoil(self, dispatcher: int) -> None:
        """From now on rows of it can't be written, whatever is tried."""
        ...

    def entry(self, dispatcher: int, number: int, writer: int) -> Entry: ...


def table_of(dispatcher: int) -> TableInfo:
    def column(number: int, name: str, flag: int) -> dict[str, Any]:
        kind = {"Tp": SqlType.BIGINT, "Flag": flag, "Flen": 20, "Decimal": 0}
        return {"id": number, "name": {"O": name}, "offset": number - 1, "type": kind, "state": 5}

    columns = [column(1, "id", FLAG_NOT_NULL | FLAG_PRI_KEY), column(2, "v", 0)]
    info = {"id": dispatcher, "name": {"O": f"t{dispatcher}"}, "cols": columns, "pk_is_handle": True, "state": 5}
    return parse_table_info(info, "shop")


def entry_of(dispatcher: int, number: int, writer: int, options: dict[str, Any], path: str = "") -> Entry:
    table = table_of(dispatcher)
    return Entry(
        claim=Claim("shop/feed", dispatcher, 1, "run", writer),
        id=EntryId(10 + number, 0),
        upto=1000 * (number + 1),
        output={"path": path} if path else {},
        table=table,
        table_version=5,
        columns=table.output_columns,
        pd_ms=0,
        time_zone="UTC",
        options=options,
    )


def records(entry: Entry, rows: Sequence[Row], first_ts: int, op: int = OP_INSERT) -> Records:
    """Each row in a transaction of its own."""
    ts = pa.array(np.arange(first_ts, first_ts + len(rows)), pa.uint64())
    columns = [pa.array([row[place] for row in rows], pa.int64()) for place in (0, 1)]
    old = columns if op == OP_UPDATE else [pa.nulls(len(rows), pa.int64())] * 2
    ops = np.full(len(rows), op, np.uint8)
    return Records(entry.table, ops, np.zeros(len(rows), np.bool_), ts, columns, old, entry.columns, ts)


@dataclass
class Told:
    """What a sink has called back."""

    done: list[tuple[Entry, Written]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def written(self, entry: Entry) -> Callable[[Written], None]:
        def told(said: Written) -> None:
            with self.changed:
                self.done.append((entry, said))
                self.changed.notify_all()

        return told

    def failed(self, error: BaseException) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: condition() or bool(self.failures), DEADLINE_S), f"never: {what}"
        assert condition(), f"{what}: {self.failures}"


@contextmanager
def opened(world: World) -> Iterator[tuple[EventSink, Told]]:
    told, ending = Told(), threading.Event()
    patience = Patience(DEADLINE_S, ending=ending)
    sink = world.open(Surroundings("shop/feed", world.folder / "spool", patience, patience, told.failed))
    try:
        yield sink, told
    finally:
        ending.set()
        sink.close()


def write(sink: EventSink, told: Told, entry: Entry, rows: Sequence[Row], op: int = OP_INSERT, chunks: int = 2) -> None:
    parts = [part for part in np.array_split(np.arange(len(rows)), chunks) if len(part)]
    first_ts = entry.upto - 999

    def made() -> Iterator[Records]:
        for part in parts:
            yield records(entry, [rows[place] for place in part], first_ts + int(part[0]), op)

    sink.write(Event(entry, made(), told.written(entry)))


def seen(world: World, dispatcher: int) -> list[Row]:
    """Each row once, as the last one with its key says."""
    return sorted(dict(world.rows(dispatcher)).items())


def each_entry_is_told_once_and_stands_by_then(world: World) -> None:
    with opened(world) as (sink, told):
        for number in range(4):
            for dispatcher in DISPATCHERS:
                rows = [(10 * number + place, number) for place in range(5)]
                write(sink, told, world.entry(dispatcher, number, 1), rows)
        told.until(lambda: len(told.done) >= 12, "all are written")
        stand = {dispatcher: seen(world, dispatcher) for dispatcher in DISPATCHERS}
    assert len({(entry.claim.dispatcher, entry.id) for entry, _ in told.done}) == len(told.done) == 12
    assert all(written.bytes > 0 for _, written in told.done)
    assert all(rows == [(10 * n + place, n) for n in range(4) for place in range(5)] for rows in stand.values()), stand


def rows_stand_when_their_entry_is_told(world: World) -> None:
    found: list[bool] = []
    with opened(world) as (sink, told):
        entry = world.entry(DISPATCHERS[0], 0, 1)

        def look(said: Written) -> None:
            found.append(seen(world, DISPATCHERS[0]) == [(1, 1), (2, 1)])
            told.written(entry)(said)

        sink.write(Event(entry, [records(entry, [(1, 1), (2, 1)], entry.upto - 999)], look))
        told.until(lambda: bool(told.done), "it is written")
    assert found == [True], "told of rows that nobody can read"


def many_threads_may_write(world: World) -> None:
    def one(dispatcher: int) -> None:
        for number in range(6):
            write(sink, told, world.entry(dispatcher, 1 + number, 1), [(number, at) for at in range(3)], OP_UPDATE)

    with opened(world) as (sink, told):
        for dispatcher in DISPATCHERS:  # rows to be updated
            write(sink, told, world.entry(dispatcher, 0, 1), [(number, -1) for number in range(6)])
        told.until(lambda: len(told.done) == 3, "the first")
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(one, DISPATCHERS))
        told.until(lambda: len(told.done) == 21, "all are written")
        for dispatcher in DISPATCHERS:
            assert seen(world, dispatcher) == [(number, 2) for number in range(6)]


def a_dispatchers_entries_take_effect_in_their_order(world: World) -> None:
    dispatcher = DISPATCHERS[0]
    with opened(world) as (sink, told):
        write(sink, told, world.entry(dispatcher, 0, 1), [(key, 0) for key in range(40)])
        for number in range(1, 12):
            write(sink, told, world.entry(dispatcher, number, 1), [(key, number) for key in range(40)], OP_UPDATE)
        told.until(lambda: len(told.done) == 12, "all are written")
        assert seen(world, dispatcher) == [(key, 11) for key in range(40)]


def what_its_chunks_raise_takes_an_entry_back(world: World) -> None:
    dispatcher = DISPATCHERS[0]

    def broken(entry: Entry) -> Iterator[Records]:
        yield records(entry, [(1, 7), (2, 7)], entry.upto - 999)
        raise ChangefeedError("The rows are gone.")

    with opened(world) as (sink, told):
        entry = world.entry(dispatcher, 0, 1)
        with pytest.raises(ChangefeedError, match="The rows are gone"):
            sink.write(Event(entry, broken(entry), told.written(entry)))
        again = world.entry(dispatcher, 0, 2)
        write(sink, told, again, [(1, 7), (2, 7), (3, 7)], chunks=1)
        told.until(lambda: bool(told.done), "it is written")
        assert told.done[0][0].claim.writer == 2
        assert not told.failures
        assert seen(world, dispatcher) == [(1, 7), (2, 7), (3, 7)]
        if world.remembers:
            assert len(world.rows(dispatcher)) == 3, "rows of the first attempt count"


def an_entry_that_is_written_again_counts_once(world: World) -> None:
    dispatcher = DISPATCHERS[0]
    rows = [(key, 1) for key in range(20)]
    for writer in (1, 2):
        with opened(world) as (sink, told):
            write(sink, told, world.entry(dispatcher, 0, writer), rows)
            told.until(lambda: bool(told.done), "it is written")
    assert seen(world, dispatcher) == rows
    if world.remembers:
        assert world.rows(dispatcher) == rows, "some rows count twice"


def who_has_been_given_up_is_refused(world: World) -> None:
    if not world.fences:
        return
    dispatcher = DISPATCHERS[0]
    with opened(world) as (old, old_told), opened(world) as (new, new_told):
        write(old, old_told, world.entry(dispatcher, 0, 1), [(1, 1)])
        old_told.until(lambda: bool(old_told.done), "the first is written")
        write(new, new_told, world.entry(dispatcher, 1, 2), [(2, 2)])
        new_told.until(lambda: bool(new_told.done), "the other goes on")
        late = world.entry(dispatcher, 2, 1)
        with suppress(Fenced):  # raised here by a sink that has found out before its last chunk
            write(old, old_told, late, [(3, 3)])
        with old_told.changed:
            refused = old_told.changed.wait_for(lambda: bool(old_told.failures), DEADLINE_S)
        assert refused, "a writer that was given up goes on"
        assert len(old_told.done) == 1
        assert seen(world, dispatcher) == [(1, 1), (2, 2)]


def a_failure_is_told_once_and_ends_the_sink(world: World) -> None:
    spoiled, good = DISPATCHERS[:2]
    with opened(world) as (sink, told):
        write(sink, told, world.entry(good, 0, 1), [(1, 1)])
        told.until(lambda: bool(told.done), "the first is written")
        world.spoil(spoiled)
        with pytest.raises(BaseException) as raised:  # noqa: PT012, PT011 - when it fails is the sink's
            for number in range(100):
                write(sink, told, world.entry(spoiled, number, 1), [(1, 1)])
                with told.changed:
                    told.changed.wait_for(lambda: bool(told.failures), 0.1)
        if told.failures:
            assert told.failures == [raised.value]
        done = len(told.done)
    assert len(told.failures) <= 1
    assert len(told.done) == done == 1, "told of an entry after the failure"


def nothing_is_told_after_close(world: World) -> None:
    with opened(world) as (sink, told):
        for number in range(20):
            write(sink, told, world.entry(DISPATCHERS[0], number, 1), [(key + 100 * number, 0) for key in range(50)])
    done, rows = len(told.done), world.rows(DISPATCHERS[0])
    assert done <= 20
    stand = {key for key, _ in rows}
    for entry, _ in told.done:
        first = 100 * (entry.id.plan - 10)
        assert {first + key for key in range(50)} <= stand, f"{entry.id} is told and does not stand"
    assert len(told.done) == done


CHECKS: tuple[Callable[[World], None], ...] = (
    each_entry_is_told_once_and_stands_by_then,
    rows_stand_when_their_entry_is_told,
    many_threads_may_write,
    a_dispatchers_entries_take_effect_in_their_order,
    what_its_chunks_raise_takes_an_entry_back,
    an_entry_that_is_written_again_counts_once,
    who_has_been_given_up_is_refused,
    a_failure_is_told_once_and_ends_the_sink,
    nothing_is_told_after_close,
)


# A sink in memory that keeps the rules, or breaks one.


@dataclass
class Memory:
    """Implements World. `fault`: what its sink does wrong."""

    folder: Path
    fault: str = ""
    name: str = "memory"
    remembers: bool = True
    fences: bool = True
    tables: dict[int, list[Row]] = field(default_factory=dict)
    done: dict[int, set[EntryId]] = field(default_factory=dict)
    writers: dict[int, int] = field(default_factory=dict)
    spoiled: set[int] = field(default_factory=set)

    def open(self, around: Surroundings) -> EventSink:
        return MemorySink(self, around)

    def rows(self, dispatcher: int) -> list[Row]:
        return list(self.tables.get(dispatcher, []))

    def spoil(self, dispatcher: int) -> None:
        self.spoiled.add(dispatcher)

    def entry(self, dispatcher: int, number: int, writer: int) -> Entry:
        return entry_of(dispatcher, number, writer, {})


class MemorySink:
    def __init__(self, memory: Memory, around: Surroundings) -> None:
        self._memory, self._around = memory, around
        self._failure: BaseException | None = None
        self._lock = threading.RLock()

    def write(self, event: Event) -> None:
        memory, fault = self._memory, self._memory.fault
        if self._failure is not None and fault != "goes on after a failure":
            raise self._failure
        entry, dispatcher = event.entry, event.entry.claim.dispatcher
        rows: list[Row] = []
        try:
            for chunk in event.chunks:
                pairs = zip(*(values.to_pylist() for values in chunk.columns), strict=True)
                rows += [(int(key), int(value)) for key, value in pairs]
                if fault == "writes what is taken back":
                    memory.tables.setdefault(dispatcher, []).extend(rows)
        except BaseException:
            if fault != "swallows what chunks raise":
                raise
        with self._lock:
            self._put(entry, rows, event.written)

    def _put(self, entry: Entry, rows: list[Row], written: Callable[[Written], None]) -> None:
        memory, fault, dispatcher = self._memory, self._memory.fault, entry.claim.dispatcher
        try:
            self._check(entry)
        except ChangefeedError as error:
            if fault != "goes on after a failure":
                self._failure = error
            self._around.failed(error)
            if fault == "tells of a failure twice":
                self._around.failed(error)
            if fault != "tells of what has failed":
                return
        tell = partial(written, Written(0 if fault == "has no size" else 16 * len(rows)))
        if fault == "tells too early":
            tell()
        known = memory.done.setdefault(dispatcher, set())
        stands = memory.tables.setdefault(dispatcher, [])
        if entry.id not in known or fault == "forgets":
            if fault == "puts new rows first":
                stands[:0] = rows
            else:
                stands += rows[:-1] if fault == "loses rows" else rows
        known.add(entry.id)
        if fault not in ("tells too early", "tells nothing"):
            tell()
        if fault == "tells twice":
            tell()

    def _check(self, entry: Entry) -> None:
        memory, dispatcher = self._memory, entry.claim.dispatcher
        newest = memory.writers.get(dispatcher, 0)
        if entry.claim.writer < newest and memory.fault != "lets anybody write":
            raise ChangefeedError(f"writer {newest} has claimed it")
        memory.writers[dispatcher] = max(newest, entry.claim.writer)
        if dispatcher in memory.spoiled:
            raise ChangefeedError("spoiled")

    def cpu_seconds(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


FAULTS = (
    "tells too early",
    "tells twice",
    "tells nothing",
    "loses rows",
    "forgets",
    "puts new rows first",
    "has no size",
    "swallows what chunks raise",
    "writes what is taken back",
    "lets anybody write",
    "goes on after a failure",
    "tells of a failure twice",
    "tells of what has failed",
)
