"""A table's CREATE TABLE statement: the original if the files have all of it, else built from its columns. Pure."""

from __future__ import annotations

import sqlglot
from sqlglot.errors import SqlglotError

from changefeed.reading.schema.columns import TableColumn
from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.restore.schema.table import RestoredTable
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql.text import literal, quoted
from changefeed.schema.sql.typed import standalone

_SIZED = ("CHAR", "VARCHAR", "BINARY", "VARBINARY", "BIT", "VECTOR")
_TIMES = ("DATETIME", "TIMESTAMP", "TIME")
_WITHOUT_DEFAULT = ("BIT", "JSON", "VECTOR", "BLOB", "TEXT")
_LATER = frozenset({"alter table", "create index", "drop index"})
_MOVED = frozenset({
    Action.RENAME_TABLE, Action.RENAME_TABLES, Action.EXCHANGE_TABLE_PARTITION, Action.RECOVER_TABLE,
})  # fmt: skip


def definition(table: RestoredTable, name: tuple[str, str] | None = None) -> list[str]:
    """Statements that make the table, empty, under `name` or its own; run them one after the other."""
    name = name or table.now.name
    said = [_renamed(file, name) for file in _history(table)]
    if said and all(said):
        return [statement for statement in said if statement]
    return [_of_columns(table, name)]


def is_as_said(table: RestoredTable) -> bool:
    """Whether the statements are those of the upstream, with indexes and all."""
    return bool(_history(table)) and all(_renamed(file, table.now.name) for file in _history(table))


def _history(table: RestoredTable) -> list[ConsumerSchemaFile]:
    """The files whose statements make it; none: they don't, or not alone."""
    files = [file for file in table.ddls if file.type != Action.TRUNCATE_TABLE]
    if not files or any(file.type in _MOVED or not file.query for file in files):
        return []
    verbs = [file.said.verb for file in files]
    return files if verbs[0] == "create table" and set(verbs[1:]) <= _LATER else []


def _renamed(file: ConsumerSchemaFile, name: tuple[str, str]) -> str | None:
    """The file's statement about a table of another name; None: it can't stand alone."""
    text = file.query
    try:
        tokens = sqlglot.tokenize(text, read="mysql")
    except SqlglotError:
        return None
    words = ["" if text[token.start] in "`'\"" else token.text.upper() for token in tokens]
    begin = words.index("ON" if "INDEX" in words[:3] and words[0] in ("CREATE", "DROP") else "TABLE") + 1
    while words[begin] in ("IF", "NOT", "EXISTS"):
        begin += 1
    end = begin + 2 if words[begin + 1 : begin + 2] == ["."] else begin
    if {"LIKE", "SELECT"} & set(words[end + 1 : end + 4]) or "REFERENCES" in words or ";" in words[:-1]:
        return None
    return standalone(text[: tokens[begin].start] + quoted(*name) + text[tokens[end].end + 1 :])


def _of_columns(table: RestoredTable, name: tuple[str, str]) -> str:
    lines = [_column(column) for column in table.now.columns]
    if keys := [quoted(column.name) for column in table.now.columns if column.is_pk]:
        lines.append(f"PRIMARY KEY ({', '.join(keys)})")
    return f"CREATE TABLE {quoted(*name)} (\n  " + ",\n  ".join(lines) + "\n)"


def _column(column: TableColumn) -> str:
    return f"{quoted(column.name)} {_type(column)} {'NULL' if column.nullable else 'NOT NULL'}{_default(column)}"


def _type(column: TableColumn) -> str:
    base, _, rest = column.type.partition(" ")
    base = "VARCHAR" if base == "VAR_STRING" else base
    size = ""
    if base in _SIZED and column.precision.isdecimal() and int(column.precision):
        size = f"({column.precision})"
    elif base == "DECIMAL":
        size = f"({column.precision}, {column.scale or 0})"
    elif base in _TIMES and int(column.scale or 0):
        size = f"({column.scale})"
    elif base in ("ENUM", "SET"):
        size = f"({', '.join(literal(elem) for elem in column.elems)})"
    return f"{base}{size}{' ' + rest if rest else ''}"


def _default(column: TableColumn) -> str:
    if column.default is None or column.base.endswith(_WITHOUT_DEFAULT):
        return ""
    text = str(column.default)
    is_now = text.upper().startswith("CURRENT_TIMESTAMP")
    return f" DEFAULT {text if is_now else literal(text)}"
