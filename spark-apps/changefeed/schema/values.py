"""How a column's values look in Arrow once they are decoded, whichever upstream they come from.

Text is pa.string() only if all of it is UTF-8. A column may contain other bytes; then it is pa.binary() in that batch,
because polars trusts a pa.string() to be valid.
"""

from __future__ import annotations

import pyarrow as pa

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo

#: Of ENUM and SET: what is stored and what it means; both null where the value is.
CHOICE = pa.struct([("number", pa.uint64()), ("text", pa.string())])
CHOICES = frozenset({SqlType.ENUM, SqlType.SET})
FLOATS = {SqlType.FLOAT: pa.float32(), SqlType.DOUBLE: pa.float64()}
WORDS = ti.INTEGERS | {SqlType.YEAR, SqlType.BIT}


def arrow_type(column: ColumnInfo) -> pa.DataType:
    """The type of a decoded column; pa.binary() instead for text that `is_broken`."""
    if column.type in WORDS:
        return pa.uint64() if is_unsigned(column) else pa.int64()
    if column.type in FLOATS:
        return FLOATS[column.type]
    if column.type in CHOICES:
        return CHOICE
    return pa.binary() if column.is_binary else pa.string()


def is_unsigned(column: ColumnInfo) -> bool:
    """YEAR has the flag and is signed all the same (docs/design/tidb.md, Values)."""
    return column.type == SqlType.BIT or (column.is_unsigned and column.type != SqlType.YEAR)


def is_broken(column: ColumnInfo, values: pa.Array) -> bool:
    """Whether decoded values are text in which some bytes are not UTF-8: they are pa.binary() then."""
    return pa.types.is_binary(values.type) and not column.is_binary


def first_broken(values: pa.BinaryArray) -> int:
    """The first element that is not UTF-8, of those among which there is one."""
    return first_refused(values, pa.string())


def first_refused(values: pa.Array, wanted: pa.DataType) -> int:
    """The first element that can't be cast to `wanted`, of those among which there is one; by halving."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            values.slice(low, middle - low).cast(wanted)
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


def as_bytes(values: pa.Array) -> pa.Array:
    """Text as its UTF-8, without a copy; other values as they are. (To compare the two, Arrow does this by itself.)"""
    return values.cast(pa.binary()) if pa.types.is_string(values.type) else values
