"""Converts rows of either format to Arrow columns, without a step per row; has v2's layout.

See docs/design/tidb.md, Row format v2, Visible columns.

Every offset in a value is checked before use: a broken row is an error that names its table and key, and never reads a
neighbour's bytes. Anything unsupported is refused by name (rule 29), never decoded by guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.time_zones import UTC
from changefeed.schema.values import as_bytes
from changefeed.upstream.binary_view import BadCell, BinaryView, Bounds, Ints, Mask, Words
from changefeed.upstream.tikv.row import rowv1
from changefeed.upstream.tikv.row.cells import (
    ABSENT,
    NULL,
    Cells,
    decode_cells,
    decode_columns,
    kind_of,
    why_not_decodable,
)
from changefeed.upstream.tikv.row.defaults import absent_value
from changefeed.upstream.tikv.row.handles import decode_common_handles
from changefeed.upstream.tikv.row.located import Located, Slots
from changefeed.upstream.tikv.tidb.keys import decode_int_handles, table_id_of

VERSION = 128
HEADER = 6  # version, flags, count of values, count of NULLs
FLAG_LARGE = 1
_FIRST = (VERSION, rowv1.FIRST, rowv1.EMPTY)

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
    *,
    are_whole: bool = False,
) -> list[pa.Array]:
    """One array per column of `columns`, by default `table.output_columns`, of the type `row.cells.arrow_type`;
    text in which some bytes are not UTF-8 is pa.binary().

    `keys` are raw record keys, `values` the rows' values; a delete's empty value is none (decode its old
    value). TIMESTAMP is text in `time_zone`. Raises NeedsHuman for what cannot be decoded, with the key of the first
    such row.

    `are_whole`: so it does for a row that `table` does not define, as one written under another definition: it lacks a
    column that is NOT NULL and has no value for older rows, or one that TiDB writes into every row, while it has a
    column that is newer than all of the definition's. Else such a row has the value that TiDB reads there.
    """
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys but {len(values)} values")
    wanted = table.output_columns if columns is None else columns
    for column in wanted:
        _check_decodable(table, column)
    rows = _RowBatch(table, keys, BinaryView(values), time_zone, are_whole)
    located = rows.locate(wanted)
    is_full: Mask = np.logical_and.reduce(located.starts >= 0, axis=1)
    alike: dict[Any, list[int]] = {}
    for index, column in enumerate(wanted):
        alike.setdefault((kind_of(column), is_full[index]), []).append(index)
    found: dict[int, pa.Array] = {}
    for indexes in alike.values():
        found |= zip(indexes, rows.decode([wanted[index] for index in indexes], located.at(indexes)), strict=True)
    return [found[index] for index in range(len(wanted))]


def _check_decodable(table: TableInfo, column: ColumnInfo) -> None:
    if (why := why_not_decodable(column)) is not None:
        raise _unsupported(table, why)


def _unsupported(table: TableInfo, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"table {table.full_name} cannot be replicated: {why}, which is not supported.",
        _EXCLUDE.format(table=table.full_name),
    )


class _RowBatch:
    """A batch of rows of one table; holds what an error message needs."""

    def __init__(
        self, table: TableInfo, keys: pa.BinaryArray, view: BinaryView, time_zone: str, are_whole: bool
    ) -> None:
        self.view = view
        self._are_whole = are_whole
        self._table = table
        self._keys = keys
        self._time_zone = time_zone
        self._count = len(view.starts)
        if len(keys) and (found := table_id_of(keys[0].as_buffer().to_pybytes())) not in table.physical_ids:
            raise ValueError(f"rows of physical table {found} given with {table.full_name}'s definition ({table.id})")
        self._handles = None if table.is_common_handle else decode_int_handles(keys)

    # -- layout

    def locate(self, columns: Sequence[ColumnInfo]) -> Located:
        view = self.view
        heads = self._heads()
        is_v2 = heads & np.uint64(0xFF) == VERSION
        self._newest = np.zeros(self._count, np.uint32)  # id in each row of version 2
        cells = Located.nowhere(len(columns), self._count)
        v1 = np.flatnonzero(~is_v2)
        v2 = np.flatnonzero(is_v2) if len(v1) else np.arange(self._count)
        slots = Slots([column.id for column in columns])
        # Rows of one shape have their parts at the same distances: flags without the checksum bit, and both counts.
        shapes = heads[v2] & np.uint64(0xFFFF_FFFF_01_00)
        if len(v2) and (shapes == shapes[0]).all():
            self._locate_shape(cells, slots, int(shapes[0]), v2)
        else:
            for shape in np.unique(shapes).tolist():
                self._locate_shape(cells, slots, shape, v2[shapes == shape])
        if len(v1):
            try:
                self.view = view.followed_by(rowv1.locate(view, v1, columns, cells))
            except BadCell as error:
                raise self._broken(error.row, f"its value {error.why}") from error
        return cells

    def _locate_shape(self, cells: Located, slots: Slots, shape: int, rows: Ints) -> None:
        values, nulls = shape >> 16 & 0xFFFF, shape >> 32
        id_width, offset_width = (4, 4) if shape >> 8 & FLAG_LARGE else (1, 2)
        ids_end = HEADER + (values + nulls) * id_width
        width = ids_end + values * offset_width
        starts, row_ends = self.view.starts[rows], self.view.ends[rows]
        data = starts + width
        self._refuse(rows, data > row_ends, "its value ends inside the header")
        header = self.view.blocks(starts, width)
        ids = header[:, HEADER:ids_end].view(f"<u{id_width}")
        if (ids == ids[0]).all():
            ids = ids[:1]  # stands for all
        for each in (ids[:, :values], ids[:, values:]):  # TiDB looks for an id by halves, so it writes both in order
            fall: Mask = np.less_equal(each[:, 1:], each[:, :-1]).any(axis=1)
            self._refuse(rows, fall, "the column ids in its value do not ascend")
        self._newest[rows] = ids.max(axis=1, initial=0)
        # An end beyond 31 bits wraps to one before the row's data, which is refused.
        bounds = np.empty((values + 1, len(rows)), np.int32)
        bounds[0] = data
        np.add(header[:, ids_end:].view(f"<u{offset_width}").T, bounds[0], out=bounds[1:], casting="unsafe")
        bad: Mask = (bounds[1:] < bounds[:-1]).any(axis=0) | (bounds[-1] > row_ends)
        self._refuse(rows, bad, "an offset in its value is out of bounds")
        slot = slots.of(ids.T)
        cells.place(slot[:values], rows, bounds[:-1], bounds[1:])
        self._refuse(rows, cells.has_value(slot[values:], rows), "its value has a column that is NULL as well")
        cells.place(slot[values:], rows, NULL, 0)

    def _heads(self) -> Words:
        """What all values of version 2 begin with, as numbers of HEADER bytes."""
        view, rows = self.view, np.arange(self._count)
        length = view.ends - view.starts
        self._refuse(rows, length == 0, "its value is empty, as a delete's is")
        heads = view.read(view.starts, HEADER)
        version = heads & np.uint64(0xFF)
        is_v2 = version == VERSION
        if not is_v2.all():
            self._refuse(rows, ~np.isin(version, _FIRST), "its value is in no row format that is known")
        self._refuse(rows, (length < HEADER) & is_v2, "its value ends inside the header")
        return heads

    # -- columns

    def decode(self, columns: Sequence[ColumnInfo], located: Located) -> list[pa.Array]:
        """Decode columns of one kind.

        A value in the row goes before one in the key, and that before the default (docs/design/tidb.md, Visible
        columns).
        """
        cells = Cells(self.view, located.starts.ravel(), located.ends.ravel())
        present = cells.starts >= 0
        try:
            arrays = decode_columns(columns, cells, present, self._time_zone)
        except BadCell as error:
            number, row = divmod(error.row, self._count)
            raise self._broken(row, f"column {columns[number].name} {error.why}") from error
        if present.all():
            return arrays
        return [
            self._completed(column, array, starts)
            for column, array, starts in zip(columns, arrays, located.starts, strict=True)
        ]

    def _completed(self, column: ColumnInfo, array: pa.Array, starts: Bounds) -> pa.Array:
        """Add what stands in keys, or is the default."""
        present = starts >= 0
        if column is self._table.handle_column and not present.any():
            return self._int_handles(column)
        in_key = self._in_key(column)
        missing = np.flatnonzero(~present if in_key is not None else starts == ABSENT)
        if not len(missing):
            return array
        if in_key is None:
            if self._are_whole:
                self._check_may_lack(column, missing)
            return _with_rows(array, missing, absent_value(column, self._time_zone))
        return _with_rows(array, missing, in_key(missing))

    def _check_may_lack(self, column: ColumnInfo, rows: Ints) -> None:
        """TiDB leaves a column out of a row only where it is NULL by default, or where the row is older than it."""
        if column.nullable and column.default is None and column.default_bit is None:
            return
        if column.nullable or column.origin_default is not None or column.origin_default_bit is not None:
            last = max(each.id for each in self._table.columns)
            rows = rows[self._newest[rows] > last]
        if len(rows):
            raise NeedsHuman(
                f"{self._row(int(rows[0]))}: its value lacks column {column.name} (id {column.id}), which TiDB "
                "writes into every row: it was written under another definition of the table.",
                "Report the key, the table's latest DDLs and the TiDB version. To go on without the table, exclude it "
                "by a filter rule and rewind (spec.restart).",
            )

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
            "exclude the table by a filter rule and rewind (spec.restart), as what was planned has the table.",
        )

    def _row(self, row: int) -> str:
        return f"table {self._table.full_name}, key {self._keys[row].as_py().hex()}"


def _with_rows(array: pa.Array, rows: Ints, values: pa.Array) -> pa.Array:
    """`array` with others at `rows`: one for each of them, or the same one for all."""
    indices = np.arange(len(array))
    if array.type != values.type:  # one of them is text with bytes that are no UTF-8
        array, values = as_bytes(array), as_bytes(values)
    indices[rows] = len(array) + (np.arange(len(rows)) if len(values) > 1 else 0)
    return pa.concat_arrays([array, values]).take(pa.array(indices))
