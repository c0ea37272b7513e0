"""One table's changes in DuckDB, which spills to disk, and the rows that result.

A change has a unique `row_index`, a `rank` (its commit ts, and whether it leaves a row: a transaction that deletes and
inserts a row leaves it), `op`, and the columns, text as bytes. A row's newest change is the one with the highest rank,
in whatever order the changes were loaded: partitions hand rows on to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import cast

import duckdb
import numpy as np
import pyarrow as pa

from changefeed.reading.scratch import KINDS
from changefeed.restore.schema.table import ColumnHistory, Gap, TableVersion

_BATCH = 1 << 16
_FOLD_ROWS = 1 << 20

_numbers = count()
_RANK = "commit_ts * 2 + (op <> 'D')::UBIGINT"


class RowChanges:
    """Changes of rows with the columns `stored`, told apart by `key`.

    `old`: what rows were before an update is kept as well, where `has_old`, under columns' names with `_old` behind.
    """

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        stored: Sequence[ColumnHistory],
        key: Sequence[ColumnHistory],
        old: bool = False,
    ) -> None:
        self._db = db
        self._stored = stored
        self.names = [column.name for column in stored]
        self.keys = [column.name for column in key]
        self.key = ", ".join(self.keys)
        self._next_row_index = 0
        self._rows = 0
        self._folded_rows = 0
        self.has_old = old
        suffixes = ("", "_old") if old else ("",)
        declared = "".join(f", {column.name}{end} {KINDS[column.type]}" for end in suffixes for column in stored)
        self.table = _new_name()
        meta = f"row_index UBIGINT, rank UBIGINT, op VARCHAR{', has_old BOOLEAN' if old else ''}"
        db.execute(f"CREATE TABLE {self.table}({meta}{declared})")

    def add(self, segment: TableVersion, changes: pa.Table) -> None:
        """`changes`: op, commit_ts, c0..cn, as they stand under the segment's version. Older columns are gone, newer
        ones have what rows have that are older than them.
        """
        given = changes.append_column("row_index", pa.array(self._row_indexes(changes.num_rows)))
        for column in self._stored:
            default = column.default.encode() if isinstance(column.default, str) else column.default
            kind = pa.binary() if column.type == pa.string() else column.type
            if column not in segment.stored:
                values = pa.repeat(pa.scalar(default, kind), len(given))
                given = given.append_column(f"d{column.number}", values)
        self._insert(segment, given, "has_old" in changes.column_names)

    def add_base(self, segment: TableVersion, rows: pa.Table) -> None:
        """`rows`: c0..cn, as they stood before the first change."""
        meta = {
            "op": pa.repeat("I", len(rows)),
            "commit_ts": pa.repeat(pa.scalar(segment.version, pa.uint64()), len(rows)),
        }
        self.add(segment, pa.table({**meta, **dict(zip(rows.column_names, rows.columns, strict=True))}))

    def _insert(self, segment: TableVersion, given: pa.Table, has_old: bool) -> None:
        there = {column.number: f"{number}" for number, column in enumerate(segment.stored)}
        values = [f"c{there[c.number]}" if c.number in there else f"d{c.number}" for c in self._stored]
        if self.has_old:
            old = [f"o{there[c.number]}" if has_old and c.number in there else "NULL" for c in self._stored]
            values = ["has_old" if has_old else "false", *values, *old]
        self._db.register("given", given)
        try:
            self._db.execute(f"INSERT INTO {self.table} SELECT row_index, {_RANK}, op, {', '.join(values)} FROM given")
        finally:
            self._db.unregister("given")
        self._rows += given.num_rows

    def fold(self) -> None:
        """Leave the newest change of each row that is there then."""
        made = _new_name()
        newest = f"SELECT arg_max(row_index, rank) AS row_index FROM {self.table} GROUP BY {self.key}"
        self._db.execute(
            f"CREATE TABLE {made} AS SELECT * FROM {self.table} SEMI JOIN ({newest}) USING (row_index) WHERE op <> 'D'"
        )
        self.drop()
        self.table = made
        self._rows = self._folded_rows = self.count()

    def fold_if_many(self) -> None:
        """What is kept follows the rows, not their changes; a row is moved about once for each of its changes."""
        if self._rows - self._folded_rows > max(_FOLD_ROWS, self._folded_rows):
            self.fold()

    def count(self, condition: str = "true") -> int:
        ((rows,),) = self._db.execute(f"SELECT count(*) FROM {self.table} WHERE {condition}").fetchall()
        return int(rows)

    def drop(self) -> None:
        self._db.execute(f"DROP TABLE {self.table}")

    def unknown(self, gaps: Iterable[Gap]) -> str:
        """The first gap that a row of a folded table falls into, "" if none does."""
        for gap in gaps:
            if gap.upto_ts is not None and (rows := self.count(f"rank < {2 * gap.upto_ts + 2}")):
                return f"{gap.why}; {rows} of its rows have not changed since"
        return ""

    def _row_indexes(self, rows: int) -> np.ndarray:
        self._next_row_index += rows
        return np.arange(self._next_row_index - rows, self._next_row_index, dtype=np.uint64)


def _new_name() -> str:
    return f"t{next(_numbers)}"


def batches(db: duckdb.DuckDBPyConnection, query: str, rows: int = _BATCH) -> Iterator[pa.RecordBatch]:
    """What a query gives, some rows at a time. `db` may be used meanwhile."""
    with db.cursor() as cursor:
        yield from cast("Iterator[pa.RecordBatch]", cursor.sql(query).to_arrow_reader(rows))
