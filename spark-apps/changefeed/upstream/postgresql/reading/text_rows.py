"""Rows that COPY writes in its text form, as pgoutput would send them: for all rows at once. Pure.

Both have a value as its type's output function writes it. COPY ends cells with a tab or a newline, writes NULL as
`\\N`, and puts a backslash ahead of what is not to be taken for one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.upstream.binary_view import BinaryView, Ints, Mask
from changefeed.upstream.postgresql.failures import broken_stream
from changefeed.upstream.postgresql.pgoutput.tuples import CELL_HEAD, COUNT, NULL, TEXT, joined

_TAB, _NEWLINE, _BACKSLASH, _N = b"\t\n\\N"
_ESCAPE = b"\\"
_MEANT = np.arange(256, dtype=np.uint8)  # by what is behind a backslash
_MEANT[np.frombuffer(b"bfnrtv", np.uint8)] = np.frombuffer(b"\b\f\n\r\t\v", np.uint8)


def rows_of(text: bytes, columns: int, identity: Sequence[int]) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Keys and values of whole lines of so many cells, see `pgoutput.changes`. `identity`: columns that are the key.

    Raises ProtocolViolation for what is none.
    """
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((data == _TAB) | (data == _NEWLINE))
    tails = np.full(columns, _TAB, np.uint8)
    tails[-1] = _NEWLINE
    if len(ends) % columns or (len(data) and ends[-1:] != [len(data) - 1]):
        raise broken_stream("The server copies a table in lines that are not whole.")
    if (data[ends].reshape(-1, columns) != tails).any():
        raise broken_stream(f"The server copies a table in lines that have not {columns} cells.")
    starts = np.append(0, ends[:-1] + 1) if len(ends) else ends
    is_null = np.zeros(len(starts), np.bool_)
    if _ESCAPE in text:
        is_null = ends - starts == 2
        is_null[is_null] = (data[starts[is_null]] == _BACKSLASH) & (data[starts[is_null] + 1] == _N)
        data, starts, ends = _unescaped(data, starts, ends, is_null)
    return _with_heads(data, starts, ends, is_null, columns, identity)


def _unescaped(
    data: npt.NDArray[np.uint8], starts: Ints, ends: Ints, is_null: Mask
) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """Without the backslashes, each with what is behind it meaning something else. Of several the first is ahead.

    Of NULL nothing is left.
    """
    found = np.flatnonzero(data == _BACKSLASH)
    is_first = np.append(True, np.diff(found) > 1)
    number = np.arange(len(found))
    ahead = found[(number - np.maximum.accumulate(np.where(is_first, number, 0))) % 2 == 0]
    meant = data.copy()
    meant[ahead + 1] = _MEANT[data[ahead + 1]]
    gone = np.sort(np.append(ahead, starts[is_null] + 1))
    return np.delete(meant, gone), starts - np.searchsorted(gone, starts), ends - np.searchsorted(gone, ends)


def _with_heads(
    data: npt.NDArray[np.uint8], starts: Ints, ends: Ints, is_null: Mask, columns: int, identity: Sequence[int]
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """A cell's head takes the place of the byte that ends the cell before it, and as much more as it needs there.

    So the bytes keep their order, and are moved in stretches.
    """
    more = np.where(is_null, 0, CELL_HEAD - 1)
    more[::columns] += COUNT
    at = starts + np.cumsum(more)  # of the last byte of each cell's head
    texts = at if not is_null.any() else at[~is_null]
    heads, firsts = texts - (CELL_HEAD - 1), at[::columns] - more[::columns]
    found = np.empty(len(data) + int(more.sum()), np.uint8)
    is_moved = np.ones(len(found), np.bool_)
    _at_each(is_moved, ">u4")[heads] = 0
    _at_each(is_moved, ">u2")[firsts] = 0
    found[is_moved] = np.append(data[-1:], data[:-1])
    if len(texts) < len(at):
        found[at[is_null]] = NULL
    found[heads] = TEXT
    lengths = (ends - starts).astype(">u4")
    _at_each(found, ">u4")[heads + 1] = lengths if len(texts) == len(at) else lengths[~is_null]
    _at_each(found, ">u2")[firsts] = columns
    offsets = np.append(firsts, len(found)).astype(np.int32)
    values = pa.Array.from_buffers(pa.binary(), len(firsts), [None, pa.py_buffer(offsets), pa.py_buffer(found)])
    begins, tails = at - np.where(is_null, 0, CELL_HEAD - 1), at + 1 + ends - starts
    keys = joined(BinaryView(values), [(begins[number::columns], tails[number::columns]) for number in identity])
    return keys, values


def _at_each(data: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    """The words that begin at each byte, which overlap, to be written to."""
    width = np.dtype(kind).itemsize
    return np.ndarray((max(len(data) + 1 - width, 0),), kind, buffer=data.data, strides=(1,))
