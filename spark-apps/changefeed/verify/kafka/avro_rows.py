"""Decodes records of Avro to columns, in the form in which verify compares values (verify.tables.values)."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa

from changefeed.reading.failures import Break
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.upstream.decoders import decoder_of
from changefeed.verify.tables.values import of_decoded

_NUMBERS = {"int": pa.int64(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64()}
_AS_IT_IS = "surrogateescape"  # text, since the upstream's may be no UTF-8


class RegisteredSchema:
    """One that a registry has. `fields`: names, in order."""

    def __init__(self, text: str) -> None:
        said = json.loads(text)
        self._schema = fastavro.parse_schema(said)
        self._types = {field["name"]: _type(field["type"]) for field in said["fields"]}
        self.fields = list(self._types)

    def read(self, records: pa.Array) -> dict[str, pa.Array]:
        """Return each field's values: text as bytes, decimals as text. Raises Break for what is no record of it."""
        rows = [self._row(record) for record in records.to_pylist()]
        return {
            name: pa.array([_cell(row[name]) for row in rows], _NUMBERS.get(kind, pa.binary()))
            for name, kind in self._types.items()
        }

    def _row(self, record: bytes) -> dict[str, Any]:
        body = BytesIO(record)
        try:
            row: Any = fastavro.schemaless_reader(body, self._schema, None, handle_unicode_errors=_AS_IT_IS)
        except (EOFError, IndexError, ValueError, OverflowError) as error:
            raise Break(f"{type(error).__name__} {error}".strip()) from None
        if body.read(1) or not isinstance(row, dict):
            raise Break("it is longer than a record of its schema")
        return row


def _type(kind: Any) -> str:
    """Return the type; of a union, the one that is not null."""
    if isinstance(kind, list):
        (kind,) = (each for each in kind if each != "null")
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)


def _cell(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}".encode()
    return value.encode(errors=_AS_IT_IS) if isinstance(value, str) else value


def shown(table: TableInfo, column: ColumnInfo, values: pa.Array | None, count: int, zone: str) -> pa.BinaryArray:
    """`count` values of a column; None: what readers have, by its default, where a record is older than the column."""
    if values is None:
        return of_decoded(column, pa.concat_arrays([decoder_of(table).absent_value(column, zone)] * count))
    if column.type == SqlType.BIT:
        return _each(values, lambda value: b"%d" % int.from_bytes(value, "big"))
    if column.type == SqlType.BIGINT and column.is_unsigned and pa.types.is_integer(values.type):
        values = values.view(pa.uint64())
    if column.type == SqlType.DECIMAL:
        return _each(of_decoded(column, values), partial(_lengthened, max(column.decimal, 0)))
    return of_decoded(column, values)


def _lengthened(scale: int, text: bytes) -> bytes:
    """Lengthen the text of a decimal whose column has had fewer digits behind the point."""
    whole, _, part = text.partition(b".")
    return whole + b"." + part.ljust(scale, b"0") if scale else text


def _each(values: pa.Array, meaning: Callable[[bytes], bytes]) -> pa.BinaryArray:
    """Return the meanings of values, each of which is asked for once."""
    found = values.dictionary_encode()
    return pa.array([meaning(value) for value in found.dictionary.to_pylist()], pa.binary()).take(found.indices)
