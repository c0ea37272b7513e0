"""The oracles over changes alone: none of a row stands there twice, late, or without the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

_FIRSTS = "SELECT DISTINCT ON ({keys}, ts, op = 'D') * FROM changes ORDER BY position"


@dataclass(frozen=True)
class OddChanges:
    """So many, and the first of them for a person, "" if there is none."""

    count: int
    first: str


@dataclass(frozen=True)
class KeyColumn:
    """A column of a row's key. `stored`: its name here, `kind`: DuckDB's type of it, `shown`: its name for people."""

    stored: str
    kind: str
    shown: str


class ChangesOfTable:
    """The table `changes` of the database: where each change stands, its ts, its op and its row's key.

    `position`: its number in the order of reading; `part`: what must have its changes in the order of commits.
    """

    def __init__(self, db: duckdb.DuckDBPyConnection, key: Sequence[KeyColumn]) -> None:
        self._db = db
        self.keys = [column.stored for column in key]
        self._shown = [column.shown for column in key]
        self.count = 0
        declared = ", ".join(f"{column.stored} {column.kind}" for column in key)
        db.execute(
            f"CREATE OR REPLACE TABLE changes(position UBIGINT, part UINTEGER, ts UBIGINT, op VARCHAR, {declared})"
        )

    def add(self, parts: pa.Array, op: pa.Array, commit_ts: pa.Array, key: Sequence[pa.Array]) -> None:
        """Changes as they stand. `parts`: of each the number of its part."""
        positions = np.arange(self.count, self.count + len(parts), dtype=np.uint64)
        given = pa.table(
            [pa.array(positions), parts, commit_ts, op, *key], ["position", "part", "ts", "op", *self.keys]
        )
        self._db.register("given", given)
        try:
            self._db.execute("INSERT INTO changes BY NAME SELECT * FROM given")
        finally:
            self._db.unregister("given")
        self.count += len(parts)

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

    def late_of_key(self) -> OddChanges:
        """Changes behind a later one of their row. One that comes again counts where it stood first."""
        return self._odd(
            f"SELECT *, ts < max(ts) OVER (PARTITION BY part, {{keys}} ORDER BY position ROWS UNBOUNDED PRECEDING) "
            f"AS is_odd, 'behind a later one of its row' AS why FROM ({_FIRSTS})"
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
                FROM ({_FIRSTS}))"""
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
