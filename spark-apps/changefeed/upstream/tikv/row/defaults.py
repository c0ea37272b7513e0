"""What a column contains in rows that are older than the column (docs/design/tidb.md, Visible columns).

It must never use `default`, which is for future inserts.
"""

from __future__ import annotations

import base64
import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.schema.values import arrow_type
from changefeed.upstream.tikv.row.cells import Cells, decode_cells
from changefeed.upstream.tikv.row.decimals import MAX_PRECISION
from changefeed.upstream.tikv.row.times import pack

_TIME = re.compile(r"(\d+)-(\d+)-(\d+)(?:[ T](\d+):(\d+):(\d+)(?:\.(\d{1,6})\d*)?)?")
_DURATION = re.compile(r"(-?)(\d+):(\d+):(\d+)(?:\.(\d{1,6})\d*)?")
_ZERO_TEXTS = {
    SqlType.JSON: "null",
    SqlType.VECTOR: "[]",
    SqlType.DECIMAL: "0",
    SqlType.DATE: "0000-00-00",
    SqlType.DATETIME: "0000-00-00 00:00:00",
    SqlType.TIMESTAMP: "0000-00-00 00:00:00",
    SqlType.TIME: "00:00:00",
}


def absent_value(column: ColumnInfo, time_zone: str) -> pa.Array:
    """One element, of the type that the column's other values have. Raises ValueError for a default of no such type."""
    default = column.origin_default
    if default is None and column.origin_default_bit is None:
        kind = arrow_type(column)
        # pa.array([None]) of a struct would be null, but not its members.
        return pa.nulls(1, kind) if column.nullable else pa.array([_zero(column)], kind)
    try:
        return _converted(column, default, time_zone)
    except (ValueError, InvalidOperation) as error:
        raise ValueError(f"has the origin default {default!r}, which is no {ti.column_type_name(column)}") from error


def _zero(column: ColumnInfo) -> Any:
    """TiDB's zero values, which have no fraction digits."""
    if column.type == SqlType.ENUM:
        return {"number": 1, "text": column.elems[0]}
    if column.type == SqlType.SET:
        return {"number": 0, "text": ""}
    if column.type in ti.STRINGS | ti.BLOBS:
        return ""
    return _ZERO_TEXTS.get(column.type, 0)


def _converted(column: ColumnInfo, default: Any, time_zone: str) -> pa.Array:
    """By way of the form that the value has in rows, where that is what makes its text."""
    text = str(default)
    if column.type in ti.STRINGS | ti.BLOBS:
        is_padded = column.type == SqlType.CHAR and column.is_binary
        return pa.array([text.encode().ljust(column.flen if is_padded else 0, b"\0")], pa.binary()).cast(
            arrow_type(column)
        )
    if column.type == SqlType.DECIMAL:
        return pa.array([_decimal(text, max(column.decimal, 0))])
    if column.type in (SqlType.FLOAT, SqlType.DOUBLE):
        return pa.array([float(text)], pa.float64()).cast(arrow_type(column))
    if column.type == SqlType.BIT:
        raw = base64.b64decode(column.origin_default_bit) if column.origin_default_bit else text.encode()
        return pa.array([int.from_bytes(raw, "big")], pa.uint64())
    if column.type in ti.INTEGERS | {SqlType.YEAR}:
        return pa.array([int(_decimal(text, 0))], arrow_type(column))
    stored = _stored(column, text)
    cells = Cells.of(pa.array([stored.to_bytes(8, "little", signed=stored < 0)], pa.binary()))
    return decode_cells(column, cells, np.ones(1, np.bool_), time_zone)


def _decimal(text: str, scale: int) -> str:
    number = Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=2 * MAX_PRECISION))
    return f"{number:f}"


def _stored(column: ColumnInfo, text: str) -> int:
    """The integer that a row would hold. Raises ValueError."""
    if column.type == SqlType.ENUM:
        return column.elems.index(text) + 1
    if column.type == SqlType.SET:
        return sum(1 << column.elems.index(elem) for elem in text.split(",") if elem)
    if column.type == SqlType.TIME:
        if (match := _DURATION.fullmatch(text)) is None:
            raise ValueError(text)
        hours, minutes, seconds = (int(match[n]) for n in (2, 3, 4))
        size = ((hours * 60 + minutes) * 60 + seconds) * 10**9 + int((match[5] or "").ljust(9, "0"))
        return -size if match[1] else size
    if (match := _TIME.fullmatch(text)) is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = (int(match[n] or 0) for n in range(1, 7))
    return pack((year, month, day, hour, minute, second, int((match[7] or "").ljust(6, "0"))))
