"""A table's rows, as its files leave them, held against those that stand in the upstream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

from changefeed.reading.schema.columns import TableColumn
from changefeed.restore.rows import RowChanges
from changefeed.restore.schema.table import ColumnHistory, RestoredTable
from changefeed.schema.values import arrow_type
from changefeed.verify.snapshot.standing import StandingTable


@dataclass(frozen=True)
class ComparedColumn:
    """A column on both sides. `since`: rows that were changed last at or below it have no value of it in files."""

    name: str
    type: pa.DataType
    have: str
    want: str
    is_key: bool
    since: int


@dataclass(frozen=True)
class FoundRows:
    """`rows`: of the upstream that were compared. `busy`: keys that were changed meanwhile. `unsaid`: rows that no
    file mentions. `older`: rows of which some columns were not compared. Of the first that differs both sides.
    """

    rows: int
    busy: int
    unsaid: int
    older: int
    missing: int
    extra: int
    different: int
    commit_ts: int | None = None
    have: Sequence[Any] | None = None
    want: Sequence[Any] | None = None

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.extra or self.different)


def compared_columns(table: RestoredTable, standing: StandingTable) -> tuple[list[ComparedColumn], list[str]]:
    """Those that are defined alike on both sides, and the names of all others."""
    wanted = {column.name: (number, column) for number, column in enumerate(standing.info.output_columns)}
    found = []
    for column, stored in zip(table.now.columns, table.now.stored, strict=True):
        number, other = wanted.get(column.name, (-1, None))
        if other is not None and _is_alike(column, TableColumn.expected(other)):
            since = _since(table, stored)
            found.append(ComparedColumn(column.name, arrow_type(other), stored.name, f"c{number}", column.is_pk, since))
    names = {column.name for column in found}
    return found, sorted(({column.name for column in table.now.columns} | wanted.keys()) - names)


def _is_alike(column: TableColumn, other: TableColumn) -> bool:
    shape, wanted = ((each.type, each.precision, each.scale, each.is_pk) for each in (column, other))
    return shape == wanted


def _since(table: RestoredTable, stored: ColumnHistory) -> int:
    """Where files began to have the column, behind their first version."""
    first = next(segment for segment in table.segments if stored in segment.stored)
    return 0 if first is table.segments[0] else first.version


def compare(
    db: duckdb.DuckDBPyConnection,
    changes: RowChanges,
    standing: StandingTable,
    columns: Sequence[ComparedColumn],
    after_ts: int,
    *,
    is_known: bool,
) -> FoundRows:
    """`changes`: the rows, folded; what has changed each is in the table `changes` of the database (ChangesOfTable).

    Rows that have changed above `after_ts` are left out. `is_known`: the files have all rows of the table.
    """
    keys = [column for column in columns if column.is_key]
    having = ", ".join(column.have for column in keys)
    same = _equal([f"h.{column.have}" for column in keys], [f"w.{column.want}" for column in keys])
    either = ", ".join(f"coalesce(h.{column.have}, w.{column.want}) AS {column.have}" for column in keys)
    oldest = max(column.since for column in columns)
    db.execute(
        f"""CREATE OR REPLACE TEMP TABLE pairs AS
        SELECT p.*, s.last FROM (
            SELECT {either}, h.rank, w.number, {" OR ".join(map(_differs, columns))} AS differs
            FROM {changes.table} h FULL JOIN (SELECT rowid AS number, * FROM {standing.rows}) w ON {same}
        ) p LEFT JOIN (SELECT {having}, max(ts) AS last FROM changes GROUP BY {having}) s USING ({having})"""
    )
    is_said = "true" if is_known else "last IS NOT NULL"
    quiet = f"coalesce(last <= {after_ts}, true)"
    missing = f"{quiet} AND rank IS NULL AND {is_said}"
    extra = f"{quiet} AND number IS NULL"
    different = f"{quiet} AND rank IS NOT NULL AND number IS NOT NULL AND differs"
    (counts,) = db.execute(
        f"""SELECT count(number) FILTER ({quiet} AND (rank IS NOT NULL OR {is_said})),
            count(*) FILTER (NOT {quiet}), count(*) FILTER (rank IS NULL AND NOT {is_said}),
            count(*) FILTER ({quiet} AND rank < {2 * oldest + 2} AND number IS NOT NULL),
            count(*) FILTER ({missing}), count(*) FILTER ({extra}), count(*) FILTER ({different}) FROM pairs"""
    ).fetchall()
    found = FoundRows(*counts)
    if not found.differs:
        return found
    rank, number, *values = db.execute(
        f"""SELECT p.rank, p.number, {", ".join(f"h.{column.have}" for column in columns)},
            {", ".join(f"w.{column.want}" for column in columns)}
        FROM (SELECT * FROM pairs WHERE ({missing}) OR ({extra}) OR ({different}) ORDER BY {having} LIMIT 1) p
            LEFT JOIN {changes.table} h USING ({having}) LEFT JOIN {standing.rows} w ON w.rowid = p.number"""
    ).fetchall()[0]
    half = len(columns)
    return replace(
        found,
        commit_ts=None if rank is None else rank // 2,
        have=None if rank is None else values[:half],
        want=None if number is None else values[half:],
    )


def _equal(some: Sequence[str], others: Sequence[str]) -> str:
    return " AND ".join(f"{one} = {other}" for one, other in zip(some, others, strict=True))


def _differs(column: ComparedColumn) -> str:
    odd = f"h.{column.have} IS DISTINCT FROM w.{column.want}"
    return f"(h.rank >= {2 * column.since + 2} AND {odd})" if column.since else f"({odd})"
