"""The oracles over files alone: no change of a row stands there twice, late, or without the one before it."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from changefeed.reading.scratch import KINDS
from changefeed.restore.schema.table import RestoredTable, TableVersion


@dataclass(frozen=True)
class OddChanges:
    """So many, and the first of them for a person, "" if there is none."""

    count: int
    first: str


class ChangesOfTable:
    """The table `changes` of the database: where each change stands, its ts, its op and its row's key.

    `position`: its number in the order of reading; `part`: files that must have their changes in the order of commits.
    """

    def __init__(self, db: duckdb.DuckDBPyConnection, table: RestoredTable) -> None:
        self._db = db
        self._key = table.now.key
        self.keys = [column.name for column in self._key]
        names = {stored.name: column.name for column, stored in zip(table.now.columns, table.now.stored, strict=True)}
        self._shown = [names[name] for name in self.keys]
        self.count = 0
        declared = ", ".join(f"{column.name} {KINDS[column.type]}" for column in self._key)
        db.execute(
            f"CREATE OR REPLACE TABLE changes(position UBIGINT, part UINTEGER, ts UBIGINT, op VARCHAR, {declared})"
        )

    def add(self, part: int, segment: TableVersion, rows: pa.Table) -> None:
        """`rows`: op, commit_ts, c0..cn, as they stand under the segment's version."""
        numbers = [segment.stored.index(column) for column in self._key]
        positions = np.arange(self.count, self.count + rows.num_rows, dtype=np.uint64)
        self._db.register("given", rows.append_column("position", pa.array(positions)))
        try:
            keys = ", ".join(f"c{number}" for number in numbers)
            self._db.execute(f"INSERT INTO changes SELECT position, {part}, commit_ts, op, {keys} FROM given")
        finally:
            self._db.unregister("given")
        self.count += rows.num_rows

    def add_moments(self, table: str) -> None:
        """Adds the ts of all changes to a table of the database."""
        self._db.execute(f"INSERT INTO {table} SELECT DISTINCT ts FROM changes")

    def duplicates(self) -> OddChanges:
        """Changes that stand there again: a commit changes a row once, or deletes one and inserts another."""
        return self._odd(
            "SELECT *, row_number() OVER (PARTITION BY {keys}, ts, op = 'D' ORDER BY position) > 1 AS is_odd, "
            "'again' AS why FROM changes"
        )

    def late(self) -> OddChanges:
        """Changes behind one of a later commit."""
        return self._odd(
            "SELECT *, ts < lag(ts) OVER (PARTITION BY part ORDER BY position) AS is_odd, "
            "'behind a later one' AS why FROM changes"
        )

    def out_of_sequence(self, *, is_known: bool) -> OddChanges:
        """Changes that can't follow the one before of their row. `is_known`: the table was empty where they begin."""
        nothing = str(is_known).lower()
        return self._odd(
            f"""SELECT *, CASE WHEN op = 'I' THEN before IN ('I', 'U')
                ELSE coalesce(before = 'D', {nothing}) END AS is_odd,
                CASE WHEN op = 'I' THEN 'but the row is there by then' ELSE 'but there is no such row by then' END
                AS why
            FROM (SELECT *, lag(op) OVER (PARTITION BY {{keys}} ORDER BY ts, op <> 'D') AS before
                FROM (SELECT DISTINCT ON ({{keys}}, ts, op = 'D') * FROM changes ORDER BY position))"""
        )

    def drop(self) -> None:
        self._db.execute("DROP TABLE changes")

    def _odd(self, query: str) -> OddChanges:
        keys = ", ".join(self.keys)
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE odd AS {query.format(keys=keys)}")
        ((count,),) = self._db.execute("SELECT count(*) FROM odd WHERE is_odd").fetchall()
        if not count:
            return OddChanges(0, "")
        op, ts, why, *key = self._db.execute(
            f"SELECT op, ts, why, {keys} FROM odd WHERE is_odd ORDER BY position LIMIT 1"
        ).fetchall()[0]
        shown = ", ".join(f"{name}={_text(value)}" for name, value in zip(self._shown, key, strict=True))
        return OddChanges(count, f"{op}, commit ts {ts}, {shown}, {why}")


def _text(value: object) -> str:
    return repr(value.decode(errors="backslashreplace")) if isinstance(value, bytes) else repr(value)
