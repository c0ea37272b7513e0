"""What a DDL means for a stream that is read with a fixed schema. Pure.

A batch ends at each DDL of its table, so all its rows have one definition, and rows at the DDL's ts are of the old one.

1. *Columns stay what they were* (an index, a comment): the stream goes on.
2. *The read schema was made after it*: rows from before it are shown in the newer columns; the stream goes on.
3. *Columns change under a stream that runs*: it ends behind the last row of the old definition. Started anew, it reads
   the schema anew, and goes on from its checkpoint by way of 2.
4. *Rows are gone or come without changes of their own* (DROP, TRUNCATE, EXCHANGE and dropped partitions): it ends.
5. *Partitions are added or reorganised*: it goes on with the new ones.
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
    """The stream can't show what comes behind a DDL: start it again as `next_step` says."""


def check_columns(table: TableInfo, read: ReadSchema, where: str) -> None:
    """That all of the table as it is can be shown. `where`: ends a sentence. Raises SchemaChanged."""
    if found := read.differences(table):
        raise SchemaChanged(
            f"Table {table.full_name} is not as the stream reads it {where}: {'; '.join(found)}.",
            "Load the stream anew and start it with the same checkpoint: it reads the table with its new columns.",
        )


def definition_after(ddl: Ddl, table: TableInfo, name: TableName, read: ReadSchema) -> TableInfo:
    """The definition of rows above the DDL's ts. `name`: what the option says. Raises SchemaChanged, NeedsHuman."""
    after = next((each for each in ddl.tables.values() if each.id == table.id), None)
    action = None if ddl.job is None else ddl.job.type
    if action in (Action.RENAME_TABLE, Action.RENAME_TABLES) and (after is None or not name.is_of(*_name(after))):
        raise SchemaChanged(
            f"Table {table.full_name} was renamed at ts {ddl.ts} ({ddl.description}). {_DELIVERED}.",
            "Set the option tables to its new name, and start the stream with the same checkpoint.",
        )
    moved = after is None or (after.physical_ids != table.physical_ids and action not in _KEEPS_ROWS)
    if after is None or moved:
        raise SchemaChanged(
            f"Rows of table {table.full_name} came or went without changes of their own at ts {ddl.ts} "
            f"({ddl.description}). {_DELIVERED}.",
            "Bring what the stream has written to what the table holds, then start a stream with a new checkpoint and "
            f"startingVersion {ddl.ts + 1}.",
        )
    if ddl.ts > read.as_of_ts:
        check_columns(after, read, f"behind the DDL at ts {ddl.ts} ({ddl.description}). {_DELIVERED}")
    read.shown(after)
    return after


def _name(table: TableInfo) -> tuple[str, str]:
    return table.schema_name, table.name
