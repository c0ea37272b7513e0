"""What becomes of tables, from their schema files alone. Pure.

verify's consumer asks the upstream for what no file says (docs/architecture.md, Verify); here it leaves a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count

from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.reading.schema.statement import ParsedStatement, parse
from changefeed.restore.schema.columns import followed
from changefeed.restore.schema.table import ColumnHistory, RestoredTable, TableVersion, key_of
from changefeed.schema.ddl.actions import Action

_RENAMES = (Action.RENAME_TABLE, Action.RENAME_TABLES)
_OF_PARTITIONS = (Action.DROP_TABLE_PARTITION, Action.TRUNCATE_TABLE_PARTITION)
_NOTHING_SAID = ParsedStatement("")


class RestoreCatalog:
    """Tables by name. Give it the schema files version by version."""

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
        self._choice = choice
        self._start_ts = start_ts
        self._selects = selects
        self._continued_ts = continued_ts
        self._copied = copied
        self._tables: dict[tuple[str, str], RestoredTable] = {}
        self._dropped: list[RestoredTable] = []
        self._numbers = count(1)  # of tables and of columns

    @property
    def tables(self) -> list[RestoredTable]:
        """Without views."""
        return [table for table in self._tables.values() if not table.is_view]

    def get(self, schema: str, table: str) -> RestoredTable | None:
        return self._tables.get(key_of((schema, table)))

    def execute(self, files: Iterable[ConsumerSchemaFile]) -> None:
        """All of one version. Of several about the same table the one with a statement counts."""
        found: dict[tuple[str, str], ConsumerSchemaFile] = {}
        for file in files:
            key = key_of((file.schema, file.table))
            if file.query or key not in found:
                found[key] = file
        told = [file for file in found.values() if file.type]
        for query, file in {file.query: file for file in told if file.type in _RENAMES}.items():
            self._rename(file, parse(query, file.schema))
        exchanged: set[tuple[str, str]] = set()
        for file in told:
            statement = parse(file.query, file.schema) if file.query else None
            if file.type == Action.EXCHANGE_TABLE_PARTITION:
                exchanged |= self._exchange(file, statement)
            else:
                self._run(file, statement)
        for key, file in found.items():
            if not file.type and file.table and key not in exchanged:
                self._unexplained(file)

    def _run(self, file: ConsumerSchemaFile, statement: ParsedStatement | None) -> None:
        match file.type:
            case Action.DROP_SCHEMA:
                for table in [
                    each for each in self._tables.values() if each.now.name[0].lower() == file.schema.lower()
                ]:
                    self._drop(table, file)
            case _ if not file.table:
                pass
            case Action.CREATE_VIEW:
                self._create(file).is_view = True
            case Action.DROP_TABLE | Action.DROP_VIEW:
                if (dropped := self.get(file.schema, file.table)) is not None:
                    self._drop(dropped, file)
            case Action.CREATE_TABLE | Action.CREATE_TABLES:
                self._create(file)
            case Action.TRUNCATE_TABLE:
                self._truncate(file)
            case Action.RECOVER_TABLE:
                self._recover(file, statement or _NOTHING_SAID)
            case _:
                self._alter(file, statement)

    # -- tables

    def _create(self, file: ConsumerSchemaFile) -> RestoredTable:
        """An empty one."""
        if (there := self.get(file.schema, file.table)) is not None:  # it went with its database, of which no id tells
            self._drop(there, file)
        table = RestoredTable(next(self._numbers), ddls=[file])
        stored = tuple(self._stored(column.arrow_type(self._choice)) for column in file.written)
        table.turn(TableVersion(file.version, (file.schema, file.table), file.columns, stored))
        self._put(table)
        return table

    def _drop(self, table: RestoredTable, file: ConsumerSchemaFile) -> None:
        """Kept aside, for it may be recovered."""
        table.ddls.append(file)
        del self._tables[key_of(table.now.name)]
        self._dropped.append(table)

    def _truncate(self, file: ConsumerSchemaFile) -> None:
        before = self.get(file.schema, file.table)
        table = self._create(file)
        table.emptied = before
        if before is not None:
            table.ddls = [*before.ddls[:-1], file]

    def _recover(self, file: ConsumerSchemaFile, statement: ParsedStatement) -> None:
        """The newest one that was dropped under the name, as TiDB takes it."""
        old = {key_of(name) for name, _ in statement.renames}
        found = [table for table in self._dropped if key_of(table.now.name) in old]
        if not found:
            self._new_with_rows(file, f"it was recovered at {file.version}, and no file says which table it was before")
            return
        self._dropped.remove(found[-1])
        self._adopt(found[-1], file, _NOTHING_SAID)

    def _rename(self, file: ConsumerSchemaFile, statement: ParsedStatement | None) -> None:
        """All pairs, one after the other; who ends where the changefeed does not write is gone."""
        for old, new in statement.renames if statement else ():
            table = self._tables.pop(key_of(old), None) or self._by_name(old[1])
            if table is not None:
                now = table.now
                table.turn(TableVersion(file.version, (new[0], new[1]), now.defined, now.stored))
                self._put(table)

    def _by_name(self, name: str) -> RestoredTable | None:
        """A name without a database is of the session's, which no file tells: the only one that it can be."""
        found = [key for key in self._tables if key[1] == name.lower()]
        return self._tables.pop(found[0]) if len(found) == 1 else None

    def _alter(self, file: ConsumerSchemaFile, statement: ParsedStatement | None) -> None:
        is_renamed = file.type in _RENAMES
        table = self.get(file.schema, file.table)
        if is_renamed and self._selects is not None and not self._selects(file.schema, file.table):
            if table is not None:
                self._drop(table, file)
            return
        if table is None:
            self._new_with_rows(file, f"no file says what was there before its DDL at {file.version}")
        elif not table.is_view:
            self._adopt(table, file, _NOTHING_SAID if is_renamed and statement is None else statement)
            if is_renamed and self._selects is None:
                why = "and without the changefeed's log it is unknown whether it is still written"
                table.gap(f"it was renamed at {file.version}, {why}")

    def _exchange(self, file: ConsumerSchemaFile, statement: ParsedStatement | None) -> set[tuple[str, str]]:
        """Both tables; which rows have changed places depends on the ids of partitions, which no file has by name."""
        names = {key_of(name) for name in (*(statement.tables if statement else ()), (file.schema, file.table))}
        for name in names:
            if (table := self._tables.get(name)) is not None:
                table.ddls.append(file)
                table.gap(f"no file says which rows EXCHANGE PARTITION has moved at {file.version}")
                now = table.now
                table.turn(TableVersion(file.version, now.name, now.defined, now.stored))
        return names

    def _unexplained(self, file: ConsumerSchemaFile) -> None:
        """No statement: a table of the start, one that came into the filter, or a DDL that is not in the files."""
        known = self.get(file.schema, file.table)
        if file.version == self._continued_ts and known is not None:
            self._adopt(known, file, _NOTHING_SAID)
        elif file.version in self._copied and known is None:
            self._create(file)
        elif file.version == self._start_ts:
            self._new_with_rows(file, "it existed when the changefeed started, so some of its rows may be in no file")
        else:
            self._new_with_rows(file, f"no file has its rows as of {file.version}, when it was first selected")

    def _new_with_rows(self, file: ConsumerSchemaFile, why: str) -> None:
        self._create(file).gap(why, of_unchanged=True)

    def _put(self, table: RestoredTable) -> None:
        self._tables[key_of(table.now.name)] = table

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


def executed(catalog: RestoreCatalog, versions: Iterable[Iterable[ConsumerSchemaFile]]) -> RestoreCatalog:
    """The catalog behind all of them."""
    for files in versions:
        catalog.execute(files)
    return catalog
