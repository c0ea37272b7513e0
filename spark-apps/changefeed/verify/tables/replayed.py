"""Compares a table's rows, as its files or messages leave them, with the upstream."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from changefeed.verify.tables.comparison import RowComparison


class ReplayedComparison(RowComparison):
    """Has, besides the two sides' rows, what makes those of one side: stored (seq, ts, shown: whether the change leaves
    the row, k…, v), gone (seq, k…) and at_start (k…, v).
    """

    def __init__(self, db: duckdb.DuckDBPyConnection, table: str, names: Sequence[str], key: Sequence[int]) -> None:
        super().__init__(db, table, names, key)
        self._keys = ", ".join(self._key)
        self._from = ", ".join(f"c{number}" for number in key)
        columns = ", ".join(f"{name} BLOB" for name in self._key)
        db.execute(f"CREATE OR REPLACE TABLE stored(seq BIGINT, ts BIGINT, shown BOOLEAN, {columns}, v UBIGINT)")
        db.execute(f"CREATE OR REPLACE TABLE gone(seq BIGINT, {columns})")
        db.execute(f"CREATE OR REPLACE TABLE at_start({columns}, v UBIGINT)")

    def add_stored(
        self,
        sequence: int,
        columns: Sequence[pa.Array],
        op: pa.Array | None,
        commit_ts: pa.Array | None,
        values_from: int | None = None,
    ) -> None:
        """Adds rows of a data file, or last messages. `op`, `commit_ts`: of a changelog's.

        `values_from`: up to that ts, and where there is none, the keys alone say something.
        """
        count = len(columns[0])
        more = {"op": pa.nulls(count, pa.string()) if op is None else op}
        more["ts"] = pa.nulls(count, pa.int64()) if commit_ts is None else commit_ts
        shown = f"{sequence}, ts, op IS DISTINCT FROM 'D'"
        values = f"hash({', '.join(self._columns)})"
        if values_from is not None:
            values = f"CASE WHEN ts > {values_from} THEN {values} END"
        self._insert("stored", f"{shown}, {self._from}, {values}", columns, more)

    def add_gone(self, sequence: int, keys: Sequence[pa.Array]) -> None:
        self._db.register("given", pa.table(list(keys), list(self._key)))
        try:
            self._db.execute(f"INSERT INTO gone SELECT {sequence}, {self._keys} FROM given")
        finally:
            self._db.unregister("given")

    def add_at_start(self, columns: Sequence[pa.Array]) -> None:
        self._insert("at_start", f"{self._from}, hash({', '.join(self._columns)})", columns, {})

    def settle(self, after_ts: int, *, is_changelog: bool, knows_start: bool, upto_ts: int | None = None) -> int:
        """Make rows of it all: those of the changelog above `after_ts`, or what nothing deletes. How many changes are
        there twice.

        A row that stood at the start and was not changed since is in no file: it is as if it were, if the upstream
        still has it. Without `knows_start` each row that no file has is taken for such a one.

        `upto_ts`: what a changelog has behind it does not count.
        """
        if is_changelog and upto_ts is not None:
            self._db.execute(f"DELETE FROM stored WHERE ts > {upto_ts}")
        if is_changelog:
            self._db.execute(
                f"""INSERT INTO rows SELECT false, {self._keys}, v FROM (
                SELECT *, row_number() OVER (PARTITION BY {self._keys} ORDER BY ts DESC, shown DESC) AS number
                FROM stored WHERE ts > {after_ts}) WHERE number = 1 AND shown"""
            )
        else:
            self._db.execute(
                f"INSERT INTO rows SELECT false, {self._keys}, v FROM stored WHERE NOT EXISTS "
                f"(SELECT 1 FROM gone WHERE gone.seq > stored.seq AND {self._same('gone', 'stored')})"
            )
        stood = f"EXISTS (SELECT 1 FROM at_start WHERE at_start.v = u.v AND {self._same('at_start', 'u')})"
        self._db.execute(
            f"INSERT INTO rows SELECT false, {self._keys}, v FROM rows AS u WHERE is_upstream "
            f"AND {stood if knows_start else 'true'} "
            f"AND NOT EXISTS (SELECT 1 FROM stored WHERE {self._same('stored', 'u')} "
            f"AND (ts IS NULL OR ts > {after_ts})) "
            f"AND NOT EXISTS (SELECT 1 FROM gone WHERE {self._same('gone', 'u')})"
        )
        (twice,) = self._row(
            f"SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM stored WHERE ts IS NOT NULL "
            f"GROUP BY {self._keys}, ts, shown)"
        )
        return int(twice)

    def leave_unsaid(self) -> int:
        """Leave out the upstream's rows that no change is about: how many."""
        said = " OR ".join(
            f"EXISTS (SELECT 1 FROM {table} WHERE {self._same(table, 'rows')})" for table in ("stored", "gone")
        )
        return self._left_out(f"is_upstream AND NOT ({said})")

    def leave_changed(self, after_ts: int) -> int:
        """Leave out the rows that the changelog has changed behind a ts: how many."""
        changed = f"EXISTS (SELECT 1 FROM stored WHERE ts > {after_ts} AND {self._same('stored', 'rows')})"
        (count,) = self._row(f"SELECT count(*) FROM (SELECT DISTINCT {self._keys} FROM rows WHERE {changed})")
        self._left_out(changed)
        return count

    def _insert(self, table: str, shown: str, columns: Sequence[pa.Array], more: dict[str, pa.Array]) -> None:
        self._db.register("given", pa.table([*columns, *more.values()], [*self._columns, *more]))
        try:
            self._db.execute(f"INSERT INTO {table} SELECT {shown} FROM given")
        finally:
            self._db.unregister("given")
