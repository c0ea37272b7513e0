"""How far a table's events are written, in whatever order they are acknowledged.

Pure. Events are numbered as they are added. Each is a bit, set once it is written; a resolved-ts lies between two
events. The checkpoint is the last resolved-ts before the first unset bit.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from changefeed.errors import NeedsHuman

BUFFER_BITS = 1 << 16
_WORD = 64
_FULL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_FORGED = "Report this as a bug, with the log."


class ProgressTracker:
    """Not thread-safe: one caller at a time. At most `capacity` events are pending, in buffers of 8 KiB."""

    def __init__(self, checkpoint_ts: int, capacity: int = 1 << 24) -> None:
        self.checkpoint_ts = checkpoint_ts  # everything up to it is written, as far as `advance` has looked
        self._capacity = capacity
        self._added = 0
        self._first = 0  # the event of the first bit of the first buffer
        self._buffers: deque[npt.NDArray[np.uint64]] = deque()
        self._unwritten = 0
        self._marks: deque[tuple[int, int]] = deque()  # (events before it, resolved-ts)
        self._resolved_ts = checkpoint_ts

    @property
    def pending(self) -> int:
        """Events that are added and not written."""
        return self._unwritten

    def has_room(self, events: int) -> bool:
        """Whether so many may be added now. One that is never acknowledged keeps the room of all after it."""
        return self._added - self._first + events <= self._capacity

    def add(self, events: int) -> int:
        """So many more events; the number of the first. Ask `has_room` before."""
        first, self._added = self._added, self._added + events
        while self._first + len(self._buffers) * BUFFER_BITS < self._added:
            self._buffers.append(np.zeros(BUFFER_BITS // _WORD, np.uint64))
        self._unwritten += events
        return first

    def resolve(self, ts: int) -> None:
        """No event that is added from now on is at or below ts."""
        if ts <= self._resolved_ts:
            return
        self._resolved_ts = ts
        if self._marks and self._marks[-1][0] == self._added:
            self._marks.pop()
        self._marks.append((self._added, ts))

    def written(self, first: int, end: int) -> None:
        """Events `first` to `end`, without the last, are written. Raises NeedsHuman for one that was or isn't there."""
        if not self._first <= first <= end <= self._added:
            raise NeedsHuman(
                f"Events {first} to {end} are acknowledged, {self._first} to {self._added} are known.", _FORGED
            )
        self._unwritten -= end - first
        while first < end:
            buffer, at = divmod(first - self._first, BUFFER_BITS)
            upto = min(BUFFER_BITS, at + end - first)
            _set(self._buffers[buffer], at, upto)
            first += upto - at

    def advance(self) -> int:
        """The checkpoint-ts now."""
        while self._buffers and (self._buffers[0] == _FULL).all() and self._first + BUFFER_BITS <= self._added:
            self._buffers.popleft()
            self._first += BUFFER_BITS
        unset = self._first_unwritten()
        while self._marks and self._marks[0][0] <= unset:
            self.checkpoint_ts = self._marks.popleft()[1]
        return self.checkpoint_ts

    def _first_unwritten(self) -> int:
        for number, buffer in enumerate(self._buffers):
            unset = np.flatnonzero(buffer != _FULL)
            if len(unset):
                word = int(buffer[unset[0]])
                bit = (~word & (word + 1)).bit_length() - 1
                return self._first + number * BUFFER_BITS + int(unset[0]) * _WORD + bit
        return self._added


def _set(words: npt.NDArray[np.uint64], first: int, end: int) -> None:
    """Bits `first` to `end`, without the last. Raises NeedsHuman when one is set already."""
    bits = np.arange(first // _WORD, -(-end // _WORD), dtype=np.int64)
    low = np.maximum(first - bits * _WORD, 0).astype(np.uint64)
    high = np.minimum(end - bits * _WORD, _WORD).astype(np.uint64)
    mask = (_FULL >> (np.uint64(_WORD) - (high - low))) << low
    if (words[bits] & mask).any():
        raise NeedsHuman("An event is acknowledged twice.", _FORGED)
    words[bits] |= mask
