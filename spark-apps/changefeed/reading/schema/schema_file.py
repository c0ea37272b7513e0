"""A schema file as a consumer reads it: checked against its own name, then a table definition and a statement."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from changefeed.reading.layout.files import parse_json
from changefeed.reading.schema.columns import TableColumn
from changefeed.reading.schema.statement import NO_STATEMENT, Name, ParsedStatement, key_of, parse
from changefeed.schema.ddl.actions import Action

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_VERBS: dict[int, frozenset[str]] = {
    Action.CREATE_SCHEMA: frozenset({"create database"}),
    Action.DROP_SCHEMA: frozenset({"drop database"}),
    Action.CREATE_TABLE: frozenset({"create table"}),
    Action.CREATE_TABLES: frozenset({"create table"}),
    Action.DROP_TABLE: frozenset({"drop table"}),
    Action.TRUNCATE_TABLE: frozenset({"truncate table"}),
    Action.RENAME_TABLE: frozenset({"rename table", "alter table"}),
    Action.RENAME_TABLES: frozenset({"rename table"}),
    Action.CREATE_VIEW: frozenset({"create view"}),
    Action.DROP_VIEW: frozenset({"drop view"}),
    Action.RECOVER_TABLE: frozenset({"recover table"}),
    Action.REPAIR_TABLE: frozenset({"admin repair table"}),
}
_ALTER = frozenset({"alter table", "create index", "drop index", "alter database"})


@dataclass(frozen=True)
class ConsumerSchemaFile:
    """`table` "": of a database. `type` 0 and no `query`: nobody is told how the table came to be so."""

    path: str
    schema: str
    table: str
    version: int
    query: str
    type: int
    columns: tuple[TableColumn, ...]

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def key(self) -> Name:
        return key_of((self.schema, self.table))

    @cached_property
    def statement(self) -> ParsedStatement | None:
        """What its query says; None: there is none, or nobody knows what it is."""
        return parse(self.query, self.schema) if self.query else None

    @property
    def said(self) -> ParsedStatement:
        """Where nobody knows what it says, nothing."""
        return self.statement or NO_STATEMENT

    @property
    def written(self) -> tuple[TableColumn, ...]:
        """Those of which rows have values, in the order of a row."""
        return tuple(column for column in self.columns if not column.is_virtual)

    def may_be(self, verb: str) -> bool:
        """Whether a statement of this kind can have its `Type`."""
        return verb in _VERBS.get(self.type, _ALTER)


def read_schema_file(path: str, body: bytes, by_id: bool = False) -> tuple[ConsumerSchemaFile | None, list[str]]:
    """The file, and where it breaks a hard rule; None: it is none, or not the one that its name says.

    `path` must be one by its form. `by_id`: its folder is an id, and it is of a table.
    """
    content = parse_json(body)
    try:
        file = _parsed(path, content)
    except (KeyError, TypeError, AttributeError):
        return None, [f"{path} is not a schema file."]
    problems = []
    stem, _, name = path.partition("/meta/schema_")
    version, checksum = name.removesuffix(".json").split("_")
    is_placed = bool(file.table) if by_id else f"{file.schema}/{file.table}".rstrip("/") == stem
    if not is_placed or str(file.version) != version:
        return None, [f"{path} has version {file.version} of {file.name.rstrip('.')}, unlike its own name."]
    if f"{schema_checksum(content):010}" != checksum:
        problems.append(f"{path} does not match the checksum in its name: its checksum is {schema_checksum(content)}.")
    if content.get("TableColumnsTotal") != len(file.columns):
        problems.append(f"{path} has {len(file.columns)} columns, but says {content.get('TableColumnsTotal')}.")
    return file, problems


def _parsed(path: str, content: Any) -> ConsumerSchemaFile:
    if not isinstance(content["TableVersion"], int) or not isinstance(content["Type"], int):
        raise TypeError(path)
    return ConsumerSchemaFile(
        path=path,
        schema=content["Schema"] + "",
        table=content["Table"] + "",
        version=content["TableVersion"],
        query=content["Query"] + "",
        type=content["Type"],
        columns=tuple(TableColumn.read(entry) for entry in content["TableColumns"] or ()),
    )


def schema_checksum(content: Mapping[str, Any]) -> int:
    """CRC-32 of what TiCDC's readers know of the columns, as Go prints it; `content`: a schema file's."""
    columns = [
        {name: value for name, value in column.items() if name != "ColumnVirtual"}
        for column in content.get("TableColumns") or ()
    ]
    part = {
        "Table": content.get("Table"),
        "Schema": content.get("Schema"),
        "Version": 0,
        "TableColumns": sorted(columns, key=lambda column: str(column.get("ColumnName")).encode()),
        "TableColumnsTotal": content.get("TableColumnsTotal"),
    }
    text = json.dumps(part, indent=4, ensure_ascii=False)
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return zlib.crc32(text.encode())
