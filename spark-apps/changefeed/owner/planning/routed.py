"""`RoutedDdls`: a DDL as it concerns the sink's tables, of which it must never make one out of two. Pure.

1. *Its definitions and its statement have the names that tables are written under.* An event filter and the rules were
   asked before, by the upstream's names.
2. *Two tables meet only where their routes merge them.* Another DDL that would give a second table a name that is
   written already is refused, before anything is planned above its ts. What is done to one of merged tables is done
   downstream if the others lose nothing by it (`routing.merging`).
3. *A database is not routed.* What creates or alters it is told as it is. A DROP DATABASE is refused if it would take
   other tables downstream than it has taken upstream.
4. *A rename that leaves the written name as it is* has a statement that alters nothing.
5. *A view of routed tables* is refused: its text has the upstream's names.
6. *A column that is masked stays so*: a DDL after which it would not be, or that no longer says of masked rows what it
   does upstream, is refused (`routing.column_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.routing.changes import check_view, routed_change, routed_touched, told
from changefeed.routing.column_changes import check_ddl
from changefeed.routing.merging import Unmergeable, check_fit, is_told
from changefeed.routing.routes import Name, Routes, by_written_name, folded
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Ddl, Notice


class RoutedDdls:
    """Follows the DDLs of one run, in their order."""

    def __init__(self, routes: Routes, tables: Iterable[TableInfo]) -> None:
        """`tables`: those with which the run begins, routed."""
        self._routes = routes
        self._written = by_written_name(tables)

    def ddl(self, ddl: Ddl) -> Ddl:
        """Raises NeedsHuman for one that can't be done to the tables as they are written."""
        if not self._routes:
            return ddl
        try:
            return self._routed(ddl)
        except InvalidSpec as error:
            raise NeedsHuman(
                f"{ddl.description or 'A DDL'} at ts {ddl.ts} makes a table that can't be written so. {error.message}.",
                error.next_step,
            ) from None

    def _routed(self, ddl: Ddl) -> Ddl:
        tables = {id_: self._routes.routed(table) for id_, table in ddl.tables.items()}
        notices = tuple(map(self._notice, ddl.notices))
        self._check_database(ddl)
        touched = routed_touched(self._routes, ddl.touched)
        if ddl.change is not None:
            check_ddl(ddl.change, touched, is_told=ddl.is_told)
        is_for_all = self._settle(ddl, touched, tables.values())
        if _is_same(touched, ddl.touched) and is_for_all == ddl.is_told:
            return ddl
        change, query = ddl.change, ddl.query
        if change is not None:
            change = routed_change(self._routes, change, ddl.touched)
            if is_for_all:
                query = told(change, touched)
            elif ddl.is_told:
                query = ""
        if not query:
            notices = tuple(replace(notice, with_statement=False) for notice in notices)
        is_shaped = any(table.stored is not None for table in (*touched.before, *touched.after))
        return replace(
            ddl,
            change=change,
            query=query,
            description=ddl.description.partition(": ")[0] if is_shaped else ddl.description,  # it quotes defaults
            before={id_: self._routes.routed(table) for id_, table in ddl.before.items()},
            tables=tables,
            touched=touched,
            is_told=is_for_all,  # a server may know more words than readers do
            notices=notices,
        )

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        ids: list[int] = []
        for name, tables in self._written.items():
            assert tables, "a name without a table"
            for table in tables.values():
                assert name == folded(table.qualified), f"{table.full_name} is known by another name"
            ids += tables
            assert len(tables) == 1 or all(map(self._routes.merges, tables.values())), f"two tables meet in {name}"
        assert len(set(ids)) == len(ids), "a table is written twice"

    def _notice(self, notice: Notice) -> Notice:
        if notice.table is None:
            return notice
        if notice.table.is_view and notice.with_statement:
            check_view(self._routes, notice.table)
        table = self._routes.routed(notice.table)
        return replace(notice, database=table.schema_name, table=table)

    def _settle(self, ddl: Ddl, touched: Touched, tables: Iterable[TableInfo]) -> bool:
        """What was there makes room first: names may be exchanged. Whether the statement is for the written tables."""
        gone = {table.id for table in touched.before}
        others = [table for each in self._written.values() for id_, table in each.items() if id_ not in gone]
        written = by_written_name([*others, *tables])
        for table in tables:
            if other := next((each for each in written[folded(table.qualified)].values() if each.id != table.id), None):
                self._check_merged(ddl, table, other)
        is_for_all = self._is_told(ddl, touched, by_written_name(others))
        self._written = written
        return is_for_all

    def _check_merged(self, ddl: Ddl, table: TableInfo, other: TableInfo) -> None:
        if not (self._routes.merges(table) and self._routes.merges(other)):
            raise NeedsHuman(
                f"{ddl.description or 'A DDL'} at ts {ddl.ts}: {'.'.join(table.upstream_name)} would be written to "
                f"{table.full_name}, to which {'.'.join(other.upstream_name)} is.",
                "Give it a route of its own (spec.routes), or exclude it (spec.filter.rules), then start again.",
            )

    def _is_told(self, ddl: Ddl, touched: Touched, others: Mapping[Name, Mapping[int, TableInfo]]) -> bool:
        """`others`: what else is written where. Raises NeedsHuman for what would harm rows of merged tables."""
        names = {folded(table.qualified) for table in (*touched.before, *touched.after)} & others.keys()
        if not names or not ddl.is_told:
            return ddl.is_told
        try:
            return self._is_for_all(ddl, touched, others)
        except Unmergeable as why:
            table = next(table for table in (*touched.after, *touched.before) if folded(table.qualified) in names)
            raise NeedsHuman(
                f"{ddl.description} at ts {ddl.ts}: {'.'.join(table.upstream_name)} is merged with others into "
                f"{table.full_name}, and {why}.",
                "Keep the DDL from the sink by an event filter (spec.filter.eventFilters, ignoreEvent), and do by hand "
                "downstream what it means; or exclude the table (spec.filter.rules).",
            ) from None

    def _is_for_all(self, ddl: Ddl, touched: Touched, others: Mapping[Name, Mapping[int, TableInfo]]) -> bool:
        assert ddl.change is not None, "it is told"
        if not touched.before and ddl.change.type in (Action.CREATE_TABLE, Action.CREATE_TABLES):
            for table in touched.after:
                check_fit(table, others.get(folded(table.qualified), {}).values())
            is_there = [folded(table.qualified) in others for table in touched.after]
            if not all(is_there):
                raise Unmergeable("others that are made with it are not")
            return False
        if len(touched.before) == len(touched.after) == 1 and touched.before[0].id == touched.after[0].id:
            (before,), (after,) = touched.before, touched.after
            if before.qualified != after.qualified:
                raise Unmergeable("a rename takes rows away, or brings them")
            return is_told(before, after, list(others[folded(after.qualified)].values()))
        raise Unmergeable("this is for all of its rows")

    def _check_database(self, ddl: Ddl) -> None:
        is_told = any(notice.table is None and notice.with_statement for notice in ddl.notices)
        if ddl.change is None or ddl.change.type != Action.DROP_SCHEMA or not is_told:
            return
        (database,) = ddl.touched.databases
        for table in (table for tables in self._written.values() for table in tables.values()):
            if (table.upstream_name[0] == database) != (table.schema_name == database):
                raise NeedsHuman(
                    f"spec.routes: DROP DATABASE {database} at ts {ddl.ts} can't be told: "
                    f"{'.'.join(table.upstream_name)} is written as {table.full_name}.",
                    'Keep it from readers by an event filter (ignoreEvent: ["drop database"]), and drop by hand '
                    "downstream what is to go.",
                )


def _is_same(routed: Touched, touched: Touched) -> bool:
    """Whether no route is for a table of it, nor for one that a foreign key names."""
    pairs = zip((*routed.before, *routed.after), (*touched.before, *touched.after), strict=True)
    return all(one is other for one, other in pairs)
