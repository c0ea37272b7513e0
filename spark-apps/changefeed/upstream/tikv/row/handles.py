"""Reads the values of a clustered primary key from record keys, without a step per row.

See docs/design/tidb.md, Record keys.

A string key may contain a collation's sort keys, which are not text: a column is read from the key only if the row's
value lacks it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.upstream.binary_view import BadCell, BinaryView, Ints, Mask, Words, take_slices
from changefeed.upstream.tikv.row.decimals import decimal_size
from changefeed.upstream.tikv.tidb.keys import PREFIX_LENGTH, RECORD

_BYTES, _INT, _UINT, _FLOAT, _DECIMAL, _DURATION = 1, 3, 4, 5, 6, 7
_MIN_LENGTH = 9
_SIGN = np.uint64(1 << 63)
_GROUP = 8
_FULL = 0xFF


def decode_common_handles(keys: pa.BinaryArray, columns: Sequence[ColumnInfo]) -> list[pa.BinaryArray]:
    """Each column's values in the form that they have in a row (`row.cells`).

    `keys`: record keys of one table; `columns`: of its primary key, in that order. Raises BadCell.
    """
    view = BinaryView(keys)
    _check_prefix(view)
    starts = view.starts + PREFIX_LENGTH
    at, found = starts, []
    for column in columns:
        bad = at >= view.ends
        _refuse(bad, f"the key ends before column {column.name}")
        flag = view.read(at, 1)
        if column.type in ti.STRINGS | ti.BLOBS:
            _refuse(flag != _BYTES, _wrong_flag(column))
            values, at = _strings(view, at + 1)
        elif column.type == SqlType.DECIMAL:
            _refuse(flag != _DECIMAL, _wrong_flag(column))
            ends = at + 1 + decimal_size(view.read(at + 1, 2))
            _check_inside(view, ends)
            values, at = take_slices(view.buffer, (at + 1).astype(np.int32), ends.astype(np.int32), None), ends
        else:
            values, at = _numbers(view, at, column)
        found.append(values)
    # A handle of fewer than nine bytes is padded, so that it never looks like an integer's.
    _refuse((at != view.ends) & (view.ends - starts != _MIN_LENGTH), "the key has bytes behind its last column")
    return found


def _check_prefix(view: BinaryView) -> None:
    """All keys begin as the first one does, which is a record's."""
    if not len(view.starts):
        return
    _refuse(view.ends - view.starts < PREFIX_LENGTH + _MIN_LENGTH, "the key is too short to hold a primary key")
    table_id, kind = view.read(view.starts, 8), view.read(view.starts + PREFIX_LENGTH - 8, 8)
    is_record = (view.read(view.starts + PREFIX_LENGTH - 2, 2) == int.from_bytes(RECORD, "little")) & (
        view.read(view.starts, 1) == ord("t")
    )
    _refuse(~is_record | (table_id != table_id[0]) | (kind != kind[0]), "the key is not a record key of the table")


def _numbers(view: BinaryView, at: Ints, column: ColumnInfo) -> tuple[pa.BinaryArray, Ints]:
    end = at + 9
    _check_inside(view, end)
    flag, words = view.read(at, 1), view.read(at + 1, 8)
    if column.type in (SqlType.FLOAT, SqlType.DOUBLE):
        _refuse(flag != _FLOAT, _wrong_flag(column))
        return _words(words), end
    signed = (flag == _INT) | (flag == _DURATION)
    _refuse(~signed & (flag != _UINT), _wrong_flag(column))
    number = words.byteswap()
    return _words(np.where(signed, number ^ _SIGN, number)), end


def _words(words: Words) -> pa.BinaryArray:
    """Values of eight bytes."""
    offsets = np.arange(0, 8 * len(words) + 1, 8, dtype=np.int32)
    data = pa.py_buffer(np.ascontiguousarray(words, "<u8"))
    return pa.Array.from_buffers(pa.binary(), len(words), [None, pa.py_buffer(offsets), data])


def _strings(view: BinaryView, at: Ints) -> tuple[pa.BinaryArray, Ints]:
    """Groups of eight bytes and a marker, 0xFF minus the padding; the last one is not full."""
    groups = np.zeros(len(at), np.int64)
    padding = np.zeros(len(at), np.int64)
    open_ = np.arange(len(at))
    while len(open_):
        marker_at = at[open_] + (_GROUP + 1) * groups[open_] + _GROUP
        _refuse_rows(open_, marker_at >= view.ends[open_], "a string in the key has no end")
        marker = view.read(marker_at, 1).astype(np.int64)
        groups[open_] += 1
        padding[open_] = _FULL - marker
        open_ = open_[marker == _FULL]
    _refuse(padding > _GROUP, "a string in the key has a group with an impossible marker")
    first = np.cumsum(groups) - groups  # where each string's groups begin among all
    words = np.zeros(int(groups.sum()), np.uint64)
    for number in range(int(groups.max(initial=0))):
        rows = np.flatnonzero(groups > number)
        words[first[rows] + number] = view.read(at[rows] + (_GROUP + 1) * number, _GROUP)
    used = (8 * (_GROUP - padding)).astype(np.uint64)
    _refuse(words[first + groups - 1] >> used != 0, "a string in the key is padded with other bytes than zeros")
    starts = _GROUP * first
    ends = starts + _GROUP * groups - padding
    data = pa.py_buffer(np.ascontiguousarray(words, "<u8"))
    return take_slices(data, starts.astype(np.int32), ends.astype(np.int32), None), at + (_GROUP + 1) * groups


def _wrong_flag(column: ColumnInfo) -> str:
    return f"column {column.name} has another type in the key than in the table's definition"


def _check_inside(view: BinaryView, ends: Ints) -> None:
    _refuse(ends > view.ends, "the key ends inside a value")


def _refuse(bad: Mask, why: str) -> None:
    if bad.any():
        raise BadCell(int(bad.argmax()), why)


def _refuse_rows(rows: Ints, bad: Mask, why: str) -> None:
    if bad.any():
        raise BadCell(int(rows[bad.argmax()]), why)
