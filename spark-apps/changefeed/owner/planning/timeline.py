"""What a DDL means for a changefeed: which dispatchers drain, end, continue or join, and what readers are told. Pure.

The set of dispatchers is a function of ts: one for each physical table that the filter selects at that ts.

1. *A table is created, recovered, or renamed into the filter at T.* Its dispatcher joins with everything <= T already
   done: rows written under a name that was not selected are in no file.
2. *A table is dropped, truncated, or renamed out of the filter at T.* Its dispatcher drains to T and ends. A truncated
   table has a new physical id, and so a new dispatcher, which joins at T.
3. *A partition is exchanged.* The ids swap: each dispatcher continues with the other table's definition.
4. *The definition does not change*, as when an index is added. Rows after T still have version T, as in TiCDC.
5. *An event filter ignores it.* Rows after T are still in the new definition, so readers get that without the
   statement; they are told nothing about what has ended. The filter is asked by the table that the statement names:
   of a rename by the old name, of an exchange by the partitioned table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import RENAMES, Touched
from changefeed.schema.sql.told import told
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Ddl, Notice
from changefeed.upstream.decoders import decoder_of

Selects = Callable[[str, str], bool]  # (schema, table)
Ignores = Callable[[SchemaChange, str, str], bool]  # (change, schema, table); table "": the statement is the schema's


class Timeline:
    """Follows the DDLs of one run, in their order."""

    def __init__(
        self,
        selects: Selects,
        selects_database: Callable[[str], bool],
        ignores: Ignores,
        dispatchers: Iterable[int],
    ) -> None:
        """`dispatchers`: those with which the run begins."""
        self._selects = selects
        self._selects_database = selects_database
        self._ignores = ignores
        self._dispatchers = set(dispatchers)

    def follow(self, change: SchemaChange, ts: int, touched: Touched) -> Ddl | None:
        """The finished `change` as it concerns the changefeed; None if it does not.

        Raises NeedsHuman for a table that it selects and that cannot be replicated.
        """
        after = {table.id: table for table in touched.after}  # of one that stands there twice the last one counts
        selected = [table for table in after.values() if self._is_selected(table)]
        involved = self._dispatchers & {id_ for table in touched.before for id_ in table.physical_ids}
        tables = {id_: table for table in selected if not table.is_view for id_ in table.physical_ids}
        notices = self._notices(change, touched, after)
        if not (involved or tables or notices):
            return None
        for table in selected:
            decoder_of(table).check_supported(table)
        left = involved - tables.keys()
        self._dispatchers = (self._dispatchers - left) | tables.keys()
        name, query = ".".join(touched.name).rstrip("."), told(change, touched)
        return Ddl(
            ts=ts,
            job_id=change.id,
            change=change,
            query=query,
            description=f"{change.type_name} of {name}: {change.query}".rstrip(": "),
            involved=frozenset(involved),
            left=frozenset(left),
            before={id_: table for table in touched.before for id_ in table.physical_ids if id_ in involved},
            tables=tables,
            touched=touched,
            is_told=bool(query) and any(notice.with_statement for notice in notices),
            notices=notices,
        )

    def _is_selected(self, table: TableInfo) -> bool:
        return self._selects(table.schema_name, table.name)

    def _notices(self, change: SchemaChange, touched: Touched, after: dict[int, TableInfo]) -> tuple[Notice, ...]:
        """Return notices of what was or is selected: a reader who has a table is told what becomes of it."""
        had = {table.id for table in touched.before if self._is_selected(table)}
        notices = [
            Notice(name)
            for name in sorted(touched.databases)
            if self._selects_database(name) and not self._ignores(change, name, "")
        ]
        gone = [table for table in touched.before if table.id in had and not after]
        for table in [*after.values(), *(gone if not touched.databases else ())]:
            if table.id not in had and not self._is_selected(table):
                continue
            named = touched.named(change, table)
            is_ignored = self._ignores(change, named.schema_name, named.name)
            with_statement = not is_ignored and self._is_of_statement(change, table, had, touched)
            has_rows = self._has_rows(table, after)
            if not is_ignored or has_rows:
                notices.append(Notice(table.schema_name, table, with_statement, has_rows))
        return tuple(notices)

    def _has_rows(self, table: TableInfo, after: dict[int, TableInfo]) -> bool:
        """Whether any are written in this definition."""
        return table.id in after and not table.is_view and self._is_selected(table)

    def _is_of_statement(self, change: SchemaChange, table: TableInfo, had: set[int], touched: Touched) -> bool:
        """Whether a reader executes the statement for the sake of this table: once a statement, on what it has."""
        if change.type == Action.EXCHANGE_TABLE_PARTITION:
            return not table.partition_ids
        return change.type not in RENAMES or table.id in had
