"""A TiDB server with the DDLs that much of the code asks for; the others are functions of `ddl` on a server."""

from __future__ import annotations

from collections.abc import Sequence

from ..ddl.columns import add_column
from ..ddl.databases import create_database
from ..ddl.running import last
from ..ddl.tables import NewTable, Partitions, create_table, drop_table, truncate_table
from .schema import DbInfo, NamedTable, NewColumn, PrimaryKey
from .server import TidbServer


class Tidb(TidbServer):
    """One TiDB server."""

    def create_database(self, name: str) -> DbInfo:
        """Raises ValueError if it exists."""
        return create_database(self, name)

    def create_table(
        self,
        db: str,
        name: str,
        columns: Sequence[NewColumn],
        pk: PrimaryKey = "id",
        regions: int = 1,
        handles: int = 1000,
        partitions: Partitions | None = None,
    ) -> NamedTable:
        """See `ddl.tables.create_table`."""
        return create_table(self, db, NewTable(name, columns, pk, partitions), regions, handles)

    def add_column(self, table: NamedTable, column: NewColumn) -> NamedTable:
        """The table with the column at its end; old rows have the column's default there."""
        return last(add_column(self, table, column))

    def drop_table(self, table: NamedTable) -> None:
        """Drop the table; its rows stay in the store, without an event, as in TiKV before GC."""
        drop_table(self, table)

    def truncate_table(self, table: NamedTable) -> NamedTable:
        """The same table under a new id, empty."""
        return truncate_table(self, table)
