"""Decodes one column's texts, as PostgreSQL writes them, into an Arrow array: a function for each kind of type.

Each is over a whole column. What is no value of its type, or one that no sink can hold, is a BadCell, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.schema.time_zones import UTC, shown_in
from changefeed.schema.values import FLOATS, first_refused
from changefeed.upstream.binary_view import BadCell, BinaryView, Ints, Mask, take_text

_TEXT = ti.STRINGS | ti.BLOBS
DECODABLE = (
    ti.INTEGERS
    | FLOATS.keys()
    | _TEXT
    | {
        SqlType.DECIMAL,
        SqlType.JSON,
        SqlType.BIT,
        SqlType.DATE,
        SqlType.DATETIME,
        SqlType.TIMESTAMP,
        SqlType.TIME,
    }
)
_MAX_FSP = 6
_NO_NIBBLE = 0xFF
_NIBBLES = np.full(256, _NO_NIBBLE, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_NO_CALENDAR = "holds {}, which only PostgreSQL has: sinks have years 1 to 9999 and no infinity"


@dataclass(frozen=True)
class TextCells:
    """A column's texts: row r has view.data[starts[r]:ends[r]]; what is not `present` is NULL."""

    view: BinaryView
    starts: Ints
    ends: Ints
    present: Mask

    def taken(self) -> pa.BinaryArray:
        """All of them, null where NULL."""
        everywhere = bool(self.present.all())
        return self.view.take(
            self.starts.astype(np.int32), self.ends.astype(np.int32), None if everywhere else self.present
        )

    def spread(self, found: npt.NDArray[np.generic]) -> pa.Array:
        """The values of those present as an array of all rows."""
        if len(found) == len(self.present):
            return pa.array(found)
        out = np.zeros(len(self.present), found.dtype)
        out[self.present] = found
        return pa.array(out, mask=~self.present)

    def bounds(self) -> tuple[Ints, Ints]:
        """Where those present start, and their sizes."""
        starts = self.starts[self.present]
        return starts, self.ends[self.present] - starts

    def check(self, good: Mask, why: str) -> None:
        """Raises BadCell of the first that is not good, of those present. `why` has {} for its text."""
        if not good.all():
            row = int(np.flatnonzero(self.present)[int(good.argmin())])
            text = self.view.data[self.starts[row] : self.ends[row]].tobytes()[:100]
            raise BadCell(row, why.format(repr(text.decode(errors="replace"))))


def decode_texts(column: ColumnInfo, cells: TextCells, time_zone: str) -> pa.Array:
    """The values, of the types of `schema.values`; TIMESTAMP as the clocks of `time_zone` show it. Raises BadCell."""
    match column.type:
        case SqlType.TINYINT:
            return _booleans(cells)
        case SqlType.BIT:
            return _bits(cells)
        case SqlType.DECIMAL:
            return _decimals(cells)
        case SqlType.DATE:
            return _dates(cells)
        case SqlType.TIME:
            starts, sizes = cells.bounds()
            text = _clocks(cells, starts, sizes, 8, _fsp(column), "holds {}, which is no time")
            return take_text(text, None, cells.present)
        case SqlType.DATETIME:
            starts, sizes = cells.bounds()
            return take_text(_moments(cells, starts, sizes, _fsp(column)), None, cells.present)
        case SqlType.TIMESTAMP:
            return _in_zone(cells, _fsp(column), time_zone)
    if column.type in ti.INTEGERS:
        return _parsed(cells, pa.int64())
    if column.type in FLOATS:
        return _parsed(cells, FLOATS[column.type])
    if column.is_binary:
        return _bytes(cells)
    return _texts(cells, is_json=column.type == SqlType.JSON)


def _fsp(column: ColumnInfo) -> int:
    return min(max(column.decimal, 0), _MAX_FSP)


def _texts(cells: TextCells, *, is_json: bool) -> pa.Array:
    """Text of a database that checks none (SQL_ASCII) may be no UTF-8; it stays bytes then."""
    values = cells.taken()
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid as error:
        if is_json:
            raise BadCell(first_refused(values, pa.string()), "holds JSON that is not UTF-8") from error
        return values


def _parsed(cells: TextCells, wanted: pa.DataType) -> pa.Array:
    """Numbers. A float is read to the nearest, so it is the one that was written."""
    values = cells.taken()
    texts = pa.Array.from_buffers(pa.string(), len(values), values.buffers(), values.null_count, values.offset)
    try:
        return texts.cast(wanted)
    except pa.ArrowInvalid as error:
        row = first_refused(texts, wanted)
        raise BadCell(row, f"holds {values[row].as_py()!r}, which is no number of its type") from error


def _booleans(cells: TextCells) -> pa.Array:
    starts, sizes = cells.bounds()
    letters = cells.view.data[np.where(sizes == 1, starts, 0)]
    cells.check((sizes == 1) & ((letters == ord("t")) | (letters == ord("f"))), "holds {}, which is no boolean")
    return cells.spread((letters == ord("t")).astype(np.int64))


def _bits(cells: TextCells) -> pa.Array:
    starts, sizes = cells.bounds()
    cells.check((sizes > 0) & (sizes <= 64), "holds {}, which are not 1 to 64 bits")
    found = np.zeros(len(starts), np.uint64)
    for number in range(int(sizes.max(initial=0))):
        there = sizes > number
        digit = cells.view.data[starts[there] + number]
        is_bit = np.ones(len(starts), np.bool_)
        is_bit[there] = (digit == ord("0")) | (digit == ord("1"))
        cells.check(is_bit, "holds {}, which are no bits")
        found[there] = found[there] << np.uint64(1) | (digit == ord("1")).astype(np.uint64)
    return cells.spread(found)


def _decimals(cells: TextCells) -> pa.Array:
    """Digits as they are: a numeric(p, s) is written with all of its s."""
    starts, sizes = cells.bounds()
    last = cells.view.data[starts + sizes - 1] - np.uint8(ord("0"))
    cells.check((sizes > 0) & (last <= 9), "holds {}, which sinks' decimals do not have")
    return cells.taken().cast(pa.string())


def _bytes(cells: TextCells) -> pa.Array:
    """Bytes of `\\x` and hexadecimal digits."""
    starts, sizes = cells.bounds()
    heads = cells.view.read(starts, 2)
    good = (sizes >= 2) & (sizes % 2 == 0) & (heads == int.from_bytes(b"\\x", "little"))
    cells.check(good, "holds {}, which is no bytea in hexadecimal")
    digits = TextCells(cells.view, cells.starts + 2 * cells.present, cells.ends, cells.present).taken()
    if not len(digits):
        return digits
    validity, offsets, data = digits.buffers()
    bounds = np.frombuffer(offsets, np.int32)[: len(digits) + 1]
    nibbles = _NIBBLES[:0] if data is None else _NIBBLES[np.frombuffer(data, np.uint8)[: bounds[-1]]]
    if (nibbles == _NO_NIBBLE).any():
        row = int(np.searchsorted(bounds, int((nibbles == _NO_NIBBLE).argmax()), side="right")) - 1
        raise BadCell(row, "holds a bytea with other than hexadecimal digits")
    whole = nibbles[0::2] << 4 | nibbles[1::2]
    buffers = [validity, pa.py_buffer(bounds // 2), pa.py_buffer(whole)]
    return pa.Array.from_buffers(pa.binary(), len(digits), buffers, digits.null_count)


def _dates(cells: TextCells) -> pa.Array:
    _, sizes = cells.bounds()
    cells.check(sizes == 10, _NO_CALENDAR)
    return cells.taken().cast(pa.string())


def _clocks(cells: TextCells, starts: Ints, sizes: Ints, width: int, fsp: int, why: str) -> npt.NDArray[np.uint8]:
    """Texts of `width` characters and up to six of a fraction, which gets `fsp` of them."""
    good = (sizes == width) | (sizes > width + 1) & (sizes <= width + 1 + _MAX_FSP)
    cells.check(good, why)
    fraction = sizes > width
    if fraction.any():
        point = cells.view.data[np.where(fraction, starts + width, 0)]
        cells.check(~fraction | (point == ord(".")), why)
    text = np.full((len(starts), width + (1 + fsp if fsp else 0)), ord("0"), np.uint8)
    if fsp and len(starts) and (sizes == width + 1 + fsp).all():
        text[:] = cells.view.blocks(starts, width + 1 + fsp)
        return text
    text[:, :width] = cells.view.blocks(starts, width)
    if fsp:
        text[:, width] = ord(".")
    for column in range(width + 1, width + 1 + fsp):
        there = np.flatnonzero(sizes > column)
        text[there, column] = cells.view.data[starts[there] + column]
    return text


def _moments(cells: TextCells, starts: Ints, sizes: Ints, fsp: int) -> npt.NDArray[np.uint8]:
    """`YYYY-MM-DD HH:MM:SS[.ffffff]`."""
    good = sizes >= 19
    year_ends = cells.view.data[np.where(good, starts + 4, 0)]
    cells.check(good & (year_ends == ord("-")), _NO_CALENDAR)
    return _clocks(cells, starts, sizes, 19, fsp, _NO_CALENDAR)


def _in_zone(cells: TextCells, fsp: int, time_zone: str) -> pa.Array:
    """Points in time, which the session has PostgreSQL write in UTC: the offset +00 is the last of each."""
    starts, sizes = cells.bounds()
    long_enough = sizes >= 22
    tails = cells.view.read(np.where(long_enough, starts + sizes - 3, 0), 3)
    cells.check(long_enough & (tails == int.from_bytes(b"+00", "little")), _NO_CALENDAR)
    if time_zone == UTC:
        return take_text(_moments(cells, starts, sizes - 3, fsp), None, cells.present)
    text = _moments(cells, starts, sizes - 3, _MAX_FSP)
    utc = take_text(text, None, np.ones(len(text), np.bool_)).cast(pa.timestamp("us"))
    local = pa.array(shown_in(time_zone, utc.cast(pa.int64()).to_numpy())).cast(pa.timestamp("us"))
    printed = local.cast(pa.string())
    ends = np.frombuffer(printed.buffers()[1], np.int32)[: len(printed) + 1] if len(printed) else np.zeros(1, np.int32)
    cells.check(np.diff(ends) == 26, f"holds {{}}, which in {time_zone} is no year from 1 to 9999")
    data = np.frombuffer(printed.buffers()[2], np.uint8)[: 26 * len(text)].reshape(len(text), 26)
    kept = 19 + (1 + fsp if fsp else 0)
    return take_text(np.ascontiguousarray(data[:, :kept]), None, cells.present)
