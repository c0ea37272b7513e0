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


def literals(column: ColumnInfo, values: pa.Array) -> pa.BinaryArray:
    """One for each value of a column, "NULL" where it is null."""
    if pa.types.is_struct(values.type):
        values = values.field("text")
    if column.type == SqlType.DECIMAL:
        return pc.fill_null(values.cast(pa.binary()), NULL)
    return literals_of(values, column.is_binary)


def literals_of(values: pa.Array, is_binary: bool) -> pa.BinaryArray:
    """The same of numbers, texts and bytes. `is_binary`: bytes are not the UTF-8 of a text."""
    if pa.types.is_floating(values.type):
        text = _float(values)
    elif pa.types.is_integer(values.type):
        text = values.cast(pa.string())
    elif is_binary:
        text = joined([b"x'", _hex(values), b"'"])
    else:
        text = joined([b"'", _with_quotes_doubled(as_bytes(values)), b"'"])
    return pc.fill_null(text.cast(pa.binary()), NULL)


def identifier(name: str) -> bytes:
    """A name of a schema, table or column."""
    return b"`" + name.replace("`", "``").encode() + b"`"


def text_literal(text: str) -> bytes:
    return b"'" + text.replace("'", "''").encode() + b"'"


def bytes_literal(value: bytes) -> bytes:
    return b"x'" + value.hex().encode() + b"'"


def joined(parts: Sequence[bytes | pa.Array]) -> pa.BinaryArray:
    """The parts one after another, row by row; null where one is. At least one is an array."""
    return pc.binary_join_element_wise(
        *(pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part.cast(pa.binary()) for part in parts),
        pa.scalar(b"", pa.binary()),
    )


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
