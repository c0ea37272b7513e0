"""Brings values of both sides into one form, whole columns at a time: bytes are equal if and only if values are."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo
from changefeed.schema.values import as_bytes

FLOATS = frozenset({SqlType.FLOAT, SqlType.DOUBLE})


def of_decoded(column: ColumnInfo, values: pa.Array) -> pa.BinaryArray:
    """The common form of decoded values, times in UTC. ENUM and SET are shown by their names."""
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "text")
    if column.type in FLOATS:
        return of_floats(values.cast(pa.float64()))
    if pa.types.is_integer(values.type):
        return values.cast(pa.string()).cast(pa.binary())
    return of_documents(as_bytes(values)) if column.type == SqlType.JSON else as_bytes(values)


def of_floats(values: pa.DoubleArray) -> pa.BinaryArray:
    """Drops the sign of a zero, which no comparison sees."""
    return pc.add(values, 0.0).cast(pa.string()).cast(pa.binary())


def of_documents(values: pa.BinaryArray) -> pa.BinaryArray:
    """Drops what printers of JSON choose: spaces, the order of members, 1.0 for 1."""
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
