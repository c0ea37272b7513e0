"""How a DDL affects a stream with a fixed schema. Pure.

A batch ends at each DDL of its table, so all its rows share one definition. Rows at the DDL's own ts have the old one.

1. *The columns don't change* (an index, a comment): the stream continues.
2. *The read schema is newer than the DDL*: rows from before it are mapped to the newer columns; the stream continues.
3. *Columns change under a running stream*: it fails after the last row of the old definition. When restarted it reads
   the new schema, and case 2 applies to what is left from its checkpoint on.
4. *Rows appear or disappear without row changes* (DROP, TRUNCATE, EXCHANGE, dropped partitions): the stream stops.
5. *Partitions are added or reorganised*: the stream continues with the new ones.
"""

from __future__ import annotations

from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Ddl
from changefeed.source.options import TableName
from changefeed.source.read_schema import ReadSchema

_KEEPS_ROWS = (Action.ADD_TABLE_PARTITION, Action.REORGANIZE_PARTITION)
_DELIVERED = "All changes up to it have been read"


class SchemaChanged(NeedsHuman):
    """The stream can't represent rows after a DDL: restart it as `next_step` says."""


def check_columns(table: TableInfo, read: ReadSchema, where: str, more: str = "") -> None:
    """Check that the query's columns match the table. `where`, `more`: for the message. Raises SchemaChanged."""
    if found := read.differences(table):
        raise SchemaChanged(
            f"Table {table.full_name} does not match the stream's columns {where}: {'; '.join(found)}.{more}",
            "Call load() again and restart with the same checkpoint to read the table with its new columns.",
        )


def definition_after(ddl: Ddl, table: TableInfo, name: TableName, read: ReadSchema) -> TableInfo:
    """The definition of rows above the DDL's ts. `name`: the option `tables`. Raises SchemaChanged, NeedsHuman."""
    after = next((each for each in ddl.tables.values() if each.id == table.id), None)
    action = None if ddl.change is None else ddl.change.type
    if action in (Action.RENAME_TABLE, Action.RENAME_TABLES) and (after is None or not name.is_of(*_name(after))):
        raise SchemaChanged(
            f"Table {table.full_name} was renamed at ts {ddl.ts} ({ddl.description}). {_DELIVERED}.",
            "Set the option tables to its new name and restart the stream with the same checkpoint.",
        )
    moved = after is None or (after.physical_ids != table.physical_ids and action not in _KEEPS_ROWS)
    if after is None or moved:
        raise SchemaChanged(
            f"Rows of table {table.full_name} appeared or disappeared without row changes at ts {ddl.ts} "
            f"({ddl.description}). {_DELIVERED}.",
            "Bring the data written so far in line with the table, then start a stream with a new checkpoint and "
            f"startingVersion {ddl.ts + 1}.",
        )
    if ddl.ts > read.as_of_ts:
        check_columns(after, read, f"after the DDL at ts {ddl.ts} ({ddl.description})", f" {_DELIVERED}.")
    read.shown(after)
    return after


def _name(table: TableInfo) -> tuple[str, str]:
    return table.schema_name, table.name
