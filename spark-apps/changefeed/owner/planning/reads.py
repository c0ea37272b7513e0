"""Which segments the files that are being written are made from, and where their tasks were told to read them. Pure.

What a task may read is neither deleted nor its memory used again (rules 3, 21).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from changefeed.model.record import SegmentSlice
from changefeed.owner.planning.open_entries import EntryKey


class Reads:
    def __init__(self) -> None:
        self._of: dict[EntryKey, Sequence[SegmentSlice]] = {}

    def begun(self, key: EntryKey, segments: Sequence[SegmentSlice]) -> None:
        """A task is told to write the file from these."""
        self._of[key] = segments

    def over(self, keys: Iterable[EntryKey]) -> None:
        """Nobody writes these: segments are not kept for them, or they could fill the event store for ever."""
        for key in keys:
            self._of.pop(key, None)

    @property
    def segments(self) -> Collection[str]:
        """Their URIs, wherever they are read."""
        return {piece.uri for pieces in self._of.values() for piece in pieces}

    @property
    def in_memory(self) -> Collection[str]:
        """Of those that are read in memory."""
        return {piece.uri for pieces in self._of.values() for piece in pieces if piece.slot is not None}
