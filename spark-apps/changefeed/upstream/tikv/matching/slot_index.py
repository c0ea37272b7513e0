"""Finds the rows of given slots among many millions: sorted runs, so a lookup costs about what it returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_U64 = npt.NDArray[np.uint64]
_Rows = npt.NDArray[np.int64]

#: Rows of a run. Each is searched, and while the last one grows it is sorted again.
RUN_ROWS = 1 << 20


@dataclass
class _SortedRun:
    first: int  # number of its first row
    slots: _U64  # sorted
    rows: npt.NDArray[np.uint32]  # counted from `first`


class SlotIndex:
    """Rows are numbers that rise. 12 bytes a row; slots are hashes, so rows that are found are only candidates."""

    def __init__(self) -> None:
        self._runs: list[_SortedRun] = []

    @property
    def is_empty(self) -> bool:
        return not self._runs

    def add(self, first: int, slots: _U64) -> None:
        """Rows `first`, `first + 1`, ... are above all that there are."""
        rows = np.arange(len(slots), dtype=np.uint32)
        if self._runs and len(self._runs[-1].slots) < RUN_ROWS and first - self._runs[-1].first < 1 << 31:
            last = self._runs.pop()
            rows = np.concatenate([last.rows, rows + np.uint32(first - last.first)])
            slots = np.concatenate([last.slots, slots])
            first = last.first
        order = np.argsort(slots, kind="stable")
        self._runs.append(_SortedRun(first, slots[order], rows[order]))

    def find(self, slots: _U64) -> tuple[npt.NDArray[np.intp], _Rows]:
        """Pairs of an element of `slots` and a row that has it."""
        order = np.argsort(slots, kind="stable")  # neighbours are found in the same pages
        wanted = slots[order]
        found = [(order[i], rows) for i, rows in (_find(run, wanted) for run in self._runs)]
        if not found:
            return np.empty(0, np.intp), np.empty(0, np.int64)
        return np.concatenate([i for i, _ in found]), np.concatenate([rows for _, rows in found])

    def drop(self, first: int, end: int) -> None:
        """Forget the rows [first, end)."""
        kept = []
        for run in self._runs:
            below, stop = first - run.first, end - run.first
            keep = (run.rows < max(below, 0)) | (run.rows >= max(stop, 0))
            if not keep.all():
                run.slots, run.rows = run.slots[keep], run.rows[keep]
            if len(run.slots):
                kept.append(run)
        self._runs = kept


def _find(run: _SortedRun, wanted: _U64) -> tuple[npt.NDArray[np.intp], _Rows]:
    first = np.searchsorted(run.slots, wanted)
    hits = np.flatnonzero(run.slots.take(first, mode="clip") == wanted)
    first = first[hits]
    counts = np.searchsorted(run.slots, wanted[hits], "right") - first
    ends = np.cumsum(counts)
    number = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)  # of each row of a hit
    return np.repeat(hits, counts), run.first + run.rows[np.repeat(first, counts) + number].astype(np.int64)
