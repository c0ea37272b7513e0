"""Columns as the fields of Avro records: pa.binary() arrays that are joined row by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.schema.values import as_bytes
from changefeed.sink.kafka.codec.avro.schema import AvroTypes, avro_type, default_of

_LONGEST = 10  # bytes of a long
_WIDE = 32  # bytes of Arrow's widest decimal
_DIGITS = 76
_TYPE_NUMBERS = (b"\x00", b"\x02")  # in a union, as longs


def field(column: ColumnInfo, values: pa.Array, types: AvroTypes) -> pa.Array:
    """The column's values; of one that may be NULL with its number in the union before."""
    if not column.nullable:
        return _plain(column, values, types)
    null, value = _TYPE_NUMBERS if default_of(column, types) is None else reversed(_TYPE_NUMBERS)
    there = pc.binary_join_element_wise(pa.scalar(value, pa.binary()), _plain(column, values, types), b"")
    return pc.if_else(values.is_valid(), there, pa.scalar(null, pa.binary())) if values.null_count else there


def _plain(column: ColumnInfo, values: pa.Array, types: AvroTypes) -> pa.Array:
    """Without nulls: where a value is NULL, there is any."""
    if types.is_text(column):
        return texts(values.cast(pa.string()).fill_null(""))
    if pa.types.is_struct(values.type):
        return texts(pc.fill_null(pc.struct_field(values, "text"), ""))
    if column.type == SqlType.BIT:
        return texts(_big_endian(values.fill_null(0), -(-column.flen // 8)))
    if avro_type(column, types) in ("int", "long"):
        return longs(values.fill_null(0))
    if pa.types.is_floating(values.type):
        return _fixed(values.fill_null(0))
    if column.type == SqlType.DECIMAL:
        return texts(_unscaled(values.fill_null("0"), max(column.decimal, 0)))
    return texts(as_bytes(values).fill_null(b""))


def longs(values: pa.Array) -> pa.Array:
    """Zigzag in groups of seven bits; numbers above the largest signed one are written as the negative they are."""
    signed = values.to_numpy(zero_copy_only=False).astype(values.type.to_pandas_dtype(), copy=False)
    return _varints(signed.view(np.int64) if signed.dtype == np.uint64 else signed.astype(np.int64))


def _varints(signed: npt.NDArray[np.int64]) -> pa.Array:
    rest = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    shifts = np.arange(_LONGEST, dtype=np.uint64) * np.uint64(7)
    groups = rest[:, None] >> shifts
    lengths = np.maximum((groups != 0).sum(axis=1), 1)
    digits = (groups & np.uint64(0x7F)).astype(np.uint8)
    positions = np.arange(_LONGEST)
    digits |= np.where(positions < lengths[:, None] - 1, 0x80, 0).astype(np.uint8)
    return _gathered(digits, positions < lengths[:, None], lengths)


def texts(values: pa.Array) -> pa.Array:
    """Length and bytes."""
    raw = as_bytes(values)
    lengths = _varints(pc.binary_length(raw).to_numpy(zero_copy_only=False).astype(np.int64))
    return pc.binary_join_element_wise(lengths, raw, b"")


def _fixed(values: pa.Array) -> pa.Array:
    numbers = values.to_numpy(zero_copy_only=False)
    raw = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()
    width = numbers.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(raw)]).cast(pa.binary())


def _big_endian(values: pa.Array, width: int) -> pa.Array:
    digits = values.to_numpy().astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]
    return pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(digits.tobytes())]).cast(
        pa.binary()
    )


def _unscaled(values: pa.Array, scale: int) -> pa.Array:
    """Decimal text without its point, as the shortest two's complement, most significant byte first."""
    numbers = values.cast(pa.decimal256(_DIGITS, scale))
    raw = np.frombuffer(numbers.buffers()[1], np.uint8).reshape(-1, _WIDE)[numbers.offset :][: len(values), ::-1]
    sign = np.where(raw[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    differs = raw != sign
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), _WIDE - 1)
    # One byte of the sign more where the first byte would say the other one.
    leading = raw[np.arange(len(raw)), first]
    first -= ((leading & 0x80) != (sign[:, 0] & 0x80)).astype(first.dtype)
    return _gathered(np.ascontiguousarray(raw), np.arange(_WIDE) >= first[:, None], _WIDE - first)


def _gathered(digits: npt.NDArray[np.uint8], chosen: npt.NDArray[np.bool_], lengths: npt.NDArray[np.intp]) -> pa.Array:
    """The chosen bytes of each row."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = pa.py_buffer(digits[chosen].tobytes())
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets.tobytes()), data])
