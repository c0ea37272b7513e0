"""Row values in TiDB's format v2: an encoder, one for many rows at once, and a decoder.

See docs/design/tidb.md, Row format v2.

The decoder serves the cluster's own reads and the tests' oracle. It shares nothing with
the product's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import keys
from ..codec import GROUP, decode_bytes, encode_bytes
from .field_types import CHOICES, INTEGERS, TIMES, Tp
from .schema import ROWID, TidbColumn, TidbTable
from .values import (
    absent_value,
    cast,
    choice_number,
    decode_decimal,
    decode_value,
    encode_decimal,
    encode_value,
    from_text,
    nanoseconds,
    packed_time,
)

Row = dict[str, Any]

_VERSION = 128
_LARGE = 1
_HEADER = struct.Struct("<BBHH")


def assemble(values: Mapping[int, bytes | None]) -> bytes:
    """A row of encoded values by column id (None: NULL)."""
    ids = sorted(column_id for column_id, value in values.items() if value is not None)
    nulls = sorted(column_id for column_id, value in values.items() if value is None)
    data = [values[column_id] or b"" for column_id in ids]
    size = sum(map(len, data))
    large = size > 0xFFFF or max([*ids, *nulls], default=0) > 0xFF
    ends = []
    end = 0
    for value in data:
        end += len(value)
        ends.append(end)
    header = _HEADER.pack(_VERSION, _LARGE if large else 0, len(ids), len(nulls))
    id_form, end_form = ("I", "I") if large else ("B", "H")
    count = len(ids) + len(nulls)
    return b"".join(
        [header, struct.pack(f"<{count}{id_form}", *ids, *nulls), struct.pack(f"<{len(ends)}{end_form}", *ends), *data]
    )


def encode_row(table: TidbTable, row: Mapping[str, Any]) -> bytes:
    """The value of a row. A missing column takes its default; a handle's columns stand in the key only.

    Raises ValueError for an unknown column, or NULL in a column that forbids it.
    """
    unknown = row.keys() - {column.name for column in table.public}
    if unknown:
        raise ValueError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    values: dict[int, bytes | None] = {}
    for column in table.columns:
        if column.name in table.only_in_key or not column.is_written:
            continue
        value = _written(table, column, row)
        if value is None and not column.nullable:
            raise ValueError(f"column {table.name}.{column.name} can't be NULL")
        values[column.id] = None if value is None else encode_value(column.type, value)
    return assemble(values)


def _written(table: TidbTable, column: TidbColumn, row: Mapping[str, Any]) -> Any:
    """Return what a session writes into a column: the row's value, another column's in its type, or its default."""
    if column.cast_of is not None:
        return cast(column.type, _written(table, table.column(column.cast_of), row))
    if column.name in row:
        return row[column.name]
    if column.default is None and not column.nullable and not column.is_public:
        return absent_value(column)  # one that is being dropped
    return from_text(column, column.default)


def decode_row(table: TidbTable, value: bytes) -> Row:
    """All columns but those that only the key has. One that the row lacks has its origin default.

    See docs/design/tidb.md, Visible columns.
    """
    version, flags, filled, empty = _HEADER.unpack_from(value)
    if version != _VERSION:
        raise ValueError(f"not a row of format v2: {value[:32].hex()}")
    id_form, end_form = ("I", "I") if flags & _LARGE else ("B", "H")
    ids_form, ends_form = struct.Struct(f"<{filled + empty}{id_form}"), struct.Struct(f"<{filled}{end_form}")
    ids = ids_form.unpack_from(value, _HEADER.size)
    ends = (0, *ends_form.unpack_from(value, _HEADER.size + ids_form.size))
    data = value[_HEADER.size + ids_form.size + ends_form.size :]
    found: dict[int, bytes | None] = dict.fromkeys(ids[filled:])
    for n in range(filled):
        found[ids[n]] = data[ends[n] : ends[n + 1]]
    row: Row = {}
    for column in table.public:
        if column.name in table.only_in_key or column.generated:
            continue
        if column.id in found:
            encoded = found[column.id]
            row[column.name] = None if encoded is None else decode_value(column.type, encoded)
        else:
            row[column.name] = absent_value(column)
    return row


# --- handles ---


def encode_datum(column: TidbColumn, value: Any) -> bytes:
    """A value in an index key or a common handle: flag and memcomparable form (docs/design/tidb.md, Encodings)."""
    field = column.type
    if field.tp in INTEGERS or field.tp is Tp.YEAR:
        is_unsigned = field.unsigned and field.tp is not Tp.YEAR
        encoded = keys.encode_uint(value) if is_unsigned else keys.encode_int(value)
        return bytes((keys.UINT_FLAG if is_unsigned else keys.INT_FLAG,)) + encoded
    if field.tp is Tp.BIT or field.tp in CHOICES or field.tp in TIMES:
        number = (
            value if field.tp is Tp.BIT else packed_time(value) if field.tp in TIMES else choice_number(field, value)
        )
        return bytes((keys.UINT_FLAG,)) + keys.encode_uint(number)
    if field.tp is Tp.DURATION:
        return bytes((keys.DURATION_FLAG,)) + keys.encode_int(nanoseconds(value))
    if field.tp is Tp.DECIMAL:
        return bytes((keys.DECIMAL_FLAG,)) + encode_value(field, value)
    if field.tp in (Tp.FLOAT, Tp.DOUBLE):
        return bytes((keys.FLOAT_FLAG,)) + encode_value(field, value)
    raw = encode_value(field, value)
    # utf8mb4_bin compares with trailing spaces taken away.
    return bytes((keys.BYTES_FLAG,)) + encode_bytes(raw.rstrip(b" ") if field.is_text else raw)


def handle_of(table: TidbTable, row: Mapping[str, Any]) -> int | bytes:
    """Return what stands in the record key: an int, or the datums of a clustered primary key of another kind."""
    if not table.clustered:
        return int(row[table.pk or ROWID])
    columns = {column.name: column for column in table.columns}
    datums = b"".join(encode_datum(columns[name], row[name]) for name in table.clustered)
    return datums.ljust(keys.MIN_COMMON_HANDLE, b"\0")


def row_of(table: TidbTable, key: bytes, value: bytes) -> Row:
    """A whole row, its handle's columns before the others."""
    return {**_from_key(table, key), **decode_row(table, value)}


def address_of(table: TidbTable, key: bytes) -> Any:
    """The primary key of a record: an int, or a clustered primary key's columns, a string without trailing spaces."""
    if table.clustered:
        return tuple(_datums(table, key).values())
    return _from_key(table, key)[table.pk or ROWID]


def _from_key(table: TidbTable, key: bytes) -> Row:
    if table.clustered:
        return {name: value for name, value in _datums(table, key).items() if name in table.only_in_key}
    handle = keys.handle_of(key)
    is_unsigned = any(column.name == table.pk and column.type.unsigned for column in table.columns)
    return {table.pk or ROWID: handle & (1 << 64) - 1 if is_unsigned else handle}


def _datums(table: TidbTable, key: bytes) -> Row:
    columns = {column.name: column for column in table.columns}
    rest, row = key[keys.PREFIX :], {}
    for name in table.clustered:
        field, flag, body = columns[name].type, rest[0], rest[1:]
        if flag == keys.BYTES_FLAG:
            size = GROUP + 1
            while body[size - 1] == 0xFF:
                size += GROUP + 1
            row[name] = decode_value(field, decode_bytes(body[:size]))
        elif flag == keys.DECIMAL_FLAG:
            size = len(encode_decimal(Decimal(0), body[0], body[1]))
            row[name] = decode_decimal(body[:size])
        else:
            size = 8
            signed = flag in (keys.INT_FLAG, keys.DURATION_FLAG)
            number = keys.decode_int(body[:8]) if signed else int.from_bytes(body[:8], "big")
            raw = body[:8] if flag == keys.FLOAT_FLAG else number.to_bytes(8, "little", signed=signed)
            row[name] = decode_value(field, raw)
        rest = body[size:]
    return row


# --- many rows at once ---


def encode_rows(columns: Sequence[tuple[int, npt.NDArray[Any]]]) -> list[bytes]:
    """Rows of one table from columns as `row_blocks` takes them."""
    found = np.empty(len(columns[0][1]), object)
    for chosen, block in row_blocks(columns):
        found[chosen] = block.view(f"V{block.shape[1]}").ravel().tolist()
    rows: list[bytes] = found.tolist()
    return rows


def row_blocks(
    columns: Sequence[tuple[int, npt.NDArray[Any]]],
) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint8]]]:
    """Rows of columns `(column id, array)`, ascending by id, at most 255, no NULLs: their indexes, their bytes.

    An int64 array of shape (rows,) holds signed integers, a uint8 array of shape (rows, width) strings of that width.
    A row may not exceed 65,535 bytes. Rows with equal integer widths share one template: a row costs next to nothing.
    """
    widths = np.stack([_widths(array) for _, array in columns], axis=1)
    shapes, shape_of = np.unique(widths, axis=0, return_inverse=True)
    for n, shape in enumerate(shapes):
        chosen = np.flatnonzero(shape_of.ravel() == n)
        ends = np.cumsum(shape)
        head = _HEADER.pack(_VERSION, 0, len(columns), 0) + bytes(column_id for column_id, _ in columns)
        head += struct.pack(f"<{len(ends)}H", *ends.tolist())
        block = np.empty((len(chosen), len(head) + int(ends[-1])), np.uint8)
        block[:, : len(head)] = np.frombuffer(head, np.uint8)
        for (_, array), width, end in zip(columns, shape, ends, strict=True):
            stop = len(head) + int(end)
            block[:, stop - int(width) : stop] = _bytes_of(array[chosen])[:, : int(width)]
        yield chosen, block


def _widths(array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if array.ndim == 2:
        return np.full(len(array), array.shape[1], np.int64)
    magnitude = np.where(array < 0, ~array, array)  # -128 is as wide as 127
    return np.select([magnitude < 1 << 7, magnitude < 1 << 15, magnitude < 1 << 31], [1, 2, 4], 8)


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Little-endian bytes, one row of them a value."""
    if array.ndim == 2:
        return array
    return np.ascontiguousarray(array, "<i8").view(np.uint8).reshape(-1, 8)
