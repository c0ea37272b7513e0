"""Rebuilds a table's rows as of a ts from its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.reading.progress import ReadingProgress
from changefeed.reading.rows.gathered import Gathered
from changefeed.restore import parquet
from changefeed.restore.reverse import Ends
from changefeed.restore.rows import RowChanges
from changefeed.restore.schema.table import RestoredTable
from changefeed.restore.source import RestoreSource

_AT_ONCE_BYTES = 32 << 20


@contextmanager
def rebuilt(
    source: RestoreSource,
    table: RestoredTable,
    to_ts: int,
    db: duckdb.DuckDBPyConnection,
    progress: ReadingProgress,
    base: Path | None = None,
) -> Iterator[tuple[RowChanges, str]]:
    """The rows, and why some of them can't be known, "" if all are. They are gone afterwards.

    `base`: a Parquet file with its rows of before the changefeed.
    """
    changes = RowChanges(db, table.now.stored, table.now.key)
    try:
        if base is not None:
            first = table.segments[0]
            for rows in parquet.read(db, base, first):
                changes.add_base(first, rows)
        for part in source.parts(table):
            for piece in in_large(source.rows(part, to_ts, progress)):
                changes.add(part.segment, piece)
                changes.fold_if_many()
        changes.fold()
        yield changes, changes.unknown(table.gaps)
    finally:
        changes.drop()


@contextmanager
def ends_of(
    source: RestoreSource,
    now: RestoredTable,
    then: RestoredTable,
    to_ts: int,
    db: duckdb.DuckDBPyConnection,
    progress: ReadingProgress,
) -> Iterator[Ends]:
    """`now`: the table at the checkpoint, `then`: at `to_ts`; another one if it has been emptied since."""
    is_of_before = bool(now.never_known)  # its rows of before are told by what they were before an update, if at all
    since = RowChanges(db, now.now.stored, now.now.key, old=is_of_before)
    try:
        if now.number != then.number:
            for part in source.parts(now):
                for piece in in_large(source.rows(part, source.checkpoint_ts, progress)):
                    since.add(part.segment, piece)
            with rebuilt(source, then, to_ts, db, progress) as (before, _):
                yield Ends(before, since, emptied=True)
            return
        before = RowChanges(db, now.now.stored, now.now.key)
        try:
            for part in source.parts(now):
                for piece in in_large(source.rows(part, source.checkpoint_ts, progress, old=is_of_before)):
                    is_since = pc.greater(piece["commit_ts"], pa.scalar(to_ts, pa.uint64()))
                    before.add(part.segment, piece.filter(pc.invert(is_since)))
                    before.fold_if_many()
                    since.add(part.segment, piece.filter(is_since))
            before.fold()
            yield Ends(before, since)
        finally:
            before.drop()
    finally:
        since.drop()


def in_large(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in few pieces."""
    gathered = Gathered(_AT_ONCE_BYTES)
    for piece in pieces:
        if not gathered.fits(piece) and (taken := gathered.taken()):
            yield taken
        gathered.add(piece)
        if gathered.are_many and (taken := gathered.taken()):
            yield taken
    if taken := gathered.taken():
        yield taken
