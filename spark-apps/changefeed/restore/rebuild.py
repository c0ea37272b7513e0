"""A table's rows as they were at a ts, put together from its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from changefeed.restore.rows import Changes
from changefeed.restore.source import Part, Source
from changefeed.restore.table import Table
from changefeed.verify.progress import Progress
from changefeed.verify.sink.gathered import Gathered

_AT_ONCE_BYTES = 32 << 20


@contextmanager
def rebuilt(
    source: Source, table: Table, to_ts: int, db: duckdb.DuckDBPyConnection, progress: Progress
) -> Iterator[tuple[Changes, str]]:
    """The rows, and why some of them can't be known, "" if all are. They are gone afterwards."""
    now = table.now
    changes = Changes(db, now.stored, now.key)
    try:
        for part in source.parts(table):
            gathered = Gathered(_AT_ONCE_BYTES)
            for piece in source.rows(part, to_ts, progress):
                gathered.add(piece)
                if gathered.are_many:
                    _add(changes, part, gathered)
            _add(changes, part, gathered)
        changes.fold()
        yield changes, changes.unknown(table.gaps)
    finally:
        changes.drop()


def _add(changes: Changes, part: Part, gathered: Gathered) -> None:
    if given := gathered.taken():
        changes.add(part.segment, given)
        changes.fold_if_many()
