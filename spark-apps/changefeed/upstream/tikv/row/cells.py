"""Decodes one column's values, as stored in rows of format v2, into an Arrow array (docs/design/tidb.md, Values).

One function per kind of type, each over a whole column. Anything that is not a valid value of its type is a BadCell,
never a guess.

Values have the types of `schema.values`. Text may contain bytes that are not UTF-8 (latin1, ascii, or any charset under
tidb_skip_utf8_check).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.schema.time_zones import UTC
from changefeed.schema.values import CHOICE, CHOICES, FLOATS, WORDS, is_unsigned
from changefeed.upstream.binary_view import BadCell, BinaryView, Mask, Words
from changefeed.upstream.tikv.row.decimals import decode_decimals
from changefeed.upstream.tikv.row.json_binary import json_texts
from changefeed.upstream.tikv.row.times import MAX_FSP, duration_text, in_zone, time_text, unpack
from changefeed.upstream.tikv.row.vectors import vector_texts

ABSENT = -1
NULL = -2

_CHARSETS = frozenset({"utf8mb4", "utf8", "ascii", "latin1", "gbk", "gb18030", "binary"})  # all in UTF-8 in rows
_CLOCKS = frozenset({SqlType.DATETIME, SqlType.TIMESTAMP})
_TIMES = _CLOCKS | {SqlType.DATE}
_TEXT = ti.STRINGS | ti.BLOBS
_PRINTED = {SqlType.JSON: json_texts, SqlType.VECTOR: vector_texts}  # values that are bytes in a form of their own
_DECODABLE = _PRINTED.keys() | WORDS | _TEXT | _TIMES | FLOATS.keys() | CHOICES | {SqlType.DECIMAL, SqlType.TIME}

_WIDTHS = np.int32(1 << 1 | 1 << 2 | 1 << 4 | 1 << 8)  # of integers, a bit each
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class Cells:
    """Where a column's values stand: row r has view.data[starts[r]:ends[r]]; a negative start: ABSENT or NULL."""

    view: BinaryView
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    @classmethod
    def of(cls, values: pa.BinaryArray) -> Cells:
        view = BinaryView(values)
        return cls(view, view.starts.astype(np.int32), view.ends.astype(np.int32))


def why_not_decodable(column: ColumnInfo) -> str | None:
    """What of the column's type is not supported; None if it is."""
    if column.type not in _DECODABLE:
        return f"column {column.name} has type {ti.column_type_name(column)}"
    if column.type in _TEXT and column.charset not in _CHARSETS:
        return f"column {column.name} has charset {column.charset!r}"
    return None


def kind_of(column: ColumnInfo) -> tuple[Any, ...]:
    """What a column shares with all that are decoded alike."""
    return column.type, is_unsigned(column), column.decimal, column.is_binary, column.elems


def decode_columns(columns: Sequence[ColumnInfo], cells: Cells, present: Mask, time_zone: str) -> list[pa.Array]:
    """The values of columns of one kind, null where not `present` (the mask of starts that are not negative).

    `cells` has those of the second column behind those of the first, and so on: a step costs a column of forty what it
    costs one. TIMESTAMP as the clocks of `time_zone` show it. Raises BadCell.
    """
    array, rows = _decoded(columns[0], cells, present, time_zone), len(present) // len(columns)
    parts = [array.slice(number * rows, rows) for number in range(len(columns))]
    is_text = columns[0].type in _TEXT and not columns[0].is_binary
    return [_as_text(part) for part in parts] if is_text else parts


def decode_cells(column: ColumnInfo, cells: Cells, present: Mask, time_zone: str) -> pa.Array:
    """See `decode_columns`."""
    return decode_columns([column], cells, present, time_zone)[0]


def _decoded(column: ColumnInfo, cells: Cells, present: Mask, time_zone: str) -> pa.Array:
    """See `decode_columns`, of text the bytes."""
    if column.type in WORDS:
        return _integers(cells, present, signed=not is_unsigned(column))
    if column.type in _TEXT:
        return cells.view.take(cells.starts, cells.ends, None if present.all() else present)
    if column.type in _PRINTED:
        with _rows_of(present):
            return _spread_texts(_PRINTED[column.type](_taken(cells, present)), present)
    if column.type == SqlType.DECIMAL:
        starts, ends = cells.starts.astype(np.int64), cells.ends.astype(np.int64)
        return decode_decimals(cells.view, starts, ends, present, max(column.decimal, 0))
    if column.type in FLOATS:
        return _floats(column, cells, present)
    with _rows_of(present):
        if column.type in _TIMES:
            return _times(column, _words(cells, present, signed=False), present, time_zone)
        if column.type == SqlType.TIME:
            nanoseconds = _words(cells, present, signed=True).view(np.int64)
            return duration_text(nanoseconds, _fsp(column), present)
        return _choices(column, _words(cells, present, signed=False), present)


def _fsp(column: ColumnInfo) -> int:
    return min(max(column.decimal, 0), MAX_FSP)


@contextmanager
def _rows_of(present: Mask) -> Iterator[None]:
    """Row numbers among those present become those among all."""
    try:
        yield
    except BadCell as error:
        raise BadCell(int(np.flatnonzero(present)[error.row]), error.why) from error


def _words(cells: Cells, present: Mask, *, signed: bool) -> Words:
    """The integers of the rows that are present. A value wider than it need be is read like any other."""
    everywhere = bool(present.all())
    starts, ends = (cells.starts, cells.ends) if everywhere else (cells.starts[present], cells.ends[present])
    width = ends - starts
    bad = _WIDTHS >> width & 1 == 0
    if bad.any():
        raise BadCell(int(bad.argmax()), "is an integer of an impossible width")
    unused = (64 - 8 * width).astype(np.uint64)
    words = cells.view.read(starts, 8) << unused
    return (words.view(np.int64) >> unused.view(np.int64)).view(np.uint64) if signed else words >> unused


def _integers(cells: Cells, present: Mask, *, signed: bool) -> pa.Array:
    with _rows_of(present):
        found = _words(cells, present, signed=signed)
    return _spread(found.view(np.int64) if signed else found, present)


def _spread(found: npt.NDArray[Any], present: Mask) -> pa.Array:
    """The values of those present as an array of all rows."""
    if len(found) == len(present):
        return pa.array(found)
    out = np.zeros(len(present), found.dtype)
    out[present] = found
    return pa.array(out, mask=~present)


def _taken(cells: Cells, present: Mask) -> pa.BinaryArray:
    """The bytes of those present, one behind the other."""
    return cells.view.take(cells.starts[present], cells.ends[present], None)


def _spread_texts(found: pa.StringArray, present: Mask) -> pa.StringArray:
    if len(found) == len(present):
        return found
    return found.take(pa.array(np.cumsum(present) - 1, mask=~present))


def _floats(column: ColumnInfo, cells: Cells, present: Mask) -> pa.Array:
    at = cells.starts[present].astype(np.int64)
    bad = cells.ends[present] - at != 8
    if bad.any():
        raise BadCell(int(np.flatnonzero(present)[bad.argmax()]), "is no floating-point number: it wants 8 bytes")
    ordered = cells.view.read(at, 8).byteswap()
    doubles = np.where(ordered >= _SIGN, ordered ^ _SIGN, ~ordered).view(np.float64)
    with np.errstate(over="ignore"):
        numbers = doubles.astype(FLOATS[column.type].to_pandas_dtype())
    # TiCDC writes 0 for NaN and infinity (docs/design/tidb.md, Values).
    return _spread(np.where(np.isfinite(numbers), numbers, numbers.dtype.type(0)), present)


def _times(column: ColumnInfo, words: Words, present: Mask, time_zone: str) -> pa.Array:
    civil = unpack(words)
    if column.type == SqlType.TIMESTAMP and time_zone != UTC:
        civil = in_zone(civil, time_zone)
    return time_text(civil, _fsp(column), with_clock=column.type in _CLOCKS, present=present)


def _as_text(values: pa.BinaryArray) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return values


def _choices(column: ColumnInfo, numbers: Words, present: Mask) -> pa.Array:
    last = len(column.elems) if column.type == SqlType.ENUM else (1 << len(column.elems)) - 1
    bad = numbers > np.uint64(last)
    if bad.any():
        raise BadCell(int(bad.argmax()), f"holds {numbers[bad.argmax()]}, which stands for none of its elements")
    if column.type == SqlType.ENUM:
        texts, which = pa.array(["", *column.elems], pa.string()), numbers.astype(np.int64)
    else:
        masks, which = np.unique(numbers, return_inverse=True)
        texts = _set_texts(column.elems, masks)
    number, choices = _spread(numbers, present), _spread(which, present)
    mask = None if len(numbers) == len(present) else pa.array(~present)
    return pa.StructArray.from_arrays([number, texts.take(choices)], fields=list(CHOICE), mask=mask)


def _set_texts(elems: tuple[str, ...], masks: Words) -> pa.Array:
    parts = []
    for bit, elem in enumerate(elems):
        chosen = (masks >> np.uint64(bit) & np.uint64(1)).astype(np.bool_)
        parts.append(pc.if_else(pa.array(chosen), f",{elem}", ""))
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*parts, ""), 1)
