"""The statements of a change for a server: each names its database, and means there what it has done upstream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from changefeed.errors import ExecuteByHand
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.ddl.ddls import Effect, effect_of
from changefeed.schema.history import RENAMES, Touched
from changefeed.schema.sql.alter import Alteration
from changefeed.schema.sql.columns import default_charset_text, moments
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.partitions import changes
from changefeed.schema.sql.tables import create_table, create_view
from changefeed.schema.sql.text import quoted
from changefeed.schema.table_info import TableInfo

Name = tuple[str, str]  # of a database and a table

#: What changes no definition that a downstream has.
_NOTHING = (Action.MODIFY_SCHEMA_READ_ONLY, Action.ALTER_TABLE_MODE, Action.MODIFY_ENGINE_ATTRIBUTE)


@dataclass(frozen=True)
class Statement:
    """One of a change's. `makes`: the table that is there behind it and was not before. `is_repeatable`: it may be
    executed again.

    `zone`: the session's, which decides what the values of the columns `casts` of `table` become; UTC decides nothing.
    `moments`: in UTC, that the text has as that zone's clocks show them.
    """

    text: str
    makes: Name | None = None
    is_repeatable: bool = False
    zone: tzinfo = UTC
    table: Name | None = None
    casts: tuple[str, ...] = ()
    moments: tuple[datetime, ...] = ()


def statements(change: SchemaChange, touched: Touched, dialect: Dialect, zone: tzinfo) -> tuple[Statement, ...]:
    """In their order; none: the server's definitions say nothing of it. `zone`: session.zone_of.

    Raises ExecuteByHand for what the server does not know, or what rows would be needed for, and NeedsHuman.
    """
    if change.type in _NOTHING:
        return ()
    if touched.databases:
        return tuple(_of_database(change, touched, dialect))
    if effect_of(change.type) is Effect.TABLE_DROP:
        return tuple(map(_drop, touched.before))
    if change.type in RENAMES:
        return tuple(_rename(change, touched))
    if change.type == Action.EXCHANGE_TABLE_PARTITION:
        return (_exchange(change, touched, dialect),)
    return tuple(each for table in touched.after for each in _of_table(change, touched, table, dialect, zone))


def _of_table(
    change: SchemaChange, touched: Touched, table: TableInfo, dialect: Dialect, zone: tzinfo
) -> Iterator[Statement]:
    match change.type:
        case Action.CREATE_TABLE | Action.CREATE_TABLES:
            yield Statement(create_table(Definition.of(table), dialect), makes=_name(table))
        case Action.CREATE_VIEW:
            replaces = bool(touched.before)
            yield Statement(create_view(Definition.of(table), replaces), _name(table), is_repeatable=replaces)
        case Action.TRUNCATE_TABLE:
            yield Statement(f"TRUNCATE TABLE {quoted(*_name(table))}")
        case Action.RECOVER_TABLE:
            yield _recovered(change, table, dialect)
        case _:
            yield from _altered(change, _known(change, touched, table), table, dialect, zone)


def _drop(table: TableInfo) -> Statement:
    return Statement(f"DROP {'VIEW' if table.is_view else 'TABLE'} {quoted(*_name(table))}")


def _of_database(change: SchemaChange, touched: Touched, dialect: Dialect) -> Iterator[Statement]:
    (name,) = touched.databases
    if change.type == Action.DROP_SCHEMA:
        yield Statement(f"DROP DATABASE {quoted(name)}")
    elif change.database_info is not None:
        verb = "CREATE" if change.type == Action.CREATE_SCHEMA else "ALTER"
        info = change.database_info
        charset = default_charset_text(info.charset or "utf8mb4", info.collate, dialect)
        yield Statement(f"{verb} DATABASE {quoted(name)} {charset}")


def _rename(change: SchemaChange, touched: Touched) -> Iterator[Statement]:
    """All in their order: one of them may make room for the next. None for a table that is written as before."""
    names = {table.id: _name(table) for table in touched.before}
    for table in touched.after:
        if table.id not in names:
            raise ExecuteByHand(
                f"{change} gives {table.full_name} its name, which comes out of a database that no changefeed reads: "
                "its rows are not known.",
                "Copy that table from the upstream as it was at the DDL's ts, make the DDL's other renames by hand, "
                "then start again.",
            )
    pairs: list[str] = []
    for id_, to in _steps(change, touched):
        if names[id_] != to:
            pairs.append(f"{quoted(*names[id_])} TO {quoted(*to)}")
        names[id_] = to
    if pairs:
        yield Statement(f"RENAME TABLE {', '.join(pairs)}")


def _steps(change: SchemaChange, touched: Touched) -> list[tuple[int, Name]]:
    """(table, new name) of each."""
    last = {table.id: _name(table) for table in touched.after}
    if len(touched.after) == len(last):
        return [(table.id, _name(table)) for table in touched.after]
    found = []
    for index, rename in enumerate(change.renames):
        later = next((each for each in change.renames[index + 1 :] if each.table_id == rename.table_id), None)
        to = last[rename.table_id] if later is None else (later.old_schema_name, rename.new_name)
        if not all(to):
            raise ExecuteByHand(f"{change} renames a table twice, and does not say as what in between.")
        found.append((rename.table_id, to))
    return found


def _exchange(change: SchemaChange, touched: Touched, dialect: Dialect) -> Statement:
    args = change.exchange
    assert args is not None, "else its definitions are not followed"
    partitioned = next((each for each in touched.before if each.id == args.pt_table_id), None)
    plain = next((each for each in touched.before if each.id == change.table_id), None)
    if partitioned is None or plain is None:
        raise ExecuteByHand(
            f"{change} is about a table of a database that no changefeed reads: its rows are not known.",
            "Replace the rows of the other table's partition by those that it had upstream at the DDL's ts, set "
            "is_done = 1 in the DDL's row of the table ddls, then start again.",
        )
    partitioning = Definition.of(partitioned).partitioning
    partitions = () if partitioning is None else partitioning.partitions
    name = next((each.name for each in partitions if each.id == args.partition_id), args.partition_name)
    text = f"ALTER TABLE {quoted(*_name(partitioned))} EXCHANGE PARTITION {quoted(name)} WITH TABLE "
    is_unchecked = not args.with_validation and dialect.exchanges_unchecked
    return Statement(f"{text}{quoted(*_name(plain))}{' WITHOUT VALIDATION' * is_unchecked}")


def _recovered(change: SchemaChange, table: TableInfo, dialect: Dialect) -> Statement:
    """By TiDB only, which keeps what was dropped for a while."""
    if not dialect.is_tidb:
        raise ExecuteByHand(
            f"{change} brings rows of {table.full_name} back, of which a changefeed is sent none.",
            "Copy the table from the upstream as it was at the DDL's ts, then start again.",
        )
    old = change.old_name
    text = f"FLASHBACK TABLE {quoted(table.schema_name, old or table.name)}"
    is_renamed = old and old.lower() != table.name.lower()
    return Statement(f"{text} TO {quoted(table.name)}" if is_renamed else text, makes=_name(table))


def _known(change: SchemaChange, touched: Touched, table: TableInfo) -> TableInfo:
    """The table before: under its id, or the one that it had."""
    same_name = (each for each in touched.before if each.qualified == table.qualified)
    if (known := touched.was(table) or next(same_name, None)) is None:
        raise ExecuteByHand(f"{change} alters {table.full_name}, of which no earlier definition is known.")
    return known


def _altered(
    change: SchemaChange, was: TableInfo, table: TableInfo, dialect: Dialect, zone: tzinfo
) -> Iterator[Statement]:
    before, after = Definition.of(was), Definition.of(table)
    difference = Alteration(before, after, dialect, changed_columns(change.query))
    casts = tuple(difference.cast)
    zone = zone if casts else UTC
    times = () if zone is UTC else tuple(each for column in after.columns for each in moments(column))
    alter = f"ALTER TABLE {quoted(*_name(table))} "
    clauses, partitions = (
        difference.clauses(zone),
        changes(before.partitioning, after.partitioning, change.type, dialect),
    )
    if clauses and partitions:
        raise ExecuteByHand(f"{change} changes partitions and other parts of {table.full_name} at once.")
    if clauses:
        yield Statement(alter + ", ".join(clauses), zone=zone, table=_name(table), casts=casts, moments=times)
    for clause in partitions:
        yield Statement(alter + clause)
    if defaults := difference.defaults():
        yield Statement(alter + ", ".join(defaults), is_repeatable=True)


def is_like(query: str) -> bool:
    """Whether a CREATE TABLE names another table, as LIKE and foreign keys do."""
    words, _ = _words(query)
    return "LIKE" in words or "REFERENCES" in words


def changed_columns(query: str) -> dict[str, str]:
    """New names by the old ones, in lower case, of CHANGE old new: TiDB may give both other ids."""
    words, tokens = _words(query)
    found: dict[str, str] = {}
    for number, word in enumerate(words):
        if word == "CHANGE":
            begin = number + 1
            while begin < len(words) and words[begin] in ("COLUMN", "IF", "EXISTS"):
                begin += 1
            if begin + 1 < len(tokens):
                found[tokens[begin].lower()] = tokens[begin + 1].lower()
    return found


def _words(query: str) -> tuple[list[str], list[str]]:
    """In capitals, "" for what is quoted; and all as they are."""
    try:
        tokens = sqlglot.tokenize(query, read="mysql")
    except SqlglotError:
        return [], []
    quoted = (TokenType.IDENTIFIER, TokenType.STRING)
    words = ["" if token.token_type in quoted else token.text.upper() for token in tokens]
    return words, [token.text for token in tokens]


def _name(table: TableInfo) -> Name:
    return table.schema_name, table.name
