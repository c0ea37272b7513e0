"""Converts values of Parquet files to the form in which verify compares them: see `values`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.verify.tables.values import of_decoded

_SECONDS = len("2026-01-01 00:00:00")


def of_lake(column: ColumnInfo, values: pa.Array) -> pa.BinaryArray:
    """Times in UTC, with as many digits of a second as the column has."""
    if pa.types.is_timestamp(values.type):
        digits = max(column.decimal, 0)
        text = values.cast(pa.timestamp("us")).cast(pa.string())
        return pc.utf8_slice_codeunits(text, 0, _SECONDS + (digits and digits + 1)).cast(pa.binary())
    if pa.types.is_decimal(values.type) and column.type == SqlType.DECIMAL:
        return _plain(values)
    if pa.types.is_date(values.type) or pa.types.is_decimal(values.type):
        return values.cast(pa.string()).cast(pa.binary())
    return of_decoded(column, values)


def _plain(values: pa.Array) -> pa.BinaryArray:
    """Without an exponent, which Arrow writes for what is small. One by one: few tables have such values."""
    text = values.cast(pa.string())
    if pc.any(pc.match_substring(text, "E")).as_py():
        text = pa.array([None if value is None else f"{value:f}" for value in values.to_pylist()], pa.string())
    return text.cast(pa.binary())
