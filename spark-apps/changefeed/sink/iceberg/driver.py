"""The driver's side of the tables: commits snapshots of what was written, and applies DDLs.

A table is in the catalog for as long as the filter selects it. DDLs may be repeated: `version` is the ts of the last
one applied to a table, and `table-id` identifies whose rows it has, whatever its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import zip_longest

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from changefeed.errors import NeedsHuman
from changefeed.log.records import CommitRecord, FileCommitted, PlanEntry
from changefeed.schema.ddl.actions import Action
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.contract import Ddl, EntryId, SinkDriver
from changefeed.sink.iceberg.endpoint import IcebergEndpoint, TableName
from changefeed.sink.iceberg.layout import deletes_file, folder_of
from changefeed.sink.iceberg.marks import EPOCH, LOG, NONE, TABLE, VERSION, done, done_properties, id_of, version_of
from changefeed.sink.iceberg.shape import (
    check_evolution,
    field_id,
    identifier_columns,
    lost_values,
    table_schema,
    with_foreign,
)
from changefeed.sink.iceberg.snapshot import Added, add_snapshots, data_file, empty_snapshot, same_snapshot
from changefeed.sink.iceberg.tables import RESTORE, Change, InitialTable, LakeTables, schema_change
from changefeed.sink.table_format.table_ddls import check_rows_are_told, origins

RECORD, CHECKPOINT, TRUNCATED = "changefeed.record", "changefeed.checkpoint-ts", "changefeed.truncated-ts"

AT_ONCE = 16  # tables

Written = tuple[PlanEntry, FileCommitted]


class IcebergDriver(SinkDriver):
    """Commits snapshots, which have the checkpoint: a table without changes has none.

    Raises Fenced, NeedsHuman, Unavailable.
    """

    def __init__(
        self, endpoint: IcebergEndpoint, tables: LakeTables, upsert: bool, there: Mapping[int, tuple[TableInfo, int]]
    ) -> None:
        """`there`: definition and version of the table that each dispatcher is of."""
        self._endpoint, self._tables, self._upsert = endpoint, tables, upsert
        self._there = dict(there)
        self._pool = ThreadPoolExecutor(AT_ONCE, "table")

    def create(self) -> None:
        """All tables stand in the catalog. Only where no driver has followed a DDL yet: it may have renamed them."""
        once = {table.id: (table, version) for table, version in self._there.values()}
        self._all(
            partial(self._tables.create, self._endpoint.name(table), self._define(table, version))
            for table, version in once.values()
        )

    def redefine(self, tables: Mapping[int, tuple[TableInfo, int]]) -> None:
        """They follow what has become of them while no rule selected them; with their versions, by dispatcher."""
        for table, version in {table.id: (table, version) for table, version in tables.values()}.values():
            change = Ddl(version, 0, description=f"The change of {table.full_name} while no rule selected it")
            self._follow(change, table, table, is_told=True)

    def publish(self, entries: Sequence[PlanEntry], record: CommitRecord) -> None:
        """A commit of each table that has rows among them."""
        by_table: dict[int, list[Written]] = defaultdict(list)
        for entry, file in zip(entries, record.files, strict=True):
            if file.rows:
                by_table[self._there[entry.dispatcher][0].id].append((entry, file))
        self._tables.ask()
        self._all([partial(self._publish, written, record) for written in by_table.values()])

    def execute(self, ddl: Ddl) -> None:
        before = {table.id: table for table in ddl.before.values()}
        after = {table.id: table for table in ddl.tables.values()}
        check_rows_are_told(ddl, upsert=self._upsert)
        known = origins(ddl)
        stays = {table.id for table in known.values() if table is not None}
        for id_, table in before.items():
            if id_ not in stays and ddl.is_told and self._is_there(table):
                self._tables.drop(self._endpoint.name(table))
        self._rename([(was, after[id_]) for id_, was in known.items() if was is not None])
        for id_, was in known.items():
            if was is None:
                self._tables.create(self._endpoint.name(after[id_]), self._define(after[id_], ddl.ts))
            self._follow(ddl, was or after[id_], after[id_], is_told=ddl.is_told)
        for dispatcher in ddl.left:
            self._there.pop(dispatcher, None)
        self._there |= {dispatcher: (table, ddl.ts) for dispatcher, table in ddl.tables.items()}

    def close(self) -> None:
        self._pool.shutdown()
        self._tables.close()

    def _all(self, calls: Iterable[Callable[[], object]]) -> None:
        """Each table is a wait for its catalog, and the checkpoint waits for all of them: also when one fails."""
        begun = [self._pool.submit(call) for call in calls]
        wait(begun)
        for each in begun:
            each.result()

    def _define(self, table: TableInfo, version: int, was: int = 0) -> InitialTable:
        schema = table_schema(table, upsert=self._upsert)
        return InitialTable(schema, self._endpoint.location(folder_of(table)), table.id, version, was)

    def _publish(self, written: Sequence[Written], record: CommitRecord) -> None:
        table, version = self._there[written[0][0].dispatcher]
        definition = self._define(table, version)
        told = {
            LOG: self._tables.log,
            EPOCH: str(record.epoch),
            RECORD: str(record.n),
            CHECKPOINT: str(record.checkpoint_ts),
        }

        def change(found: Table) -> Change | None:
            marks = done(found)
            new = [each for each in written if _id(each) > marks.get(each[0].dispatcher, NONE)]
            if not new:
                return None
            _check_fits(found, definition)
            added = self._added(found, table, new)
            last = {each[0].dispatcher: _id(each) for each in new}
            reached = {CHECKPOINT: str(record.checkpoint_ts)}  # which compaction and expiry leave
            return Change(add_snapshots(found, added, told), reached | done_properties(last))

        self._tables.change(self._endpoint.name(table), definition, change)

    def _added(self, found: Table, table: TableInfo, written: Sequence[Written]) -> list[Added]:
        """Deletes reach only what is in earlier snapshots, so upserted entries of a dispatcher come one by one."""
        if not self._upsert:
            return [Added(tuple(self._file(found, entry.output["path"]) for entry, _ in written))]
        keys = [field_id(column) for column in identifier_columns(table)]
        by_dispatcher: dict[int, list[PlanEntry]] = defaultdict(list)
        for entry, _ in written:
            by_dispatcher[entry.dispatcher].append(entry)
        rounds = zip_longest(*by_dispatcher.values())
        return [self._upserted(found, [entry for entry in each if entry], keys) for each in rounds]

    def _upserted(self, found: Table, entries: Sequence[PlanEntry], keys: Sequence[int]) -> Added:
        rows = [self._read(found, entry.output["path"]) for entry in entries]
        deletes = [self._read(found, deletes_file(entry.output["path"]), keys) for entry in entries]
        return Added(tuple(file for file in rows if file), tuple(file for file in deletes if file))

    def _file(self, found: Table, path: str) -> DataFile:
        file = self._read(found, path)
        if file is None:
            raise NeedsHuman(f"{path} has no rows, and its record has some.", "Report this as a bug, with the log.")
        return file

    def _read(self, found: Table, path: str, keys: Sequence[int] = ()) -> DataFile | None:
        return data_file(found, self._endpoint.location(path), keys)

    def _is_there(self, table: TableInfo) -> bool:
        found = self._tables.find(self._endpoint.name(table))
        return found is not None and id_of(found) == table.id

    def _rename(self, moves: Sequence[tuple[TableInfo, TableInfo]]) -> None:
        """Where one takes another's name, by names that nobody has. Each may have been renamed before."""
        moves = [(was, table) for was, table in moves if was.qualified != table.qualified]
        taken = {was.qualified for was, _ in moves}
        aside = {table.id: self._aside(table) for was, table in moves if table.qualified in taken}
        for was, table in moves:
            if table.id in aside and self._has(self._endpoint.name(was), table.id):
                self._tables.rename(self._endpoint.name(was), aside[table.id])
        for was, table in moves:
            at = aside.get(table.id, self._endpoint.name(was))
            if self._has(at, table.id):
                self._tables.rename(at, self._endpoint.name(table))

    def _aside(self, table: TableInfo) -> TableName:
        namespace, name = self._endpoint.name(table)
        return namespace, f"{name}__changefeed_{table.id}"

    def _has(self, name: TableName, table_id: int) -> bool:
        found = self._tables.find(name)
        return found is not None and id_of(found) == table_id

    def _follow(self, ddl: Ddl, was: TableInfo, table: TableInfo, *, is_told: bool) -> None:
        """The definition, and a truncation, once."""
        definition = self._define(table, ddl.ts, was.id)
        wanted = definition.schema
        is_truncated = ddl.change is not None and ddl.change.type == Action.TRUNCATE_TABLE and is_told
        told = {LOG: self._tables.log, "changefeed.ddl-ts": str(ddl.ts), "changefeed.ddl": ddl.query[:1000]}

        def change(found: Table) -> Change | None:
            if version_of(found) >= ddl.ts:
                return None
            schema = with_foreign(found, table_schema(was, upsert=self._upsert), wanted)
            check_evolution(table, found.schema(), wanted)
            if self._upsert and is_told and (lost := _lost(found, table, wanted)):
                raise NeedsHuman(
                    f"{ddl.description} gives values of {', '.join(lost)} to rows that are there, which mode upsert "
                    "can't.",
                    "Ignore it with an event filter, and those rows keep NULL; or create a new changefeed.",
                )
            properties = {VERSION: str(ddl.ts), TABLE: str(table.id)}
            if is_truncated:
                properties[TRUNCATED] = str(ddl.ts)
            snapshot = empty_snapshot(found, told) if is_truncated and self._upsert else same_snapshot(found, told)
            return Change(schema_change(found, schema) + snapshot, properties, ddl.left)

        self._tables.change(self._endpoint.name(table), definition, change)


def _check_fits(found: Table, definition: InitialTable) -> None:
    """Raises NeedsHuman when rows of the definition would be out of place in the table."""
    name = ".".join(found.name())
    if id_of(found) != definition.table_id:
        raise NeedsHuman(
            f"Table {name} is that of the upstream's table {id_of(found)}, not of {definition.table_id}: a DDL that it "
            "had followed is lost.",
            RESTORE,
        )
    there = {field.field_id for field in found.schema().fields}
    lacking = [f"{field.name} ({field.field_id})" for field in definition.schema.fields if field.field_id not in there]
    if lacking:
        raise NeedsHuman(
            f"Table {name} lacks columns that its rows have: {', '.join(lacking)} (with their field ids).",
            "Somebody has dropped them, or registered older metadata. Drop the table without purging it, and register "
            "the last of its metadata files that has them under its name.",
        )


def _lost(found: Table, table: TableInfo, wanted: Schema) -> list[str]:
    """Columns with values in rows of before, which no file says: converted ones, and new ones with a default."""
    there = {field.field_id for field in found.schema().fields}
    new = {column.name for column in table.output_columns if field_id(column) not in there}
    defaults = [column.name for column in table.output_columns if column.name in new and _has_default(column)]
    return [*(field.name for field in lost_values(found.schema(), wanted)), *defaults]


def _has_default(column: ColumnInfo) -> bool:
    return not column.nullable or column.origin_default is not None or column.origin_default_bit is not None


def _id(written: Written) -> EntryId:
    _, file = written
    return EntryId(file.plan, file.entry)
