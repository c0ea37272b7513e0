"""What each pipeline task reads: the segments of its files, in memory or on disk. Pure.

Nothing a task may be reading is deleted, nor its memory reused (rules 3, 21). A task is reading until it reports its
file done, even if the task that had the file before has already done so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from changefeed.eventstore.slices import SegmentSlice
from changefeed.owner.writing.open_entries import EntryKey


class Reads:
    """Counts each segment by who reads it: it is asked for them at every step."""

    def __init__(self) -> None:
        self._of: dict[int, dict[EntryKey, Sequence[SegmentSlice]]] = {}  # by task
        self._segments: Counter[str] = Counter()
        self._in_memory: Counter[str] = Counter()

    def begun(self, task: int, key: EntryKey, segments: Sequence[SegmentSlice]) -> None:
        """The task is told to write the file from these."""
        self._of.setdefault(task, {})[key] = segments
        for piece in segments:
            for counted in self._counted(piece):
                counted[piece.uri] += 1

    def left(self, task: int) -> None:
        """Its stream is over: segments that were kept for it could fill the event store for ever."""
        for key in list(self._of.get(task, ())):
            self.over(task, key)

    def over(self, task: int, key: EntryKey) -> None:
        """The task has written the file, or has given it back."""
        for piece in self._of.get(task, {}).pop(key, ()):
            for counted in self._counted(piece):
                counted[piece.uri] -= 1
                if not counted[piece.uri]:
                    del counted[piece.uri]

    def _counted(self, piece: SegmentSlice) -> Sequence[Counter[str]]:
        return (self._segments,) if piece.slot is None else (self._segments, self._in_memory)

    @property
    def segments(self) -> Set[str]:
        """Their URIs, wherever they are read."""
        return self._segments.keys()

    @property
    def in_memory(self) -> Set[str]:
        """The URIs of the segments that are read in memory."""
        return self._in_memory.keys()
