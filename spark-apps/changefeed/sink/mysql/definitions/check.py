"""Asks a server about tables, and stops the changefeed where one of them is not what rows need."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from changefeed.errors import ExecuteByHand, OtherDefinition, Refused, StatementRefused
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.text import expression, quoted
from changefeed.schema.table_info import TableInfo
from changefeed.sink.mysql.definitions import collations, found
from changefeed.sink.mysql.definitions.collations import Behaviour, Collation
from changefeed.sink.mysql.definitions.difference import Difference, ServerQueries, differences, missing
from changefeed.sink.mysql.definitions.found import FoundTable, Name
from changefeed.sink.mysql.server import Session

_SHOWN = 3


def check(
    session: Session,
    where: str,
    tables: Iterable[TableInfo],
    *,
    leaves_out: bool = False,
    is_past: Callable[[], bool] = lambda: False,
) -> None:
    """Raises OtherDefinition that names differences of the first table that has some which harm rows.

    `leaves_out`: event filters leave DDLs out, so that a difference which one may have made, and which loses no row
    unseen, is let through. `is_past`: the definitions are old, so that a difference means nothing; it is asked behind.
    """
    for table, all_of_it in compare(session, tables):
        harms = [each for each in all_of_it if not (each.is_harmless or (leaves_out and each.may_be_left_out))]
        if harms and not is_past():
            what = "; ".join(each.what for each in harms[:_SHOWN])
            more = f"; and {len(harms) - _SHOWN} more" if len(harms) > _SHOWN else ""
            why = " Event filters leave DDLs out: one of these may have made it so." if leaves_out else ""
            said = f"{where}: {table.full_name} differs from the upstream: {what}{more}.{why}"
            raise OtherDefinition(said, _next(harms))


def compare(session: Session, tables: Iterable[TableInfo]) -> list[tuple[TableInfo, list[Difference]]]:
    """Each table that has rows, and how it differs. Three queries, however many there are, and one of collations."""
    compared = [table for table in tables if not (table.is_view or table.is_sequence or table.is_temporary)]
    if not compared:
        return []
    ((in_lower_case,),) = session.rows(b"SELECT @@lower_case_table_names")
    dialect = session.dialect
    is_partitioned = any(table.partition_ids for table in compared)
    names = dict.fromkeys(table.qualified for table in compared)  # what is merged has one
    there = _Tables(_found(session, names, dialect, is_partitioned), in_lower_case != b"0")
    pairs = [(table, there.of(table.qualified)) for table in compared]
    behaviour = _behaviour(session, (here for _, here in pairs if here is not None))
    server = ServerQueries(dialect, behaviour, _Expressions(session).is_same)
    return [
        (table, [missing(table, dialect)] if here is None else differences(table, here, server))
        for table, here in pairs
    ]


class _Tables:
    """By their names, which some servers write in lower case."""

    def __init__(self, tables: Mapping[Name, FoundTable], in_lower_case: bool) -> None:
        self._in_lower_case = in_lower_case
        self._tables = {self._name(name): table for name, table in tables.items()}

    def of(self, name: Name) -> FoundTable | None:
        return self._tables.get(self._name(name))

    def _name(self, name: Name) -> Name:
        return (name[0].lower(), name[1].lower()) if self._in_lower_case else name


def _found(session: Session, names: Iterable[Name], dialect: Dialect, is_partitioned: bool) -> dict[Name, FoundTable]:
    chosen = list(names)
    columns = session.rows(found.columns_query(chosen, dialect.shows_generated))
    indexes = session.rows(found.indexes_query(chosen))
    partitions = session.rows(found.partitions_query(chosen)) if is_partitioned else None
    return found.tables(columns, indexes, partitions)


def _behaviour(session: Session, tables: Iterable[FoundTable]) -> Behaviour:
    """Return how the server treats the collations that unique keys have."""
    known: dict[Collation, None] = {}
    for table in tables:
        names = {name for index in table.indexes if index.is_unique for name, _ in index.parts if name is not None}
        for column in (table.columns[name] for name in sorted(names) if name in table.columns):
            if column.collation:
                known[Collation(column.charset, column.collation)] = None
    if not known:
        return Behaviour({})
    (answer,) = session.rows(collations.query(known))
    return collations.behaviour(known, answer)


class _Expressions:
    """Compares two as the server itself understands them: it shows how in the notes of EXPLAIN."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def is_same(self, table: TableInfo, one: str, other: str) -> bool | None:
        if _plain(one) == _plain(other):
            return True
        try:
            forms = [self._form(table, expression(text, table.full_name)) for text in (one, other)]
        except (ExecuteByHand, StatementRefused, Refused):
            return None
        return None if None in forms else forms[0] == forms[1]

    def _form(self, table: TableInfo, text: str) -> str | None:
        query = f"SELECT {text} AS `x` FROM {quoted(table.schema_name, table.name)}"
        explain = "EXPLAIN EXTENDED" if self._session.dialect.explains_less else "EXPLAIN"
        self._session.rows(f"{explain} {query}".encode())
        notes = self._session.rows(b"SHOW WARNINGS")
        return next((_selected(row[2].decode()) for row in notes if row[1] == b"1003"), None)


def _selected(note: str) -> str:
    """The expression in `/* select#1 */ select … AS `x` from …`, without the names of its table."""
    text = re.sub(r"/\*.*?\*/", "", note).partition("select ")[2].rpartition(" AS `x` from")[0]
    return _plain(re.sub(r"`(?:[^`]|``)*`\.(?=`)", "", text))


def _plain(text: str) -> str:
    """Without what means nothing outside of strings: spaces, case, quotes of names, character sets of strings."""
    parts = re.split(r"('(?:[^'\\]|\\.|'')*')", text.replace("\\'", "'"))
    return "".join(
        part if index % 2 else re.sub(r"_[a-z0-9]+$|[\s`]", "", part.lower()) for index, part in enumerate(parts)
    )


def _next(harms: Sequence[Difference]) -> str:
    shown = harms[:_SHOWN]
    mends = "; ".join(each.mend for each in shown if each.mend)
    mended = f"Mend it, then start again: {mends}." if mends else "Make it as it is upstream, then start again."
    lacks_values = any(each.lacks_values for each in shown)
    return (
        f"{mended} Before you start, copy older rows' values from the upstream, as of the checkpoint."
        if lacks_values
        else mended
    )
