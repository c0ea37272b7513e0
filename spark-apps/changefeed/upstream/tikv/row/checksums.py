"""TiDB's row checksums: whether a row is what was written (docs/design/tidb.md, Checksums). Pure.

Versions 1 and 2 cover the row's bytes and its key, version 0 the values of its columns, in a form of their own. A row
without a checksum, such as any written with `tidb_enable_row_level_checksum` off, passes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.time_zones import UTC
from changefeed.upstream.binary_view import BinaryView, Ints, Mask, Words
from changefeed.upstream.tikv.row.rowv2 import FLAG_LARGE, HEADER, VERSION, decode_rows
from changefeed.upstream.tikv.tidb.keys import PREFIX_LENGTH

FLAG_CHECKSUM = 2
_EXTRA = 8  # in the trailer's first byte, beside the version: a second sum follows
_VERSION = 7
_COLUMNS, _KEY, _HANDLE = 0, 1, 2  # versions: over the columns; over bytes and the key; over bytes and the handle
_SUM = 4
_NO_SUM = np.uint64(1 << 8 * _SUM)


def wrong_rows(table: TableInfo, keys: pa.BinaryArray, values: pa.BinaryArray) -> Ints:
    """The rows whose checksum is not that of their content; a version that is not known is wrong.

    `values`: rows in either format, none of them empty. Raises what `decode_rows` raises.
    """
    view = BinaryView(values)
    rows = _with_checksum(view)
    if not len(rows):
        return rows
    trailers = _Trailers.of(view, rows)
    good = np.zeros(len(rows), np.bool_)
    by_columns = trailers.complete & (trailers.version == _COLUMNS)
    if by_columns.any():
        chosen = pa.array(rows[by_columns])
        sums = _sums_of_columns(table, keys.take(chosen), values.take(chosen))
        good[by_columns] = trailers.has(sums, by_columns)
    for version, skipped in ((_KEY, 0), (_HANDLE, PREFIX_LENGTH)):
        by_bytes = trailers.complete & (trailers.version == version)
        if by_bytes.any():
            sums = _sums_of_bytes(view, rows[by_bytes], trailers.at[by_bytes], keys, skipped)
            good[by_bytes] = trailers.has(sums, by_bytes)
    wrong: Ints = rows[~good]
    return wrong


def _with_checksum(view: BinaryView) -> Ints:
    long = np.flatnonzero(view.ends - view.starts >= HEADER)
    head = view.read(view.starts[long], 2)
    has = (head & np.uint64(0xFF) == VERSION) & (head >> np.uint64(8) & np.uint64(FLAG_CHECKSUM) != 0)
    found: Ints = long[has]
    return found


@dataclass(frozen=True)
class _Trailers:
    """Where each row's trailer begins, and what it says; nothing of one that is not `complete`."""

    at: Ints
    version: Words
    complete: Mask
    sums: tuple[Words, Words]  # the second one is the first where there is no other

    @classmethod
    def of(cls, view: BinaryView, rows: Ints) -> _Trailers:
        start, end = view.starts[rows], view.ends[rows]
        head = view.read(start, HEADER)
        large = head >> np.uint64(8) & np.uint64(FLAG_LARGE) != 0
        values, nulls = ((head >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.int64) for shift in (16, 32))
        id_width, offset_width = np.where(large, 4, 1), np.where(large, 4, 2)
        data = start + HEADER + (values + nulls) * id_width + values * offset_width
        inside = (data <= end) & (values > 0)
        length = np.zeros(len(rows), np.int64)
        last = (data - offset_width)[inside]
        length[inside] = view.read(last, offset_width[inside]).astype(np.int64)
        at = data + length
        room = at < end
        first = np.zeros(len(rows), np.uint64)
        first[room] = view.read(at[room], 1)
        extra = first & np.uint64(_EXTRA) != 0
        complete = room & (at + 1 + _SUM + _SUM * extra == end)
        sums = np.zeros((2, len(rows)), np.uint64)
        sums[:, complete] = view.read(at[complete] + 1, _SUM)
        second = complete & extra
        sums[1, second] = view.read(at[second] + 1 + _SUM, _SUM)
        return cls(at, first & np.uint64(_VERSION), complete, (sums[0], sums[1]))

    def has(self, sums: Words, rows: Mask) -> Mask:
        """While a column is added, the second sum is over the columns as they were before; either counts."""
        either: Mask = (self.sums[0][rows] == sums) | (self.sums[1][rows] == sums)
        return either


def _sums_of_bytes(view: BinaryView, rows: Ints, ends: Ints, keys: pa.BinaryArray, skipped: int) -> Words:
    """From the first byte to the trailer's first one, and on over the key. One native call a row for each."""
    data = view.data.data
    chosen = keys.take(pa.array(rows)).to_pylist()
    bounds = zip(view.starts[rows].tolist(), (ends + 1).tolist(), chosen, strict=True)
    return np.array([zlib.crc32(key[skipped:], zlib.crc32(data[start:end])) for start, end, key in bounds], np.uint64)


def _sums_of_columns(table: TableInfo, keys: pa.BinaryArray, values: pa.BinaryArray) -> Words:
    """No TiDB that has vectors writes such sums: a row with one gets a sum that no trailer has."""
    columns = sorted(table.output_columns, key=lambda column: column.id)
    decoded = list(zip(columns, decode_rows(table, keys, values, UTC, columns), strict=True))
    pieces = [column_bytes(column, array) for column, array in decoded if column.type != SqlType.VECTOR]
    empty = pa.repeat(pa.scalar(b"", pa.binary()), len(values))
    whole = pc.binary_join_element_wise(empty, *pieces, b"", null_handling="replace", null_replacement=b"")
    sums = np.array([zlib.crc32(row) for row in whole.to_pylist()], np.uint64)
    for column, array in decoded:
        if column.type == SqlType.VECTOR:
            sums[array.is_valid().to_numpy(zero_copy_only=False)] = _NO_SUM
    return sums


def column_bytes(column: ColumnInfo, values: pa.Array) -> pa.BinaryArray:
    """What version 0 takes of each value; null of a null, which counts for nothing. `values`: as decoded, in UTC.

    Of no VECTOR, for which it has no form.
    """
    if pa.types.is_struct(values.type):  # ENUM and SET
        values = values.field("number")
    if pa.types.is_floating(values.type):
        return _words(values.cast(pa.float64()), np.float64)
    if pa.types.is_integer(values.type):
        return _words(values, np.uint64 if pa.types.is_unsigned_integer(values.type) else np.int64)
    raw = values.cast(pa.binary())
    length = _elements(pc.binary_length(raw).fill_null(0).to_numpy().astype("<u4").view(np.uint8), 4, raw)
    return pc.binary_join_element_wise(length, raw, b"")


def _words(values: pa.Array, kind: npt.DTypeLike) -> pa.BinaryArray:
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype(kind)
    return _elements(np.ascontiguousarray(numbers).view(np.uint8), 8, values)


def _elements(data: npt.NDArray[np.uint8], width: int, like: pa.Array) -> pa.BinaryArray:
    """Elements of `width` bytes each, null where those of `like` are."""
    offsets = np.arange(0, width * len(like) + 1, width, dtype=np.int32)
    found = pa.Array.from_buffers(pa.binary(), len(like), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pc.if_else(like.is_valid(), found, pa.scalar(None, pa.binary()))
