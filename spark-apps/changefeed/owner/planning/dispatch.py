"""Which pipeline task writes which file: by load, a few ahead so that no task waits for the owner.

Pure. A file is given to one task at a time. When a task has gone, what it was given and did not write is given to
another: both write the same bytes, so it does not matter that the first may still be at it (rule 16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from changefeed.owner.planning.open_entries import EntryKey

_AHEAD_BYTES = 8 << 20  # raw, of what a task has been given: while it writes the last of it, more arrives
_AHEAD = 2, 64  # files: at least so many, whatever their size, and at most


@dataclass
class _Task:
    given: dict[EntryKey, int] = field(default_factory=dict)  # raw bytes of each
    bytes: int = 0

    @property
    def has_room(self) -> bool:
        least, most = _AHEAD
        return len(self.given) < least or (self.bytes < _AHEAD_BYTES and len(self.given) < most)


class Dispatch:
    """Tasks are known by their number."""

    def __init__(self) -> None:
        self._tasks: dict[int, _Task] = {}
        self._task_of: dict[EntryKey, int] = {}
        self._waiting: dict[EntryKey, int] = {}  # raw bytes of each that nobody writes, what was planned first first

    @property
    def tasks(self) -> int:
        """How many there are."""
        return len(self._tasks)

    def opened(self, key: EntryKey, size: int) -> None:
        """A file of `size` raw bytes is to be written, after all that were opened before."""
        self._waiting[key] = size

    def joined(self, task: int) -> None:
        """Its stream is open. If it had one before, that has `left`."""
        self._tasks[task] = _Task()

    def left(self, task: int) -> None:
        """Its stream is over: what it was given is nobody's now."""
        given = self._tasks.pop(task, _Task()).given
        if given:
            for key in given:
                del self._task_of[key]
            self._waiting = dict(sorted({**self._waiting, **given}.items()))

    def give(self, can_be_written: Callable[[EntryKey], bool]) -> dict[int, list[EntryKey]]:
        """What each task is to write as well."""
        given: dict[int, list[EntryKey]] = {}
        if not self._waiting:
            return given
        free = [(task.bytes, len(task.given), number) for number, task in self._tasks.items() if task.has_room]
        heapify(free)
        for key in list(self._waiting) if free else ():
            if not free:
                break
            if not can_be_written(key):
                continue
            _, _, number = heappop(free)
            task, size = self._tasks[number], self._waiting.pop(key)
            task.given[key] = size
            task.bytes += size
            self._task_of[key] = number
            given.setdefault(number, []).append(key)
            if task.has_room:
                heappush(free, (task.bytes, len(task.given), number))
        return given

    def given_back(self, task: int, key: EntryKey) -> None:
        """The task could not write it, if it is still its own."""
        if self._task_of.get(key) == task:
            self._waiting = dict(sorted({**self._waiting, key: self._take(key)}.items()))

    def done(self, key: EntryKey) -> None:
        """The file stands in the sink, whoever wrote it."""
        self._waiting.pop(key, None)
        if key in self._task_of:
            self._take(key)

    def _take(self, key: EntryKey) -> int:
        """From its task; its raw bytes."""
        task = self._tasks[self._task_of.pop(key)]
        size = task.given.pop(key)
        task.bytes -= size
        return size
