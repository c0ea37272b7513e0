"""Shards that are written to one table: whether they fit, and what becomes of a DDL of one of them. Pure.

The table downstream has what all of its shards have together. That their keys differ is for who asks for it to say: a
route with `merge`.

1. *They fit* if what two of them have in common is the same: columns by name, the primary key, unique keys. A column
   that one of them lacks is nullable there or has a default, so that rows without it can be written. None has
   generated columns: how they are computed is not compared.
2. *What a shard adds* is added with the first of them that has it. The others only catch up.
3. *What a shard drops* goes with the last one that has it.
4. *All else is refused*: a column of another type, another key, TRUNCATE, DROP, a rename away. It would change or take
   rows of the other shards. So would a column that gets the time of its DDL in each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from changefeed.schema.sql.columns import NOW
from changefeed.schema.table_info import ColumnInfo, IndexInfo, TableInfo


class Unmergeable(ValueError):
    """The message says why, of the table as "it"."""


@dataclass(frozen=True)
class _Shared:
    """A column, or an index that is not unique. `form`: equal for what is the same in another shard."""

    said: str
    form: tuple[object, ...]


def check_fit(table: TableInfo, others: Iterable[TableInfo]) -> None:
    """Raises Unmergeable when the table can't be written to the one that `others` are written to."""
    if table.partition_ids:
        raise Unmergeable("it is partitioned")
    if generated := [column.name for column in _columns(table).values() if column.is_generated]:
        raise Unmergeable(f"its column {generated[0]} is generated")
    for other in others:
        if other.partition_ids:
            raise Unmergeable("it meets a table that is partitioned")
        name = ".".join(other.upstream_name)
        if _keys(table) != _keys(other):
            raise Unmergeable(f"it has other primary or unique keys than {name}")
        ours, theirs = _columns(table), _columns(other)
        for column in sorted(ours.keys() & theirs.keys()):
            if _form(ours[column]) != _form(theirs[column]):
                raise Unmergeable(f"it has another column {column} than {name}")
        for column in sorted(ours.keys() ^ theirs.keys()):
            _check_may_lack(ours.get(column) or theirs[column])


def is_told(before: TableInfo, after: TableInfo, others: Sequence[TableInfo]) -> bool:
    """Whether the table downstream is altered with this one of its shards. `others`: the rest, as they are now.

    Raises Unmergeable for a change that can't be made before the others make it.
    """
    if _keys(before) != _keys(after):
        raise Unmergeable("it gets other primary or unique keys")
    was, now = _parts(before), _parts(after)
    for name in was.keys() & now.keys():
        if was[name].form != now[name].form:
            raise Unmergeable(f"it gets another {now[name].said}")
    check_fit(after, others)
    found = [_parts(other) for other in others]
    changed = was.keys() ^ now.keys()
    for each in after.columns:
        is_clock = isinstance(each.default, str) and each.default.upper() in NOW
        if is_clock and ("column", each.name.lower()) in changed:
            raise Unmergeable(f"its rows get the time of the DDL in column {each.name}, those of other shards do not")
    theirs = {name for name in changed if any(name in parts for parts in found)}
    if theirs and theirs != changed:
        raise Unmergeable("it changes at once what other shards have and what they have not")
    return not theirs


def _check_may_lack(column: ColumnInfo) -> None:
    is_filled = column.nullable or column.default is not None or column.default_bit is not None
    if not (is_filled or column.is_generated):
        raise Unmergeable(f"column {column.name} is NOT NULL without a default, and not all of the shards have it")


def _columns(table: TableInfo) -> dict[str, ColumnInfo]:
    return {column.name.lower(): column for column in table.columns if not column.hidden}


def _form(column: ColumnInfo) -> tuple[object, ...]:
    kind = (column.type, column.flen, column.decimal, column.charset, column.collate, column.elems)
    return (*kind, column.nullable, column.is_unsigned, column.is_generated, column.default, column.default_bit)


def _keys(table: TableInfo) -> frozenset[tuple[object, ...]]:
    primary = tuple(column.name.lower() for column in table.columns if column.is_pk)
    return frozenset({("primary", *sorted(primary)), *(_index(each) for each in table.indexes if each.is_unique)})


def _index(index: IndexInfo) -> tuple[object, ...]:
    return tuple((name.lower(), length) for name, length in index.columns)


def _parts(table: TableInfo) -> dict[tuple[str, str], _Shared]:
    """By kind and name."""
    columns = {("column", name): _Shared(f"column {name}", _form(column)) for name, column in _columns(table).items()}
    indexes = {
        ("index", each.name.lower()): _Shared(f"index {each.name}", _index(each))
        for each in table.indexes
        if not (each.is_unique or each.is_primary)
    }
    return columns | indexes
