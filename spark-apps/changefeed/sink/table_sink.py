"""`TableSink`: one dispatcher's entries on their way into an event sink, which may acknowledge them in any order.

It knows nothing about the downstream. An entry is done once it and all before it are written.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from changefeed.errors import NeedsHuman
from changefeed.sink.contract import Entry, Event, EventSink, Written
from changefeed.sink.records import Records

Done = Callable[[Entry, Written], None]


@dataclass
class _Open:
    entry: Entry
    written: Written | None = None


class TableSink:
    """One thread appends. `done` is told of each entry that is, in order. It must not block."""

    def __init__(self, sink: EventSink, done: Done) -> None:
        self._sink = sink
        self._done = done
        self._lock = threading.Lock()  # of what follows
        self._open: deque[_Open] = deque()  # those that are not done

    def append(self, entry: Entry, chunks: Iterable[Records]) -> None:
        """The next entry's rows. Raises what the sink and the chunks do; the entry does not count then, nor does what
        is appended after it: those before it still do.
        """
        appended = _Open(entry)
        with self._lock:
            self._open.append(appended)
        self._sink.write(Event(entry, chunks, partial(self._is_written, appended)))

    def _is_written(self, appended: _Open, written: Written) -> None:
        """Raises NeedsHuman for one that was before."""
        with self._lock:
            if appended.written is not None:
                raise NeedsHuman(
                    f"Entry {appended.entry.id} is acknowledged twice.", "Report this as a bug, with the log."
                )
            appended.written = written
            while self._open and (first := self._open[0]).written is not None:
                self._open.popleft()
                self._done(first.entry, first.written)
