"""The blackhole sink: counts what it gets, checks the order, and discards it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from changefeed.errors import ProtocolViolation
from changefeed.log.state import State
from changefeed.sink.claim import SinkClaim
from changefeed.sink.contract import EntryId, Event, Surroundings, Written
from changefeed.sink.records import Mounting

_ENTRY_BYTES = 64 << 20


class BlackholeSink:
    """Implements EventSink. A row out of order is a bug of what is before it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, tuple[int, EntryId, int]] = {}  # by dispatcher: writer, entry, commit ts

    def write(self, event: Event) -> None:
        """Raises ProtocolViolation."""
        entry = event.entry
        dispatcher, writer = entry.claim.dispatcher, entry.claim.writer
        with self._lock:
            known_writer, known, last = self._last.get(dispatcher, (writer, EntryId(-1, -1), 0))
        if known_writer == writer and known >= entry.id:
            raise ProtocolViolation(f"Entry {entry.id} of dispatcher {dispatcher} came after {known}.")
        last = last if known_writer == writer else 0
        size = 0
        for records in event.chunks:
            ts = records.commit_ts.to_numpy()
            if int(ts[0]) < last or (np.diff(ts.view(np.int64)) < 0).any() or int(ts[-1]) > entry.upto:
                raise ProtocolViolation(
                    f"Rows of entry {entry.id} of dispatcher {dispatcher} ({entry.table.full_name}) are out of order, "
                    f"or above {entry.upto}."
                )
            last = int(ts[-1])
            size += sum(values.nbytes for values in records.columns)
        with self._lock:
            self._last[dispatcher] = writer, entry.id, entry.upto
        event.written(Written(size))

    def cpu_seconds(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class BlackholeJob:
    """Implements SinkJob."""

    def mounting(self, options: object, time_zone: str) -> Mounting:
        return Mounting(time_zone)

    def open(self, around: Surroundings) -> BlackholeSink:
        return BlackholeSink()


class BlackholeClaim(SinkClaim):
    """There is nothing to open and nothing to lose."""

    uri = "blackhole://"
    in_order = True
    fingerprint = "blackhole"
    file_size = _ENTRY_BYTES

    def check_rewind(self, state: State, state_uri: str) -> None:
        """Nobody has read anything."""

    def job(self) -> BlackholeJob:
        return BlackholeJob()
