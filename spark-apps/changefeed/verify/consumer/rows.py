"""The rows of a consumer's tables in DuckDB, with a memory limit and a folder to spill to.

Tables and their columns are stored under numbers: their names are the catalog's business. Besides its columns a row has
`partition` (TiDB's physical id; 0: the table has none) and `row_index` (which row of which file wrote it last; 0: it
comes from the upstream). Changes of rows that are there create a new table from the old one, so that no deleted data
stays; new rows are only added to it. Text is stored as bytes, because not all of it is UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa

from changefeed.reading.scratch import KINDS


@dataclass(frozen=True)
class ConsumerColumn:
    """A column of a table: the name that it has there, and its type."""

    name: str
    type: pa.DataType


@dataclass(frozen=True)
class RowDifferences:
    """How a consumer's rows differ from the upstream's; the first pair by the key, None: there is no such row."""

    missing: int = 0
    extra: int = 0
    different: int = 0
    have: Sequence[Any] | None = None
    want: Sequence[Any] | None = None
    row_index: int = 0

    @property
    def total(self) -> int:
        return self.missing + self.extra + self.different


class ConsumerRows:
    """All tables' rows. Tables and columns are known by the names that are given here."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self._db = db
        self._numbers = count(1)

    def column(self, kind: pa.DataType) -> ConsumerColumn:
        """A new one, for `create` and `add_column`."""
        return ConsumerColumn(f"v{next(self._numbers)}", kind)

    def create(self, columns: Sequence[ConsumerColumn]) -> str:
        """An empty table; its name."""
        name = f"t{next(self._numbers)}"
        declared = "".join(f", {column.name} {KINDS[column.type]}" for column in columns)
        self._db.execute(f"CREATE TABLE {name}(pid BIGINT, row_index UBIGINT{declared})")
        return name

    def drop(self, table: str) -> None:
        self._db.execute(f"DROP TABLE {table}")

    def add_column(self, table: str, column: ConsumerColumn, value: Any) -> None:
        """Rows that are there have `value`."""
        self._db.execute(f"ALTER TABLE {table} ADD COLUMN {column.name} {KINDS[column.type]}")
        self._db.execute(f"UPDATE {table} SET {column.name} = ?", [value.encode() if isinstance(value, str) else value])

    def load(
        self, table: str, partition: int, columns: Sequence[ConsumerColumn], values: Mapping[str, pa.Array]
    ) -> None:
        """Rows of the upstream, c0..cn as in `columns`."""
        given = pa.table(dict(values))
        names = ", ".join(column.name for column in columns)
        given_columns = ", ".join(f"c{number}" for number in range(len(columns)))
        with self._given(given):
            self._db.execute(
                f"INSERT INTO {table}(pid, row_index, {names}) SELECT {partition}, 0, {given_columns} FROM given"
            )

    def apply(
        self, table: str, partition: int, columns: Sequence[ConsumerColumn], key: Sequence[int], changes: pa.Table
    ) -> str:
        """The table after `changes` (row_index, op, c0..cn in their order); `key`: which columns tell a row."""
        kept = ", ".join(column.name for column in columns)
        new = ", ".join(f"c{number} AS {column.name}" for number, column in enumerate(columns))
        keys = ", ".join(f"c{number}" for number in key)
        same = " AND ".join(f"s.{columns[number].name} = b.c{number}" for number in key)
        touched = f"(SELECT DISTINCT {keys}, {partition} AS pid FROM given) b ON s.pid = b.pid AND {same}"
        changed = f"""SELECT {partition} AS pid, row_index, {new} FROM given
            SEMI JOIN (SELECT max(row_index) AS row_index FROM given GROUP BY {keys}) USING (row_index)
            WHERE op <> 'D'"""
        with self._given(changes):
            if not self._db.execute(f"SELECT 1 FROM {table} s SEMI JOIN {touched} LIMIT 1").fetchall():
                # A long history of inserts: made anew for each of its parts, the table would cost their square.
                self._db.execute(f"INSERT INTO {table}(pid, row_index, {kept}) {changed}")
                return table
            made = self._made(f"SELECT pid, row_index, {kept} FROM {table} s ANTI JOIN {touched} UNION ALL {changed}")
        self.drop(table)
        return made

    def without_partitions(self, table: str, partitions: Sequence[int]) -> None:
        self._db.execute(f"DELETE FROM {table} WHERE list_contains(?, pid)", [list(partitions)])

    def exchange(
        self, parted: str, plain: str, columns: Sequence[tuple[ConsumerColumn, ConsumerColumn]], old: int, new: int
    ) -> tuple[str, str]:
        """The tables after partition `old` has changed places with all of `plain`, whose rows get the id `new`.

        `columns`: of both, in pairs.
        """
        ours = ", ".join(one.name for one, _ in columns)
        theirs_as_ours = ", ".join(f"{other.name} AS {one.name}" for one, other in columns)
        ours_as_theirs = ", ".join(f"{one.name} AS {other.name}" for one, other in columns)
        given = f"SELECT 0::BIGINT AS pid, row_index, {ours_as_theirs} FROM {parted} WHERE pid = {old}"
        got = (
            f"SELECT pid, row_index, {ours} FROM {parted} WHERE pid <> {old} "
            f"UNION ALL SELECT {new}, row_index, {theirs_as_ours} FROM {plain}"
        )
        taken, mixed = (self._made(select) for select in (given, got))
        self.drop(parted)
        self.drop(plain)
        return mixed, taken

    def count(self, table: str) -> int:
        ((rows,),) = self._db.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(rows)

    def compare(
        self, have: str, want: str, columns: Sequence[tuple[ConsumerColumn, ConsumerColumn]], key: Sequence[int]
    ) -> RowDifferences:
        """Two tables held against each other; `columns`: of both, in pairs, `key`: which of them tell a row."""
        if self._are_alike(have, want, columns, key):
            return RowDifferences()
        same = " AND ".join(f"h.{columns[number][0].name} = w.{columns[number][1].name}" for number in key)
        odd = "".join(f" OR h.{one.name} IS DISTINCT FROM w.{other.name}" for one, other in columns)
        joined = (
            f"FROM {have} h FULL JOIN {want} w ON h.pid = w.pid AND {same} "
            f"WHERE h.row_index IS NULL OR w.row_index IS NULL{odd}"
        )
        ((missing, extra, different),) = self._db.execute(
            f"""SELECT count(*) FILTER (h.row_index IS NULL), count(*) FILTER (w.row_index IS NULL),
            count(*) FILTER (h.row_index IS NOT NULL AND w.row_index IS NOT NULL) {joined}"""
        ).fetchall()
        if not missing + extra + different:
            return RowDifferences()
        order = ", ".join(f"coalesce(h.{columns[n][0].name}, w.{columns[n][1].name})" for n in key)
        both = ", ".join(f"h.{one.name}" for one, _ in columns), ", ".join(f"w.{other.name}" for _, other in columns)
        row_index, in_upstream, *values = self._db.execute(
            f"SELECT h.row_index, w.row_index, {both[0]}, {both[1]} {joined} ORDER BY {order} LIMIT 1"
        ).fetchall()[0]
        half = len(columns)
        have_row = None if row_index is None else values[:half]
        want_row = None if in_upstream is None else values[half:]
        return RowDifferences(missing, extra, different, have_row, want_row, row_index or 0)

    def _are_alike(
        self, have: str, want: str, columns: Sequence[tuple[ConsumerColumn, ConsumerColumn]], key: Sequence[int]
    ) -> bool:
        """By a hash of each row: to join all of two large tables' columns is mostly to spill them."""
        names = ", ".join(f"k{number}" for number in range(len(key)))
        sides = []
        for table, side in ((have, [one for one, _ in columns]), (want, [other for _, other in columns])):
            keys = ", ".join(f"{side[number].name} AS k{nth}" for nth, number in enumerate(key))
            values = ", ".join(column.name for column in side)
            sides.append(f"(SELECT pid, {keys}, hash({values}) AS v FROM {table})")
        joined = f"{sides[0]} h FULL JOIN {sides[1]} w USING (pid, {names})"
        return not self._db.execute(f"SELECT 1 FROM {joined} WHERE h.v IS DISTINCT FROM w.v LIMIT 1").fetchall()

    def not_in(
        self, want: str, partitions: Sequence[int], have: str, columns: Sequence[tuple[ConsumerColumn, ConsumerColumn]]
    ) -> int:
        """How many rows of `want` in some partitions are in no partition of `have`."""
        same = " AND ".join(f"h.{one.name} IS NOT DISTINCT FROM w.{other.name}" for one, other in columns)
        ((found,),) = self._db.execute(
            f"SELECT count(*) FROM {want} w ANTI JOIN {have} h ON {same} WHERE list_contains(?, w.pid)",
            [list(partitions)],
        ).fetchall()
        return int(found)

    def _made(self, select: str) -> str:
        name = f"t{next(self._numbers)}"
        self._db.execute(f"CREATE TABLE {name} AS {select}")
        return name

    @contextmanager
    def _given(self, rows: pa.Table) -> Iterator[None]:
        """They are the table `given` meanwhile."""
        self._db.register("given", rows)
        try:
            yield
        finally:
            self._db.unregister("given")
