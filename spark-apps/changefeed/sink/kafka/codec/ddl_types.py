"""What the protocols call the kinds of DDL."""

from __future__ import annotations

from changefeed.schema.ddl.actions import Action

_ALTER = frozenset(
    {
        *(Action.ADD_COLUMN, Action.DROP_COLUMN, Action.MODIFY_COLUMN, Action.REBASE_AUTO_ID),
        *(Action.SET_DEFAULT_VALUE, Action.MODIFY_TABLE_COMMENT, Action.RENAME_INDEX, Action.ADD_TABLE_PARTITION),
        *(Action.DROP_TABLE_PARTITION, Action.MODIFY_TABLE_CHARSET_AND_COLLATE, Action.TRUNCATE_TABLE_PARTITION),
        *(Action.ALTER_INDEX_VISIBILITY, Action.MULTI_SCHEMA_CHANGE, Action.REORGANIZE_PARTITION),
        *(Action.ALTER_TABLE_PARTITIONING, Action.REMOVE_PARTITIONING),
    }
)
_KINDS: dict[int, str] = {
    **dict.fromkeys(_ALTER, "ALTER"),
    Action.CREATE_TABLE: "CREATE",
    Action.RENAME_TABLE: "RENAME",
    Action.RENAME_TABLES: "RENAME",
    Action.ADD_INDEX: "CINDEX",
    Action.ADD_FOREIGN_KEY: "CINDEX",
    Action.ADD_PRIMARY_KEY: "CINDEX",
    Action.DROP_INDEX: "DINDEX",
    Action.DROP_FOREIGN_KEY: "DINDEX",
    Action.DROP_PRIMARY_KEY: "DINDEX",
    Action.DROP_TABLE: "ERASE",
    Action.TRUNCATE_TABLE: "TRUNCATE",
}


def canal_ddl_type(action: int) -> str:
    """Canal's word, which simple has too."""
    return _KINDS.get(action, "QUERY")
