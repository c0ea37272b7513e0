"""What a server's information_schema says of tables: one query for each kind of thing, for all of them. Pure.

The names of its columns and their values are those that MySQL from 5.6, MariaDB and TiDB share
(https://dev.mysql.com/doc/refman/8.0/en/information-schema.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from changefeed.sink.mysql.rows.literals import text_literal

Name = tuple[str, str]  # database, table
Row = tuple[bytes | None, ...]

WHOLE = -1
_FEW = 100  # tables
_SIZE = re.compile(r"\((\d+)(?:, ?(\d+))?\)")


@dataclass(frozen=True)
class FoundColumn:
    """`type`: without its size; `full_type`: with it, as in CREATE TABLE. `charset`: "" if it has none."""

    name: str
    type: str
    full_type: str
    nullable: bool
    has_default: bool
    charset: str
    collation: str
    extra: str
    expression: str  # of a generated one

    @property
    def size(self) -> int | None:
        """Characters, bytes of a binary one, bits, all digits of a number, or those of a second."""
        return int(found[1]) if (found := _SIZE.search(self.full_type)) else None

    @property
    def scale(self) -> int | None:
        found = _SIZE.search(self.full_type)
        return int(found[2]) if found and found[2] else None

    @property
    def is_unsigned(self) -> bool:
        return "unsigned" in self.full_type

    @property
    def is_generated(self) -> bool:
        return bool(self.expression) or self.extra in ("persistent", "virtual")

    @property
    def is_stored(self) -> bool:
        return "stored generated" in self.extra or self.extra == "persistent"

    @property
    def counts(self) -> bool:
        return "auto_increment" in self.extra

    @property
    def may_be_left_out(self) -> bool:
        """By a statement that inserts a row."""
        return self.nullable or self.has_default or self.is_generated or self.counts


@dataclass(frozen=True)
class FoundIndex:
    """`parts`: a column's name in lower case, None for an expression, and how much of it is indexed."""

    name: str
    is_unique: bool
    parts: tuple[tuple[str | None, int], ...]


@dataclass(frozen=True)
class FoundPartition:
    """`description`: the values of it, none of HASH and KEY."""

    name: str
    method: str
    expression: str
    description: str


@dataclass(frozen=True)
class FoundTable:
    """`columns`: by their name in lower case. `partitions`: None if they were not asked for."""

    columns: Mapping[str, FoundColumn]
    indexes: tuple[FoundIndex, ...]
    partitions: tuple[FoundPartition, ...] | None = field(default=None)


def columns_query(names: Iterable[Name], knows_generated: bool) -> bytes:
    """`knows_generated`: whether the server tells of generated columns."""
    expression = b"`generation_expression`" if knows_generated else b"''"
    return (
        b"SELECT `table_schema`, `table_name`, `column_name`, `data_type`, `column_type`, `is_nullable`, "
        b"`column_default` IS NOT NULL AND (`is_nullable` = 'NO' OR `column_default` <> 'NULL'), "
        b"`character_set_name`, `collation_name`, `extra`, "
        + expression
        + b" FROM `information_schema`.`columns`"
        + _where(names)
        + b" ORDER BY 1, 2, `ordinal_position`"
    )


def indexes_query(names: Iterable[Name]) -> bytes:
    return (
        b"SELECT `table_schema`, `table_name`, `index_name`, `non_unique`, `column_name`, `sub_part` "
        b"FROM `information_schema`.`statistics`" + _where(names) + b" ORDER BY 1, 2, `index_name`, `seq_in_index`"
    )


def partitions_query(names: Iterable[Name]) -> bytes:
    return (
        b"SELECT `table_schema`, `table_name`, `partition_name`, `partition_method`, `partition_expression`, "
        b"`partition_description` FROM `information_schema`.`partitions`"
        + _where(names)
        + b" AND `partition_name` IS NOT NULL ORDER BY 1, 2, `partition_ordinal_position`"
    )


def tables(columns: Sequence[Row], indexes: Sequence[Row], partitions: Sequence[Row] | None) -> dict[Name, FoundTable]:
    """From what the queries give. A table is there if it has columns, as any has."""
    names = dict.fromkeys((_text(row[0]), _text(row[1])) for row in columns)
    by_column: dict[Name, dict[str, FoundColumn]] = {name: {} for name in names}
    by_index: dict[Name, dict[str, FoundIndex]] = {name: {} for name in names}
    by_partition: dict[Name, dict[str, FoundPartition]] = {name: {} for name in names}
    for row in columns:
        column = _column(row)
        by_column[_name(row)][column.name.lower()] = column
    for row in indexes:
        if (known := by_index.get(_name(row))) is not None:
            index = _text(row[2])
            before = known[index].parts if index in known else ()
            part = (None if row[4] is None else _text(row[4]).lower(), WHOLE if row[5] is None else int(row[5]))
            known[index] = FoundIndex(index, _text(row[3]) == "0", (*before, part))
    for row in partitions or ():
        if (here := by_partition.get(_name(row))) is not None:  # once for all its subpartitions
            here[_text(row[2])] = FoundPartition(*map(_text, row[2:6]))
    return {
        name: FoundTable(
            by_column[name],
            tuple(by_index[name].values()),
            None if partitions is None else tuple(by_partition[name].values()),
        )
        for name in names
    }


def _where(names: Iterable[Name]) -> bytes:
    """Return the condition for these tables, or their databases if they are many: a long list of names is slower."""
    chosen = list(names)
    where = b" WHERE `table_schema`" + _is_one_of(database for database, _ in chosen)
    return where if len(chosen) > _FEW else where + b" AND `table_name`" + _is_one_of(table for _, table in chosen)


def _is_one_of(names: Iterable[str]) -> bytes:
    """Or of their lower case, in which a server may keep them. One that looks a single name up is faster for `=`."""
    spelled = sorted({spelling for name in names for spelling in (name, name.lower())})
    if len(spelled) == 1:
        return b" = " + text_literal(spelled[0])
    return b" IN (" + b", ".join(map(text_literal, spelled)) + b")"


def _column(row: Row) -> FoundColumn:
    return FoundColumn(
        name=_text(row[2]),
        type=_text(row[3]).lower(),
        full_type=_text(row[4]),
        nullable=_text(row[5]) == "YES",
        # A nullable one without a default has the default NULL.
        has_default=_text(row[6]) == "1",
        charset=_text(row[7]),
        collation=_text(row[8]),
        extra=_text(row[9]).lower(),
        expression=_text(row[10]),
    )


def _name(row: Row) -> Name:
    return _text(row[0]), _text(row[1])


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
