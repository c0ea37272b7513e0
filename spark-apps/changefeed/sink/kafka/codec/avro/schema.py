"""A table's Avro schema, as TiCDC registers it: types by column, `tidb_type` beside each.

A field's default is what rows have that are older than the column, or else what later rows get. With it, registries
that demand compatibility take an added column. DECIMAL as bytes has none, as in TiCDC, whose readers take none there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Any

from changefeed.schema import table_info as ti
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.upstream.decoders import DECODERS

_LARGEST = (1 << 63) - 1
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]")
_TIDB_TYPES = {
    **dict.fromkeys((SqlType.TINYINT, SqlType.SMALLINT, SqlType.MEDIUMINT, SqlType.INT), "INT"),
    **dict.fromkeys(ti.STRINGS | ti.BLOBS, "TEXT"),
    SqlType.BIGINT: "BIGINT",
    SqlType.FLOAT: "FLOAT",
    SqlType.DOUBLE: "DOUBLE",
    SqlType.BIT: "BIT",
    SqlType.DECIMAL: "DECIMAL",
    SqlType.ENUM: "ENUM",
    SqlType.SET: "SET",
    SqlType.JSON: "JSON",
    SqlType.DATE: "DATE",
    SqlType.DATETIME: "DATETIME",
    SqlType.TIMESTAMP: "TIMESTAMP",
    SqlType.TIME: "TIME",
    SqlType.YEAR: "YEAR",
    SqlType.VECTOR: "TiDBVECTORFloat32",
}
_TYPES = {
    **dict.fromkeys((SqlType.TINYINT, SqlType.SMALLINT, SqlType.MEDIUMINT, SqlType.INT, SqlType.YEAR), "int"),
    SqlType.BIGINT: "long",
    SqlType.FLOAT: "float",
    SqlType.DOUBLE: "double",
    SqlType.BIT: "bytes",
    SqlType.DECIMAL: "bytes",
}
_EXTENSION = (
    {"default": "", "name": "_tidb_op", "type": "string"},
    {"default": 0, "name": "_tidb_commit_ts", "type": "long"},
    {"default": 0, "name": "_tidb_commit_physical_time", "type": "long"},
)
#: Names of the fields that `enableTidbExtension` adds.
EXTENSION = frozenset(str(each["name"]) for each in _EXTENSION)


@dataclass(frozen=True)
class AvroTypes:
    """What TiCDC's handling modes decide. `time_zone`: in which rows and defaults show TIMESTAMP."""

    bigint_unsigned_as_text: bool = False
    decimal_as_text: bool = False
    time_zone: str = "UTC"
    upstream: str = "tikv"

    def is_text(self, column: ColumnInfo) -> bool:
        """Whether a mode says so."""
        is_unsigned = column.type == SqlType.BIGINT and column.is_unsigned
        return self.bigint_unsigned_as_text if is_unsigned else column.type == SqlType.DECIMAL and self.decimal_as_text


def avro_type(column: ColumnInfo, types: AvroTypes) -> str:
    if types.is_text(column):
        return "string"
    if column.type == SqlType.INT and column.is_unsigned:
        return "long"
    return "bytes" if column.is_binary else _TYPES.get(column.type, "string")


def schema_of(
    table: TableInfo, columns: Sequence[ColumnInfo], namespace: str, types: AvroTypes, *, with_extension: bool
) -> str:
    """As text, which is what the registry compares."""
    names, types = field_names(table), replace(types, upstream=table.upstream)
    said = {
        "type": "record",
        "name": _as_name(table.name),
        "namespace": f"{_as_name(namespace)}.{_as_name(table.schema_name)}",
        "fields": [_field(column, names[column.name], types) for column in columns]
        + list(_EXTENSION if with_extension else ()),
    }
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False)


def field_names(table: TableInfo) -> dict[str, str]:
    """What its columns are called, by their own names.

    One that Avro can't have becomes longer where another column has the name that it would get.
    """
    names = {column.name: _as_name(column.name) for column in table.output_columns}
    taken = {name for name, said in names.items() if name == said}
    for name, said in names.items():
        if name != said:
            while said in taken:
                said += "_"
            names[name] = said
            taken.add(said)
    return names


def _field(column: ColumnInfo, name: str, types: AvroTypes) -> dict[str, Any]:
    kind, default = _type(column, types), default_of(column, types)
    said: dict[str, Any] = {} if default is None and not column.nullable else {"default": default}
    if column.nullable:  # a default is of the first type of a union
        kind = ["null", kind] if default is None else [kind, "null"]
    return said | {"name": name, "type": kind}


@lru_cache(4096)
def default_of(column: ColumnInfo, types: AvroTypes) -> str | int | float | None:
    """As Avro's JSON has it; None: there is none, or it is NULL."""
    kind = avro_type(column, types)
    if (column.type == SqlType.DECIMAL and kind == "bytes") or not _has_default(column):
        return None
    has_origin = column.origin_default is not None or column.origin_default_bit is not None
    given = (
        column if has_origin else replace(column, origin_default=column.default, origin_default_bit=column.default_bit)
    )
    try:
        value = DECODERS[types.upstream].absent_value(given, types.time_zone)[0].as_py()
    except ValueError:  # CURRENT_TIMESTAMP, for instance
        return None
    if isinstance(value, dict):
        value = value["text"]
    if kind in ("int", "long"):
        return int(value) - (1 << 64) if value > _LARGEST else int(value)
    if kind in ("float", "double"):
        return float(value) if isfinite(value) else None
    if column.type == SqlType.BIT:
        value = value.to_bytes(-(-column.flen // 8), "big")
    if kind == "bytes":
        return bytes(value).decode("latin-1")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _has_default(column: ColumnInfo) -> bool:
    found = (column.origin_default, column.origin_default_bit, column.default, column.default_bit)
    return any(each is not None for each in found)


def _type(column: ColumnInfo, types: AvroTypes) -> Any:
    more: dict[str, str] = {}
    if column.type == SqlType.BIT:
        more["length"] = str(column.flen)
    if column.type in (SqlType.ENUM, SqlType.SET):
        more["allowed"] = ",".join(elem.replace(",", "\\,").replace("''", "'") for elem in column.elems)
    said: dict[str, Any] = {
        "type": avro_type(column, types),
        "connect.parameters": more | {"tidb_type": _tidb_type(column)},
    }
    if column.type == SqlType.DECIMAL and said["type"] == "bytes":
        said |= {"logicalType": "decimal", "precision": column.flen, "scale": max(column.decimal, 0)}
    return said


def _tidb_type(column: ColumnInfo) -> str:
    name = _TIDB_TYPES.get(column.type, "")
    if column.is_unsigned and name in ("INT", "BIGINT"):
        return f"{name} UNSIGNED"
    return "BLOB" if column.is_binary else name


def _as_name(text: str) -> str:
    name = _NOT_A_NAME.sub("_", text)
    return f"_{name}" if name[:1].isdigit() else name
