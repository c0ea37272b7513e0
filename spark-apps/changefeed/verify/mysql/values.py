"""Values of both sides in a canonical form, whole columns at a time: equal bytes if and only if the values are equal.

A server sends text, in sessions as `sink.mysql.server` opens them: utf8mb4, and times at +00:00. What it prints
differently from the upstream's decoder is queried differently (`expression`), or parsed (floats, JSON).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema import table_info as ti
from changefeed.schema.row.cells import as_bytes
from changefeed.schema.table_info import ColumnInfo
from changefeed.sink.mysql.rows.literals import identifier

_WHOLE_NUMBERS = ti.INTEGERS | {ti.YEAR, ti.BIT}
_FLOATS = frozenset({ti.FLOAT, ti.DOUBLE})


def expression(column: ColumnInfo) -> bytes:
    """SQL that shows the column's value, whatever ZEROFILL, a FLOAT's few digits, or a BIT's bytes hide of it."""
    name = identifier(column.name)
    if column.tp in _WHOLE_NUMBERS:
        kind = b"UNSIGNED" if column.is_unsigned or column.tp == ti.BIT else b"SIGNED"
        return b"CAST(" + name + b" AS " + kind + b")"
    return name + b"+0e0" if column.tp in _FLOATS else name


def of_upstream(column: ColumnInfo, values: pa.Array) -> pa.BinaryArray:
    """Of decoded values, times in UTC. ENUM and SET by their names."""
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "text")
    if column.tp in _FLOATS:
        return _floats(values.cast(pa.float64()))
    if pa.types.is_integer(values.type):
        return values.cast(pa.string()).cast(pa.binary())
    return _canonical(as_bytes(values)) if column.tp == ti.JSON else as_bytes(values)


def of_downstream(column: ColumnInfo, cells: Sequence[bytes | None]) -> pa.BinaryArray:
    """Of what the server shows of `expression`."""
    values = pa.array(cells, pa.binary())
    if column.tp in _FLOATS:
        return _floats(values.cast(pa.string()).cast(pa.float64()))
    return _canonical(values) if column.tp == ti.JSON else values


def _floats(values: pa.DoubleArray) -> pa.BinaryArray:
    """Without the sign of a zero, which no comparison sees."""
    return pc.add(values, 0.0).cast(pa.string()).cast(pa.binary())


def _canonical(values: pa.BinaryArray) -> pa.BinaryArray:
    """Documents without what their printers choose: spaces, the order of members, 1.0 for 1."""
    found = values.dictionary_encode()
    texts = [_document(document) for document in found.dictionary.to_pylist()]
    return pa.array(texts, pa.binary()).take(found.indices)


def _document(text: bytes) -> bytes:
    try:
        document = json.loads(text, parse_float=_number)
    except ValueError:
        return text  # it is not equal to any that is one
    return json.dumps(document, sort_keys=True).encode()


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value
