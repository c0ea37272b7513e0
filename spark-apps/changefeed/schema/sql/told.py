"""The statement that readers of files and topics are told: typed, but for those that mean another table in another
session's database, which name all of theirs in full.

TiCDC does the same (logservice/schemastore of pingcap/ticdc writes the Query of renames, drops and exchanges anew).
"""

from __future__ import annotations

from datetime import UTC

from changefeed.errors import ExecuteByHand
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import Touched
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.statements import is_like, statements

_NAMED = frozenset({
    Action.RENAME_TABLE, Action.RENAME_TABLES, Action.EXCHANGE_TABLE_PARTITION, Action.DROP_TABLE, Action.DROP_VIEW,
    Action.CREATE_VIEW,
})  # fmt: skip
#: What most readers know.
READERS = Dialect("MySQL", (8, 0, 36))


def told(change: SchemaChange, touched: Touched) -> str:
    """Return the statement that readers are told; "" for a change without a text."""
    if not change.query or not (
        change.type in _NAMED or (change.type == Action.CREATE_TABLE and is_like(change.query))
    ):
        return change.query
    try:
        return "; ".join(each.text for each in statements(change, touched, READERS, UTC)) or change.query
    except ExecuteByHand:  # nothing is known but the text
        return change.query
