"""`changefeed restore`: restores tables as of a ts to files or to a database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import duckdb

from changefeed.reading.progress import ReadingProgress
from changefeed.reading.scratch import scratch_database
from changefeed.restore.folder import parquet_of
from changefeed.restore.rebuild import rebuilt
from changefeed.restore.report import Left, Restored, RestoreReport
from changefeed.restore.rows import RowChanges
from changefeed.restore.schema.table import RestoredTable
from changefeed.restore.source import NotRestorable, RestoreSource

Selects = Callable[[str, str], bool]


class RestoreTarget(Protocol):
    """Where tables come to be. Nothing is seen there before `publish`, and a run that was killed is in nobody's way."""

    def write(self, table: RestoredTable, db: duckdb.DuckDBPyConnection, changes: RowChanges) -> Restored: ...

    def publish(self) -> None: ...

    def discard(self) -> None:
        """Instead, where nothing was written."""
        ...


def restore(
    source: RestoreSource,
    to_ts: int,
    selects: Selects,
    open_target: Callable[[list[RestoredTable]], RestoreTarget],
    progress: ReadingProgress,
    base: Path | None = None,
) -> RestoreReport:
    """`selects`: which tables, by the names that they had at `to_ts`. `open_target`: for the tables that are wanted.
    `base`: a folder like restore's own, with tables that were there before the changefeed, as of its start.

    Raises InvalidSpec for a ts that the files don't have, NotRestorable when no table is to be had.
    """
    source.check(to_ts)
    report = RestoreReport(str(to_ts), str(source.checkpoint_ts))
    wanted = sorted((t for t in source.catalog(to_ts).tables if selects(*t.now.name)), key=lambda table: table.name)
    bases = {table.number: _base_of(table, base) for table in wanted}
    reasons = {table.number: table.never_followed if bases[table.number] else table.never_known for table in wanted}
    report.left = [Left(table.name, reasons[table.number]) for table in wanted if reasons[table.number]]
    tables = [table for table in wanted if not reasons[table.number]]
    if not wanted:
        raise NotRestorable(f"The sink has no matching table at {to_ts}.", "Give a later --to-ts, or another --table.")
    if not tables:
        return report
    target = open_target(tables)
    progress.stage("tables from files", source.files(tables))
    with scratch_database() as db:
        for table in tables:
            with rebuilt(source, table, to_ts, db, progress, bases[table.number]) as (changes, why):
                if why:
                    report.left.append(Left(table.name, why))
                else:
                    report.tables.append(target.write(table, db, changes))
    if report.tables:
        target.publish()
    else:
        target.discard()
    return report


def _base_of(table: RestoredTable, base: Path | None) -> Path | None:
    """The file with its rows of before the changefeed; None: it needs none, or there is none."""
    path = base and parquet_of(base, table.segments[0].name)
    return path if path and table.never_known and path.exists() else None
