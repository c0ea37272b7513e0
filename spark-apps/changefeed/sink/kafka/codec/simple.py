"""TiCDC's simple protocol in JSON: values as strings, no keys, and messages that tell a table's definition.

As Go's encoding/json writes it: the members of a row in the order of their names, empty members left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import ColumnInfo, IndexInfo, TableInfo
from changefeed.sink.kafka.codec.by_op import by_op
from changefeed.sink.kafka.codec.cells import base64_of, quoted
from changefeed.sink.kafka.codec.ddl_types import canal_ddl_type
from changefeed.sink.kafka.codec.message import DdlEvent, LargeRow, Message, Messages, Source, joined_objects
from changefeed.sink.records import Records
from changefeed.sink.text.canal_types import mysql_type, primary_key
from changefeed.sink.text.go_float import plain_float
from changefeed.sink.text.json_text import escaped, json_string
from changefeed.sink.text.lines import joined

_VERSION = 1
_TYPES = {OP_DELETE: "DELETE", OP_UPDATE: "UPDATE", OP_INSERT: "INSERT"}
_FLAG_ZEROFILL = 64
_IN_HTML = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})

_Parts = list[str | pa.Array]


@dataclass(frozen=True)
class Simple:
    time_zone: str = "UTC"
    tells_large: bool = True

    def rows(self, records: Records, source: Source, build_ms: int, large: LargeRow | None = None) -> Messages:
        version = f',"schemaVersion":{source.table_version}' if source.table_version else ""
        tail = f',"buildTs":{build_ms}{version}{_large(large)}'
        return Messages.of(None, by_op(records, lambda op, rows: self._values(op, rows, source, tail)))

    def _values(self, op: int, records: Records, source: Source, tail: str) -> pa.Array:
        table = records.table
        names = f'"database":{json_string(table.schema_name)},"table":{json_string(table.name)},"tableID":{table.id}'
        parts: _Parts = [f'{{"version":{_VERSION},{names},"type":"{_TYPES[op]}","commitTs":']
        parts += [records.commit_ts.cast(pa.string()), tail]
        if op != OP_DELETE:
            parts += [',"data":', *self._object(records.shown, records.columns)]
        if op == OP_UPDATE:
            assert records.old_columns is not None, "the mounter was asked for them"
            parts += [',"old":', *self._object(records.shown, records.old_columns)]
        if op == OP_DELETE:
            parts += [',"old":', *self._object(records.shown, records.columns)]
        return joined([*parts, "}"])

    def _object(self, columns: Sequence[ColumnInfo], arrays: Sequence[pa.Array]) -> _Parts:
        by_name = sorted(zip(columns, arrays, strict=True), key=lambda pair: pair[0].name.encode())
        parts: _Parts = []
        for column, values in by_name:
            parts += [f",{json_string(column.name)}:", self._cells(column, values)]
        return joined_objects(parts)

    def _cells(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        text = quoted(_text(column, values))
        if column.type != SqlType.TIMESTAMP:
            return text
        located = pc.binary_join_element_wise(f'{{"location":{json_string(self.time_zone)},"value":', text, "}", "")
        return pc.if_else(values.is_valid(), located, "null")

    def ddl(self, event: DdlEvent, build_ms: int) -> Message:
        said: dict[str, Any] = {"version": _VERSION, "type": canal_ddl_type(event.action)}
        said |= ({"sql": event.query} if event.query else {}) | {"commitTs": event.commit_ts, "buildTs": build_ms}
        if event.table is not None:
            said["tableSchema"] = table_schema(event.table, event.table_version)
        if event.before is not None:
            said["preTableSchema"] = table_schema(event.before, event.before_version)
        return _message(said)

    def resolved(self, ts: int, build_ms: int) -> Message:
        return _message({"version": _VERSION, "type": "WATERMARK", "commitTs": ts, "buildTs": build_ms})

    def bootstrap(self, table: TableInfo, table_version: int, build_ms: int) -> Message:
        said = {"version": _VERSION, "type": "BOOTSTRAP", "commitTs": 0, "buildTs": build_ms}
        return _message(said | {"tableSchema": table_schema(table, table_version)})


def table_schema(table: TableInfo, version: int) -> dict[str, Any]:
    """Columns in the order of their ids; the primary key among the indexes, though TiDB may have none for it."""
    indexes = [_index(table, index) for index in table.indexes]
    key = primary_key(table)
    if key and not any(index.is_primary for index in table.indexes):
        indexes.append({"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": list(key)})
    return {
        "schema": table.schema_name,
        "table": table.name,
        "tableID": table.id,
        "version": version,
        "columns": [_column(column) for column in sorted(table.columns, key=lambda column: column.id)],
        "indexes": indexes,
    }


def _column(column: ColumnInfo) -> dict[str, Any]:
    kind: dict[str, Any] = {
        "mysqlType": mysql_type(column, full=False).split(" ")[0],
        "charset": column.charset,
        "collate": column.collate,
    }
    optional = {
        "length": column.flen,
        "decimal": 0 if column.type in {SqlType.FLOAT, SqlType.DOUBLE} else column.decimal,
        "elements": list(column.elems),
        "unsigned": column.is_unsigned,
        "zerofill": bool(column.flag & _FLAG_ZEROFILL),
    }
    kind |= {name: value for name, value in optional.items() if value}
    return {"name": column.name, "dataType": kind, "nullable": column.nullable, "default": _default(column)}


def _default(column: ColumnInfo) -> Any:
    if column.type == SqlType.BIT and isinstance(column.default, str):
        return int.from_bytes(column.default.encode("latin-1", "replace"), "big")
    return column.default


def _index(table: TableInfo, index: IndexInfo) -> dict[str, Any]:
    names = [name for name, _ in index.columns]
    nullable = any(column.nullable for column in table.columns if column.name in names)
    said = {"name": index.name, "unique": index.is_unique, "primary": index.is_primary}
    return said | {"nullable": nullable, "columns": names}


def _text(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """ENUM and SET by number, binary text in base64."""
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "number")
    if pa.types.is_integer(values.type):
        return values.cast(pa.string())
    if pa.types.is_floating(values.type):
        return plain_float(values)
    return base64_of(values) if column.is_binary else escaped(values, is_text=True)


def _large(large: LargeRow | None) -> str:
    if large is None:
        return ""
    return f',"claimCheckLocation":{json_string(large.path)}' if large.path else ',"handleKeyOnly":true'


def _message(said: dict[str, Any]) -> Message:
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
    return Message(None, text.translate(_IN_HTML).encode("utf-8", "replace"))
