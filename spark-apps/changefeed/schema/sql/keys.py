"""Indexes, foreign keys and constraints in CREATE TABLE and ALTER TABLE."""

from __future__ import annotations

from collections.abc import Iterator

from changefeed.errors import ExecuteByHand
from changefeed.schema.sql.definition import WHOLE, Definition, ForeignKey, Index
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.text import expression, listed, literal, quoted
from changefeed.schema.table_info import BLOBS, STRINGS, ColumnInfo

#: Bytes of a character.
_WIDTHS = {"utf8mb4": 4, "gb18030": 4, "utf8": 3, "utf8mb3": 3, "gbk": 2}
#: What a foreign key does, by TiDB's number; 0: nothing was said.
_ACTIONS = {1: "RESTRICT", 2: "CASCADE", 3: "SET NULL", 4: "NO ACTION", 5: "SET DEFAULT"}


def made(definition: Definition) -> tuple[Index, ...]:
    """The indexes that a downstream has: TiFlash's are of another copy of the rows, which is not replicated."""
    return tuple(index for index in definition.indexes if not index.is_columnar)


def index_text(index: Index, dialect: Dialect, of: Definition) -> str:
    """Such as UNIQUE KEY `name` (`a`, `b`(10)). Raises ExecuteByHand."""
    kind = "PRIMARY KEY" if index.is_primary else f"{'UNIQUE ' * index.is_unique}KEY {quoted(index.name)}"
    parts = [kind, f"({', '.join(_parts(index, dialect, of))})"]
    if dialect.is_tidb and index.is_primary:
        parts.append("CLUSTERED" if of.is_clustered else "NONCLUSTERED")
    if dialect.is_tidb and index.is_global:
        parts.append("GLOBAL")
    if index.comment:
        parts.append(f"COMMENT {literal(index.comment)}")
    if index.is_hidden and dialect.hides_indexes:
        parts.append("INVISIBLE")
    return " ".join(parts)


def _parts(index: Index, dialect: Dialect, of: Definition) -> Iterator[str]:
    columns = {column.name.lower(): column.info for column in of.columns}
    for name, length in index.parts:
        if length is not None:
            info = columns.get(name.lower())
            taken = length if info is None else _taken(index, info, length, dialect)
            yield quoted(name) if taken == WHOLE else f"{quoted(name)}({taken})"
        elif dialect.has_keys_of_expressions:
            yield f"({expression(name, index.name)})"
        else:
            raise ExecuteByHand(f"{dialect} knows no index of an expression, such as {index.name} of {name}.")


def _taken(index: Index, info: ColumnInfo, length: int, dialect: Dialect) -> int:
    """How much of a column the server's index has: less than the upstream's is no harm, unless it is unique."""
    if info.type not in STRINGS | BLOBS:
        return length
    width = 1 if info.is_binary else _WIDTHS.get(info.charset, 1)
    size = (info.flen if length == WHOLE else length) * width
    if size <= dialect.key_bytes:
        return length
    if index.is_unique or index.is_primary:
        raise ExecuteByHand(
            f"{dialect} takes {dialect.key_bytes} bytes of a column into a key; {index.name} has {size} of {info.name}."
        )
    return dialect.key_bytes // width


def foreign_key_text(key: ForeignKey) -> str:
    """The table that it refers to is named in full."""
    text = f"CONSTRAINT {quoted(key.name)} FOREIGN KEY {listed(key.columns)}"
    text += f" REFERENCES {quoted(*key.to)} {listed(key.to_columns)}"
    for clause, action in (("DELETE", key.on_delete), ("UPDATE", key.on_update)):
        text += f" ON {clause} {_ACTIONS[action]}" if action in _ACTIONS else ""
    return text


def check_text(name: str, condition: str) -> str:
    return f"CONSTRAINT {quoted(name)} CHECK ({expression(condition, name)})"
