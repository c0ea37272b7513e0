"""The driver's side of the tables: commits what was written, and applies DDLs.

A table is in the folder of its names for as long as the filter selects it. DDLs may be repeated: a mark has the ts of
the last one applied to a table, and another one identifies whose rows it has, whatever its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

from deltalake import CommitProperties, DeltaTable

from changefeed.errors import NeedsHuman, Transient
from changefeed.log.records import CommitRecord, FileCommitted, PlanEntry
from changefeed.objectstore.open import Store
from changefeed.schema.ddl.actions import Action
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Ddl, EntryId, SinkDriver
from changefeed.sink.delta.layout import folder_of
from changefeed.sink.delta.marks import LEFT, RECORD, TABLE, TRUNCATED, VERSION, Marks, done_name, number_of
from changefeed.sink.delta.rows import added, arrow_schema, emptied, evolved, merged, nothing
from changefeed.sink.delta.shape import evolution, given_values, identifier_columns, table_schema
from changefeed.sink.delta.tables import RESTORE, DeltaTables, FirstVersion, TableCommit
from changefeed.sink.table_format.relied import Relied
from changefeed.sink.table_format.table_ddls import check_rows_are_told, origins

AT_ONCE = 16  # tables
_MERGED_AT_ONCE = 2  # the library uses all cores, and memory, for one

Written = tuple[PlanEntry, FileCommitted]


class DeltaDriver(SinkDriver):
    """Commits versions: a table without changes has none. Raises Fenced, NeedsHuman, Unavailable."""

    def __init__(
        self, tables: DeltaTables, store: Store, upsert: bool, there: Mapping[int, tuple[TableInfo, int]]
    ) -> None:
        """`store`: of what was written. `there`: definition and version of the table that each dispatcher is of."""
        self._tables, self._store, self._upsert = tables, store, upsert
        self._there = dict(there)
        self._pool = ThreadPoolExecutor(_MERGED_AT_ONCE if upsert else AT_ONCE, "table")

    def create(self) -> None:
        """All tables are there. Only where no driver has followed a DDL yet: it may have renamed them."""
        once = {table.id: (table, version) for table, version in self._there.values()}
        self._all(
            partial(self._tables.create, folder_of(table), self._define(table, version))
            for table, version in once.values()
        )

    def redefine(self, tables: Mapping[int, tuple[TableInfo, int]]) -> None:
        """They follow what has become of them while no rule selected them; with their versions, by dispatcher."""
        for table, version in {table.id: (table, version) for table, version in tables.values()}.values():
            change = Ddl(version, 0, description=f"The change of {table.full_name} while no rule selected it")
            self._follow(change, table, table, is_told=True)

    def publish(self, entries: Sequence[PlanEntry], record: CommitRecord) -> None:
        """A commit of each table that has rows among them; of one that is merged, one for each round of its entries."""
        by_table: dict[int, list[Written]] = defaultdict(list)
        for entry, file in zip(entries, record.files, strict=True):
            if file.rows:
                by_table[self._there[entry.dispatcher][0].id].append((entry, file))
        self._tables.ask()
        self._all([partial(self._publish, written, record) for written in by_table.values()])

    def execute(self, ddl: Ddl) -> None:
        before = {table.id: table for table in ddl.before.values()}
        after = {table.id: table for table in ddl.tables.values()}
        known = origins(ddl)
        moves = {id_: was for id_, was in known.items() if was and was.qualified != after[id_].qualified}
        self._check(ddl, [after[id_] for id_ in moves], [*moves.values()])
        stays = {table.id for table in known.values() if table is not None}
        for id_, table in before.items():
            if id_ not in stays and ddl.is_told:
                self._leave(ddl, table)
                self._tables.forget(id_)
        for id_, was in moves.items():
            self._move(ddl, was, after[id_])
        for id_, table in after.items():
            origin = known[id_]
            if origin is None:
                self._tables.create(folder_of(table), self._define(table, ddl.ts))
            self._follow(ddl, origin or table, table, is_told=ddl.is_told)
        for dispatcher in ddl.left:
            self._there.pop(dispatcher, None)
        self._there |= {dispatcher: (table, ddl.ts) for dispatcher, table in ddl.tables.items()}

    def close(self) -> None:
        self._pool.shutdown()

    def _all(self, calls: Iterable[Callable[[], object]]) -> None:
        """Each table is a wait for its store, and the checkpoint waits for all of them: also when one fails."""
        begun = [self._pool.submit(call) for call in calls]
        wait(begun)
        for each in begun:
            each.result()

    def _define(self, table: TableInfo, version: int, was: int = 0) -> FirstVersion:
        return FirstVersion(table_schema(table, upsert=self._upsert), table.id, version, was)

    def _publish(self, written: Sequence[Written], record: CommitRecord) -> None:
        table, version = self._there[written[0][0].dispatcher]
        folder, definition = folder_of(table), self._define(table, version)
        for entries in self._rounds(written):
            self._tables.change(folder, definition, partial(self._added, table, definition, entries, record))
        last = {entry.dispatcher: Relied(version, _id(file)) for entry, file in written}
        self._tables.rely(table.id, last)
        if self._upsert:  # the table has the rows, and nobody will ask for the files again
            for entry, _ in written:
                self._tables.call(partial(self._store.delete, entry.output["path"]))

    def _rounds(self, written: Sequence[Written]) -> list[list[Written]]:
        """What one commit takes: all entries of a changelog; of what is merged, one of each dispatcher."""
        if not self._upsert:
            return [list(written)]
        turns: dict[int, int] = defaultdict(int)
        rounds: list[list[Written]] = []
        for each in written:
            turn = turns[each[0].dispatcher]
            turns[each[0].dispatcher] += 1
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append(each)
        return rounds

    def _added(
        self,
        table: TableInfo,
        definition: FirstVersion,
        written: Sequence[Written],
        record: CommitRecord,
        found: DeltaTable,
        marks: Marks,
    ) -> TableCommit | None:
        new = [each for each in written if number_of(_id(each[1])) > marks.done(each[0].dispatcher)]
        if not new:
            return None
        folder = folder_of(table)
        _check_fits(folder, found, marks, definition)
        last = {done_name(entry.dispatcher): number_of(_id(file)) for entry, file in new}
        said = {"changefeed.record": str(record.n), "changefeed.checkpoint-ts": str(record.checkpoint_ts)}
        paths = [entry.output["path"].removeprefix(f"{folder}/") for entry, _ in new]

        def commit(found: DeltaTable, properties: CommitProperties) -> None:
            files = self._tables.endpoint.files(folder)
            if self._upsert:
                merged(found, files, paths, [column.name for column in identifier_columns(table)], properties)
            else:
                added(found, files, paths, properties)

        return TableCommit(self._reading(folder, commit), {RECORD: record.n, **last}, said)

    def _reading(
        self, folder: str, commit: Callable[[DeltaTable, CommitProperties], None]
    ) -> Callable[[DeltaTable, CommitProperties], None]:
        """Tell of a file that is gone. A driver before this one, or after it, may have merged it meanwhile, too."""

        def reading(found: DeltaTable, properties: CommitProperties) -> None:
            try:
                commit(found, properties)
            except FileNotFoundError as error:
                self._tables.ask()
                before = found.version()
                found.update_incremental()
                if found.version() != before:
                    raise Transient(f"Table {folder} was changed by someone else.") from None
                raise NeedsHuman(
                    f"Table {folder}: a file that was written and not yet committed is gone: {error}.",
                    "VACUUM must keep files for longer than the changefeed ever stands still (docs/delta.md): create a "
                    "new changefeed.",
                ) from None

        return reading

    def _check(self, ddl: Ddl, moved: Sequence[TableInfo], were: Sequence[TableInfo]) -> None:
        """Before any effect."""
        check_rows_are_told(ddl, upsert=self._upsert)
        taken = {table.qualified for table in were}
        if any(table.qualified in taken for table in moved):
            raise NeedsHuman(
                f"{ddl.description} gives a table the name that another one has until then: folders can't be renamed.",
                "Rename one of them to a third name, in a statement of its own, or create a new changefeed.",
            )

    def _leave(self, ddl: Ddl, table: TableInfo) -> None:
        """The table stays as it is, and says so: another one of that name may begin there."""
        folder, definition = folder_of(table), self._define(table, ddl.ts)
        there = self._tables.find(folder)
        if there is None or self._tables.marks(there).of(TABLE) != table.id:
            return

        def change(found: DeltaTable, marks: Marks) -> TableCommit | None:
            if marks.of(VERSION) >= ddl.ts:
                return None
            return TableCommit(nothing, {VERSION: ddl.ts, LEFT: ddl.ts}, _said(ddl))

        self._tables.change(folder, definition, change)

    def _move(self, ddl: Ddl, was: TableInfo, table: TableInfo) -> None:
        """All rows are written again, in the folder of the new name."""
        source = self._tables.find(folder_of(was))
        if source is None or self._tables.marks(source).of(TABLE) != was.id or self._tables.marks(source).is_left:
            return  # it was moved before
        dispatchers = [each for each, (known, _) in self._there.items() if known.id == was.id]
        self._tables.copy(folder_of(was), folder_of(table), dispatchers, _said(ddl))
        self._leave(ddl, was)

    def _follow(self, ddl: Ddl, was: TableInfo, table: TableInfo, *, is_told: bool) -> None:
        """The definition, and a truncation, once."""
        definition = self._define(table, ddl.ts, was.id)
        is_truncated = ddl.change is not None and ddl.change.type == Action.TRUNCATE_TABLE and is_told

        def change(found: DeltaTable, marks: Marks) -> TableCommit | None:
            if marks.of(VERSION) >= ddl.ts:
                return None
            schema = arrow_schema(found)
            to = evolution(was, table, schema, upsert=self._upsert)
            if self._upsert and is_told and not is_truncated and (given := given_values(was, table)):
                raise NeedsHuman(
                    f"{ddl.description} gives values of {', '.join(given)} to rows that are there, which mode upsert "
                    "can't.",
                    "Ignore it with an event filter, and those rows keep NULL; or create a new changefeed.",
                )
            new = {VERSION: ddl.ts, TABLE: table.id} | ({TRUNCATED: ddl.ts} if is_truncated else {})
            if is_truncated and self._upsert:
                return TableCommit(
                    lambda found, told: emptied(found, to.wanted if to else schema, told), new, _said(ddl)
                )
            return TableCommit(lambda found, told: evolved(found, to, told), new, _said(ddl))

        self._tables.change(folder_of(table), definition, change)
        self._tables.followed(was.id, table.id, ddl.ts, ddl.left)


def _check_fits(folder: str, found: DeltaTable, marks: Marks, definition: FirstVersion) -> None:
    """Raises NeedsHuman when rows of the definition would be out of place in the table."""
    if marks.of(TABLE) != definition.table_id:
        raise NeedsHuman(
            f"Table {folder} is that of the upstream's table {marks.of(TABLE)}, not of {definition.table_id}: a DDL "
            "that it had followed is lost.",
            RESTORE,
        )
    schema = arrow_schema(found)
    others = [
        field.name
        for field in definition.schema
        if field.name not in schema.names or schema.field(field.name).type != field.type
    ]
    if others:
        raise NeedsHuman(
            f"Table {folder} lacks columns that its rows have, or has them with other types: {', '.join(others)}.",
            f"Somebody has dropped or changed them. {RESTORE}",
        )


def _id(file: FileCommitted) -> EntryId:
    return EntryId(file.plan, file.entry)


def _said(ddl: Ddl) -> dict[str, str]:
    return {"changefeed.ddl-ts": str(ddl.ts), "changefeed.ddl": ddl.query[:1000]}
