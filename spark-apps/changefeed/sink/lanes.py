"""`Lanes`: an event sink built from a blocking writer. Each dispatcher has a lane: its entries are written one after
another, those of different dispatchers concurrently.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from changefeed.sink.contract import Entry, Event, FirstFailure, Surroundings, Written
from changefeed.sink.records import Records

_ROOM = 2  # chunks that no writer has taken
_LANES = 64


class EntryWriter(Protocol):
    def write(self, entry: Entry, chunks: Iterator[Records]) -> Written | None:
        """Returns when all rows of the entry stand downstream. It may leave chunks that stand there already.

        Called by several threads, by one at a time for a dispatcher. When `chunks` raise, nothing of the entry counts,
        and it raises the same.
        """
        ...

    def close(self) -> None:
        """No thread writes any more."""
        ...


class Cancelled(Exception):
    """Raised by the chunks of an entry that is not to be written."""


@dataclass
class _LaneEntry:
    """An entry whose chunks come while it is written."""

    event: Event
    chunks: deque[Records] = field(default_factory=deque)
    is_whole: bool = False
    is_cancelled: bool = False


class Lanes:
    """Implements EventSink."""

    def __init__(self, writer: EntryWriter, around: Surroundings) -> None:
        self._writer = writer
        self._waiting_for_room = around.waiting
        self._failure = FirstFailure(around.failed)
        self._changed = threading.Condition()  # guards what follows
        self._lanes: dict[int, deque[_LaneEntry]] = {}  # of dispatchers that have something to write
        self._threads: set[threading.Thread] = set()
        self._waiting = 0  # chunks
        self._is_closed = False

    def write(self, event: Event) -> None:
        """A failure of the chunks takes the entry back, unless all of it was there."""
        job = _LaneEntry(event)
        with self._changed:
            self._wait_until(lambda: len(self._lanes) < _LANES or event.entry.claim.dispatcher in self._lanes)
            self._add(job)
        try:
            for records in event.chunks:
                with self._changed:
                    self._wait_until(lambda: self._waiting < _ROOM)
                    self._waiting += 1
                    job.chunks.append(records)
                    self._changed.notify_all()
        except BaseException:
            with self._changed:
                job.is_cancelled = True
                self._changed.notify_all()
            raise
        with self._changed:
            job.is_whole = True
            self._changed.notify_all()

    def cpu_seconds(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        self._writer.close()

    def _wait_until(self, can_go_on: Callable[[], bool]) -> None:
        """Raises what the sink has failed with."""
        if not can_go_on():
            with self._waiting_for_room():
                self._changed.wait_for(lambda: self._has_ended or can_go_on())
        self._failure.check()
        if self._is_closed:
            raise Cancelled("the sink is closed")

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or self._failure.is_set

    def _add(self, job: _LaneEntry) -> None:
        dispatcher = job.event.entry.claim.dispatcher
        if dispatcher in self._lanes:
            self._lanes[dispatcher].append(job)
            self._changed.notify_all()
            return
        self._lanes[dispatcher] = deque([job])
        thread = threading.Thread(target=self._run, args=(dispatcher,), name=f"lane-{dispatcher}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self, dispatcher: int) -> None:
        while (job := self._next(dispatcher)) is not None:
            try:
                written = self._writer.write(job.event.entry, self._chunks(job))
                self._drain(job)
            except Cancelled:
                continue
            except BaseException as error:  # noqa: BLE001 - whatever it is ends the task, which another thread runs
                self._failure.set(error)
                continue
            if not self._has_ended:
                job.event.written(written or Written(0))

    def _next(self, dispatcher: int) -> _LaneEntry | None:
        """The lane's next entry; None: it has no more, and ends."""
        with self._changed:
            lane = self._lanes[dispatcher]
            if lane and not self._has_ended:
                return lane.popleft()
            for job in lane:
                self._waiting -= len(job.chunks)
            del self._lanes[dispatcher]
            self._threads.discard(threading.current_thread())
            self._changed.notify_all()
            return None

    def _chunks(self, job: _LaneEntry) -> Iterator[Records]:
        """Those of the entry, as they come. Raises Cancelled."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_ended or job.chunks or job.is_whole or job.is_cancelled)
                if self._has_ended or job.is_cancelled:
                    self._waiting -= len(job.chunks)
                    job.chunks.clear()
                    self._changed.notify_all()
                    raise Cancelled
                if not job.chunks:
                    return
                records = job.chunks.popleft()
                self._waiting -= 1
                self._changed.notify_all()
            yield records

    def _drain(self, job: _LaneEntry) -> None:
        """Take what the writer had no use for."""
        for _ in self._chunks(job):
            pass
