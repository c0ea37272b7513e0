"""The order of raw rows, found fast: most batches stand in order already, and most keys are one table's int handles.

Only a way to sort: what the order is, model.position says. It must agree with a comparison of the columns one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: Of segments, entries and files (docs/design/layouts.md, Position); of the search for repeats (rule 4).
BY_POSITION = ("commit_ts", "start_ts", "op", "key")
BY_IDENTITY = ("commit_ts", "key")

_WORD = 8


def ordered(rows: pa.RecordBatch, by: Sequence[str]) -> pa.RecordBatch:
    """The rows sorted by these columns; the same object when they stand so already. Equal rows keep their order."""
    order = order_of(rows, by)
    return rows if order is None else rows.take(pa.array(order))


def order_of(rows: pa.RecordBatch, by: Sequence[str]) -> npt.NDArray[Any] | None:
    """Row numbers in the order of these columns, stable; None when the rows stand so already."""
    if rows.num_rows < 2:
        return None
    columns = [_comparable(rows.column(name)) for name in by]
    if _stand_in_order(columns):
        return None
    # Most often the rows are some sorted runs: merged by the first column, they stand in order by all.
    merged: npt.NDArray[Any] = np.argsort(columns[0], kind="stable")
    if _stand_in_order([_at(column, merged) for column in columns]):
        return merged
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.lexsort(columns[::-1])
    order: npt.NDArray[Any] = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in by]).to_numpy()
    return order


def comparable(rows: pa.RecordBatch, by: Sequence[str]) -> pa.RecordBatch:
    """These columns alone, where there is a row; keys as numbers that compare as they do where there are such."""
    columns = [_comparable(rows.column(name)) for name in by]
    return pa.RecordBatch.from_arrays(
        [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns], names=list(by)
    )


def same_as_next(rows: pa.RecordBatch, by: Sequence[str]) -> npt.NDArray[np.intp]:
    """Numbers of the rows that have the same values in these columns as the row after them."""
    if rows.num_rows < 2:
        return np.empty(0, np.intp)
    same = np.ones(rows.num_rows - 1, np.bool_)
    for name in by:
        same &= _compare(pc.equal, _comparable(rows.column(name)))
    return np.flatnonzero(same)


def _comparable(column: pa.Array) -> npt.NDArray[Any] | pa.Array:
    """Numbers that compare as the column does, or the column itself where there are none."""
    if not pa.types.is_binary(column.type):
        return column.to_numpy()
    words = _words(column)
    return column if words is None else words


def _words(keys: pa.Array) -> npt.NDArray[np.uint64] | None:
    """Numbers that compare as the keys do; None unless all have one length, 16 bytes or more, and one beginning."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    length = int(offsets[1] - offsets[0])
    last = length - _WORD
    if last < _WORD or (np.diff(offsets) != length).any():
        return None
    for start in (*range(0, last - _WORD, _WORD), last - _WORD):  # two of them may overlap
        words = _words_at(keys, int(offsets[0]) + start, length, "<u8")
        if (words != words[0]).any():
            return None
    return _words_at(keys, int(offsets[0]) + last, length, ">u8").astype(np.uint64)


def _words_at(keys: pa.Array, first: int, length: int, kind: str) -> npt.NDArray[np.uint64]:
    """The words that begin `length` bytes apart, from byte `first` of the keys' data on."""
    return np.ndarray((len(keys),), kind, keys.buffers()[2], first, (length,))


def _at(column: npt.NDArray[Any] | pa.Array, places: npt.NDArray[Any]) -> npt.NDArray[Any] | pa.Array:
    return column[places] if isinstance(column, np.ndarray) else column.take(pa.array(places))


def _stand_in_order(columns: Sequence[npt.NDArray[Any] | pa.Array]) -> bool:
    """Tell whether no row is less than the one before it."""
    rises = np.ones(len(columns[0]) - 1, np.bool_)
    for column in reversed(columns):
        rises = _compare(pc.less, column) | (_compare(pc.equal, column) & rises)
    return bool(rises.all())


def _compare(how: Callable[[Any, Any], Any], column: npt.NDArray[Any] | pa.Array) -> npt.NDArray[np.bool_]:
    """Each element with the next one."""
    if isinstance(column, np.ndarray):
        return column[:-1] < column[1:] if how is pc.less else column[:-1] == column[1:]
    compared: npt.NDArray[np.bool_] = how(column[:-1], column[1:]).to_numpy(zero_copy_only=False)
    return compared
