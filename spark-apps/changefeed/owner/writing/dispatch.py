"""Assigns plan entries to pipeline tasks by load, a few ahead so that no task waits for the owner.

Pure. An entry is assigned to one task at a time. When a task is gone, its unwritten entries are reassigned; the old one
may still be writing them, which does no harm (rule 16).

1. *Files* are written in any order; several tasks may write files of the same table at once.
2. *In order*, for a downstream that rows are applied to. All entries of a dispatcher go to one task, its holder, one
   after another, for as long as any of them is unwritten. A task becomes the holder as a new *writer*, with a number
   that was never used before: the downstream refuses lower numbers (rule 25).
3. *The holder gives an entry back* because it could not read it. It also gives back those queued behind it; once all of
   them are back, the dispatcher has no holder.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from changefeed.owner.writing.open_entries import EntryKey


@dataclass(frozen=True)
class Ahead:
    """How much a task is given at a time: at least and at most so many entries. `bytes`, raw, lie between: while it
    writes the last of them, more arrives."""

    least: int = 2
    most: int = 64
    bytes: int = 8 << 20


AHEAD = Ahead()


@dataclass
class _Task:
    given: dict[EntryKey, int] = field(default_factory=dict)  # raw bytes of each
    bytes: int = 0

    def has_room(self, ahead: Ahead) -> bool:
        count = len(self.given)
        return count < ahead.least or (self.bytes < ahead.bytes and count < ahead.most)


@dataclass
class _Holding:
    """Who holds a dispatcher, whose entries go there in order. `is_over`: nothing more is given to the holder."""

    task: int
    writer: int
    unwritten: set[EntryKey] = field(default_factory=set)
    is_over: bool = False


class Dispatch:
    """Tasks are known by their number."""

    def __init__(self, in_order: bool = False, ahead: Ahead = AHEAD) -> None:
        self._in_order = in_order
        self._ahead = ahead
        self._tasks: dict[int, _Task] = {}
        self._dispatchers: dict[EntryKey, int] = {}
        self._holdings: dict[int, _Holding] = {}
        self._writers = 0
        self._task_of: dict[EntryKey, int] = {}
        self._waiting: dict[EntryKey, int] = {}  # raw bytes of each that nobody writes, what was planned first first

    @property
    def tasks(self) -> int:
        """How many there are."""
        return len(self._tasks)

    def writer(self, dispatcher: int) -> int:
        """As which its holder writes; 0 where nobody counts."""
        return self._holdings[dispatcher].writer if self._in_order else 0

    def opened(self, key: EntryKey, dispatcher: int, size: int) -> None:
        """An entry of `size` raw bytes is to be written, after all that were opened before."""
        self._waiting[key] = size
        if self._in_order:
            self._dispatchers[key] = dispatcher

    def joined(self, task: int) -> None:
        """Its stream is open. If it had one before, that has `left`."""
        self._tasks[task] = _Task()

    def left(self, task: int) -> None:
        """Its stream is over: what it was given is nobody's now."""
        given = self._tasks.pop(task, _Task()).given
        self._holdings = {dispatcher: each for dispatcher, each in self._holdings.items() if each.task != task}
        if given:
            for key in given:
                del self._task_of[key]
            self._waiting = dict(sorted({**self._waiting, **given}.items()))

    def give(self, can_be_written: Callable[[EntryKey], bool]) -> dict[int, list[EntryKey]]:
        """What each task is to write as well."""
        given: dict[int, list[EntryKey]] = {}
        free = self._least_busy() if self._waiting else None
        stopped: set[int | None] = set()  # dispatchers one of whose entries waits
        for key in list(self._waiting) if free is not None else ():
            if free is None:
                break
            dispatcher = self._dispatchers.get(key)
            if dispatcher in stopped:
                continue
            number = self._task_for(dispatcher, free) if can_be_written(key) else None
            if number is not None:
                self._give(key, dispatcher, number)
                given.setdefault(number, []).append(key)
                free = self._least_busy()
            elif self._in_order:
                stopped.add(dispatcher)
        return given

    def _least_busy(self) -> int | None:
        """The task with the least to do, of those that have room."""
        ready = ((number, task) for number, task in self._tasks.items() if task.has_room(self._ahead))
        loads = ((task.bytes, len(task.given), number) for number, task in ready)
        return min(loads, default=(0, 0, None))[2]

    def _task_for(self, dispatcher: int | None, free: int) -> int | None:
        """Who is to write the dispatcher's next entry; None: nobody can now."""
        holding = self._holdings.get(dispatcher) if dispatcher is not None else None
        if holding is None:
            return free
        can = not holding.is_over and self._tasks[holding.task].has_room(self._ahead)
        if can:
            return holding.task
        return None if holding.unwritten else free

    def _give(self, key: EntryKey, dispatcher: int | None, number: int) -> None:
        task, size = self._tasks[number], self._waiting.pop(key)
        task.given[key] = size
        task.bytes += size
        self._task_of[key] = number
        if dispatcher is None:
            return
        holding = self._holdings.get(dispatcher)
        if holding is None or holding.task != number or holding.is_over:
            self._writers += 1
            holding = self._holdings[dispatcher] = _Holding(number, self._writers)
        holding.unwritten.add(key)

    def given_back(self, task: int, key: EntryKey) -> None:
        """The task could not write it, if it is still its own."""
        if self._task_of.get(key) == task:
            if self._in_order:
                self._holdings[self._dispatchers[key]].is_over = True
            self._waiting = dict(sorted({**self._waiting, key: self._take(key)}.items()))

    def done(self, key: EntryKey) -> None:
        """It is written, whoever did that."""
        self._waiting.pop(key, None)
        if key in self._task_of:
            self._take(key)
        self._dispatchers.pop(key, None)

    def check(self, unwritten: Set[EntryKey]) -> None:
        """What holds between two calls, for tests; `unwritten`: entries that are open. Raises AssertionError."""
        given = {key: number for number, task in self._tasks.items() for key in task.given}
        assert given == self._task_of, "an entry is given to another task than is noted"
        assert not given.keys() & self._waiting.keys(), "an entry waits that is given"
        assert given.keys() | self._waiting.keys() == unwritten, "others are to be written than those that are open"
        assert list(self._waiting) == sorted(self._waiting), "what was planned first does not come first"
        for number, task in self._tasks.items():
            assert task.bytes == sum(task.given.values()), f"the load of task {number} is another"
        writers = [holding.writer for holding in self._holdings.values()]
        assert len(set(writers)) == len(writers), "two dispatchers have the same writer"
        for dispatcher, holding in self._holdings.items():
            own = {key for key in given if self._dispatchers[key] == dispatcher}
            assert holding.unwritten == own, f"dispatcher {dispatcher}: its holder has other entries"
            assert {given[key] for key in own} <= {holding.task}, f"dispatcher {dispatcher} has two holders at once"

    def _take(self, key: EntryKey) -> int:
        """From its task; its raw bytes."""
        task = self._tasks[self._task_of.pop(key)]
        size = task.given.pop(key)
        task.bytes -= size
        if self._in_order:
            self._holdings[self._dispatchers[key]].unwritten.discard(key)
        return size
