"""Which elements of two arrays are equal: a join for a handful of rows, where a data frame's would cost a plan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.intp]


def pairs(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]) -> tuple[Numbers, Numbers]:
    """Where `left[i] == right[j]`: all i, in order, and their j."""
    order = np.argsort(right, kind="stable")
    values = right[order]
    first = np.searchsorted(values, left, "left")
    counts = np.searchsorted(values, left, "right") - first
    ends = np.cumsum(counts)
    number = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)  # of each pair of an i
    return np.repeat(np.arange(len(left)), counts), order[np.repeat(first, counts) + number]
