"""Values as SQL literals, whole columns at a time.

For sessions with `sql_mode` NO_BACKSLASH_ESCAPES and utf8mb4, as `server` opens them: in strings only quotes are
doubled. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.schema.values import as_bytes
from changefeed.sink.text.lines import text_of

NULL = b"NULL"


Parts = Sequence[bytes | pa.Array]  # that stand one after another in each row: the same bytes, or the row's own


def literals(column: ColumnInfo, values: pa.Array) -> pa.BinaryArray:
    """One for each value of a column, "NULL" where it is null."""
    return _with_nulls(_parts_of_column(column, values))


def literal_parts(column: ColumnInfo, values: pa.Array) -> Parts:
    """The same in parts, which are joined with those of other columns at once."""
    parts = _parts_of_column(column, values)
    has_nulls = any(part.null_count for part in parts if isinstance(part, pa.Array))
    return [_with_nulls(parts)] if has_nulls else parts


def literals_of(values: pa.Array, is_binary: bool) -> pa.BinaryArray:
    """The same of numbers, texts and bytes. `is_binary`: bytes are not the UTF-8 of a text."""
    return _with_nulls(_parts(values, is_binary))


def identifier(name: str) -> bytes:
    """A name of a schema, table or column."""
    return b"`" + name.replace("`", "``").encode() + b"`"


def text_literal(text: str) -> bytes:
    return b"'" + text.replace("'", "''").encode() + b"'"


def bytes_literal(value: bytes) -> bytes:
    return b"x'" + value.hex().encode() + b"'"


def joined(parts: Parts) -> pa.BinaryArray:
    """The parts one after another, row by row; null where one is. At least one is an array."""
    fewer: list[bytes | pa.Array] = []
    for part in parts:
        if fewer and isinstance(part, bytes) and isinstance(fewer[-1], bytes):
            fewer[-1] += part
        else:
            fewer.append(part)
    return pc.binary_join_element_wise(
        *(pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part.cast(pa.binary()) for part in fewer),
        pa.scalar(b"", pa.binary()),
    )


def _with_nulls(parts: Parts) -> pa.BinaryArray:
    (whole,) = parts if len(parts) == 1 else [joined(parts)]
    return pc.fill_null(pc.cast(whole, pa.binary()), NULL)


def _parts_of_column(column: ColumnInfo, values: pa.Array) -> Parts:
    if pa.types.is_struct(values.type):
        values = values.field("text")
    return [values] if column.type == SqlType.DECIMAL else _parts(values, column.is_binary)


def _parts(values: pa.Array, is_binary: bool) -> Parts:
    if pa.types.is_floating(values.type):
        return [_float(values)]
    if pa.types.is_integer(values.type):
        return [values.cast(pa.string())]
    if is_binary:
        return [b"x'", _hex(values), b"'"]
    return [b"'", _with_quotes_doubled(as_bytes(values)), b"'"]


def _float(values: pa.Array) -> pa.Array:
    """With an exponent, which makes it a double to the server. A FLOAT with the digits of the double that it equals."""
    text = values.cast(pa.float64()).cast(pa.string())
    has_exponent = pc.match_substring(text, "e")
    return pc.if_else(has_exponent, text, pc.binary_join_element_wise(text, "e0", ""))


def _hex(values: pa.BinaryArray) -> pa.Array:
    return pl.Series(values=values, dtype=pl.Binary).bin.encode("hex").to_arrow()


def _with_quotes_doubled(values: pa.BinaryArray) -> pa.BinaryArray:
    # A search of all is much cheaper than a replacement that finds nothing.
    if b"'" not in text_of(values).to_pybytes():
        return values
    return pc.replace_substring(values, b"'", b"''")
