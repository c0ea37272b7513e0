"""Finds the cells of many rows as pgoutput sends them, column by column over all rows at once.

TupleData is a count of columns and a cell each: a byte that is its kind, and behind that of TEXT a length and the
value. A cell is known by the place of its kind and its end, so cells can be moved from row to row as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.upstream.binary_view import BinaryView, Ints, Mask, take_slices
from changefeed.upstream.postgresql.failures import broken_stream

NULL, UNCHANGED, TEXT = ord("n"), ord("u"), ord("t")
COUNT = 2  # bytes of a tuple's count of columns
CELL_HEAD = 5  # of a TEXT: its kind and length

Piece = tuple[Ints, Ints]  # where it starts in each row, and where it ends


@dataclass(frozen=True)
class Tuples:
    """Rows of one relation: each stands in `data[begins[r]:behind[r]]`.

    Column c of row r is `data[starts[c, r]:ends[c, r]]`, wherever that is; kinds[c, r] is the byte at its start.
    """

    begins: Ints
    behind: Ints
    starts: Ints
    ends: Ints
    kinds: npt.NDArray[np.uint8]

    def columns(self, numbers: Sequence[int]) -> list[Piece]:
        """The cells of some columns; columns side by side are one piece."""
        return [(self.starts[run[0]], self.ends[run[-1]]) for run in runs(numbers)]


def runs(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers, parted where one is left out."""
    found: list[list[int]] = [[number] for number in numbers[:1]]
    for number, following in pairwise(numbers):
        if following == number + 1:
            found[-1].append(following)
        else:
            found.append([following])
    return found


def view_of(data: bytes | npt.NDArray[np.uint8]) -> BinaryView:
    """All of the bytes, in which positions count from the first."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int32))
    return BinaryView(pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)]))


def locate(view: BinaryView, begins: Ints, limits: Ints, columns: int) -> Tuples:
    """The cells of tuples that begin there and must have so many columns. Raises ProtocolViolation.

    No tuple is read beyond its limit.
    """
    rows = len(begins)
    starts, ends = np.empty((columns, rows), np.int64), np.empty((columns, rows), np.int64)
    kinds = np.empty((columns, rows), np.uint8)
    at = begins + COUNT
    _check(at <= limits, "ends within its count of columns")
    counts = view.read(begins, COUNT).astype(np.uint16).byteswap()
    _check(counts == columns, f"has not the {columns} columns of its relation")
    for column in range(columns):
        starts[column] = at
        _check(at < limits, f"ends before its column {column + 1}")
        words = view.read(at, 8).byteswap()  # the kind is the first byte now, the length the four behind it
        kind = words >> np.uint64(56)
        kinds[column] = kind
        is_text = kind == TEXT
        if is_text.all():
            at = at + ((words >> np.uint64(24)).astype(np.uint32) + np.int64(CELL_HEAD))
        else:
            _check(is_text | (kind == NULL) | (kind == UNCHANGED), f"has a column {column + 1} of no known kind")
            lengths = (words >> np.uint64(24)).astype(np.uint32)
            at = at + np.where(is_text, lengths + np.int64(CELL_HEAD), 1)
        ends[column] = at
        _check(at <= limits, f"ends within its column {column + 1}")
    return Tuples(begins, at, starts, ends, kinds)


def _check(good: Mask, why: str) -> None:
    if not good.all():
        raise broken_stream(f"A row of pgoutput {why}.")


def joined(view: BinaryView, pieces: Sequence[Piece]) -> pa.BinaryArray:
    """For each row its pieces, one behind the other."""
    if len(pieces) == 1:
        starts, ends = pieces[0]
        return view.take(starts.astype(np.int32), ends.astype(np.int32), None)
    each = np.array(pieces, np.int64).astype(np.int32)  # piece, start or end, row
    parts = take_slices(view.buffer, each[:, 0].T.ravel(), each[:, 1].T.ravel(), None)
    rows = each.shape[2]
    if not rows:
        return pa.array([], pa.binary())
    offsets = np.frombuffer(parts.buffers()[1], np.int32)[: rows * len(pieces) + 1 : len(pieces)]
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets.copy()), parts.buffers()[2]])
