"""Locates the values of the wanted columns in a batch of rows, whatever the format of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from changefeed.upstream.binary_view import Bounds, Ints, Mask
from changefeed.upstream.tikv.row.cells import ABSENT

Indexes = npt.NDArray[np.intp]


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

    def at(self, columns: Sequence[int]) -> Located:
        """Where the values of some of the columns stand."""
        return Located(self.starts[columns], self.ends[columns])

    def has_value(self, slots: Indexes, rows: Ints) -> Mask:
        """Tell in which of the rows one of the columns at `slots` has been placed, and not as NULL."""
        found: Mask = np.logical_or.reduce((self.starts[slots, rows] >= 0) & (slots < len(self.starts) - 1))
        return found

    def place(self, slots: Indexes, rows: Ints, starts: Bounds | int, ends: Bounds | int) -> None:
        """Note a cell a row, or of several columns with a row of `slots` each; a single slot stands for all rows'."""
        is_all = slots.shape[-1] == 1 and len(rows) == self.starts.shape[1]
        at: Any = slots[..., 0] if is_all else (slots, rows)
        self.starts[at] = starts
        self.ends[at] = ends


class Slots:
    """At which position among the wanted columns an id stands; behind them all if it is none of them."""

    def __init__(self, column_ids: Sequence[int]) -> None:
        ids = np.array([*column_ids, (1 << 64) - 1], np.uint64)
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def of(self, ids: npt.NDArray[np.unsignedinteger]) -> Indexes:
        """One position each."""
        found = np.searchsorted(self._sorted, ids)
        return np.where(self._sorted[found] == ids, self._order[found], len(self._sorted) - 1)
