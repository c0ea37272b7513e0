"""What Debezium says of columns and of its own envelope, as TiCDC has it. Of column defaults nothing is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from changefeed.schema import table_info as ti
from changefeed.schema.table_info import ColumnInfo

_UNSET = -1
_INTEGERS = {ti.TINY: "int16", ti.SHORT: "int16", ti.INT24: "int32", ti.LONG: "int32", ti.LONGLONG: "int64"}
_UNSIGNED = {ti.SHORT: "int32", ti.LONG: "int64"}
_NAMED = {
    ti.DATE: ("int32", "io.debezium.time.Date"),
    ti.NEW_DATE: ("int32", "io.debezium.time.Date"),
    ti.TIMESTAMP: ("string", "io.debezium.time.ZonedTimestamp"),
    ti.DURATION: ("int64", "io.debezium.time.MicroTime"),
    ti.JSON: ("string", "io.debezium.data.Json"),
    ti.YEAR: ("int32", "io.debezium.time.Year"),
}


def field_schemas(columns: Sequence[ColumnInfo]) -> list[dict[str, Any]]:
    return [_field(column) for column in columns]


def _field(column: ColumnInfo) -> dict[str, Any]:
    kind, name, more = _kind(column)
    said: dict[str, Any] = {"type": kind, "optional": column.nullable}
    if name:
        said |= {"name": name} | more
    return said | {"field": column.name}


def _kind(column: ColumnInfo) -> tuple[str, str, dict[str, Any]]:
    """Type, name, and what stands behind the name."""
    versioned: dict[str, Any] = {"version": 1}
    if column.tp == ti.BIT:
        if column.flen == 1:
            return "boolean", "", {}
        return "bytes", "io.debezium.data.Bits", versioned | {"parameters": {"length": str(column.flen)}}
    if column.tp in (ti.ENUM, ti.SET):
        elems = [_allowed(elem) for elem in column.elems] if column.tp == ti.ENUM else column.elems
        name = "io.debezium.data.Enum" if column.tp == ti.ENUM else "io.debezium.data.EnumSet"
        return "string", name, versioned | {"parameters": {"allowed": ",".join(elems)}}
    if column.tp == ti.DATETIME:
        exact = "MicroTimestamp" if column.decimal > 3 else "Timestamp"
        return "int64", f"io.debezium.time.{exact}", versioned
    if column.tp in _NAMED:
        return *_NAMED[column.tp], versioned
    if column.tp in _INTEGERS:
        return (_UNSIGNED if column.is_unsigned else _INTEGERS).get(column.tp, _INTEGERS[column.tp]), "", {}
    if column.tp == ti.FLOAT:
        return "float" if column.decimal == _UNSET else "double", "", {}
    if column.tp in (ti.DOUBLE, ti.NEW_DECIMAL):
        return "double", "", {}
    if column.tp == ti.VECTOR_FLOAT32:
        return "string", "io.debezium.data.TiDBVectorFloat32", {}
    return "string", "", {}


def _allowed(elem: str) -> str:
    return elem.replace(",", "\\,").replace("\\'", "'").replace("''", "'")


def envelope_schema(name: str, columns: Sequence[ColumnInfo]) -> dict[str, Any]:
    """Of a row's value."""
    return _envelope(name, field_schemas(columns), [_plain("string", "op", False), *_TIMES])


def watermark_schema(name: str) -> dict[str, Any]:
    """Of a watermark's value, which has neither a row before nor one after.

    It declares both: Debezium's ExtractNewRecordState drops a message whose schema's name ends as a row's does and
    that has no row, fails where these two are not declared, and hands on what has another name.
    """
    return _envelope(name, [], [_plain("string", "op", False), *_TIMES])


def ddl_schema(name: str) -> dict[str, Any]:
    """Of a statement's value; it declares rows as a watermark's does."""
    texts = [
        _plain("string", "databaseName", True),
        _plain("string", "schemaName", True),
        _plain("string", "ddl", True),
    ]
    changes = {
        "type": "array",
        "optional": False,
        "items": {"type": "string", "optional": True},
        "field": "tableChanges",
    }
    return _envelope(name, [], [_plain("int64", "ts_ms", True), *texts, changes])


def _envelope(name: str, row_fields: list[dict[str, Any]], rest: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "struct", "optional": True, "name": f"{name}.Value"}
    sides = [row | {"field": side, "fields": row_fields} for side in ("before", "after")]
    said: dict[str, Any] = {"type": "struct", "optional": False, "name": f"{name}.Envelope", "version": 1}
    return said | {"fields": [*sides, _SOURCE, *rest]}


def _plain(kind: str, name: str, optional: bool) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


_SNAPSHOT = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": "true,last,false,incremental"},
    "default": "false",
    "field": "snapshot",
}
_SOURCE = {
    "type": "struct",
    "fields": [
        *(_plain("string", name, False) for name in ("version", "connector", "name")),
        _plain("int64", "ts_ms", False),
        _SNAPSHOT,
        _plain("string", "db", False),
        *(_plain("string", name, True) for name in ("sequence", "table")),
        _plain("int64", "server_id", False),
        _plain("string", "gtid", True),
        _plain("string", "file", False),
        _plain("int64", "pos", False),
        _plain("int32", "row", False),
        _plain("int64", "thread", True),
        _plain("string", "query", True),
    ],
    "optional": False,
    "name": "io.debezium.connector.mysql.Source",
    "field": "source",
}
_TRANSACTION = {
    "type": "struct",
    "fields": [
        _plain("string", "id", False),
        *(_plain("int64", name, False) for name in ("total_order", "data_collection_order")),
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}
_TIMES = (_plain("int64", "ts_ms", True), _TRANSACTION)
