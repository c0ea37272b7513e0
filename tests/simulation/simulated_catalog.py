"""A catalog of Iceberg tables in memory, which keeps what each table was before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import update_table_metadata


class MemoryCatalog(NoopCatalog):
    """`committed`: asked after each commit."""

    def __init__(self, committed: Callable[[tuple[str, ...]], None]) -> None:
        super().__init__("lake")
        self.tables: dict[tuple[str, ...], TableMetadata] = {}
        self.past: dict[tuple[str, ...], list[TableMetadata]] = {}  # of each table, up to what it is
        self._committed = committed

    def load_table(self, identifier: Any) -> Table:
        if (metadata := self.tables.get(identifier)) is None:
            raise NoSuchTableError(identifier)
        return self.table(identifier, metadata)

    def table(self, name: tuple[str, ...], metadata: TableMetadata) -> Table:
        return Table(name, metadata, "memory", load_file_io({}, metadata.location), self)

    def put(self, name: tuple[str, ...], metadata: TableMetadata | None) -> None:
        """The table is that from now on; None: it is not there."""
        if metadata is None:
            del self.tables[name], self.past[name]
            return
        self.tables[name] = metadata
        self.past.setdefault(name, []).append(metadata)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
        name = table.name()
        now = self.tables.get(name)
        for requirement in requirements:
            requirement.validate(now)
        base = now or MetastoreCatalog._empty_table_metadata()
        made = update_table_metadata(base, updates, enforce_validation=now is None)
        self.put(name, made)
        self._committed(name)
        return CommitTableResponse(metadata=made, metadata_location="memory")

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        pass
