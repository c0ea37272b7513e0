"""Locates the values of the wanted columns in a batch of rows, whatever the format of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changefeed.upstream.tikv.row.binary_view import Ints, Mask, Words
from changefeed.upstream.tikv.row.cells import ABSENT


@dataclass(frozen=True)
class Located:
    """Where the values of column c stand: row r has data[starts[c, r]:ends[c, r]]; a negative start: ABSENT or NULL.

    There is one more row of cells than columns: columns that the schema does not show end there.
    """

    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    @classmethod
    def nowhere(cls, columns: int, rows: int) -> Located:
        return cls(np.full((columns + 1, rows), ABSENT, np.int32), np.zeros((columns + 1, rows), np.int32))

    def has_value(self, slot: npt.NDArray[np.intp], rows: Ints) -> Mask:
        """Whether a wanted column has been placed, and not as NULL."""
        return (self.starts[slot, rows] >= 0) & (slot < len(self.starts) - 1)

    def place(self, slot: npt.NDArray[np.intp], rows: Ints, starts: Ints | int, ends: Ints | int) -> None:
        if len(slot) == 1 and len(rows) == self.starts.shape[1]:
            self.starts[slot[0]] = starts
            self.ends[slot[0]] = ends
            return
        self.starts[slot, rows] = starts
        self.ends[slot, rows] = ends


class Slots:
    """At which position among the wanted columns an id stands; behind them all if it is none of them."""

    def __init__(self, column_ids: Sequence[int]) -> None:
        ids = np.array([*column_ids, (1 << 64) - 1], np.uint64)
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def of(self, ids: Words) -> npt.NDArray[np.intp]:
        """One position each, or a single one if all ids are the same."""
        if (ids == ids[0]).all():
            ids = ids[:1]
        found = np.searchsorted(self._sorted, ids)
        return np.where(self._sorted[found] == ids, self._order[found], len(self._sorted) - 1)
