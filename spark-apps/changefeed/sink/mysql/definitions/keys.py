"""The downstream's unique keys beside the upstream's. Pure.

A key is columns in lower case and how much of each is indexed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import IndexInfo, TableInfo
from changefeed.sink.mysql.definitions.found import WHOLE, FoundIndex
from changefeed.sink.mysql.rows.keys import TableKeys

Key = dict[str, int]


def unique(table: TableInfo) -> list[Key]:
    """The upstream's, the primary one too. Of an expression the name is that of its hidden column."""
    found = [_key(table, index) for index in table.indexes if index.is_primary or index.is_unique]
    if table.handle_column is not None:
        found.append({table.handle_column.name.lower(): WHOLE})
    return found


def handle(table: TableInfo) -> tuple[str, ...]:
    """The columns by which rows are found; none, if they can't be told apart, so that none is written."""
    try:
        return tuple(column.name for column in TableKeys.of(table).handle)
    except NeedsHuman:
        return ()


def is_implied(index: FoundIndex, upstream: Iterable[Key], counted: frozenset[str]) -> bool:
    """Whether rows that the upstream's keys tell apart are never equal by a unique index of the downstream."""
    parts = {name: length for name, length in index.parts if name is not None}
    if counted & parts.keys():
        return True
    expressions = len(index.parts) - len(parts)
    return any(_covers(parts, expressions, key) for key in upstream)


def has_handle(indexes: Iterable[FoundIndex], columns: tuple[str, ...]) -> bool:
    """Whether a unique index makes the row of given values of these columns the only one."""
    names = {name.lower() for name in columns}
    return any(index.is_unique and all(name in names for name, _ in index.parts) for index in indexes)


def lacking(table: TableInfo, indexes: Iterable[FoundIndex]) -> Iterator[str]:
    """Names of the upstream's indexes that the downstream has not, whatever they are called there."""
    there = [[(name, length) for name, length in index.parts] for index in indexes]
    for index in table.indexes:
        parts = list(_key(table, index).items())
        if not any(name in _hidden(table) for name, _ in parts) and parts not in there:
            yield index.name


def shown(index: FoundIndex) -> str:
    return ", ".join("an expression" if name is None else name for name, _ in index.parts)


def _covers(parts: Key, expressions: int, key: Key) -> bool:
    """An index's columns hold at least as much as the key's. An expression stands for any hidden column."""
    plain = {name: length for name, length in key.items() if not name.startswith("_v$_")}
    if len(key) - len(plain) != expressions:
        return False
    return all(name in parts and _is_as_long(parts[name], length) for name, length in plain.items())


def _is_as_long(downstream: int, upstream: int) -> bool:
    return downstream == WHOLE or (upstream != WHOLE and downstream >= upstream)


def _hidden(table: TableInfo) -> frozenset[str]:
    return frozenset(column.name.lower() for column in table.columns if column.hidden)


def _key(table: TableInfo, index: IndexInfo) -> Key:
    lengths = {column.name: column.flen for column in table.columns}
    return {name.lower(): WHOLE if length >= lengths.get(name, 0) > 0 else length for name, length in index.columns}
