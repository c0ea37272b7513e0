"""Rows that COPY writes in its text form, as pgoutput would send them: for all rows at once. Pure.

Both have a value as its type's output function writes it. COPY ends cells with a tab or a newline, writes NULL as
`\\N`, and puts a backslash ahead of what is not to be taken for one of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.upstream.binary_view import Ints
from changefeed.upstream.postgresql.failures import broken_stream
from changefeed.upstream.postgresql.pgoutput.tuples import CELL_HEAD, COUNT, NULL, TEXT, Piece, joined, view_of

_TAB, _NEWLINE, _BACKSLASH, _N = b"\t\n\\N"
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
    is_null = ends - starts == 2
    is_null[is_null] = (data[starts[is_null]] == _BACKSLASH) & (data[starts[is_null] + 1] == _N)
    data, starts, ends = _unescaped(data, starts, ends)
    return _joined(data, starts, np.where(is_null, starts, ends), is_null, columns, identity)


def _unescaped(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """Without the backslashes, each with what is behind it meaning something else. Of several the first is ahead."""
    found = np.flatnonzero(data == _BACKSLASH)
    if not len(found):
        return data, starts, ends
    is_first = np.append(True, np.diff(found) > 1)
    number = np.arange(len(found))
    ahead = found[(number - np.maximum.accumulate(np.where(is_first, number, 0))) % 2 == 0]
    meant = data.copy()
    meant[ahead + 1] = _MEANT[data[ahead + 1]]
    return np.delete(meant, ahead), starts - np.searchsorted(ahead, starts), ends - np.searchsorted(ahead, ends)


def _joined(
    data: npt.NDArray[np.uint8],
    starts: Ints,
    ends: Ints,
    is_null: npt.NDArray[np.bool_],
    columns: int,
    identity: Sequence[int],
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    cells = len(starts)
    heads = np.empty((cells, CELL_HEAD), np.uint8)
    heads[:, 0] = np.where(is_null, NULL, TEXT)
    heads[:, 1:] = (ends - starts).astype(">u4").view(np.uint8).reshape(cells, 4)
    count = np.frombuffer(columns.to_bytes(COUNT), np.uint8)
    view = view_of(np.concatenate([data, heads.ravel(), count]))
    head_starts = len(data) + CELL_HEAD * np.arange(cells)
    head_ends = head_starts + np.where(is_null, 1, CELL_HEAD)
    rows = cells // columns
    count_at = np.full(rows, len(data) + heads.size)
    bounds = [each.reshape(rows, columns).T for each in (head_starts, head_ends, starts, ends)]
    pieces: list[list[Piece]] = [
        [(head_start, head_end), (start, end)] for head_start, head_end, start, end in zip(*bounds, strict=True)
    ]
    keys = joined(view, [piece for column in identity for piece in pieces[column]])
    values = joined(view, [(count_at, count_at + COUNT), *(piece for both in pieces for piece in both)])
    return keys, values
