"""When a DDL job takes effect: once TiDB's sessions use what it leads to, which may be before it is done.

A job changes meta keys and its row in `mysql.tidb_ddl_job` state by state, each time in one transaction, and two
sessions are never more than one state apart (docs/design/tidb.md, DDL jobs). T is the commit ts of the row in state
Done, P that of the first state in which the public columns, the name or the database of one of the job's tables are
other than before.

1. *Most jobs* show what they lead to by the transaction that ends them: P is T.
2. *MODIFY COLUMN that rewrites a column*, in TiDB since its pull request 62549. At P the new column stands under the
   old name. Rows above P have it, also those of sessions one state behind, which write both; rows up to P have the old
   one. From a state before T on the old one is no longer written, and would read as its default.
3. *DROP COLUMN.* At P the column is public no longer; from a state before T on rows lack it.
4. *Several changes in one ALTER TABLE.* TiDB shows all that they lead to at P, then lets go of what is dropped. Rows
   between P and T have the columns that were added. P is also that of an ALTER that leaves the columns as they were,
   so that 8 comes to the same: its row says at both ts that its parts are shown.
5. *RENAME TABLE, of one or of several.* The name is the new one at P, one transaction before T. A table that one
   statement gives several names, as where two change theirs, is found in the database of the last.
6. *The job is done at T after it took effect at P.* Nothing happens. If the table has other columns then, the run
   stops: what was written since P would be wrong.
7. *The job is rolled back.* TiDB does that before P only, so nothing has happened. After P the run stops.
8. *A run begins between P and T*, by a restart or by startTs. The definitions that it reads are those since P; the
   job's row at that ts says so, and nothing happens at T.
9. *A run begins in the middle of DROP TABLE or DROP DATABASE.* The definition is public no longer, but sessions one
   state behind still write, and the statement is told at T: until then the table is there.
10. *A row comes again*, because the span is pulled again: a job that took effect is known by its id.
11. *A transaction begins before P and commits after it.* What counts is its commit ts, as everywhere: its session is at
    most one state behind, see 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import FLAG_UNSIGNED, TableInfo
from changefeed.upstream.tikv.tidb.job import Job
from changefeed.upstream.tikv.tidb.snapshot import SnapshotReader, read_table

#: Those that may show what they lead to before they are done.
EARLY = frozenset({
    Action.MODIFY_COLUMN, Action.DROP_COLUMN, Action.MULTI_SCHEMA_CHANGE, Action.RENAME_TABLE, Action.RENAME_TABLES,
})  # fmt: skip


class Effects:
    """Finds the effects of jobs on `schema`, which must be given each that takes effect before the next row is read."""

    def __init__(self, schema: SchemaHistory, at: Callable[[int], SnapshotReader]) -> None:
        """`at`: reads meta keys as they were at a ts."""
        self._schema = schema
        self._at = at

    async def of(self, job: Job, ts: int) -> Job | None:
        """A state of a job's row, in the order of their commit ts: the job with its definitions if it takes effect now.

        Raises NeedsHuman when a job that took effect leads elsewhere, and what the reader raises.
        """
        is_known = self._schema.has(job.id)
        if job.is_done:
            if is_known:
                self._check(job)
            return None if is_known else job
        if job.is_undone and is_known:
            raise NeedsHuman(
                f"{job} is rolled back at {ts}, after sessions have used what it leads to.",
                "TiDB never does that: report it with the TiDB version, and start a new changefeed behind this DDL.",
            )
        return None if is_known or job.type not in EARLY else await self._shown(job, ts)

    async def _shown(self, job: Job, ts: int) -> Job | None:
        """The job as if it were done, if sessions use what it leads to since `ts`."""
        reader, keys = self._at(ts), _keys(job)
        found = [await read_table(reader, *key) for key in keys]
        tables = [table for table in found if table is not None]
        is_shown = job.is_shown or any(map(self._is_new, tables, (database for database, _ in keys)))
        if not is_shown or len(tables) < len(keys):
            return None
        if job.type == Action.RENAME_TABLES:
            return replace(job.as_done, table_infos=tuple(tables))
        return replace(job.as_done, table_info=tables[0])

    def _is_new(self, table: TableInfo, database_id: int) -> bool:
        """One that is not known is in a database that no filter selects, or comes out of one."""
        known, name = self._schema.newest(table.id), self._schema.database_name(database_id)
        return known is None or (known.schema_name, *_shape(known)) != (name, *_shape(table))

    def _check(self, job: Job) -> None:
        """That a job which took effect before it was done has the columns that it had then."""
        for table in (job.table_info, *job.table_infos):
            known = None if table is None else self._schema.newest(table.id)
            if job.type in EARLY and table is not None and known is not None and _columns(known) != _columns(table):
                raise NeedsHuman(
                    f"{job} gives {known.full_name} other columns when it is done than sessions have used before.",
                    "Rows between may be wrong: report it with the TiDB version, and start a new changefeed behind it.",
                )


def _keys(job: Job) -> list[tuple[int, int]]:
    """(database, table) under which the definitions are found then: of a table with several new names, the last's."""
    if job.type == Action.RENAME_TABLES:
        databases = {rename.table_id: rename.schema_id for rename in job.renames}
        return [(databases[rename.table_id], rename.table_id) for rename in job.renames]
    return [(job.schema_id, job.table_id)]


def _shape(table: TableInfo) -> tuple[Any, ...]:
    return table.name, _columns(table)


def _columns(table: TableInfo) -> list[tuple[Any, ...]]:
    """What no state on the way changes; they do change places, and flags of columns that are to be NOT NULL."""
    return [
        (c.id, c.name, c.type, c.flag & FLAG_UNSIGNED, c.flen, c.decimal, c.charset, c.collate, c.elems)
        for c in table.columns
    ]
