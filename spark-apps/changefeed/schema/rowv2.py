"""Row format v2 to Arrow columns, without a step per row (facts, tikv-wire 5.1, 5.9).

Every offset in a value is checked before it is used: a broken row is an error that names its table and key, never a
neighbour's bytes. What is not supported is refused by name (rule 29), never decoded by guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.schema.binary_view import BadCell, BinaryView, Ints, Mask, Words
from changefeed.schema.cells import ABSENT, NULL, Cells, decode_cells, why_not_decodable
from changefeed.schema.defaults import absent_value
from changefeed.schema.handles import decode_common_handles
from changefeed.schema.keys import decode_int_handles, table_id_of
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.times import UTC

VERSION = 128
HEADER = 6  # version, flags, count of values, count of NULLs
FLAG_LARGE = 1

_EXCLUDE = 'Exclude the table by a filter rule, e.g. "!{table}", then start the changefeed again.'


def check_supported(table: TableInfo) -> None:
    """Raises NeedsHuman, naming table, column and type, if rows of `table` cannot be decoded faithfully."""
    for column in table.output_columns:
        _check_decodable(table, column)
        try:
            absent_value(column, UTC)
        except ValueError as error:
            raise _unsupported(table, f"column {column.name} {error}") from error


def decode_rows(
    table: TableInfo,
    keys: pa.BinaryArray,
    values: pa.BinaryArray,
    time_zone: str,
    columns: Sequence[ColumnInfo] | None = None,
) -> list[pa.Array]:
    """One array per column of `columns`, by default `table.output_columns`, of the type `schema.cells.arrow_type`.

    `keys` are raw record keys, `values` the rows' values in format v2; a delete's empty value is none (decode its old
    value). TIMESTAMP is text in `time_zone`. Raises NeedsHuman for what cannot be decoded, with the key of the first
    such row.
    """
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys but {len(values)} values")
    wanted = table.output_columns if columns is None else columns
    for column in wanted:
        _check_decodable(table, column)
    rows = _Rows(table, keys, BinaryView(values), time_zone)
    located = rows.locate([column.id for column in wanted])
    return [
        rows.decode(column, Cells(rows.view, starts, ends))
        for column, starts, ends in zip(wanted, located.starts, located.ends, strict=False)
    ]


def _check_decodable(table: TableInfo, column: ColumnInfo) -> None:
    if (why := why_not_decodable(column)) is not None:
        raise _unsupported(table, why)


def _unsupported(table: TableInfo, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"table {table.full_name} cannot be replicated: {why}, which is not supported.",
        _EXCLUDE.format(table=table.full_name),
    )


@dataclass(frozen=True)
class _Located:
    """Where the values of column c stand: row r has data[starts[c, r]:ends[c, r]]; a negative start: ABSENT or NULL.

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
    """A batch of rows of one table; holds what an error message needs."""

    def __init__(self, table: TableInfo, keys: pa.BinaryArray, view: BinaryView, time_zone: str) -> None:
        self.view = view
        self._table = table
        self._keys = keys
        self._time_zone = time_zone
        self._count = len(view.starts)
        if len(keys) and (found := table_id_of(keys[0].as_buffer().to_pybytes())) not in table.physical_ids:
            raise ValueError(f"rows of physical table {found} given with {table.full_name}'s definition ({table.id})")
        self._handles = None if table.is_common_handle else decode_int_handles(keys)

    # -- layout

    def locate(self, column_ids: Sequence[int]) -> _Located:
        view = self.view
        self._check_version()
        cells = _Located(
            np.full((len(column_ids) + 1, self._count), ABSENT, np.int32),
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

    def _locate_shape(self, cells: _Located, slots: _Slots, shape: int, rows: Ints) -> None:
        read = self.view.read
        values, nulls = shape >> 16 & 0xFFFF, shape >> 32
        id_width, offset_width = (4, 4) if shape >> 8 & FLAG_LARGE else (1, 2)
        ids = self.view.starts[rows] + HEADER
        offsets = ids + (values + nulls) * id_width
        data = offsets + values * offset_width
        row_end = self.view.ends[rows]
        self._refuse(rows, data > row_end, "its value ends inside the header")
        begin = data
        for number in range(values + nulls):
            slot = slots.of(read(ids + number * id_width, id_width))
            if number >= values:
                cells.place(slot, rows, NULL, 0)
                continue
            end = data + read(offsets + number * offset_width, offset_width).astype(np.int64)
            self._refuse(rows, (end < begin) | (end > row_end), "an offset in its value is out of bounds")
            cells.place(slot, rows, begin, end)
            begin = end

    def _check_version(self) -> None:
        view, rows = self.view, np.arange(self._count)
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

    def decode(self, column: ColumnInfo, cells: Cells) -> pa.Array:
        """A value in the row goes before one in the key, and that before the default (facts, 5.9)."""
        present = cells.starts >= 0
        if present.all():
            return self._decode(column, cells, present)
        if column is self._table.handle_column and not present.any():
            return self._int_handles(column)
        array = self._decode(column, cells, present)
        in_key = self._in_key(column)
        missing = np.flatnonzero(~present if in_key is not None else cells.starts == ABSENT)
        if not len(missing):
            return array
        if in_key is None:
            return _with_rows(array, missing, absent_value(column, self._time_zone))
        return _with_rows(array, missing, in_key(missing))

    def _decode(self, column: ColumnInfo, cells: Cells, present: Mask) -> pa.Array:
        try:
            return decode_cells(column, cells, present, self._time_zone)
        except BadCell as error:
            raise self._broken(error.row, f"column {column.name} {error.why}") from error

    def _in_key(self, column: ColumnInfo) -> Callable[[Ints], pa.Array] | None:
        """What gives a column's values of some rows out of their keys; None for a column that isn't there."""
        if column is self._table.handle_column:
            return lambda rows: self._int_handles(column).take(pa.array(rows))
        for number, (member, is_whole) in enumerate(self._table.common_handle):
            if member.id == column.id and is_whole:
                return partial(self._from_common_handles, number)
        return None

    def _int_handles(self, column: ColumnInfo) -> pa.Array:
        assert self._handles is not None
        return pa.array(self._handles.view(np.uint64) if column.is_unsigned else self._handles)

    def _from_common_handles(self, number: int, rows: Ints) -> pa.Array:
        column, _ = self._table.common_handle[number]
        cells = Cells.of(self._common_handles[number].take(pa.array(rows)))
        try:
            return decode_cells(column, cells, np.ones(len(rows), np.bool_), self._time_zone)
        except BadCell as error:
            raise self._broken(int(rows[error.row]), f"column {column.name}, in the key, {error.why}") from error

    @cached_property
    def _common_handles(self) -> list[pa.BinaryArray]:
        columns = [column for column, _ in self._table.common_handle]
        try:
            return decode_common_handles(self._keys, columns)
        except BadCell as error:
            raise self._broken(error.row, error.why) from error

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


def _with_rows(array: pa.Array, rows: Ints, values: pa.Array) -> pa.Array:
    """`array` with others at `rows`: one for each of them, or the same one for all."""
    places = np.arange(len(array))
    places[rows] = len(array) + (np.arange(len(rows)) if len(values) > 1 else 0)
    return pa.concat_arrays([array, values]).take(pa.array(places))
