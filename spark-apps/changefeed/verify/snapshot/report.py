"""`changefeed verify` of files whose upstream is PostgreSQL, which has its tables only as they are now.

They are read as of one moment, between two anchors T1 and T2. The files are replayed up to T2, once that is published:
rows that have no change in (T1, T2] there must be the same on both sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from changefeed.objectstore import ObjectStore
from changefeed.reading.failures import Break
from changefeed.reading.known import KnownFormats
from changefeed.reading.layout import files
from changefeed.reading.layout.walk import misplaced
from changefeed.reading.progress import ReadingProgress
from changefeed.reading.rows.lines import LineShape, show_values
from changefeed.reading.schema.statement import key_of
from changefeed.reading.scratch import KINDS, scratch_database
from changefeed.restore.rebuild import in_large
from changefeed.restore.rows import RowChanges
from changefeed.restore.schema.table import RestoredTable
from changefeed.restore.source import RestoreSource
from changefeed.spec.model import Changefeed
from changefeed.upstream import choice
from changefeed.verify.recorded import by_id, check_copied, routes_of
from changefeed.verify.result import SnapshotVerdict
from changefeed.verify.snapshot.changes import ChangesOfTable, KeyColumn, OddChanges
from changefeed.verify.snapshot.reached import reached
from changefeed.verify.snapshot.rows import ComparedColumn, FoundRows, compare, compared_columns
from changefeed.verify.snapshot.standing import AS_THEY_STAND, InFiles, StandingTables, standing_of
from changefeed.verify.storage.finality import Finality
from changefeed.verify.storage.report import (
    StoredSink,
    check_finality,
    check_published,
    is_checkpoint_right,
    open_folder,
    read_state,
    sink_of,
)

_FLUSHES = 3
_LEFT_OUT = (
    "An update that is in no file, though a later one of its row is, and a transaction that is there in part can't be "
    "seen."
)


@dataclass(frozen=True)
class _Compared:
    """What is compared with what, up to `standing.before_ts`."""

    db: duckdb.DuckDBPyConnection
    standing: StandingTables
    source: RestoreSource
    copied: frozenset[int]  # first versions of tables whose files begin with a copy
    progress: ReadingProgress
    result: SnapshotVerdict


async def verify(changefeed: Changefeed, secrets_dir: Path | None, progress: ReadingProgress) -> SnapshotVerdict:
    """As verify.choice.verify_sink. Raises NotVerifiable, also when the changefeed does not get as far."""
    sink, storage = sink_of(changefeed, secrets_dir), changefeed.spec.sink.storage
    assert storage is not None, "the kind of sink is asked for in verify.choice"
    progress.stage("the changefeed's log")
    store = open_folder(sink)
    files.checkpoint(store)
    state, formats = read_state(sink, store)
    with scratch_database() as db:
        access, form = choice.access_of(changefeed, secrets_dir), InFiles(formats.newest.time_zone)
        standing = await standing_of(access, state, db, form, progress, sink.mask_keys)
        flush_s = _FLUSHES * storage.flush_interval
        await reached(partial(files.checkpoint, store), store.uri, standing.before_ts, flush_s, progress)
        return await asyncio.to_thread(check_files, sink, store, standing, db, progress)


def check_files(
    of: StoredSink,
    store: ObjectStore,
    standing: StandingTables,
    db: duckdb.DuckDBPyConnection,
    progress: ReadingProgress,
) -> SnapshotVerdict:
    """The verdict on the files in `store`, a folder of that sink, up to `standing.before_ts`, which is published."""
    result = SnapshotVerdict(checkpoint_ts=str(standing.before_ts))
    result.note(f"{AS_THEY_STAND} {_LEFT_OUT}")
    published = files.checkpoint(store)
    state, formats = read_state(of, store)
    if not is_checkpoint_right(published, state, result):
        return result
    check_copied(state, standing.before_ts)
    progress.stage("the sink's files")
    sink = files.read_layout(store, published)
    for problem in (*sink.problems, *misplaced(sink, by_id(state))):
        result.problem(problem)
    finality = Finality()
    finality.see(sink.listing(), {})
    check_published(state, sink, result)
    copied = frozenset(copy.from_ts for copy in state.copies().values())
    selects = routes_of(state).is_written
    db.execute("CREATE OR REPLACE TABLE moments(ts UBIGINT)")
    try:
        source = RestoreSource(store, KnownFormats(lambda path: formats.of(path)[0], state))
        subject = _Compared(db, standing, source, copied, progress, result)
        tables = sorted(source.catalog(standing.before_ts).tables, key=lambda table: table.name)
        for table in tables:
            if not selects(*table.now.name):
                result.problem(f"There are files of {table.name}, which the changefeed does not select.")
            _check_table(subject, table)
        _say_without_files(subject, tables)
    except Break as unreadable:
        result.problem(unreadable.message)
    ((result.transactions,),) = db.execute("SELECT count(DISTINCT ts) FROM moments").fetchall()
    progress.stage("the sink once more")
    check_finality(store, formats, finality, result)
    return result


def _check_table(subject: _Compared, table: RestoredTable) -> None:
    result = subject.result
    result.tables += 1
    if why := table.never_followed:
        result.note(f"{table.name} was not compared: {why}.")
        return
    for life in _lives(table):
        rows = RowChanges(subject.db, life.now.stored, life.now.key)
        try:
            changes = _read(subject, life, rows)
            is_known = life.emptied is not None or life.segments[0].version in subject.copied
            _check_changes(result, life.name, changes, is_known=is_known)
            if life is table:
                _check_rows(subject, table, rows, is_known=is_known)
            changes.drop()
        finally:
            rows.drop()


def _lives(table: RestoredTable) -> Iterator[RestoredTable]:
    """The table, and what it was each time before it was emptied."""
    life: RestoredTable | None = table
    while life is not None:
        yield life
        life = life.emptied


def _read(subject: _Compared, table: RestoredTable, rows: RowChanges) -> ChangesOfTable:
    """What its files say. `rows` has the rows that result."""
    count = subject.source.files([table])
    subject.progress.stage(f"{table.name}: the files", count)
    names = {stored.name: column.name for column, stored in zip(table.now.columns, table.now.stored, strict=True)}
    key = [KeyColumn(column.name, KINDS[column.type], names[column.name]) for column in table.now.key]
    changes = ChangesOfTable(subject.db, key)
    for number, part in enumerate(subject.source.parts(table)):
        for piece in in_large(subject.source.rows(part, subject.standing.before_ts, subject.progress)):
            numbers = pa.repeat(pa.scalar(number, pa.uint32()), piece.num_rows)
            keys = [piece[f"c{part.segment.stored.index(column)}"] for column in table.now.key]
            changes.add(numbers, piece["op"], piece["commit_ts"], keys)
            rows.add(part.segment, piece)
            rows.fold_if_many()
    rows.fold()
    changes.add_moments("moments")
    subject.result.files += count
    subject.result.rows += changes.count
    return changes


def _check_changes(result: SnapshotVerdict, name: str, changes: ChangesOfTable, *, is_known: bool) -> None:
    again, late, odd = changes.duplicates(), changes.late(), changes.out_of_sequence(is_known=is_known)
    result.duplicate += again.count
    result.out_of_order += late.count
    result.unexpected += odd.count
    for found, what in ((again, "appears again"), (late, "comes after a later one"), (odd, "can't be there")):
        _say(result, name, found, what)


def _say(result: SnapshotVerdict, name: str, found: OddChanges, what: str) -> None:
    if found.count:
        result.problem(f"A change of {name} {what}: {found.first}. There are {found.count} such ones.")


def _check_rows(subject: _Compared, table: RestoredTable, rows: RowChanges, *, is_known: bool) -> None:
    result, standing, name = subject.result, subject.standing, table.name
    there = standing.tables.get(key_of(table.now.name))
    if there is None:
        result.note(f"The publication has no {name} any more, so its rows were not compared.")
        return
    if table.now.version > standing.after_ts:
        result.note(f"The definition of {name} has changed while it was read: verify again when nothing writes.")
        return
    columns, left_out = compared_columns(table, there)
    if left_out:
        result.note(
            f"The definition of {name} is another one than its newest change has: {', '.join(left_out)} "
            "was not compared."
        )
    if sum(column.is_key for column in columns) != len(table.now.key):
        result.note(f"{name} has another primary key now than in its files: its rows were not compared.")
        return
    found = compare(subject.db, rows, there, columns, standing.after_ts, is_known=is_known)
    result.consumed += found.rows
    result.consumed_missing += found.missing
    result.consumed_extra += found.extra
    result.consumed_different += found.different
    _say_left(result, name, columns, found)
    if found.differs:
        _say_difference(subject, name, columns, found)


def _say_left(result: SnapshotVerdict, name: str, columns: list[ComparedColumn], found: FoundRows) -> None:
    """What was not compared."""
    if found.busy:
        result.note(
            f"{found.busy} rows of {name} were changed while the tables were read, and not compared: verify again "
            "when nothing writes."
        )
    if found.unsaid:
        result.note(_unsaid(name, found.unsaid))
    if found.older:
        added = ", ".join(column.name for column in columns if column.since)
        result.note(
            f"{found.older} rows of {name} have not changed since it got {added}: no file says what they have there."
        )


def _say_without_files(subject: _Compared, tables: list[RestoredTable]) -> None:
    """Note the tables that have rows, and no change so far."""
    known = {key_of(table.now.name) for table in tables}
    for name, there in subject.standing.tables.items():
        if name not in known and there.count:
            subject.result.note(_unsaid(there.info.full_name, there.count))


def _unsaid(name: str, count: int) -> str:
    return (
        f"{count} rows of {name} are in no file: they have not changed since the changefeed captures the table. They "
        "were not compared."
    )


def _say_difference(subject: _Compared, name: str, columns: list[ComparedColumn], found: FoundRows) -> None:
    shape = LineShape([column.name for column in columns], [column.type for column in columns])
    have, want = (None if row is None else show_values(shape, row) for row in (found.have, found.want))
    when = f" (commit ts {found.commit_ts})" if found.commit_ts is not None else ""
    subject.result.problem(
        f"The files of {name}, replayed up to {subject.standing.before_ts}, give {have or 'no such row'}{when}; the "
        f"upstream has {want or 'no such row'}. In all {found.missing} rows are missing, {found.extra} are extra and "
        f"{found.different} differ."
    )
