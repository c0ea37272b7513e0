"""What Debezium says of columns and of its own envelope, as TiCDC has it. Of column defaults nothing is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo

_UNSET = -1
_INTEGERS = {
    SqlType.TINYINT: "int16",
    SqlType.SMALLINT: "int16",
    SqlType.MEDIUMINT: "int32",
    SqlType.INT: "int32",
    SqlType.BIGINT: "int64",
}
_UNSIGNED = {SqlType.SMALLINT: "int32", SqlType.INT: "int64"}
_NAMED = {
    SqlType.DATE: ("int32", "io.debezium.time.Date"),
    SqlType.NEW_DATE: ("int32", "io.debezium.time.Date"),
    SqlType.TIMESTAMP: ("string", "io.debezium.time.ZonedTimestamp"),
    SqlType.TIME: ("int64", "io.debezium.time.MicroTime"),
    SqlType.JSON: ("string", "io.debezium.data.Json"),
    SqlType.YEAR: ("int32", "io.debezium.time.Year"),
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
    if column.type == SqlType.BIT:
        if column.flen == 1:
            return "boolean", "", {}
        return "bytes", "io.debezium.data.Bits", versioned | {"parameters": {"length": str(column.flen)}}
    if column.type in (SqlType.ENUM, SqlType.SET):
        elems = [_allowed(elem) for elem in column.elems] if column.type == SqlType.ENUM else column.elems
        name = "io.debezium.data.Enum" if column.type == SqlType.ENUM else "io.debezium.data.EnumSet"
        return "string", name, versioned | {"parameters": {"allowed": ",".join(elems)}}
    if column.type == SqlType.DATETIME:
        exact = "MicroTimestamp" if column.decimal > 3 else "Timestamp"
        return "int64", f"io.debezium.time.{exact}", versioned
    if column.type in _NAMED:
        return *_NAMED[column.type], versioned
    if column.type in _INTEGERS:
        return (_UNSIGNED if column.is_unsigned else _INTEGERS).get(column.type, _INTEGERS[column.type]), "", {}
    if column.type == SqlType.FLOAT:
        return "float" if column.decimal == _UNSET else "double", "", {}
    if column.type in (SqlType.DOUBLE, SqlType.DECIMAL):
        return "double", "", {}
    if column.type == SqlType.VECTOR:
        return "string", "io.debezium.data.TiDBVectorFloat32", {}
    return "string", "", {}


def _allowed(elem: str) -> str:
    return elem.replace(",", "\\,").replace("\\'", "'").replace("''", "'")


def envelope_schema(name: str, columns: Sequence[ColumnInfo]) -> dict[str, Any]:
    """Return the schema of a row's value."""
    return _envelope(name, field_schemas(columns), [_plain("string", "op", False), *_TIMES])


def watermark_schema(name: str) -> dict[str, Any]:
    """Return the schema of a watermark's value, which has neither a row before nor one after.

    It declares both: Debezium's ExtractNewRecordState drops a message whose schema's name ends as a row's does and
    that has no row, fails where these two are not declared, and hands on what has another name.
    """
    return _envelope(name, [], [_plain("string", "op", False), *_TIMES])


def ddl_schema(name: str) -> dict[str, Any]:
    """Return the schema of a statement's value; it declares rows as a watermark's does."""
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
