"""From what the stream says of a table to changes of schema, one after the other. Pure.

The stream describes a table as it is when a row follows, not what was done to it: a Relation has names, types and
which columns identify a row. The catalog says the rest, of now; that may be later than the row.

1. *The definition has what the Relation says.* Nothing has changed, or it was heard before.
2. *The catalog has it, too.* Its definition is taken: column numbers tell a column that is renamed from another one.
3. *The catalog is ahead.* The old definition is taken with the Relation's columns, which are the same by their name,
   else by the number that the catalog has for the name. What the Relation does not say stays. A column of no known
   number gets one that the server has for none.
4. *Another table has the name still.* It was renamed or dropped before, and no row of it has said so.
5. *A column has the name of one that is dropped.* That goes in a change of its own, or all would take them for one.
6. *A schema that is not known.* It is made.
7. *Two tables change places.* A statement for that needs a name in between, which nobody knows: a human decides.

A statement is in MySQL's dialect, as all readers expect it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from changefeed.errors import ExecuteByHand, NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.schema.sql.alter import Alteration
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.tables import create_table
from changefeed.schema.sql.text import quoted
from changefeed.schema.table_info import TableInfo
from changefeed.spec.filter.table_filter import SYSTEM_SCHEMAS
from changefeed.upstream.postgresql.pgoutput.messages import Relation
from changefeed.upstream.postgresql.schema.catalog import PublishedTables, made_database
from changefeed.upstream.postgresql.schema.relation_columns import MADE, fits, has_columns, mended

#: What most readers know.
_READERS = Dialect("MySQL", (8, 0, 36))
#: By the first words of a clause.
_KINDS = {
    "ADD COLUMN": Action.ADD_COLUMN,
    "DROP COLUMN": Action.DROP_COLUMN,
    "MODIFY COLUMN": Action.MODIFY_COLUMN,
    "CHANGE COLUMN": Action.MODIFY_COLUMN,
    "ADD PRIMARY": Action.ADD_PRIMARY_KEY,
    "DROP PRIMARY": Action.DROP_PRIMARY_KEY,
    "ADD UNIQUE": Action.ADD_INDEX,
    "DROP KEY": Action.DROP_INDEX,
    "RENAME KEY": Action.RENAME_INDEX,
}


def next_change(ts: int, relation: Relation, schema: SchemaHistory, now: PublishedTables) -> SchemaChange | None:
    """What must be applied to `schema` next, at `ts`, so that it has the table as the Relation says; None: it has.

    `now`: the catalog. No other change has the ts, so it is the id, too. Raises NeedsHuman.
    """
    if relation.schema_name.lower() in SYSTEM_SCHEMAS or relation.oid in now.parts:
        return None  # of the one no table is ever kept, of the other no rows come
    name = (relation.schema_name, relation.name)
    if (database := schema.database_id(relation.schema_name)) is None:
        return _create_database(ts, relation.schema_name)
    if (other := schema.newest_called(name)) is not None and other.id != relation.oid:
        return _make_room(ts, other, relation, schema, now)
    catalog = next((table for table in now.tables if table.id == relation.oid), None)
    if (old := schema.newest(relation.oid)) is None:
        made = _as_said(None, relation, catalog, now.domains)
        return _change(ts, Action.CREATE_TABLE, database, made, _create(made))
    if old.qualified != name:
        return _rename(ts, old, name, database)
    if fits(old, relation, now.domains):
        return None
    table = _as_said(old, relation, catalog, now.domains)
    if reused := _reused(old, table):
        table = _without(old, reused)
    action, text = _alter(old, table)
    return _change(ts, action, database, table, text)


def truncation(ts: int, oid: int, schema: SchemaHistory) -> SchemaChange | None:
    """A table that is emptied keeps its id and its definition; None: it is not known."""
    if (table := schema.newest(oid)) is None or (database := schema.database_id(table.schema_name)) is None:
        return None
    return _change(ts, Action.TRUNCATE_TABLE, database, table, f"TRUNCATE TABLE {quoted(*table.qualified)}")


def _as_said(
    old: TableInfo | None, relation: Relation, catalog: TableInfo | None, domains: Mapping[int, tuple[int, int]]
) -> TableInfo:
    """The definition that the Relation leads to."""
    if catalog is not None and has_columns(catalog, relation, domains):
        return replace(_renumbered(catalog, old), name=relation.name, schema_name=relation.schema_name)
    return mended(old, relation, catalog, domains)


def _reused(old: TableInfo, table: TableInfo) -> set[str]:
    """Names of columns that are dropped, and of others that are added."""
    before = {column.name: column.id for column in old.columns}
    after = {column.name: column.id for column in table.columns}
    gone = {name for name, id_ in before.items() if id_ not in after.values()}
    return {name for name, id_ in after.items() if name in gone and id_ not in before.values()}


def _without(table: TableInfo, names: set[str]) -> TableInfo:
    stored = table.to_json()
    columns = [column for column in stored["cols"] if column["name"] not in names]
    indexes = [index for index in stored["index_info"] if names.isdisjoint(part["name"] for part in index["idx_cols"])]
    return TableInfo.from_json(stored | {"cols": columns, "index_info": indexes})


def _renumbered(table: TableInfo, old: TableInfo | None) -> TableInfo:
    """With the numbers that its columns have got while the catalog was ahead."""
    made = {} if old is None else {column.name: column.id for column in old.columns if column.id >= MADE}
    if not made:
        return table
    stored = table.to_json()
    for column in stored["cols"]:
        column["id"] = made.get(column["name"], column["id"])
    return TableInfo.from_json(stored)


# -- changes


def _change(ts: int, action: Action, database: int, table: TableInfo, query: str) -> SchemaChange:
    return SchemaChange(
        id=ts, type=action, schema_id=database, table_id=table.id, query=query, start_ts=ts, table_info=table
    )


def _create_database(ts: int, name: str) -> SchemaChange:
    info = made_database(name)
    query = f"CREATE DATABASE {quoted(name)}"
    return SchemaChange(
        id=ts, type=Action.CREATE_SCHEMA, schema_id=info.id, query=query, start_ts=ts, database_info=info
    )


def _rename(ts: int, old: TableInfo, to: tuple[str, str], database: int) -> SchemaChange:
    table = replace(old, schema_name=to[0], name=to[1])
    query = f"RENAME TABLE {quoted(*old.qualified)} TO {quoted(*to)}"
    return _change(ts, Action.RENAME_TABLE, database, table, query)


def _make_room(
    ts: int, other: TableInfo, relation: Relation, schema: SchemaHistory, now: PublishedTables
) -> SchemaChange:
    """`other` has the Relation's name no more: what has become of it, the catalog knows."""
    found = next((table for table in now.tables if table.id == other.id), None)
    if found is None:
        database = schema.database_id(other.schema_name)
        assert database is not None, "the table was found in it"
        change = _change(ts, Action.DROP_TABLE, database, other, f"DROP TABLE {quoted(*other.qualified)}")
        return replace(change, table_info=None)
    if found.qualified == other.qualified or schema.newest_called(found.qualified) is not None:
        raise NeedsHuman(
            f"table {relation.full_name} was another one before (OID {other.id}, now {relation.oid}), and their names "
            "were exchanged: no single statement does that downstream.",
            "Start a new changefeed; rename tables one by one, with a change of a row of each behind each.",
        )
    if (database := schema.database_id(found.schema_name)) is None:
        return _create_database(ts, found.schema_name)
    return _rename(ts, other, found.qualified, database)


# -- statements


def _create(table: TableInfo) -> str:
    try:
        return create_table(Definition.of(table), _READERS)
    except ExecuteByHand:  # a key that is too long for MySQL, as of text
        return create_table(_keyless(table), _READERS)


def _alter(old: TableInfo, table: TableInfo) -> tuple[Action, str]:
    try:
        clauses = Alteration(Definition.of(old), Definition.of(table), _READERS, {}).clauses()
    except ExecuteByHand:
        clauses = Alteration(_keyless(old), _keyless(table), _READERS, {}).clauses()
    kinds = {_kind(clause) for clause in clauses}
    action = kinds.pop() if len(kinds) == 1 else Action.MULTI_SCHEMA_CHANGE
    return action, f"ALTER TABLE {quoted(*table.qualified)} {', '.join(clauses)}" if clauses else ""


def _kind(clause: str) -> Action:
    return _KINDS.get(" ".join(clause.split(" ", 2)[:2]), Action.MULTI_SCHEMA_CHANGE)


def _keyless(table: TableInfo) -> Definition:
    return Definition.of(TableInfo.from_json(table.to_json() | {"index_info": []}))
