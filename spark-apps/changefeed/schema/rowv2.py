"""Row format v2 to Arrow columns, without a step per row (facts, tikv-wire 5.1, 5.2, 5.4, 5.9).

Every offset in a value is checked before it is used: a broken row is an error that names its table and key, never a
neighbour's bytes. What is not supported is refused by name (rule 29), never decoded by guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.schema.binary_view import BinaryView, Ints, Mask, Words
from changefeed.schema.decimals import MAX_PRECISION, BadDecimal, decode_decimals
from changefeed.schema.keys import decode_int_handles, table_id_of
from changefeed.schema.table_info import INTEGERS, NEW_DECIMAL, STRINGS, ColumnInfo, TableInfo, column_type_name

VERSION = 128
HEADER = 6  # version, flags, count of values, count of NULLs
FLAG_LARGE = 1

_ABSENT = -1
_NULL = -2
_WIDTHS = np.isin(np.arange(10), [1, 2, 4, 8])  # of integers; the last stands for everything wider
_EXCLUDE = 'Exclude the table by a filter rule, e.g. "!{table}", then start the changefeed again.'


def check_supported(table: TableInfo) -> None:
    """Raises NeedsHuman, naming table, column and type, if rows of `table` cannot be decoded faithfully."""
    if table.partition_ids:
        raise _unsupported(table, "it is partitioned")
    if table.handle_column is None and not table.is_common_handle:
        raise _unsupported(table, "it has no clustered integer primary key (rows are kept under a hidden _tidb_rowid)")
    _check_decodable(table)


def decode_rows(table: TableInfo, keys: pa.BinaryArray, values: pa.BinaryArray) -> list[pa.Array]:
    """One array per column of `table.output_columns`: int64, uint64, or string (text and DECIMAL).

    `keys` are raw record keys, `values` the rows' values in format v2; a delete's empty value is none (decode its old
    value). Raises NeedsHuman for what cannot be decoded, with the key of the first such row.
    """
    _check_decodable(table)
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys but {len(values)} values")
    handles = _handles(table, keys)
    rows = _Rows(table, keys, BinaryView(values))
    cells = rows.locate([column.id for column in table.output_columns])
    return [
        rows.decode(column, starts, ends, handles if column is table.handle_column else None)
        for column, starts, ends in zip(table.output_columns, cells.starts, cells.ends, strict=False)
    ]


def _check_decodable(table: TableInfo) -> None:
    if table.is_common_handle:
        raise _unsupported(table, "its clustered primary key is not one integer column")
    for column in table.output_columns:
        if not _is_decodable(column):
            raise _unsupported(table, f"column {column.name} has type {column_type_name(column)}")


def _is_decodable(column: ColumnInfo) -> bool:
    if column.tp in STRINGS:
        return not column.is_binary
    return column.tp in INTEGERS or column.tp == NEW_DECIMAL


def _unsupported(table: TableInfo, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"table {table.full_name} cannot be replicated: {why}, which is not supported.",
        _EXCLUDE.format(table=table.full_name),
    )


def _handles(table: TableInfo, keys: pa.BinaryArray) -> Ints:
    handles: Ints = decode_int_handles(keys)
    if len(keys) and (found := table_id_of(keys[0].as_buffer().to_pybytes())) not in table.physical_ids:
        raise ValueError(f"rows of physical table {found} given with the definition of {table.full_name} ({table.id})")
    return handles


@dataclass(frozen=True)
class _Cells:
    """Where the values of column c stand: row r has data[starts[c, r]:ends[c, r]]; a negative start: _ABSENT or _NULL.

    There is one more row of cells than columns: columns that the schema does not show end there.
    """

    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    def place(self, slot: npt.NDArray[np.intp], rows: Ints, starts: Ints | int, ends: Ints | int) -> None:
        if len(slot) == 1 and len(rows) == self.starts.shape[1]:
            self.starts[slot[0]] = starts
            self.ends[slot[0]] = ends
            return
        self.starts[slot, rows] = starts
        self.ends[slot, rows] = ends


class _Slots:
    """At which place among the wanted columns an id stands; behind them all if it is none of them."""

    def __init__(self, column_ids: Sequence[int]) -> None:
        ids = np.array([*column_ids, (1 << 64) - 1], np.uint64)
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]

    def of(self, ids: Words) -> npt.NDArray[np.intp]:
        """One place each, or a single one if all ids are the same."""
        if (ids == ids[0]).all():
            ids = ids[:1]
        found = np.searchsorted(self._sorted, ids)
        return np.where(self._sorted[found] == ids, self._order[found], len(self._sorted) - 1)


class _Rows:
    """A batch of values of one table; holds what an error message needs."""

    def __init__(self, table: TableInfo, keys: pa.BinaryArray, view: BinaryView) -> None:
        self._table = table
        self._keys = keys
        self._view = view
        self._count = len(view.starts)

    # -- layout

    def locate(self, column_ids: Sequence[int]) -> _Cells:
        view = self._view
        self._check_version()
        cells = _Cells(
            np.full((len(column_ids) + 1, self._count), _ABSENT, np.int32),
            np.zeros((len(column_ids) + 1, self._count), np.int32),
        )
        slots = _Slots(column_ids)
        # Rows of one shape have their parts at the same distances: flags without the checksum bit, and both counts.
        shapes = view.read(view.starts, HEADER) & np.uint64(0xFFFF_FFFF_01_00)
        if self._count and (shapes == shapes[0]).all():
            self._locate_shape(cells, slots, int(shapes[0]), np.arange(self._count))
        else:
            for shape in np.unique(shapes).tolist():
                self._locate_shape(cells, slots, shape, np.flatnonzero(shapes == shape))
        return cells

    def _locate_shape(self, cells: _Cells, slots: _Slots, shape: int, rows: Ints) -> None:
        read = self._view.read
        values, nulls = shape >> 16 & 0xFFFF, shape >> 32
        id_width, offset_width = (4, 4) if shape >> 8 & FLAG_LARGE else (1, 2)
        ids = self._view.starts[rows] + HEADER
        offsets = ids + (values + nulls) * id_width
        data = offsets + values * offset_width
        row_end = self._view.ends[rows]
        self._refuse(rows, data > row_end, "its value ends inside the header")
        begin = data
        for number in range(values + nulls):
            slot = slots.of(read(ids + number * id_width, id_width))
            if number >= values:
                cells.place(slot, rows, _NULL, 0)
                continue
            end = data + read(offsets + number * offset_width, offset_width).astype(np.int64)
            self._refuse(rows, (end < begin) | (end > row_end), "an offset in its value is out of bounds")
            cells.place(slot, rows, begin, end)
            begin = end

    def _check_version(self) -> None:
        view, rows = self._view, np.arange(self._count)
        length = view.ends - view.starts
        self._refuse(rows, length == 0, "its value is empty, as a delete's is")
        other = view.read(view.starts, 1) != VERSION
        if other.any():
            row = int(other.argmax())
            version = int(view.data[view.starts[row]])
            raise NeedsHuman(
                f"{self._row(row)}: row format v1 (first byte {version}, not {VERSION}) is not supported.",
                "Rewrite the table's rows with tidb_row_format_version=2, or exclude the table by a filter rule.",
            )
        self._refuse(rows, length < HEADER, "its value ends inside the header")

    # -- columns

    def decode(
        self,
        column: ColumnInfo,
        starts: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int32],
        handles: Ints | None,
    ) -> pa.Array:
        present = starts >= 0
        absent = starts == _ABSENT
        if column.tp in INTEGERS:
            return self._integers(column, starts, ends, present, absent, handles)
        if column.tp == NEW_DECIMAL:
            array = self._decimals(column, starts.astype(np.int64), ends.astype(np.int64), present)
        else:
            array = self._strings(column, starts, ends, present)
        if absent.any():
            array = pc.if_else(pa.array(absent), pa.scalar(_absent_value(column), pa.string()), array)
        return array

    def _integers(
        self,
        column: ColumnInfo,
        starts: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int32],
        present: Mask,
        absent: Mask,
        handles: Ints | None,
    ) -> pa.Array:
        """A value wider than it need be is read like any other."""
        dtype: Any = np.uint64 if column.is_unsigned else np.int64
        if handles is not None and not present.any():
            return pa.array(handles.view(dtype))
        everywhere = bool(present.all())
        rows: Any = slice(None) if everywhere else np.flatnonzero(present)
        at = starts[rows].astype(np.int64)
        width = ends[rows] - at
        bad = ~_WIDTHS[np.minimum(width, len(_WIDTHS) - 1)]
        if bad.any():
            self._refuse(np.flatnonzero(present), bad, f"column {column.name} is an integer of an impossible width")
        unused = 64 - 8 * width
        words = self._view.read(at, 8) << unused.astype(np.uint64)
        found = words >> unused.astype(np.uint64) if column.is_unsigned else words.view(np.int64) >> unused
        if everywhere:
            return pa.array(found)
        if handles is not None:
            out = handles.view(dtype).copy()
            out[rows] = found
            return pa.array(out)
        fallback = _absent_value(column)
        out = np.full(self._count, 0 if fallback is None else int(fallback), dtype)
        out[rows] = found
        return pa.array(out, mask=~present if fallback is None else ~present & ~absent)

    def _strings(
        self, column: ColumnInfo, starts: npt.NDArray[np.int32], ends: npt.NDArray[np.int32], present: Mask
    ) -> pa.Array:
        if present.all():
            array = self._view.take(starts, ends, None)
        else:
            row_starts = self._view.starts.astype(np.int32)
            array = self._view.take(np.where(present, starts, row_starts), np.where(present, ends, row_starts), present)
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid as error:
            row = _first_invalid_text(array)
            raise self._broken(row, f"column {column.name} holds bytes that are not valid UTF-8") from error

    def _decimals(self, column: ColumnInfo, starts: Ints, ends: Ints, present: Mask) -> pa.Array:
        try:
            return decode_decimals(self._view, starts, ends, present, max(column.decimal, 0))
        except BadDecimal as error:
            raise self._broken(error.row, f"column {column.name} is no decimal: {error.why}") from error

    # -- errors

    def _refuse(self, rows: Ints, bad: Mask, why: str) -> None:
        if bad.any():
            raise self._broken(int(rows[int(bad.argmax())]), why)

    def _broken(self, row: int, why: str) -> NeedsHuman:
        return NeedsHuman(
            f"{self._row(row)}: {why}.",
            "TiDB did not write the row as its table is defined, or the schema is the wrong one: report the key, or "
            "exclude the table by a filter rule.",
        )

    def _row(self, row: int) -> str:
        return f"table {self._table.full_name}, key {self._keys[row].as_py().hex()}"


def _absent_value(column: ColumnInfo) -> str | None:
    """The text of a column that a row older than it does not have (facts, tikv-wire 5.9, steps 4 and 5; 9.3, 9.4)."""
    default = column.origin_default
    if default is None:
        if column.nullable:
            return None
        return "" if column.tp in STRINGS else "0"
    if column.tp in STRINGS:
        return str(default)
    scale = max(column.decimal, 0) if column.tp == NEW_DECIMAL else 0
    number = Decimal(str(default)).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=2 * MAX_PRECISION))
    return f"{number:f}"


def _first_invalid_text(array: pa.Array) -> int:
    """The first element that is not UTF-8, by halving."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(pa.string())
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low
