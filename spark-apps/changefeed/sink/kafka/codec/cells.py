"""Values as the JSON of several protocols has them, for whole columns."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.schema.values import as_bytes
from changefeed.sink.text.go_float import go_float, plain_float

_SMALLEST_PLAIN, _FIRST_LARGE = 1e-6, 1e21  # Go's JSON writers


def or_null(text: pa.Array) -> pa.Array:
    return pc.fill_null(text, "null") if text.null_count else text


def quoted(text: pa.Array) -> pa.Array:
    return or_null(pc.binary_join_element_wise('"', text, '"', ""))


def base64_of(values: pa.Array) -> pa.Array:
    series = pl.Series(values=as_bytes(values), dtype=pl.Binary)
    return series.bin.encode("base64").to_arrow().cast(pa.string())


def json_float(values: pa.Array) -> pa.Array:
    """Shortest digits; with an exponent, of as few digits as it has, for the very small and the very large.

    JSON has no number for NaN and infinity: they are strings, as of Kafka Connect's own converter.
    """
    size = pc.abs(values.cast(pa.float64()))
    is_plain = pc.or_(
        pc.equal(size, 0.0), pc.and_(pc.greater_equal(size, _SMALLEST_PLAIN), pc.less(size, _FIRST_LARGE))
    )
    if pc.all(is_plain).as_py() is not False:
        return plain_float(values)
    scientific = pc.replace_substring_regex(go_float(values), r"e-0(\d)$", r"e-\1")
    text = pc.if_else(is_plain, plain_float(values), scientific)
    if pc.all(pc.is_finite(values)).as_py() is not False:
        return text
    return pc.if_else(pc.is_finite(values), text, pc.binary_join_element_wise('"', text, '"', ""))


def is_zero(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """Which values TiCDC takes for none where it writes changed columns alone; never NULL ones."""
    if pa.types.is_struct(values.type):
        found = pc.equal(pc.struct_field(values, "number"), pa.scalar(0, pa.uint64()))
    elif column.type in ti.STRINGS | ti.BLOBS:
        found = pc.equal(pc.binary_length(values), 0)
    elif column.type in {SqlType.DECIMAL, SqlType.TIME, SqlType.DATE, SqlType.DATETIME, SqlType.TIMESTAMP}:
        found = pc.invert(pc.match_substring_regex(values, "[1-9]"))
    else:
        found = pa.array([False] * len(values))
    return pc.fill_null(found, False)
