"""Values as Debezium has them: days, milliseconds and microseconds since 1970, bits and bytes in base64."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.sink.kafka.codec.cells import base64_of, json_float, or_null, quoted
from changefeed.sink.text.json_text import escaped

_MILLISECONDS = 3  # the largest fsp of DATETIME that is told in them
_CENTURIES = ((70, "2000y"), (100, "1900y"))  # years below are of these


def cells(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """JSON of a column's values."""
    if pa.types.is_struct(values.type):
        return quoted(escaped(pc.struct_field(values, "text"), is_text=True, html=False))
    if column.type == SqlType.BIT:
        return _bits(column, values)
    if pa.types.is_integer(values.type):
        return or_null(_integers(column, values))
    if pa.types.is_floating(values.type):
        return or_null(json_float(values))
    if column.type == SqlType.DECIMAL:
        return or_null(json_float(values.cast(pa.float64())))
    if column.type == SqlType.DATE:
        return _zero_or_null(column, values, _days(values))
    if column.type == SqlType.DATETIME:
        return _zero_or_null(column, values, _since_1970(column, values))
    if column.type == SqlType.TIMESTAMP:
        return quoted(_zoned(values))
    if column.type == SqlType.TIME:
        return or_null(_microseconds(values))
    return quoted(base64_of(values) if column.is_binary else escaped(values, is_text=True, html=False))


def _bits(column: ColumnInfo, values: pa.Array) -> pa.Array:
    if column.flen == 1:
        return or_null(pc.if_else(pc.not_equal(values, pa.scalar(0, pa.uint64())), "true", "false"))
    width = -(-column.flen // 8)
    words = values.fill_null(0).to_numpy().astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    raw = pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(words.tobytes())])
    text = base64_of(raw.cast(pa.binary()))
    return quoted(pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string())))


def _integers(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """BIGINT UNSIGNED in Java's signed numbers."""
    if column.type != SqlType.BIGINT or not column.is_unsigned:
        return values.cast(pa.string())
    signed = pa.array(values.fill_null(0).to_numpy().astype(np.uint64).view(np.int64))
    return pc.if_else(values.is_valid(), signed.cast(pa.string()), pa.scalar(None, pa.string()))


def _zero_or_null(column: ColumnInfo, values: pa.Array, numbers: pa.Array) -> pa.Array:
    """A day that there is not, as 0000-00-00, is null, or 0 in a column without NULL."""
    return pc.fill_null(numbers.cast(pa.string()), "null" if column.nullable else "0")


def _days(values: pa.Array) -> pa.Array:
    dates = _series(values).str.to_date("%Y-%m-%d", strict=False)
    return _in_century(dates).cast(pl.Int32).to_arrow()


def _since_1970(column: ColumnInfo, values: pa.Array) -> pa.Array:
    moments = _in_century(_series(values).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False))
    return moments.dt.epoch("ms" if column.decimal <= _MILLISECONDS else "us").to_arrow()


def _in_century(moments: pl.Series) -> pl.Series:
    if not (moments.dt.year() < _CENTURIES[-1][0]).any():
        return moments
    shown, year = pl.col("m"), pl.col("m").dt.year()
    first, second = _CENTURIES
    later = pl.when(year < second[0]).then(shown.dt.offset_by(second[1])).otherwise(shown)
    return moments.to_frame("m").select(pl.when(year < first[0]).then(shown.dt.offset_by(first[1])).otherwise(later))[
        "m"
    ]


def _zoned(values: pa.Array) -> pa.Array:
    """Text in UTC; the zero timestamp is the first moment of 1970."""
    is_zero = pc.starts_with(values, "0000-00-00")
    text = pc.binary_join_element_wise(pc.replace_substring(values, " ", "T", max_replacements=1), "Z", "")
    return pc.if_else(is_zero, "1970-01-01T00:00:00Z", text)


def _microseconds(values: pa.Array) -> pa.Array:
    parts = _series(values).str.extract_groups(r"^(-?)(\d+):(\d+):(\d+)(?:\.(\d+))?$").struct.unnest()
    sign, hours, minutes, seconds, fraction = parts.columns
    number = (pl.col(hours).cast(pl.Int64) * 60 + pl.col(minutes).cast(pl.Int64)) * 60 + pl.col(seconds).cast(pl.Int64)
    micros = number * 1_000_000 + pl.col(fraction).fill_null("").str.pad_end(6, "0").cast(pl.Int64)
    signed = pl.when(pl.col(sign) == "-").then(-micros).otherwise(micros)
    return parts.select(signed.cast(pl.String).alias("n"))["n"].to_arrow().cast(pa.string())


def _series(values: pa.Array) -> pl.Series:
    return pl.Series(values=values, dtype=pl.String)
