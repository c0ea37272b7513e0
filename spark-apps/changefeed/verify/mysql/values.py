"""Shows a server's values in the form in which verify compares them (verify.tables.values).

A server sends text, in sessions as `sink.mysql.server` opens them: utf8mb4, and times at +00:00. What it prints
differently from the upstream's decoder is queried differently (`expression`), or parsed (floats, JSON).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.sink.mysql.rows.literals import identifier
from changefeed.verify.tables.values import FLOATS, of_documents, of_floats

_WHOLE_NUMBERS = ti.INTEGERS | {SqlType.YEAR, SqlType.BIT}


def expression(column: ColumnInfo, *, pads_char: bool) -> bytes:
    """SQL that shows the column's value, whatever ZEROFILL, a FLOAT's few digits, or a BIT's bytes hide of it.

    A server shows a CHAR without the blanks at its end; with `pads_char` the upstream has them (Decoder).
    """
    name = identifier(column.name)
    if column.type in _WHOLE_NUMBERS:
        kind = b"UNSIGNED" if column.is_unsigned or column.type == SqlType.BIT else b"SIGNED"
        return b"CAST(" + name + b" AS " + kind + b")"
    if pads_char and column.type == SqlType.CHAR and not column.is_binary:
        return b"RPAD(" + name + b", %d, ' ')" % column.flen
    return name + b"+0e0" if column.type in FLOATS else name


def of_downstream(column: ColumnInfo, cells: Sequence[bytes | None]) -> pa.BinaryArray:
    """The common form of what the server shows of `expression`."""
    values = pa.array(cells, pa.binary())
    if column.type in FLOATS:
        return of_floats(values.cast(pa.string()).cast(pa.float64()))
    return of_documents(values) if column.type == SqlType.JSON else values
