"""Matches equal elements of two arrays: a join for a handful of rows, without the overhead of a data frame."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.intp]
_U64 = npt.NDArray[np.uint64]

_NONE = np.empty(0, np.intp)


def pairs(left: _U64, right: _U64) -> tuple[Numbers, Numbers]:
    """Where `left[i] == right[j]`: all i, in order, and their j."""
    if not (len(left) and len(right)):
        return _NONE, _NONE
    order = np.argsort(right)  # several times as fast as a stable sort
    values = right[order]
    if (values[1:] == values[:-1]).any():
        return _pairs_of_repeated(left, right)
    # Hashes are looked for in their order: one after the other is found in memory that the last one has warmed.
    wanted = np.argsort(left)
    index = np.empty(len(left), np.intp)
    index[wanted] = np.searchsorted(values, left[wanted])
    hits = np.flatnonzero(values.take(index, mode="clip") == left)
    return hits, order[index[hits]]


def twins(hashes: _U64) -> tuple[Numbers, Numbers]:
    """Where two hashes are equal, and no third: the first of the two, in order, and the second.

    Only their high bits count: below them each has its own number, as a sort of values is several times as fast as one
    that gives the order. What it finds is to be compared, and it may miss some.
    """
    low = np.uint64(len(hashes).bit_length())
    ordered = np.sort(hashes >> low << low | np.arange(len(hashes), dtype=np.uint64))
    high, numbers = ordered >> low, (ordered & ((np.uint64(1) << low) - np.uint64(1))).astype(np.intp)
    repeats = np.zeros(len(hashes) + 1, bool)  # the one before, in this order
    repeats[1:-1] = high[1:] == high[:-1]
    where = np.flatnonzero(repeats[1:-1] & ~repeats[:-2] & ~repeats[2:])
    second = np.zeros(len(hashes), np.intp)
    second[numbers[where]] = numbers[where + 1]
    first = np.flatnonzero(second)
    return first, second[first]


def _pairs_of_repeated(left: _U64, right: _U64) -> tuple[Numbers, Numbers]:
    order = np.argsort(right, kind="stable")
    values = right[order]
    first = np.searchsorted(values, left, "left")
    counts = np.searchsorted(values, left, "right") - first
    ends = np.cumsum(counts)
    number = np.arange(ends[-1]) - np.repeat(ends - counts, counts)  # of each pair of an i
    return np.repeat(np.arange(len(left)), counts), order[np.repeat(first, counts) + number]
