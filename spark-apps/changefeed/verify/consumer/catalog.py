"""A consumer's tables, and how schema files change them.

The effect of a statement on rows is implemented again here, from its text and the new columns. It must never be derived
from the changefeed's own schema history; what no file says is looked up in the upstream, with a note.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from changefeed.reading.rows.lines import LineShape
from changefeed.reading.schema.catalog import RENAMES, SchemaCatalog
from changefeed.reading.schema.columns import TableColumn, default_of
from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.reading.schema.statement import NO_STATEMENT, Name, ParsedStatement, key_of
from changefeed.schema.ddl.actions import Action
from changefeed.schema.table_info import TableInfo
from changefeed.verify.consumer.report import ConsumerReport
from changefeed.verify.consumer.rows import ConsumerColumn, ConsumerRows, RowDifferences
from changefeed.verify.consumer.table import ConsumerTable, differing, why_unknown
from changefeed.verify.consumer.upstream import UpstreamTables, partition_names

_REPARTITIONS = (Action.REORGANIZE_PARTITION, Action.ALTER_TABLE_PARTITIONING, Action.REMOVE_PARTITIONING)


class ConsumerCatalog(SchemaCatalog[ConsumerTable, Awaitable[None]]):
    """What no file says is taken from the upstream, with a note."""

    def __init__(
        self,
        upstream: UpstreamTables,
        rows: ConsumerRows,
        report: ConsumerReport,
        selects: Callable[[str, str], bool],
        start_ts: int,
        choice: str,
        by_id: bool = False,
        copied: Mapping[int, int] | None = None,
    ) -> None:
        """`choice`: formats.Format. `by_id`: tables are told apart by their ids, and nobody is told of a database.
        `copied`: of each physical table that begins empty, with a copy, its first version.
        Views that exist at the start are in no file: they are known.
        """
        super().__init__()
        self._upstream = upstream
        self._rows = rows
        self._report = report
        self._selects = selects
        self._start_ts = start_ts
        self._choice = choice
        self._has_ids = by_id
        self._copied = copied or {}
        self._files: dict[Name, ConsumerSchemaFile] = {}  # of the present version
        for view in upstream.tables(start_ts):
            if view.is_view and selects(view.schema_name, view.name):
                self._put(ConsumerTable(view.schema_name, view.name, is_view=True))

    @property
    def tables(self) -> list[ConsumerTable]:
        return list(self._tables.values())

    async def execute(self, files: Sequence[ConsumerSchemaFile]) -> None:
        """All of one version."""
        self._files = {file.key: file for file in files}
        for file in files:
            self._check_statement(file)
            self._check_columns(file)
        for change in self.changes(files):
            await change

    # -- what a file must be

    def _check_statement(self, file: ConsumerSchemaFile) -> None:
        if (statement := file.statement) is None:
            return
        if not file.may_be(statement.verb):
            self._report.problem(f"{file.path} has Type {file.type}, which does not match its statement: {file.query}")
        elif statement.tables and statement.verb != "alter database" and not statement.names(file.schema, file.table):
            self._report.problem(f"{file.path} has a statement about tables other than {file.name}: {file.query}")

    def _check_columns(self, file: ConsumerSchemaFile) -> None:
        """As the upstream defines them; one that is dropped, as it did until then."""
        ts = file.version
        info = self._upstream.table(file.schema, file.table, ts) or self._upstream.table(
            file.schema, file.table, ts - 1
        )
        if info is not None and (odd := differing(file.columns, info)):
            self._report.problem(f"{file.path} {odd}")

    # -- statements

    async def _alter(self, file: ConsumerSchemaFile) -> None:
        if not self._selects(file.schema, file.table):  # renamed out of the filter
            return
        table = self._known(file)
        if table is None:
            return
        if file.type in (Action.DROP_TABLE_PARTITION, Action.TRUNCATE_TABLE_PARTITION) and not table.unknown:
            self._empty_partitions(table, file)
        if file.statement is None and file.type not in RENAMES:
            await self._retake(file, f"its statement can't be read: {file.query!r}")
        else:
            await self._adopt(table, file, file.said)

    def _rename(self, file: ConsumerSchemaFile) -> None:
        """Who ends outside of the filter is gone."""
        super()._rename(file)
        for _, new in file.said.renames:
            if not self._selects(*new):
                self._tables.pop(key_of(new), None)

    def _call(self, table: ConsumerTable, name: Name, file: ConsumerSchemaFile) -> None:
        self._check_end(table, file)
        table.schema, table.table = name

    def _of_session(self, old: Name, new: Name, ts: int) -> ConsumerTable | None:
        """The same table by its id."""
        info = self._upstream.table(*new, ts)
        before = info and self._upstream.table_of(info.id, ts - 1)
        if before is None or before.name.lower() != old[1].lower():
            return None
        found = self._tables.pop(key_of((before.schema_name, before.name)), None)
        if found is not None:
            self._report.took(f"the database of {old[1]}, which became {'.'.join(new)} at {ts}")
        return found

    def _may_be(self, table: ConsumerTable, file: ConsumerSchemaFile) -> bool:
        info = self._upstream.table(file.schema, file.table, file.version)
        return info is None or table.id == info.id

    async def _recover(self, file: ConsumerSchemaFile, table: ConsumerTable | None) -> None:
        if table is None:
            await self._retake(file, "it was dropped before a consumer had it, or its statement doesn't name it")
            return
        table.schema, table.table = file.schema, file.table
        self._put(table)
        await self._adopt(table, file, NO_STATEMENT)

    def _empty_partitions(self, table: ConsumerTable, file: ConsumerSchemaFile) -> None:
        before = self._upstream.table(file.schema, file.table, file.version - 1)
        ids = partition_names(before) if before else {}
        names = [name.lower() for name in file.said.partitions]
        if unknown := [name for name in names if name not in ids]:
            self._report.problem(f"{file.path} is about partitions that are not in {file.name}: {', '.join(unknown)}.")
        self._report.took(f"the ids of {file.name}'s partitions {', '.join(names)} at {file.version}")
        self._rows.without_partitions(table.rows, [ids[name] for name in names if name in ids])

    async def _exchange(self, file: ConsumerSchemaFile) -> None:
        names = file.said.tables
        plain, parted = self._known(file), self.get(*names[0]) if len(names) == 2 else None
        theirs = self._files.get(parted.key) if parted else None
        if plain is None or parted is None or theirs is None:
            await self._retake(file, "the other table of its EXCHANGE PARTITION is not selected")
            return
        before, after = (self._upstream.table(*names[0], ts) for ts in (file.version - 1, file.version))
        name = next(iter(file.said.partitions), "")
        ids = [partition_names(info).get(name.lower()) if info else None for info in (before, after)]
        is_unknown = plain.unknown or parted.unknown
        if ids[0] is None or ids[1] is None or (not is_unknown and plain.stored.keys() != parted.stored.keys()):
            self._report.problem(f"{file.path} exchanges tables that do not match: {file.query}")
            return
        self._report.took(f"the ids of {parted.name}'s partition {name} before and after {file.version}")
        if is_unknown:
            plain.unknown = parted.unknown = is_unknown
        else:
            pairs = [(stored, plain.stored[column]) for column, stored in parted.stored.items()]
            parted.rows, plain.rows = self._rows.exchange(parted.rows, plain.rows, pairs, ids[0], ids[1])
        for table, one in ((plain, file), (parted, theirs)):
            await self._adopt(table, one, NO_STATEMENT)
        self._explained.add(theirs.key)

    async def _unexplained(self, file: ConsumerSchemaFile) -> None:
        if not self._selects(file.schema, file.table):
            return
        info = self._upstream.table(file.schema, file.table, file.version)
        if info is not None and info.is_view:
            self._put(ConsumerTable(file.schema, file.table, is_view=True))
            return
        if info is not None and any(self._copied.get(id_) == file.version for id_ in info.physical_ids):
            self._create(file)
            return
        known = self.get(file.schema, file.table)
        why = "a DDL that is not in the files" if known else "it is selected from then on"
        await self._retake(file, "" if file.version == self._start_ts else why)

    # -- tables

    def _known(self, file: ConsumerSchemaFile) -> ConsumerTable | None:
        """A consumer can't execute a statement without the table that it is about."""
        table = super()._known(file)
        if table is None:
            self._report.problem(f"{file.path} is about a table that a consumer does not have: {file.query}")
        else:
            self._check_end(table, file)
        return table

    def _check_end(self, table: ConsumerTable, file: ConsumerSchemaFile) -> None:
        """No row of the version before may be of a time after the DDL."""
        if table.last[0] > file.version:
            self._report.problem(
                f"A row of {table.name} has commit ts {table.last[0]}, but is under version {table.version}, "
                f"which ended at {file.version} ({self._report.where(table.last[1])})."
            )
            table.last = (0, 0)

    def _drop(self, table: ConsumerTable, file: ConsumerSchemaFile) -> None:
        self._check_end(table, file)
        super()._drop(table, file)

    def _create(self, file: ConsumerSchemaFile) -> ConsumerTable:
        if file.type == Action.CREATE_VIEW:
            return self._put(ConsumerTable(file.schema, file.table, is_view=True))
        info = self._upstream.table(file.schema, file.table, file.version)
        if (there := self.get(file.schema, file.table)) is not None:
            is_same = not self._has_ids or info is None or there.id == info.id  # else it went with its database
            if is_same and file.type != Action.TRUNCATE_TABLE:
                self._report.problem(f"{file.path} makes a table that already exists: {file.query}")
            self._drop(there, file)
        table = self._put(ConsumerTable(file.schema, file.table, file.version, file.columns))
        if info is None:
            table.unknown = "the upstream has no such table"
            return table
        table.id = info.id
        if differing(file.columns, info):  # said by _check_columns
            table.unknown = "its schema file does not have the upstream's columns"
            return table
        table.written = self._upstream.written(info)
        table.unknown = why_unknown(table)
        by_name = {column.name.lower(): column for column in file.columns}
        for name in (column.name.lower() for column in table.written.columns):
            table.stored[name] = self._rows.column(by_name[name].arrow_type(self._choice))
        table.rows = self._rows.create(list(table.stored.values()))
        return table

    async def _retake(self, file: ConsumerSchemaFile, why: str) -> None:
        """The table anew, with the upstream's rows at the version."""
        self._tables.pop(file.key, None)
        table = self._create(file)
        if not table.unknown:
            if why:
                self._report.took(f"the rows of {table.name} as of {file.version} ({why})")
            info = self._upstream.table(table.schema, table.table, file.version)
            assert info is not None
            self._rows.drop(table.rows)
            table.rows = await self.upstreams(table, info, file.version)

    async def upstreams(self, table: ConsumerTable, info: TableInfo, ts: int) -> str:
        """A table of the upstream's rows at `ts`. If keys can't be told apart in files, the table is unknown then."""
        made = self._rows.create(table.order)
        replaced = set[str]()
        async for partition, values in self._upstream.rows(info, table.written.columns, ts, replaced.add):
            await asyncio.to_thread(self._rows.load, made, partition, table.order, values)
        if replaced & {f"c{number}" for number in table.written.key}:
            table.unknown = "some of its keys are text that is not UTF-8, for which canal-json has U+FFFD"
        return made

    # -- columns

    async def _adopt(self, table: ConsumerTable, file: ConsumerSchemaFile, statement: ParsedStatement) -> None:
        """The file's columns in place of the table's, as the statement changes them."""
        info = self._upstream.table(file.schema, file.table, file.version)
        if table.is_view:
            return
        if info is None or differing(file.columns, info) or not self._agrees(table, file, statement):
            table.unknown = table.unknown or "its definitions are inconsistent"
        before = {column.name.lower(): column for column in table.columns}
        table.version, table.columns = file.version, file.columns
        if info is None:
            return
        table.id, table.written = info.id, self._upstream.written(info)
        if table.unknown or why_unknown(table):
            await self._become_known(table, file)
            return
        converted = self._change_columns(table, before, statement, info)
        if file.type in _REPARTITIONS:
            await self._repartition(table, file)
        elif converted:
            await self._take_columns(table, info, converted)

    def _agrees(self, table: ConsumerTable, file: ConsumerSchemaFile, statement: ParsedStatement) -> bool:
        if odd := statement.unmade(table.columns, file.columns):
            self._report.problem(f"{file.path} does not have its statement's columns ({odd}): {file.query}")
        return not odd

    async def _become_known(self, table: ConsumerTable, file: ConsumerSchemaFile) -> None:
        """Rows that could not be followed so far are taken anew, where they can be from now on."""
        if why := why_unknown(table):
            table.unknown = why
        else:
            await self._retake(file, table.unknown)

    def _change_columns(
        self, table: ConsumerTable, before: dict[str, TableColumn], statement: ParsedStatement, info: TableInfo
    ) -> list[str]:
        """The columns whose values are to be taken from the upstream."""
        old_names = {new: old for old, new in statement.changed.items()}
        stored, taken = dict[str, ConsumerColumn](), list[str]()
        columns = {column.name.lower(): column for column in table.columns}
        for defined in table.written.columns:
            name = defined.name.lower()
            column, old = columns[name], old_names.get(name, name)
            is_new = old not in before or (name in statement.added and name in statement.dropped)
            if not is_new and old in table.stored and column.keeps_values(before[old]):
                stored[name] = table.stored[old]
                continue
            stored[name] = self._rows.column(column.arrow_type(self._choice))
            value, is_said = default_of(column, self._choice)
            if is_new and not is_said:
                value = self._upstream.default(defined)
                self._report.took(f"the default of {table.name}.{column.name} at {table.version}")
            elif not is_new:
                value = None
                taken.append(name)
            self._rows.add_column(table.rows, stored[name], value)
        table.stored = stored
        return taken

    async def _take_columns(self, table: ConsumerTable, info: TableInfo, converted: Sequence[str]) -> None:
        """Some columns as the upstream has them at the table's version; the others must be so already."""
        ts = table.version
        want = await self.upstreams(table, info, ts)
        if found := self._compared(table, want, set(converted)):
            self._report.rows_differ(table.name, *found, f"at the DDL at {ts}")
        names = ", ".join(f"{table.name}.{name}" for name in converted)
        self._report.took(f"the values of {names} as of {ts}")
        self._rows.drop(table.rows)
        table.rows = want

    def _compared(self, table: ConsumerTable, want: str, without: set[str]) -> tuple[LineShape, RowDifferences] | None:
        """How the rows differ, but for some columns; None: not at all, or nobody can tell which row is which."""
        order, columns = table.order, table.written.columns
        same = [n for n, column in enumerate(columns) if column.name.lower() not in without]
        if not set(table.written.key) <= set(same):
            return None
        key = [same.index(n) for n in table.written.key]
        found = self._rows.compare(table.rows, want, [(order[n], order[n]) for n in same], key)
        shape = LineShape([columns[n].name for n in same], [order[n].type for n in same])
        return (shape, found) if found.total else None

    async def _repartition(self, table: ConsumerTable, file: ConsumerSchemaFile) -> None:
        """Which partition holds a row is not in the files; what it holds must be."""
        ts = file.version
        before, after = (self._upstream.table(file.schema, file.table, at) for at in (ts - 1, ts))
        assert after is not None
        new = set(after.partition_ids or (0,)) - set(before.partition_ids or (0,) if before else ())
        want = await self.upstreams(table, after, ts)
        pairs = [(column, column) for column in table.order]
        if odd := self._rows.not_in(want, sorted(new), table.rows, pairs):
            self._report.problem(f"{odd} rows that {file.query!r} moved at {ts} are not in a consumer's {table.name}.")
        self._report.took(f"which partitions hold the rows of {table.name} as of {ts}")
        self._rows.drop(table.rows)
        table.rows = want
