"""What takes a table from its rows at the checkpoint back to those at a ts: each row once, whatever happened to it.

A changed row is determined from both ends: what it is now by its newest change, and what it was by its newest change up
to the ts, or by its first one since (before an insert it did not exist; a delete shows the row that did). Only an
update of a row that is in no earlier file says nothing about that.

All changed rows are set, including those that are back to what they were: so it does not matter which state since then
each of them has in the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from changefeed.restore.rows import RowChanges, batches
from changefeed.restore.schema.table import Gap

INSERT, UPDATE, DELETE = "insert", "update", "delete"
_SAME, _GONE = "same", "gone"  # it has changed since, and is again what it was: a row, or none
AT_ONCE = 1000  # rows


@dataclass(frozen=True)
class Ends:
    """A table's rows at the ts, and its changes since; the columns of both are the same ones.

    `emptied`: a TRUNCATE stands between, so who has no change since is gone.
    """

    before: RowChanges
    since: RowChanges
    emptied: bool = False


class Reverse:
    """The reverse changes of one table, under a name of their own: kind, rank, c0..cn (of a delete: what goes)."""

    def __init__(self, db: duckdb.DuckDBPyConnection, name: str, ends: Ends, gaps: list[Gap]) -> None:
        self._db, self._table, self._gaps = db, name, gaps
        db.execute(f"CREATE TABLE {name} AS {_query(ends, gaps)}")

    @property
    def unknown(self) -> str:
        """Why it can't be done, "" if it can."""
        kinds = self.counts()
        if rows := kinds.get("unknown"):
            return f"{rows} of its rows were updated since, and no file has their earlier values"
        if rows := kinds.get("stale"):
            return (
                f"{next(gap.why for gap in self._gaps if gap.upto_ts is not None)}; {rows} such rows have changed since"
            )
        return ""

    def counts(self) -> dict[str, int]:
        """Rows by kind."""
        return dict(self._db.execute(f"SELECT kind, count(*) FROM {self._table} GROUP BY kind").fetchall())

    def going(self) -> Iterator[pa.RecordBatch]:
        """Rows that are not to be there, the newest changes first. All of them go before any comes: a key that a
        collation takes for equal may be one that comes.
        """
        return self._rows(f"kind IN ('{DELETE}', '{_GONE}')")

    def coming(self) -> Iterator[pa.RecordBatch]:
        """Rows that are to be there, the newest changes first."""
        return self._rows(f"kind IN ('{INSERT}', '{UPDATE}', '{_SAME}')")

    def _rows(self, condition: str) -> Iterator[pa.RecordBatch]:
        query = f"SELECT * EXCLUDE (kind, rank) FROM {self._table} WHERE {condition} ORDER BY rank DESC"
        return batches(self._db, query, AT_ONCE)


def _query(ends: Ends, gaps: list[Gap]) -> str:
    before, since = ends.before, ends.since
    pairs = list(zip(before.names, since.names, strict=True))
    same_first = " AND ".join(f"f.{key} = l.{key}" for key in since.keys)
    same_before = " AND ".join(f"b.{old} = l.{new}" for old, new in zip(before.keys, since.keys, strict=True))
    stale = max((2 * gap.upto_ts + 2 for gap in gaps if gap.upto_ts is not None), default=0)
    is_there = "l.row_index IS NOT NULL AND l.op <> 'D'"
    has_old = "f.has_old" if since.has_old else "false"
    was_changed = "false" if ends.emptied else f"f.op = 'D' OR {has_old}"
    is_unknown = "false" if ends.emptied else f"b.row_index IS NULL AND f.op = 'U' AND NOT {has_old}"
    was_there = f"(b.row_index IS NOT NULL OR coalesce({was_changed}, false))"
    image = [
        f"CASE WHEN {has_old} THEN f.{new}_old ELSE f.{new} END" if since.has_old else f"f.{new}" for _, new in pairs
    ]
    old = [
        f"CASE WHEN b.row_index IS NULL THEN {was} ELSE b.{old} END" for was, (old, _) in zip(image, pairs, strict=True)
    ]
    differs = " OR ".join(f"{value} IS DISTINCT FROM l.{new}" for value, (_, new) in zip(old, pairs, strict=True))
    values = ", ".join(
        f"CASE WHEN {was_there} THEN {value} ELSE l.{new} END AS c{number}"
        for number, (value, (_, new)) in enumerate(zip(old, pairs, strict=True))
    )
    join = "FULL JOIN" if ends.emptied else "LEFT JOIN"
    return f"""
        WITH ends AS (
            SELECT arg_min(row_index, rank) AS first, arg_max(row_index, rank) AS last
            FROM {since.table} GROUP BY {since.key}
        ), f AS (SELECT s.* FROM {since.table} s SEMI JOIN ends ON s.row_index = ends.first),
        l AS (SELECT s.* FROM {since.table} s SEMI JOIN ends ON s.row_index = ends.last)
        SELECT CASE
            WHEN {is_unknown} THEN 'unknown'
            WHEN b.rank < {stale} THEN 'stale'
            WHEN {is_there} AND NOT {was_there} THEN '{DELETE}'
            WHEN NOT ({is_there}) AND {was_there} THEN '{INSERT}'
            WHEN NOT ({is_there}) THEN '{_GONE}'
            WHEN {differs} THEN '{UPDATE}'
            ELSE '{_SAME}'
        END AS kind, coalesce(l.rank, b.rank) AS rank, {values}
        FROM l JOIN f ON {same_first} {join} {before.table} b ON {same_before}"""
