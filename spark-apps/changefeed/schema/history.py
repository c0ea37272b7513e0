"""`SchemaHistory`: every table's definition through time, from a snapshot and the changes after it.

Pure: changes in, definitions out. A DDL at T comes after every row at T (rule 9), so the definition that decodes a row
with commit ts T is `table(id, T - 1)`. It must never ignore a change that it cannot apply (rule 29).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, replace

from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.ddl.ddls import Effect, effect_of
from changefeed.schema.table_info import DatabaseInfo, TableInfo
from changefeed.spec.filter.table_filter import SYSTEM_SCHEMAS

RENAMES = (Action.RENAME_TABLE, Action.RENAME_TABLES)


@dataclass(frozen=True)
class Touched:
    """What a change involves. A change that changes nothing for us touches nothing."""

    before: tuple[TableInfo, ...] = ()  # as they were
    after: tuple[TableInfo, ...] = ()  # as they are then; of one that is renamed twice at once the last one counts
    databases: frozenset[str] = frozenset()  # created, altered or dropped themselves

    @property
    def own(self) -> TableInfo | None:
        """The table that the statement alters, makes or ends, as it is then, or was if it is gone; None: a database's.

        Of an exchange it is the partitioned one; of several that are made or renamed the last one.
        """
        if self.databases or not (tables := self.after or self.before):
            return None
        return tables[-1]

    @property
    def name(self) -> tuple[str, str]:
        """(database, table) of `own`, as they are defined; table "": the statement is the database's."""
        if (own := self.own) is not None:
            return own.schema_name, own.name
        return next(iter(sorted(self.databases)), ""), ""

    def was(self, table: TableInfo) -> TableInfo | None:
        """One of `after` as it was before the change; None: it is new, or was in no database that is looked at."""
        return next((each for each in self.before if each.id == table.id), None)

    def named(self, change: SchemaChange, table: TableInfo) -> TableInfo:
        """The definition whose name the statement has for what it does to `table`, which event filters are asked by."""
        if change.type in RENAMES:
            return self.was(table) or table
        if change.type == Action.EXCHANGE_TABLE_PARTITION and self.own is not None:
            return self.own
        return table

    @property
    def tables(self) -> frozenset[tuple[str, str]]:
        """(database, table) of each, before and after."""
        return frozenset((table.schema_name, table.name) for table in (*self.before, *self.after))

    @property
    def table_ids(self) -> frozenset[int]:
        """Physical ones, before and after."""
        return frozenset(id_ for table in (*self.before, *self.after) for id_ in table.physical_ids)


@dataclass(frozen=True)
class _DefinitionChange:
    dropped: tuple[int, ...] = ()
    tables: tuple[TableInfo, ...] = ()
    database: DatabaseInfo | None = None
    dropped_database: int | None = None


class SchemaHistory:
    """Definitions at any ts from `snapshot_ts` on, as far as changes were applied. Not thread-safe."""

    def __init__(
        self,
        snapshot_ts: int,
        databases: Iterable[DatabaseInfo],
        tables: Iterable[TableInfo],
        ddl_job_table: TableInfo | None = None,
        applied: Iterable[int] = (),
    ) -> None:
        """`databases` and `tables` as they were at `snapshot_ts`, DDLs with that very finish ts included (rule 24).

        The system databases are among the `databases`, and their tables are not kept: no filter selects one, and a
        rename may lead out of one or into it. `applied`: ids of changes whose effect is there then, and that may come
        again.
        """
        self.snapshot_ts = snapshot_ts
        self.ddl_job_table = ddl_job_table
        self._base = ({database.id: database for database in databases}, tuple(tables))
        self._changes: list[tuple[int, int, SchemaChange]] = []
        self._ids: set[int] = set(applied)
        self._touched: dict[int, Touched] = {}
        self._restart()

    def apply(self, change: SchemaChange, finished_ts: int) -> None:
        """Takes a change in that takes effect at `finished_ts`, the commit ts of its row then.

        A change that is applied already, or is part of the snapshot, changes nothing. They count in the order of
        (finish ts, id), in whatever order they come (rule 9). Raises NeedsHuman for one that cannot be followed.
        """
        if change.id in self._ids or finished_ts <= self.snapshot_ts:
            return
        entry = (finished_ts, change.id, change)
        if self._changes and entry[:2] < self._changes[-1][:2]:
            insort(self._changes, entry, key=lambda item: item[:2])
            self._restart()
        else:
            self._put(change, finished_ts)
            self._changes.append(entry)
        self._ids.add(change.id)

    def has(self, job_id: int) -> bool:
        """Whether the change was applied, or is part of the snapshot without being done then."""
        return job_id in self._ids

    def newest(self, table_id: int) -> TableInfo | None:
        """The table after all changes that were applied."""
        return self._tables.get(table_id)

    def database_name(self, database_id: int) -> str | None:
        """After all changes that were applied; None: there is no such database."""
        database = self._databases.get(database_id)
        return None if database is None else database.name

    def database_id(self, name: str) -> int | None:
        """The inverse of `database_name`."""
        return next((id_ for id_, database in self._databases.items() if database.name == name), None)

    def newest_called(self, qualified: tuple[str, str]) -> TableInfo | None:
        """The table that has the name after all changes that were applied."""
        return next((table for table in self._tables.values() if table.qualified == qualified), None)

    def touches(self, change: SchemaChange) -> Touched:
        """What `change` involves: as applied, or as it would be applied now, after all the others."""
        if change.id in self._touched:
            return self._touched[change.id]
        return self._involved(self._becomes(change))

    def table(self, table_id: int, ts: int) -> TableInfo | None:
        """The table's definition after all DDLs with a finish ts ≤ `ts`; None if there is no such table then."""
        self._check(ts)
        versions = self._history.get(table_id, [])
        index = bisect_right(versions, ts, key=lambda version: version[0])
        return versions[index - 1][1] if index else None

    def tables_at(self, ts: int) -> list[TableInfo]:
        """All tables and views after all DDLs with a finish ts ≤ `ts`, by id."""
        tables = (self.table(table_id, ts) for table_id in sorted(self._history))
        return [table for table in tables if table is not None]

    # -- folding

    def _restart(self) -> None:
        databases, tables = self._base
        self._databases = dict(databases)
        self._tables: dict[int, TableInfo] = {}
        self._history: dict[int, list[tuple[int, TableInfo | None]]] = {}
        for table in tables:
            self._set(table.id, table, self.snapshot_ts)
        for finished_ts, _, change in self._changes:
            self._put(change, finished_ts)

    def _put(self, change: SchemaChange, ts: int) -> None:
        becomes = self._becomes(change)
        self._touched[change.id] = self._involved(becomes)
        for table_id in becomes.dropped:
            self._set(table_id, None, ts)
        for table in becomes.tables:
            self._set(table.id, table, ts)
        if becomes.database is not None:
            self._databases[becomes.database.id] = becomes.database
        if becomes.dropped_database is not None:
            self._databases.pop(becomes.dropped_database, None)

    def _set(self, table_id: int, table: TableInfo | None, ts: int) -> None:
        kept = table if table is not None and _is_kept(table) else None
        if kept is not None:
            self._tables[table_id] = kept
        elif self._tables.pop(table_id, None) is None:
            return
        self._history.setdefault(table_id, []).append((ts, kept))

    # -- what a change means

    def _becomes(self, change: SchemaChange) -> _DefinitionChange:
        effect = effect_of(change.type)
        if effect is Effect.UNFOLLOWABLE:
            raise NeedsHuman(
                f"{change} changes tables in a way that a changefeed cannot follow.",
                "Compare the sink with the upstream, then start a new changefeed behind this DDL.",
            )
        match effect:
            case Effect.NOTHING:
                return _DefinitionChange()
            case Effect.DATABASE:
                return _DefinitionChange(database=change.database_info)
            case Effect.DATABASE_DROP:
                name = self._database_name(change.schema_id, change)
                dropped = tuple(i for i, table in self._tables.items() if table.schema_name == name)
                return _DefinitionChange(dropped=dropped, dropped_database=change.schema_id)
            case Effect.TABLE_DROP:
                return _DefinitionChange(dropped=(change.table_id,))
            case Effect.TABLES:
                return _DefinitionChange(
                    tables=tuple(self._in_database(info, change.schema_id, change) for info in change.table_infos)
                )
            case Effect.RENAMES:
                return self._rename(change)
            case Effect.EXCHANGE:
                return self._exchange(change)
            case Effect.TABLE:
                return self._replace(change)

    def _rename(self, change: SchemaChange) -> _DefinitionChange:
        """A table that is renamed twice stands there twice: the last definition is the one that stays."""
        if len(change.renames) != len(change.table_infos):
            tables = len(change.table_infos)
            raise NeedsHuman(f"{change} has {len(change.renames)} renames of {tables} tables.", _RECREATE)
        renamed = zip(change.table_infos, change.renames, strict=True)
        return _DefinitionChange(tables=tuple(self._in_database(info, to.schema_id, change) for info, to in renamed))

    def _replace(self, change: SchemaChange) -> _DefinitionChange:
        if change.table_info is None:
            raise NeedsHuman(f"{change} carries no table definition.", _RECREATE)
        table = self._in_database(change.table_info, change.schema_id, change)
        dropped = {change.table_id} - {table.id}
        if table.is_view:  # CREATE OR REPLACE VIEW
            dropped |= {i for i, old in self._tables.items() if old.qualified == table.qualified and i != table.id}
        return _DefinitionChange(dropped=tuple(sorted(dropped)), tables=(table,))

    def _exchange(self, change: SchemaChange) -> _DefinitionChange:
        """The change's table takes the partition's physical id, the partition takes the table's."""
        args = change.exchange
        table = self._tables.get(change.table_id)
        is_of_system = _is_system(self._database_name(change.schema_id, change))
        if args is None or change.table_info is None or (table is None and not is_of_system):
            raise NeedsHuman(
                f"{change} exchanges a partition with table {change.table_id}, which is not known.", _RECREATE
            )
        exchanged = () if table is None else (replace(table, id=args.partition_id),)
        partitioned = self._in_database(change.table_info, args.pt_schema_id, change)
        return _DefinitionChange(dropped=(change.table_id,), tables=(*exchanged, partitioned))

    def _in_database(self, table: TableInfo, database_id: int, change: SchemaChange) -> TableInfo:
        return replace(table, schema_name=self._database_name(database_id, change))

    def _database_name(self, database_id: int, change: SchemaChange) -> str:
        if (name := self.database_name(database_id)) is None:
            raise NeedsHuman(f"{change} is about database {database_id}, which is not known.", _RECREATE)
        return name

    def _involved(self, becomes: _DefinitionChange) -> Touched:
        ids = sorted({*becomes.dropped, *(table.id for table in becomes.tables)})
        databases = {becomes.database.name} if becomes.database else set()
        if becomes.dropped_database in self._databases:
            databases.add(self._databases[becomes.dropped_database].name)
        return Touched(
            before=tuple(self._tables[table_id] for table_id in ids if table_id in self._tables),
            after=becomes.tables,
            databases=frozenset(databases),
        )

    def _check(self, ts: int) -> None:
        if ts < self.snapshot_ts:
            raise ValueError(f"the schema at ts {ts} was asked for, but it is known from {self.snapshot_ts} on only")


_RECREATE = "Start a new changefeed behind this DDL, or report the change."


def _is_kept(table: TableInfo) -> bool:
    return not table.is_sequence and not table.is_temporary and not _is_system(table.schema_name)


def _is_system(database: str) -> bool:
    return database.lower() in SYSTEM_SCHEMAS
