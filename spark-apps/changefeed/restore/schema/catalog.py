"""What becomes of tables, from their schema files alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count

from changefeed.reading.schema.catalog import RENAMES, SchemaCatalog
from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.reading.schema.statement import NO_STATEMENT, Name, ParsedStatement, key_of
from changefeed.restore.schema.columns import followed
from changefeed.restore.schema.table import ColumnHistory, RestoredTable, TableVersion
from changefeed.schema.ddl.actions import Action

_OF_PARTITIONS = (Action.DROP_TABLE_PARTITION, Action.TRUNCATE_TABLE_PARTITION)


class RestoreCatalog(SchemaCatalog[RestoredTable, None]):
    """What no file says is a gap."""

    def __init__(
        self,
        choice: str,
        start_ts: int,
        selects: Callable[[str, str], bool] | None,
        continued_ts: int | None = None,
        copied: Collection[int] = (),
    ) -> None:
        """`choice`: formats.Format. `selects`: the changefeed's rules; None: nobody knows them. `continued_ts`: at
        which a folder of TiCDC's goes on, with a schema file for each table. `copied`: the first versions of tables
        whose files begin with a copy.
        """
        super().__init__()
        self._choice = choice
        self._start_ts = start_ts
        self._selects = selects
        self._continued_ts = continued_ts
        self._copied = copied
        self._numbers = count(1)  # of tables and of columns

    @property
    def tables(self) -> list[RestoredTable]:
        """Without views."""
        return [table for table in self._tables.values() if not table.is_view]

    def execute(self, files: Iterable[ConsumerSchemaFile]) -> None:
        """All of one version. Of several about the same table the one with a statement counts."""
        found: dict[Name, ConsumerSchemaFile] = {}
        for file in files:
            if file.query or file.key not in found:
                found[file.key] = file
        for _ in self.changes(found.values()):
            pass

    # -- tables

    def _create(self, file: ConsumerSchemaFile) -> RestoredTable:
        if (there := self.get(file.schema, file.table)) is not None:  # it went with its database, of which no id tells
            self._drop(there, file)
        table = RestoredTable(next(self._numbers), ddls=[file], is_view=file.type == Action.CREATE_VIEW)
        if there is not None and file.type == Action.TRUNCATE_TABLE:
            table.emptied, table.ddls = there, [*there.ddls[:-1], file]
        stored = tuple(self._stored(column.arrow_type(self._choice)) for column in file.written)
        table.turn(TableVersion(file.version, (file.schema, file.table), file.columns, stored))
        return self._put(table)

    def _drop(self, table: RestoredTable, file: ConsumerSchemaFile) -> None:
        table.ddls.append(file)
        super()._drop(table, file)

    def _recover(self, file: ConsumerSchemaFile, table: RestoredTable | None) -> None:
        if table is None:
            self._new_with_rows(file, f"it was recovered at {file.version}, and no file says which table it was before")
        else:
            self._adopt(table, file, NO_STATEMENT)

    def _call(self, table: RestoredTable, name: Name, file: ConsumerSchemaFile) -> None:
        table.turn(TableVersion(file.version, name, table.now.defined, table.now.stored))

    def _of_session(self, old: Name, new: Name, ts: int) -> RestoredTable | None:
        """The only one that it can be."""
        found = [key for key in self._tables if key[1] == old[1].lower()]
        return self._tables.pop(found[0]) if len(found) == 1 else None

    def _alter(self, file: ConsumerSchemaFile) -> None:
        is_renamed = file.type in RENAMES
        table = self.get(file.schema, file.table)
        if is_renamed and self._selects is not None and not self._selects(file.schema, file.table):
            if table is not None:
                self._drop(table, file)
            return
        if table is None:
            self._new_with_rows(file, f"no file says what was there before its DDL at {file.version}")
        elif not table.is_view:
            self._adopt(table, file, file.said if is_renamed else file.statement)
            if is_renamed and self._selects is None:
                why = "and without the changefeed's log it is unknown whether it is still written"
                table.gap(f"it was renamed at {file.version}, {why}")

    def _exchange(self, file: ConsumerSchemaFile) -> None:
        """Both tables; which rows have changed places depends on the ids of partitions, which no file has by name."""
        names = {key_of(name) for name in file.said.tables} | {file.key}
        for name in names:
            if (table := self._tables.get(name)) is not None:
                table.ddls.append(file)
                table.gap(f"no file says which rows EXCHANGE PARTITION has moved at {file.version}")
                self._call(table, table.now.name, file)
        self._explained |= names

    def _unexplained(self, file: ConsumerSchemaFile) -> None:
        known = self.get(file.schema, file.table)
        if file.version == self._continued_ts and known is not None:
            self._adopt(known, file, NO_STATEMENT)
        elif file.version in self._copied and known is None:
            self._create(file)
        elif file.version == self._start_ts:
            self._new_with_rows(file, "it existed when the changefeed started, so some of its rows may be in no file")
        else:
            self._new_with_rows(file, f"no file has its rows as of {file.version}, when it was first selected")

    def _new_with_rows(self, file: ConsumerSchemaFile, why: str) -> None:
        self._create(file).gap(why, of_unchanged=True)

    # -- columns

    def _adopt(self, table: RestoredTable, file: ConsumerSchemaFile, statement: ParsedStatement | None) -> None:
        """The file's columns in place of the table's, as the statement changes them."""
        table.ddls.append(file)
        before = table.now
        stored, gaps = followed(before, file, statement, self._choice, self._stored)
        table.turn(TableVersion(file.version, (file.schema, file.table), file.columns, tuple(stored)))
        if table.now.key != before.key:
            table.gap(f"its primary key was changed at {file.version}")
        if file.type in _OF_PARTITIONS:
            gaps = [*gaps, f"no file says which rows were in the partitions of {file.query!r}"]
        for why in gaps:
            table.gap(why, file.version)
        self._put(table)

    def _stored(self, kind: object, default: object = None) -> ColumnHistory:
        return ColumnHistory(next(self._numbers), kind, default)
