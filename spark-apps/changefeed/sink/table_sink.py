"""`TableSink`: one dispatcher's entries on their way into an event sink, and how far they are written.

It knows nothing about the downstream. Each entry is an event of a progress tracker, whose checkpoint
says what is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from changefeed.sink.contract import Entry, Event, EventSink, Written
from changefeed.sink.progress_tracker import ProgressTracker
from changefeed.sink.records import Records

Done = Callable[[Entry, Written], None]


class TableSink:
    """One thread appends and resolves; any may ask for `checkpoint_ts`.

    `done` is told of each entry, in order, once all up to its end is written. It must not block.
    """

    def __init__(self, sink: EventSink, done: Done) -> None:
        self._sink = sink
        self._done = done
        self._lock = threading.Lock()  # of what follows
        self._tracker = ProgressTracker(0)
        self._open: deque[tuple[Entry, int]] = deque()  # with its number in the tracker
        self._written: dict[int, Written] = {}

    @property
    def checkpoint_ts(self) -> int:
        """Everything up to it is written."""
        return self._tracker.checkpoint_ts

    def append(self, entry: Entry, chunks: Iterable[Records]) -> None:
        """The next entry's rows. Raises what the sink and the chunks do; the entry does not count then, nor does what
        is appended after it: those before it still do.
        """
        with self._lock:
            number = self._tracker.add(1)
            self._open.append((entry, number))
        self._sink.write(Event(entry, chunks, partial(self._is_written, number)))

    def update_resolved_ts(self, ts: int) -> None:
        """What is appended from now on is above it."""
        with self._lock:
            self._tracker.resolve(ts)
            self._advance()

    def _is_written(self, number: int, written: Written) -> None:
        with self._lock:
            self._written[number] = written
            self._tracker.written(number, number + 1)
            self._advance()

    def _advance(self) -> None:
        ts = self._tracker.advance()
        while self._open and self._open[0][0].upto <= ts and self._open[0][1] in self._written:
            entry, number = self._open.popleft()
            self._done(entry, self._written.pop(number))
