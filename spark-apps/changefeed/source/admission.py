"""Where a batch ends: limits the bytes and rows that Spark gets at once. Pure.

A batch is all changes of a table between two ts, so a transaction is never split, however large. Bytes are raw bytes
taken from the segments' curves, accurate to about 256 KiB per segment; rows are counted exactly, by commit ts.
Duplicates (rule 4) count twice, so a batch with duplicates is smaller than the limit allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from changefeed.owner.pulling.segments import Segment

Timestamps = npt.NDArray[np.uint64]


class ArrivedBytes(NamedTuple):
    """This many raw bytes of rows, ending at this ts."""

    last_ts: int
    bytes: int


def pieces(segments: Iterable[Segment], after_ts: int, upto_ts: int) -> list[ArrivedBytes]:
    """What the segments may hold in `(after_ts, upto_ts]`, by ts. Empty only if they hold nothing there."""
    found: list[ArrivedBytes] = []
    for segment in segments:
        first_ts, counted = segment.min.commit_ts, 0
        for position, size in segment.curve:
            if position.commit_ts > after_ts and first_ts <= upto_ts:
                found.append(ArrivedBytes(min(position.commit_ts, upto_ts), size - counted))
            first_ts, counted = position.commit_ts, size
    return sorted(found)


def end_by_bytes(found: Sequence[ArrivedBytes], size: int, upto_ts: int) -> int:
    """The last ts up to which there are at most `size` bytes; at least the first ts that has rows."""
    total, fits = 0, None
    for ts, group in groupby(found, attrgetter("last_ts")):
        total += sum(piece.bytes for piece in group)
        if total > size:
            return int(ts if fits is None else fits)
        fits = ts
    return upto_ts


def split(found: Sequence[ArrivedBytes], size: int, after_ts: int, upto_ts: int) -> Iterator[tuple[int, int]]:
    """Split `(after_ts, upto_ts]` into ranges of about `size` bytes for tasks; empty if there is nothing to read."""
    rest = list(found)
    while rest:
        end = end_by_bytes(rest, size, upto_ts)
        rest = [piece for piece in rest if piece.last_ts > end]
        end = end if rest else upto_ts
        yield after_ts, end
        after_ts = end


class RowCount:
    """Finds the ts at which `most` rows of `(after_ts, upto_ts]` are reached. Add segments lowest first."""

    def __init__(self, after_ts: int, upto_ts: int, most: int) -> None:
        self._after_ts = after_ts
        self._upto_ts = upto_ts
        self._most = most
        self._found: Timestamps = np.empty(0, np.uint64)  # sorted

    def add(self, commit_ts: Timestamps) -> None:
        inside = commit_ts[(commit_ts > self._after_ts) & (commit_ts <= self._upto_ts)]
        self._found = np.sort(np.concatenate([self._found, inside]))

    def is_enough(self, next_ts: int) -> bool:
        """Whether segments that begin at `next_ts` can no longer change the result."""
        return len(self._found) > self._most and int(self._found[self._most]) < next_ts

    def end(self) -> int:
        """The ts. Exceeds `most` rows only if the first commit ts does so by itself."""
        if len(self._found) <= self._most:
            return self._upto_ts
        too_many = self._found[self._most]
        fits = int(np.searchsorted(self._found, too_many))
        return int(self._found[fits - 1] if fits else too_many)
