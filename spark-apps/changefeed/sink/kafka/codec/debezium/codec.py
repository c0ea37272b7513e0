"""Debezium's JSON as TiCDC writes it: keys of the handle key, envelopes of before and after, each with its schema.

Two things of TiCDC's are not done: it writes a column's default for a NULL, and tells a DDL's new definitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.kafka.codec.by_op import by_op
from changefeed.sink.kafka.codec.debezium.schema import ddl_schema, envelope_schema, field_schemas, watermark_schema
from changefeed.sink.kafka.codec.debezium.values import cells
from changefeed.sink.kafka.codec.message import DdlEvent, LargeRow, Message, Messages, Source, joined_objects
from changefeed.sink.records import Records, narrowed
from changefeed.sink.text.canal_types import handle_key
from changefeed.sink.text.json_text import json_string
from changefeed.sink.text.lines import joined

_LOGICAL_BITS = 18
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]")

_Parts = list[str | pa.Array]


@dataclass(frozen=True)
class Debezium:
    """`cluster`: the name that topics and sources have. Rows are to be mounted in UTC, as TIMESTAMP is told in it.

    `watermarks`, `ddls`: whether these are told.
    """

    cluster: str
    with_schema: bool = True
    output_old_value: bool = True
    time_zone: str = "UTC"
    tells_large: bool = False
    watermarks: bool = False
    ddls: bool = False

    def rows(self, records: Records, source: Source, build_ms: int, large: LargeRow | None = None) -> Messages:
        table = records.table
        handle = narrowed(records, handle_key(table))
        keys: _Parts = ['{"payload":', *_object(handle.shown, handle.columns)]
        if self.with_schema:
            name = f"{self._name(table)}.Key"
            schema = {"type": "struct", "name": name, "optional": False, "fields": field_schemas(handle.shown)}
            keys.append(f',"schema":{_json(schema)}')
        end = f',"schema":{_json(envelope_schema(self._name(table), records.shown))}}}' if self.with_schema else "}"
        values = by_op(records, lambda op, rows: self._values(op, rows, build_ms, end))
        key_texts = (
            joined([*keys, "}"]) if handle.shown else pa.array(["".join(map(str, keys)) + "}"] * len(records.op))
        )
        return Messages.of(key_texts, values)

    def _values(self, op: int, records: Records, build_ms: int, end: str) -> pa.Array:
        table, ts = records.table, records.commit_ts
        ms = pc.shift_right(ts, pa.scalar(_LOGICAL_BITS, pa.uint64())).cast(pa.string())
        source = self._source(table.schema_name, table.name, ms, ts.cast(pa.string()))
        parts: _Parts = ['{"payload":{"source":', *source, f',"ts_ms":{build_ms},"transaction":null,"op":']
        shown = _object(records.shown, records.columns)
        if op == OP_INSERT:
            parts += ['"c","before":null,"after":', *shown]
        elif op == OP_DELETE:
            parts += ['"d","after":null,"before":', *shown]
        else:
            parts.append('"u"')
            if self.output_old_value:
                assert records.old_columns is not None, "the mounter was asked for them"
                parts += [',"before":', *_object(records.shown, records.old_columns)]
            parts += [',"after":', *shown]
        return joined([*parts, "}", end])

    def _source(self, schema: str, table: str, ms: str | pa.Array, ts: str | pa.Array) -> _Parts:
        names = f'"snapshot":"false","db":{_string(schema)},"table":{_string(table)}'
        mysql = '"server_id":0,"gtid":null,"file":"","pos":0,"row":0,"thread":0,"query":null'
        return [
            f'{{"version":"2.4.0.Final","connector":"TiCDC","name":{_string(self.cluster)},"ts_ms":',
            ms,
            f',{names},{mysql},"commit_ts":',
            ts,
            f',"cluster_id":{_string(self.cluster)}}}',
        ]

    def _name(self, table: TableInfo) -> str:
        return f"{_as_name(self.cluster)}.{_as_name(table.schema_name)}.{table.name.replace('.', '_')}"

    def ddl(self, event: DdlEvent, build_ms: int) -> Message | None:
        """The statement, without the tables' new definitions: `tableChanges` is empty."""
        if not self.ddls:
            return None
        names = f'"databaseName":{_string(event.schema_name)},"schemaName":null,"ddl":{_string(event.query)}'
        key = (
            f'"databaseName":{_string(event.schema_name)}',
            [{"type": "string", "optional": True, "field": "databaseName"}],
        )
        source = self._source(event.schema_name, event.table_name, *_times(event.commit_ts))
        return self._other("ddl", key, source, f'"ts_ms":{build_ms},{names},"tableChanges":[]', ddl_schema)

    def resolved(self, ts: int, build_ms: int) -> Message | None:
        if not self.watermarks:
            return None
        source = self._source("", "", *_times(ts))
        return self._other(
            "watermark", ("", []), source, f'"ts_ms":{build_ms},"transaction":null,"op":"m"', watermark_schema
        )

    def _other(
        self,
        kind: str,
        key: tuple[str, list[dict[str, Any]]],
        source: _Parts,
        rest: str,
        schema: Callable[[str], dict[str, Any]],
    ) -> Message:
        """Return a message that has no row. `key`: its members, and their schemas."""
        members, fields = key
        key_text, value = f'{{"payload":{{{members}}}', f'{{"payload":{{"source":{"".join(map(str, source))},{rest}}}'
        if self.with_schema:
            name = f"{_as_name(self.cluster)}.{kind}"
            of_key = {"type": "struct", "name": f"{name}.Key", "optional": False, "fields": fields}
            key_text += f',"schema":{_json(of_key)}'
            value += f',"schema":{_json(schema(name))}'
        return Message(f"{key_text}}}".encode(), f"{value}}}".encode())

    def bootstrap(self, table: TableInfo, table_version: int, build_ms: int) -> None:
        return None


def _times(ts: int) -> tuple[str, str]:
    return str(ts >> _LOGICAL_BITS), str(ts)


def _object(columns: Sequence[ColumnInfo], arrays: Sequence[pa.Array]) -> _Parts:
    parts: _Parts = []
    for column, values in zip(columns, arrays, strict=True):
        parts += [f",{_string(column.name)}:", cells(column, values)]
    return joined_objects(parts)


def _as_name(text: str) -> str:
    """As a name of Avro has to be."""
    name = _NOT_A_NAME.sub("_", text)
    return f"_{name}" if name[:1].isdigit() else name


def _string(text: str) -> str:
    return json_string(text, html=False)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
