"""How schema files, and the statements in them, change a reader's tables. Pure.

What a DDL does to names is the same for all readers. What it does to rows is not always in the files: verify's consumer
asks the upstream for it, restore leaves a gap (docs/architecture.md, Verify).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar

from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.reading.schema.statement import Name, key_of
from changefeed.schema.ddl.actions import Action

RENAMES = (Action.RENAME_TABLE, Action.RENAME_TABLES)


class KeyedTable(Protocol):
    """A table as a reader has it."""

    is_view: bool

    @property
    def key(self) -> Name: ...


Table = TypeVar("Table", bound=KeyedTable)
Done = TypeVar("Done")


class SchemaCatalog(ABC, Generic[Table, Done]):
    """Tables by name. Schema files are given version by version, of each table one."""

    def __init__(self) -> None:
        self._tables: dict[Name, Table] = {}
        self._dropped: list[Table] = []
        self._explained: set[Name] = set()  # in the present version: a statement says how the table came to be so

    def get(self, schema: str, table: str) -> Table | None:
        return self._tables.get(key_of((schema, table)))

    def changes(self, files: Collection[ConsumerSchemaFile]) -> Iterator[Done]:
        """All of one version: statements first, then what has none. Finish each before you take the next."""
        for file in {file.query: file for file in files if file.type in RENAMES}.values():
            self._rename(file)
        self._explained = {file.key for file in files if file.type}
        for file in files:
            if file.type:
                yield from self._change(file)
        for file in files:
            if file.table and file.key not in self._explained:
                yield self._unexplained(file)

    def _change(self, file: ConsumerSchemaFile) -> Iterator[Done]:
        match file.type:
            case Action.DROP_SCHEMA:
                for each in [table for key, table in self._tables.items() if key[0] == file.schema.lower()]:
                    self._drop(each, file)
            case _ if not file.table:
                pass
            case Action.DROP_TABLE | Action.DROP_VIEW:
                if (table := self._known(file)) is not None:
                    self._drop(table, file)
            case Action.CREATE_TABLE | Action.CREATE_TABLES | Action.CREATE_VIEW:
                self._create(file)
            case Action.TRUNCATE_TABLE:
                self._known(file)
                self._create(file)
            case Action.RECOVER_TABLE:
                yield self._recover(file, self._recovered(file))
            case Action.EXCHANGE_TABLE_PARTITION:
                yield self._exchange(file)
            case _:
                yield self._alter(file)

    # -- names

    def _rename(self, file: ConsumerSchemaFile) -> None:
        """All pairs of the statement, one after the other."""
        for old, new in file.said.renames:
            table = self._tables.pop(key_of(old), None) or self._of_session(old, new, file.version)
            if table is not None:
                self._call(table, new, file)
                self._put(table)

    def _recovered(self, file: ConsumerSchemaFile) -> Table | None:
        """The newest one that was dropped under the name, as TiDB takes it; None: no file says which one it was."""
        old = {key_of(name) for name, _ in file.said.renames}
        found = [table for table in self._dropped if table.key in old and self._may_be(table, file)]
        if not found:
            return None
        self._dropped.remove(found[-1])
        return found[-1]

    def _drop(self, table: Table, file: ConsumerSchemaFile) -> None:
        """Kept aside, for it may be recovered."""
        del self._tables[table.key]
        if not table.is_view:
            self._dropped.append(table)

    def _put(self, table: Table) -> Table:
        self._tables[table.key] = table
        return table

    # -- what a reader makes of it

    def _known(self, file: ConsumerSchemaFile) -> Table | None:
        """The table that a statement is about."""
        return self.get(file.schema, file.table)

    def _may_be(self, table: Table, file: ConsumerSchemaFile) -> bool:
        """Whether a dropped table of the name can be the one that was recovered."""
        return True

    @abstractmethod
    def _of_session(self, old: Name, new: Name, ts: int) -> Table | None:
        """Names without a database are of the session's, which no file tells: the table, taken out, of another one."""

    @abstractmethod
    def _call(self, table: Table, name: Name, file: ConsumerSchemaFile) -> None:
        """The table has another name."""

    @abstractmethod
    def _create(self, file: ConsumerSchemaFile) -> Table:
        """An empty one, or a view; who has had the name until then is dropped."""

    @abstractmethod
    def _recover(self, file: ConsumerSchemaFile, table: Table | None) -> Done:
        """The table is there again, as the file says."""

    @abstractmethod
    def _exchange(self, file: ConsumerSchemaFile) -> Done:
        """A table and a partition of another one. Adds to `_explained` what the statement explains besides."""

    @abstractmethod
    def _alter(self, file: ConsumerSchemaFile) -> Done:
        """All else: columns, partitions, and what is left to do after a rename."""

    @abstractmethod
    def _unexplained(self, file: ConsumerSchemaFile) -> Done:
        """No statement: a table of the start, one that came into the filter, or a DDL that is not in the files."""
