"""canal-json in Kafka: the storage sink's lines without an end, no keys, and messages of DDL and watermarks."""

from __future__ import annotations

from dataclasses import dataclass, field

from changefeed.schema.table_info import TableInfo
from changefeed.sink.kafka.codec.ddl_types import canal_ddl_type
from changefeed.sink.kafka.codec.message import DdlEvent, LargeRow, Message, Messages, Source
from changefeed.sink.records import Records
from changefeed.sink.text.canal_json import CanalJsonFormat, lines
from changefeed.sink.text.json_text import json_string

_LOGICAL_BITS = 18


@dataclass(frozen=True)
class CanalJson:
    """`fmt.terminator` is "" in Kafka. `ddls`: whether DDLs are told without the extension, too."""

    fmt: CanalJsonFormat = field(default_factory=lambda: CanalJsonFormat(terminator=""))
    time_zone: str = "UTC"
    tells_large: bool = True
    ddls: bool = False

    def rows(self, records: Records, source: Source, build_ms: int, large: LargeRow | None = None) -> Messages:
        return Messages.of(None, lines(records, build_ms, self.fmt, _large(large)))

    def ddl(self, event: DdlEvent, build_ms: int) -> Message | None:
        if not (self.ddls or self.fmt.enable_tidb_extension):
            return None
        kind = canal_ddl_type(event.action)
        extension = f',"_tidb":{{"commitTs":{event.commit_ts}}}' if self.fmt.enable_tidb_extension else ""
        return _other(event.schema_name, event.table_name, kind, event.commit_ts, build_ms, event.query, extension)

    def resolved(self, ts: int, build_ms: int) -> Message | None:
        """Only with the extension: Canal itself has no such message."""
        if not self.fmt.enable_tidb_extension:
            return None
        return _other("", "", "TIDB_WATERMARK", ts, build_ms, "", f',"_tidb":{{"watermarkTs":{ts}}}')

    def bootstrap(self, table: TableInfo, table_version: int, build_ms: int) -> None:
        return None


def _large(large: LargeRow | None) -> str:
    if large is None:
        return ""
    return f',"claimCheckLocation":{json_string(large.path)}' if large.path else ',"onlyHandleKey":true'


def _other(schema: str, table: str, kind: str, ts: int, build_ms: int, query: str, extension: str) -> Message:
    is_ddl = "false" if kind == "TIDB_WATERMARK" else "true"
    text = (
        f'{{"id":0,"database":{json_string(schema)},"table":{json_string(table)},"pkNames":null,"isDdl":{is_ddl},'
        f'"type":"{kind}","es":{ts >> _LOGICAL_BITS},"ts":{build_ms},"sql":{json_string(query)},"sqlType":null,'
        f'"mysqlType":null,"data":null,"old":null{extension}}}'
    )
    return Message(None, text.encode())
