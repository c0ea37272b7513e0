"""What a DDL makes of tables that have rows: which of them goes on as which, and what can't be followed. Pure."""

from __future__ import annotations

from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import RENAMES
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Ddl

_WITHOUT_ROWS = frozenset(
    {Action.DROP_TABLE_PARTITION, Action.TRUNCATE_TABLE_PARTITION, Action.EXCHANGE_TABLE_PARTITION}
)


def origins(ddl: Ddl) -> dict[int, TableInfo | None]:
    """Return by the id of each table behind the DDL what it was before; None: it begins.

    Of another id under its name is the same table truncated or partitioned, but not one that took a renamed one's name.
    """
    before = {table.id: table for table in ddl.before.values()}
    is_renamed = ddl.change is not None and ddl.change.type in RENAMES
    names = {} if is_renamed else {table.qualified: table for table in before.values()}
    return {table.id: before.get(table.id) or names.get(table.qualified) for table in ddl.tables.values()}


def check_rows_are_told(ddl: Ddl, *, upsert: bool) -> None:
    """Raises NeedsHuman for a DDL by which rows come or go that no change says."""
    if not ddl.is_told or ddl.change is None:
        return
    if ddl.change.type == Action.RECOVER_TABLE and ddl.tables:
        raise NeedsHuman(
            f"{ddl.description} brings back all rows of the table, and no change says which they are.",
            "Create a new changefeed with initialCopy, or exclude the table by a filter rule.",
        )
    if upsert and ddl.change.type in _WITHOUT_ROWS and ddl.before:
        raise NeedsHuman(
            f"{ddl.description} removes rows without a change for each: mode upsert can't delete them.",
            "Ignore it with an event filter and delete the rows yourself, or create a new changefeed.",
        )
