"""How a table of the downstream differs from the upstream's definition, and whether rows can come to harm by it. Pure.

A difference is harmless if each row of the upstream can be stored, unchanged, beside every other one, and is found
again by its key. Which differences those are stands in docs/mysql-servers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from changefeed.errors import ExecuteByHand
from changefeed.filter import collation
from changefeed.schema.sql.columns import column_text, type_text
from changefeed.schema.sql.definition import Column, Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.partitions import partitioning_text
from changefeed.schema.sql.tables import create_table
from changefeed.schema.sql.text import quoted
from changefeed.schema.table_info import BLOBS, STRINGS, TableInfo
from changefeed.sink.mysql.definitions import keys
from changefeed.sink.mysql.definitions.collations import Behaviour, Collation, is_as_fine
from changefeed.sink.mysql.definitions.found import FoundColumn, FoundTable
from changefeed.sink.mysql.definitions.partitions import partitions
from changefeed.sink.mysql.definitions.types import holds, members


@dataclass(frozen=True)
class Difference:
    """`mend`: a statement that makes the downstream as it must be; "" if a person must think of one. `is_missing`: the
    table, or a column that rows have, is not there. `lacks_values`: those of older rows, which no statement brings.
    `may_be_left_out`: a DDL that an event filter leaves out makes it,
    and each row that does not fit is refused by the server, so that none is lost or changed unseen.
    """

    what: str
    mend: str = ""
    is_harmless: bool = False
    is_missing: bool = False
    lacks_values: bool = False
    may_be_left_out: bool = False


@dataclass(frozen=True)
class ServerQueries:
    """What the downstream's server is asked besides. `is_same`: whether two expressions over a table's columns are the
    same; None: nobody can tell.
    """

    dialect: Dialect
    collations: Behaviour
    is_same: Callable[[TableInfo, str, str], bool | None]


def missing(table: TableInfo, dialect: Dialect) -> Difference:
    mend = _written(lambda: create_table(Definition.of(table), dialect))
    return Difference("it is not there", mend, is_missing=True, lacks_values=True, may_be_left_out=True)


def differences(table: TableInfo, found: FoundTable, server: ServerQueries) -> list[Difference]:
    """All of them, in the order of the columns; keys and partitions behind."""
    return list(_Comparison(table, found, server).all())


def collation_mend(table: TableInfo, name: str, dialect: Dialect) -> str:
    """The statement that gives a column of a key a collation to which all texts are two that are two upstream."""
    column = next(each for each in Definition.of(table).columns if each.name == name)
    alter = f"ALTER TABLE {quoted(table.schema_name, table.name)} MODIFY COLUMN "
    return _written(lambda: alter + column_text(_told_apart(column, dialect), dialect))


class _Comparison:
    def __init__(self, table: TableInfo, found: FoundTable, server: ServerQueries) -> None:
        self._table, self._found, self._server = table, found, server
        self._definition = Definition.of(table)
        self._alter = f"ALTER TABLE {quoted(table.schema_name, table.name)} "

    def all(self) -> Iterator[Difference]:
        for column in self._definition.columns:
            found = self._found.columns.get(column.name.lower())
            yield from [self._lacking(column)] if found is None else self._column(column, found)
        names = {column.name.lower() for column in self._definition.columns}
        for name, surplus in self._found.columns.items():
            if name not in names:
                yield self._surplus(surplus)
        yield from self._keys()
        by = self._definition.partitioning
        if by and (other := partitions(by, self._found.partitions, self._is_same)) is not None:
            mend = _written(lambda: self._alter + partitioning_text(by, self._server.dialect))
            yield Difference(other.what, mend, other.is_harmless, may_be_left_out=other.may_be_left_out)

    # -- columns

    def _lacking(self, column: Column) -> Difference:
        what, mend = f"the column {column.name} is not there", self._clause("ADD COLUMN", column)
        if column.info.is_generated_virtual:  # no row has it
            return Difference(what, mend, is_harmless=True)
        is_computed = column.info.is_generated
        return Difference(what, mend, is_missing=True, lacks_values=not is_computed, may_be_left_out=not is_computed)

    def _column(self, column: Column, found: FoundColumn) -> Iterator[Difference]:
        info, name = column.info, column.name
        mend = self._clause("MODIFY COLUMN", column)
        if not holds(info, found):
            sets = f" of character set {info.charset}" if _is_text(column) else ""
            there = f" of character set {found.charset}" if found.charset else ""
            what = f"the column {name} is {found.full_type}{there}, which does not hold all of {type_text(info)}{sets}"
            yield Difference(what, mend)
        elif _is_other_type(column, found):
            yield Difference(f"the column {name} is {found.full_type}, which is wider", is_harmless=True)
        if column.expression or found.is_generated:
            yield from self._generated(column, found)
        elif info.nullable != found.nullable:
            what = f"the column {name} is {'' if found.nullable else 'NOT '}NULL"
            yield Difference(what, "" if found.nullable else mend, is_harmless=found.nullable, may_be_left_out=True)
        if _is_text(column) and found.collation != info.collate and not self._in_key(name):
            yield Difference(f"the column {name} has the collation {found.collation}", is_harmless=True)
        has_default = info.default is not None or info.default_bit is not None
        if not column.expression and has_default and not found.has_default:
            yield Difference(f"the column {name} has no default", is_harmless=True)

    def _generated(self, column: Column, found: FoundColumn) -> Iterator[Difference]:
        name = column.name
        if not column.expression:
            yield Difference(f"the column {name} is computed there", self._clause("MODIFY COLUMN", column))
        elif not found.is_generated:
            drop = f"{self._alter}DROP COLUMN {quoted(name)}, ADD COLUMN "
            mend = _written(lambda: drop + column_text(column, self._server.dialect))
            yield Difference(f"the column {name} is not computed there, and no row brings it", mend)
        elif column.expression != found.expression:
            is_same = self._is_same(column.expression, found.expression)
            if is_same is not True:
                what = f"the column {name} is computed as {found.expression}, and upstream as {column.expression}"
                cannot_tell = is_same is None
                yield Difference(
                    what + (", which can't be compared" if cannot_tell else ""),
                    "" if cannot_tell else self._clause("MODIFY COLUMN", column),
                    is_harmless=cannot_tell,
                )

    def _surplus(self, found: FoundColumn) -> Difference:
        what = f"the column {found.name} is not in the upstream"
        if found.may_be_left_out:
            return Difference(what, is_harmless=True)
        mend = f"{self._alter}DROP COLUMN {quoted(found.name)}"
        return Difference(f"{what}, is NOT NULL and has no default: no row can be written", mend, may_be_left_out=True)

    # -- keys

    def _keys(self) -> Iterator[Difference]:
        upstream, counted = keys.unique(self._table), self._counted()
        for index in self._found.indexes:
            if index.is_unique and not keys.is_implied(index, upstream, counted):
                mend = f"{self._alter}DROP {'PRIMARY KEY' if index.name == 'PRIMARY' else 'KEY ' + quoted(index.name)}"
                what = f"the unique key {index.name} ({keys.shown(index)}) is not in the upstream: rows may be merged"
                yield Difference(what, mend)
        if (handle := keys.handle(self._table)) and not keys.has_handle(self._found.indexes, handle):
            names = ", ".join(quoted(name) for name in handle)
            mend = f"{self._alter}ADD {'PRIMARY KEY' if self._may_add_primary(handle) else 'UNIQUE KEY'} ({names})"
            yield Difference(f"no unique key has the columns by which rows are found, {', '.join(handle)}", mend)
        for column in self._definition.columns:
            yield from self._collation(column)
        for name in keys.lacking(self._table, self._found.indexes):
            yield Difference(f"the index {name} is not there", is_harmless=True)

    def _collation(self, column: Column) -> Iterator[Difference]:
        found = self._found.columns.get(column.name.lower())
        if found is None or not found.collation or not _is_text(column) or not self._in_key(column.name):
            return
        upstream, downstream = column.info.collate, Collation(found.charset, found.collation)
        if (pair := self._server.collations.merged(upstream, downstream)) is not None:
            why = f"to which {pair[0]!r} and {pair[1]!r} are the same: they are two to the upstream's {upstream}"
        elif not is_as_fine(upstream, found.collation):
            why = f"to which texts may be the same that are two to the upstream's {upstream}"
        else:
            return
        mend = collation_mend(self._table, column.name, self._server.dialect)
        yield Difference(f"the key column {column.name} has the collation {found.collation}, {why}", mend)

    def _in_key(self, name: str) -> bool:
        """A unique one of the downstream."""
        return any(index.is_unique and name.lower() in dict(index.parts) for index in self._found.indexes)

    def _counted(self) -> frozenset[str]:
        """Columns that only the downstream has, and which it fills with numbers of its own."""
        names = {column.name.lower() for column in self._definition.columns}
        return frozenset(name for name, found in self._found.columns.items() if found.counts and name not in names)

    def _may_add_primary(self, handle: tuple[str, ...]) -> bool:
        primary = self._definition.primary
        has_one = any(index.name == "PRIMARY" for index in self._found.indexes)
        return primary is not None and primary.columns == handle and not has_one

    def _is_same(self, one: str, other: str) -> bool | None:
        return self._server.is_same(self._table, one, other)

    def _clause(self, verb: str, column: Column) -> str:
        return _written(lambda: f"{self._alter}{verb} {column_text(column, self._server.dialect)}")


def _written(write: Callable[[], str]) -> str:
    try:
        return write()
    except ExecuteByHand:
        return ""


def _told_apart(column: Column, dialect: Dialect) -> Column:
    """With the upstream's collation; with one that compares bytes where its name is unknown, here or to the server, or
    means another one there.
    """
    charset, collate = column.info.charset, column.info.collate
    is_other = dialect.is_mariadb and collate.startswith("utf8mb4_0900_")
    if collation.is_known(collate) and dialect.collation(collate) is not None and not is_other:
        return column
    finest = dialect.finest_collation if charset == "utf8mb4" else None
    return replace(column, info=replace(column.info, collate=finest or f"{charset}_bin"))


def _is_text(column: Column) -> bool:
    return column.info.type in STRINGS | BLOBS and not column.info.is_binary


def _is_other_type(column: Column, found: FoundColumn) -> bool:
    """Besides what servers show otherwise: the width of integers, JSON, letters of members."""
    if column.info.elems:
        return members(found) != column.info.elems
    upstream, downstream = _plain(type_text(column.info)), _plain(found.full_type)
    return upstream != downstream and not (upstream == "json" and downstream == "longtext")


def _plain(full_type: str) -> str:
    text = full_type.lower().replace(", ", ",").removesuffix(" zerofill")
    base, _, rest = text.partition("(")
    is_sized = base not in ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
    return text if is_sized else f"{base}{rest.partition(')')[2]}"
