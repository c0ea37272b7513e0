"""A table's Avro schema, as TiCDC registers it: types by column, `tidb_type` beside each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from changefeed.schema import table_info as ti
from changefeed.schema.table_info import ColumnInfo, TableInfo

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]")
_TIDB_TYPES = {
    **dict.fromkeys((ti.TINY, ti.SHORT, ti.INT24, ti.LONG), "INT"),
    **dict.fromkeys(ti.STRINGS | ti.BLOBS, "TEXT"),
    ti.LONGLONG: "BIGINT",
    ti.FLOAT: "FLOAT",
    ti.DOUBLE: "DOUBLE",
    ti.BIT: "BIT",
    ti.NEW_DECIMAL: "DECIMAL",
    ti.ENUM: "ENUM",
    ti.SET: "SET",
    ti.JSON: "JSON",
    ti.DATE: "DATE",
    ti.DATETIME: "DATETIME",
    ti.TIMESTAMP: "TIMESTAMP",
    ti.DURATION: "TIME",
    ti.YEAR: "YEAR",
    ti.VECTOR_FLOAT32: "TiDBVECTORFloat32",
}
_TYPES = {
    **dict.fromkeys((ti.TINY, ti.SHORT, ti.INT24, ti.LONG, ti.YEAR), "int"),
    ti.LONGLONG: "long",
    ti.FLOAT: "float",
    ti.DOUBLE: "double",
    ti.BIT: "bytes",
    ti.NEW_DECIMAL: "bytes",
}
_EXTENSION = (
    {"default": "", "name": "_tidb_op", "type": "string"},
    {"default": 0, "name": "_tidb_commit_ts", "type": "long"},
    {"default": 0, "name": "_tidb_commit_physical_time", "type": "long"},
)


def avro_type(column: ColumnInfo) -> str:
    if column.tp == ti.LONG and column.is_unsigned:
        return "long"
    return "bytes" if column.is_binary else _TYPES.get(column.tp, "string")


def schema_of(table: TableInfo, columns: Sequence[ColumnInfo], namespace: str, *, with_extension: bool) -> str:
    """As text, which is what the registry compares. A column's default is not in it: it never decides a value."""
    said = {
        "type": "record",
        "name": _as_name(table.name),
        "namespace": f"{_as_name(namespace)}.{_as_name(table.schema_name)}",
        "fields": [_field(column) for column in columns] + list(_EXTENSION if with_extension else ()),
    }
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False)


def _field(column: ColumnInfo) -> dict[str, Any]:
    kind = _type(column)
    if column.nullable:
        return {"default": None, "name": _as_name(column.name), "type": ["null", kind]}
    return {"name": _as_name(column.name), "type": kind}


def _type(column: ColumnInfo) -> dict[str, Any]:
    more: dict[str, str] = {}
    if column.tp == ti.BIT:
        more["length"] = str(column.flen)
    if column.tp in (ti.ENUM, ti.SET):
        more["allowed"] = ",".join(elem.replace(",", "\\,").replace("''", "'") for elem in column.elems)
    said: dict[str, Any] = {"type": avro_type(column), "connect.parameters": more | {"tidb_type": _tidb_type(column)}}
    if column.tp == ti.NEW_DECIMAL:
        said |= {"logicalType": "decimal", "precision": column.flen, "scale": max(column.decimal, 0)}
    return said


def _tidb_type(column: ColumnInfo) -> str:
    name = _TIDB_TYPES.get(column.tp, "")
    if column.is_unsigned and name in ("INT", "BIGINT"):
        return f"{name} UNSIGNED"
    return "BLOB" if column.is_binary else name


def _as_name(text: str) -> str:
    name = _NOT_A_NAME.sub("_", text)
    return f"_{name}" if name[:1].isdigit() else name
