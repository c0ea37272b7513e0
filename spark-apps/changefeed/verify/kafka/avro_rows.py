"""Decodes records of Avro to columns, in the form in which verify compares values (verify.mysql.values).

Records of one schema become a container file, which polars reads. Text is read as the bytes that it is, since the
upstream's may be no UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import polars as pl
import pyarrow as pa

from changefeed.schema import table_info as ti
from changefeed.schema.row.defaults import absent_value
from changefeed.schema.table_info import ColumnInfo
from changefeed.verify.mysql.values import of_upstream
from changefeed.verify.result import Break

_SYNC = bytes(16)  # any 16 bytes, which end each block


class Schema:
    """One that a registry has. `fields`: names, in order."""

    def __init__(self, text: str) -> None:
        fields = {field["name"]: field["type"] for field in json.loads(text)["fields"]}
        self.fields = list(fields)
        inner = {name: _inner(kind) for name, kind in fields.items()}
        self._scales = {name: kind["scale"] for name, kind in inner.items() if kind.get("logicalType") == "decimal"}
        plain = [{"name": name, "type": _plain(kind)} for name, kind in fields.items()]
        self._head = _head(json.dumps({"type": "record", "name": "row", "fields": plain}).encode())

    def read(self, records: pa.Array) -> dict[str, pa.Array]:
        """Of each field its values; text as bytes, decimals as their text. Raises Break for what is no record of it."""
        body = b"".join(records.to_pylist())
        block = _long(len(records)) + _long(len(body)) + body + _SYNC
        try:
            found = pl.read_avro(BytesIO(self._head + block))
        except (pl.exceptions.PolarsError, OSError) as error:
            raise Break(str(error).strip().rstrip(".")) from None
        arrays = {name: _as_array(found[name]) for name in self.fields}
        for name, scale in self._scales.items():
            arrays[name] = _each(arrays[name], partial(_decimal, scale))
        return arrays


def shown(column: ColumnInfo, values: pa.Array | None, count: int, zone: str) -> pa.BinaryArray:
    """`count` values of a column; None: what readers have, by its default, where a record is older than the column."""
    if values is None:
        return of_upstream(column, pa.concat_arrays([absent_value(column, zone)] * count))
    if column.tp == ti.BIT:
        return _each(values, lambda value: b"%d" % int.from_bytes(value, "big"))
    if column.tp == ti.LONGLONG and column.is_unsigned and pa.types.is_integer(values.type):
        values = values.view(pa.uint64())
    if column.tp == ti.NEW_DECIMAL:
        return _each(of_upstream(column, values), partial(_lengthened, max(column.decimal, 0)))
    return of_upstream(column, values)


def _decimal(scale: int, value: bytes) -> bytes:
    """Its text."""
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = str(abs(unscaled)).zfill(scale + 1)
    whole, part = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' if unscaled < 0 else ''}{whole}{'.' if part else ''}{part}".encode()


def _lengthened(scale: int, text: bytes) -> bytes:
    """Of a column that has had fewer digits behind the point."""
    whole, _, part = text.partition(b".")
    return whole + b"." + part.ljust(scale, b"0") if scale else text


def _each(values: pa.Array, meaning: Callable[[bytes], bytes]) -> pa.BinaryArray:
    """Of each value once."""
    found = values.dictionary_encode()
    return pa.array([meaning(value) for value in found.dictionary.to_pylist()], pa.binary()).take(found.indices)


def _as_array(column: pl.Series) -> pa.Array:
    found = column.to_arrow()
    return found.cast(pa.binary()) if pa.types.is_large_binary(found.type) else found


def _inner(kind: Any) -> dict[str, Any]:
    """Of a union, what is not null."""
    if isinstance(kind, list):
        (kind,) = (each for each in kind if each != "null")
    return kind if isinstance(kind, dict) else {"type": kind}


def _plain(kind: Any) -> Any:
    """Without annotations; bytes for text, which look the same."""
    if isinstance(kind, list):
        return [_plain(each) for each in kind]
    name = kind["type"] if isinstance(kind, dict) else kind
    return "bytes" if name == "string" else name


def _head(schema: bytes) -> bytes:
    """Of a container file (Avro's specification, Object Container Files)."""
    members: Sequence[tuple[bytes, bytes]] = ((b"avro.schema", schema), (b"avro.codec", b"null"))
    said = b"".join(_text(part) for member in members for part in member)
    return b"Obj\x01" + _long(len(members)) + said + _long(0) + _SYNC


def _text(value: bytes) -> bytes:
    return _long(len(value)) + value


def _long(number: int) -> bytes:
    """Of a number that is not negative: seven bits a byte, the lowest first, behind a bit for the sign."""
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
