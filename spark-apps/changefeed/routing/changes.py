"""A DDL as it is for routed tables: its definitions, and its statement written anew. Pure.

A statement that was typed names tables as the upstream has them, or leaves the database to the session. So readers are
told one that is made of the definitions before and after, with the names that tables are written under.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC

from changefeed.errors import ExecuteByHand, NeedsHuman
from changefeed.routing.routes import Routes
from changefeed.schema.ddl.change import Rename, SchemaChange
from changefeed.schema.history import Touched
from changefeed.schema.sql.statements import statements
from changefeed.schema.sql.text import quoted
from changefeed.schema.sql.told import READERS
from changefeed.schema.table_info import TableInfo

_QUOTED_PAIR = re.compile(r"`((?:``|[^`])+)`\.`((?:``|[^`])+)`")


def routed_touched(routes: Routes, touched: Touched) -> Touched:
    return Touched(
        tuple(map(routes.routed, touched.before)), tuple(map(routes.routed, touched.after)), touched.databases
    )


def routed_change(routes: Routes, change: SchemaChange, touched: Touched) -> SchemaChange:
    """The change with the names that only its statement says. `touched`: as the upstream has it."""
    names = {table.id: table.schema_name for table in (*touched.before, *touched.after)}
    old_name = change.old_name
    if old_name and change.table_id in names:
        _, old_name = routes.name(names[change.table_id], old_name)
    return replace(change, old_name=old_name, renames=_renames(routes, change.renames))


def _renames(routes: Routes, renames: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Route each; the name between two of one table is the first one's, and its database the second one's."""
    found = list(renames)
    for number, rename in enumerate(renames):
        later = next((n for n in range(number + 1, len(renames)) if renames[n].table_id == rename.table_id), None)
        if later is not None:
            schema, name = routes.name(renames[later].old_schema_name, rename.new_name)
            found[number] = found[number]._replace(new_name=name)
            found[later] = found[later]._replace(old_schema_name=schema)
    return tuple(found)


def told(change: SchemaChange, touched: Touched) -> str:
    """Return the statement that readers are told, both routed; "" for a change without a text.

    Where nothing changes for them it is an ALTER TABLE that alters nothing: without one they would not know.

    Raises NeedsHuman for one that can't be written for other names than those it was typed with.
    """
    if not change.query:
        return ""
    try:
        texts = [each.text for each in statements(change, touched, READERS, UTC)]
    except ExecuteByHand as error:
        raise NeedsHuman(
            f"{error.message} So it can't be told of a table as it is written (spec.routes, spec.columns).",
            "Keep it from readers by an event filter (spec.filter.eventFilters, ignoreEvent), and do by hand "
            "downstream what it means; or rewind behind it (spec.restart).",
        ) from error
    return "; ".join(texts or (f"ALTER TABLE {quoted(*table.qualified)}" for table in touched.after))


def check_view(routes: Routes, view: TableInfo) -> None:
    """Raises NeedsHuman for a view of tables that are written under other names: its text has those of the upstream."""
    text = str((view.raw.get("view") or {}).get("view_select") or "")
    for schema, table in _QUOTED_PAIR.findall(text):
        name = schema.replace("``", "`"), table.replace("``", "`")
        if routes.columns.may_shape(*name):
            raise NeedsHuman(
                f"spec.columns: view {view.full_name} reads {'.'.join(name)}, whose columns are written otherwise: its "
                "text can't be told.",
                f'Exclude the view by a filter rule ("!{view.full_name}").',
            )
        if routes.name(*name) != name:
            raise NeedsHuman(
                f"spec.routes: view {view.full_name} reads {'.'.join(name)}, which is written as "
                f"{'.'.join(routes.name(*name))}: its text can't be told.",
                f'Exclude the view by a filter rule ("!{view.full_name}").',
            )
