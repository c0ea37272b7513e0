"""Which segments the files that are being written are made from, and where their tasks were told to read them. Pure.

What a task may read is neither deleted nor its memory used again (rules 3, 21).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from changefeed.model.record import SegmentSlice
from changefeed.owner.planning.open_entries import EntryKey


class Reads:
    """Counts each segment by the files that are written from it: it is asked for them at every step."""

    def __init__(self) -> None:
        self._of: dict[EntryKey, Sequence[SegmentSlice]] = {}
        self._segments: Counter[str] = Counter()
        self._in_memory: Counter[str] = Counter()

    def begun(self, key: EntryKey, segments: Sequence[SegmentSlice]) -> None:
        """A task is told to write the file from these."""
        self.over([key])
        self._of[key] = segments
        for piece in segments:
            for counted in self._counted(piece):
                counted[piece.uri] += 1

    def over(self, keys: Iterable[EntryKey]) -> None:
        """Nobody writes these: segments are not kept for them, or they could fill the event store for ever."""
        for key in keys:
            for piece in self._of.pop(key, ()):
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
        """Of those that are read in memory."""
        return self._in_memory.keys()
