"""`changefeed flashback`: reverse changes, from the tables at the checkpoint to those at an earlier ts.

Why it may be killed anywhere and run again: a reverse change is not a step back but the row itself. It says that the
row with this key has these values, or does not exist, as of `to_ts`, and is written by REPLACE or DELETE, which give
the same result however often they run and whatever they find. Every row that has changed since `to_ts` is written, so
each run writes all of them, from whatever the previous run left; the checkpoint may have advanced meanwhile, also
because of what that run wrote upstream. Rows that have not changed since need no writing: REPLACE removes another row
only if that row has a unique value that it did not have at `to_ts`, so it has changed and has its own turn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import duckdb

from changefeed.errors import InvalidSpec
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.reading.scratch import scratch_database
from changefeed.restore.database import Database, Statements
from changefeed.restore.rebuild import ends_of
from changefeed.restore.report import Left, RestoreReport
from changefeed.restore.reverse import DELETE, INSERT, UPDATE, Reverse
from changefeed.restore.schema.table import RestoredTable
from changefeed.restore.source import NotRestorable, RestoreSource, moment
from changefeed.schema.ddl.actions import Action

Selects = Callable[[str, str], bool]

#: After these a row of before is still a row of the table.
_HARMLESS = frozenset({
    Action.TRUNCATE_TABLE, Action.DROP_INDEX, Action.RENAME_INDEX, Action.ALTER_INDEX_VISIBILITY,
    Action.SET_DEFAULT_VALUE, Action.MODIFY_TABLE_COMMENT, Action.REBASE_AUTO_ID, Action.SHARD_ROW_ID,
    Action.MODIFY_TABLE_AUTO_ID_CACHE, Action.REBASE_AUTO_RANDOM_BASE, Action.ADD_TABLE_PARTITION,
    Action.ALTER_TTL_INFO, Action.ALTER_TTL_REMOVE,
})  # fmt: skip

_MASKED = "spec.columns writes its columns otherwise than they are upstream: what they were is in no file"


@dataclass(frozen=True)
class Reversed:
    """How many rows are set back, or would be."""

    table: str
    inserted: int
    updated: int
    deleted: int


@dataclass(frozen=True)
class Pair:
    """A table at the checkpoint, and the same one at the ts."""

    now: RestoredTable
    then: RestoredTable

    @property
    def emptied(self) -> bool:
        return self.now.number != self.then.number


def flashback(
    source: RestoreSource, to_ts: int, selects: Selects, database: Database | None, progress: ReadingProgress
) -> tuple[RestoreReport, bool]:
    """What is set back, and whether it was: never without `database`, and not while a selected table can't be.

    Raises InvalidSpec for a ts that the files don't have, or a database that has not the tables; NotRestorable when the
    sink has no such table.
    """
    source.check(to_ts)
    report = RestoreReport(str(to_ts), str(source.checkpoint_ts))
    pairs = pairs_of(source, to_ts, selects, report)
    if not pairs and not report.left:
        raise NotRestorable(f"The sink has no matching table at {to_ts}.", "Give a later --to-ts, or another --table.")
    tables = [table for pair in pairs for table in ([pair.now, pair.then] if pair.emptied else [pair.now])]
    progress.stage("changes from files", source.files(tables))
    with scratch_database() as db, ExitStack() as planned:
        reverses = [(pair, _reverse(source, pair, to_ts, db, progress, number)) for number, pair in enumerate(pairs)]
        for pair, reverse in reverses:
            if reverse.unknown:
                report.left.append(Left(pair.now.name, reverse.unknown))
            else:
                counts = reverse.counts()
                report.tables.append(
                    Reversed(pair.now.name, *(counts.get(kind, 0) for kind in (INSERT, UPDATE, DELETE)))
                )
        if database is None or report.left:
            return report, False
        planned.callback(database.close)
        changed = [(pair.now, reverse) for pair, reverse in reverses if reverse.counts()]
        _check_there(database, [table for table, _ in changed])
        progress.stage("rows set back", sum(sum(reverse.counts().values()) for _, reverse in changed))
        for table, reverse in changed:
            _apply(database, table, reverse, progress)
    return report, True


def pairs_of(source: RestoreSource, to_ts: int, selects: Selects, report: RestoreReport) -> list[Pair]:
    """Those of the selected tables that may be set back; the others, and DDLs that stay, go into the report."""
    then = {table.number: table for table in source.catalog(to_ts).tables}
    found, met = [], set[int]()
    for table in sorted(source.catalog(source.checkpoint_ts).tables, key=lambda table: table.name):
        origin: RestoredTable | None = table
        while origin is not None and origin.number not in then:
            origin = origin.emptied
        if origin is not None:
            met.add(origin.number)
        if not selects(*table.now.name):
            continue
        if origin is None:
            report.left.append(Left(table.name, f"it was created after {moment(to_ts)}, {_ddl(table.ddls[0])}"))
            continue
        if source.masked(table):
            report.left.append(Left(table.name, _MASKED))
            continue
        pair = Pair(table, then[origin.number])
        later = [ddl for ddl in table.ddls if ddl.version > to_ts]
        if why := _refusal(pair, later, to_ts):
            report.left.append(Left(table.name, why))
        else:
            report.notes += [f"{table.name}: {_ddl(ddl)} stays as it is" for ddl in later]
            found.append(pair)
    gone = [table for number, table in then.items() if number not in met and selects(*table.now.name)]
    report.left += [Left(table.name, "it was dropped since: `changefeed restore` can rebuild it") for table in gone]
    return found


def _refusal(pair: Pair, later: list[ConsumerSchemaFile], to_ts: int) -> str:
    changing = [ddl for ddl in later if not _is_harmless(ddl)]
    if changing:
        return f"its definition was changed after {moment(to_ts)}: {'; '.join(map(_ddl, changing))}"
    if pair.emptied:
        return pair.then.never_known or pair.now.never_followed
    return pair.now.never_followed


def _is_harmless(ddl: ConsumerSchemaFile) -> bool:
    if ddl.type == Action.ADD_INDEX:  # rows of before may not be unique
        return "UNIQUE" not in ddl.query.upper()
    return ddl.type in _HARMLESS


def _ddl(ddl: ConsumerSchemaFile) -> str:
    return f"{ddl.query or 'a DDL that is not in the files'!r} at {ddl.version}"


def _reverse(
    source: RestoreSource, pair: Pair, to_ts: int, db: duckdb.DuckDBPyConnection, progress: ReadingProgress, number: int
) -> Reverse:
    with ends_of(source, pair.now, pair.then, to_ts, db, progress) as ends:
        return Reverse(db, f"reverse{number}", ends, pair.then.gaps)


def _check_there(database: Database, tables: list[RestoredTable]) -> None:
    """Before anything is written."""
    if missing := [table.name for table in tables if not database.has(table.now.name)]:
        raise InvalidSpec("--apply", f"{database.where} has no {', '.join(missing)}", "Exclude them with --table.")


def _apply(database: Database, table: RestoredTable, reverse: Reverse, progress: ReadingProgress) -> None:
    name = table.now.name
    statements = Statements(name, table.now, database.written(name, table.now))
    for rows in reverse.going():
        database.transact(list(statements.delete(rows)))
        progress.advance(len(rows))
    for rows in reverse.coming():
        database.transact(list(statements.put(rows)))
        progress.advance(len(rows))
