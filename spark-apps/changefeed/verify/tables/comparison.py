"""One table's rows on both sides, by key, in a database that spills to disk: missing, surplus, or different.

For each row it stores the side, the key, and a 64-bit hash of its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import duckdb
import pyarrow as pa

from changefeed.verify.result import TableRows

_EXAMPLES = 3
_KINDS = {
    "missing": "have < want",
    "surplus": "have > want",
    "different": "have = want AND low <> high",
}

Side = Literal["upstream", "downstream"]


class RowComparison:
    """`names`: of the columns; `key`: which of them tell a row."""

    def __init__(self, db: duckdb.DuckDBPyConnection, table: str, names: Sequence[str], key: Sequence[int]) -> None:
        self._db = db
        self._table = table
        self._names = names
        self._key = {f"k{number}": names[number] for number in key}
        self._columns = [f"c{number}" for number in range(len(names))]
        columns = ", ".join(f"{name} BLOB" for name in self._key)
        db.execute(f"CREATE OR REPLACE TABLE rows(is_upstream BOOLEAN, {columns}, v UBIGINT)")

    def add(self, side: Side, columns: Sequence[pa.Array]) -> None:
        """Some rows: of each column its values in the common form (values)."""
        keys = ", ".join(f"c{name[1:]}" for name in self._key)
        self._db.register("given", pa.table(list(columns), self._columns))
        try:
            self._db.execute(
                f"INSERT INTO rows SELECT {side == 'upstream'}, {keys}, hash({', '.join(self._columns)}) FROM given"
            )
        finally:
            self._db.unregister("given")

    def found(self) -> TableRows:
        """Compare all rows that were added."""
        self._gather()
        return self._counted()

    def found_again(self, before: str | None, kept: str) -> tuple[TableRows, int]:
        """`found`, of rows that may have been changed meanwhile, and how many are taken for such.

        `before`: a table of the database with what an earlier look has found, "" nothing. What is not just so there
        does not count. `kept`: a table that is made for the next look.
        """
        self._gather()
        self._db.execute(f"CREATE OR REPLACE TABLE {kept} AS SELECT * FROM unequal")
        moved = 0
        if before is not None:
            alike = " AND ".join(
                f"b.{name} IS NOT DISTINCT FROM unequal.{name}" for name in (*self._key, "upstream", "downstream")
            )
            stood = f"EXISTS (SELECT 1 FROM {before} b WHERE {alike})" if before else "false"
            (moved,) = self._row(f"SELECT count(*) FROM unequal WHERE NOT {stood}")
            self._db.execute(f"DELETE FROM unequal WHERE NOT {stood}")
        return self._counted(), moved

    def leave_unsaid(self) -> int:
        """Leave out the upstream's rows of which there is nothing downstream: how many."""
        return self._left_out(
            f"is_upstream AND NOT EXISTS (SELECT 1 FROM rows d WHERE NOT d.is_upstream AND {self._same('d', 'rows')})"
        )

    def without_values(self) -> int:
        """How many rows are known by their keys alone."""
        (count,) = self._row("SELECT count(*) FROM rows WHERE v IS NULL")
        return count

    def _left_out(self, where: str) -> int:
        (count,) = self._row(f"SELECT count(*) FROM rows WHERE {where}")
        self._db.execute(f"DELETE FROM rows WHERE {where}")
        return count

    def _same(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{name} = {other}.{name}" for name in self._key)

    def _gather(self) -> None:
        keys = ", ".join(self._key)
        self._db.execute(
            f"""CREATE OR REPLACE TEMP TABLE unequal AS
            SELECT {keys}, count(*) FILTER (is_upstream) AS want, count(*) FILTER (NOT is_upstream) AS have,
            min(v) AS low, max(v) AS high,
            min(v) FILTER (is_upstream) AS upstream, min(v) FILTER (NOT is_upstream) AS downstream
            FROM rows GROUP BY {keys} HAVING have <> want OR low <> high"""
        )

    def _counted(self) -> TableRows:
        (rows,) = self._row("SELECT count(*) FROM rows WHERE is_upstream")
        missing, surplus, different = self._row(
            f"SELECT coalesce(sum(greatest(want - have, 0)), 0), coalesce(sum(greatest(have - want, 0)), 0), "
            f"count(*) FILTER ({_KINDS['different']}) FROM unequal"
        )
        examples = tuple(f"{kind}: {key}" for kind, where in _KINDS.items() for key in self._examples(where))
        return TableRows(self._table, rows, int(missing), int(surplus), different, examples)

    def _row(self, sql: str) -> tuple[int, ...]:
        found = self._db.execute(sql).fetchone()
        assert found is not None, "an aggregate"
        return found

    def _examples(self, where: str) -> list[str]:
        keys = ", ".join(self._key)
        found = self._db.execute(f"SELECT {keys} FROM unequal WHERE {where} ORDER BY {keys} LIMIT {_EXAMPLES}")
        return [
            ", ".join(f"{name}={_text(value)}" for name, value in zip(self._key.values(), row, strict=True))
            for row in found.fetchall()
        ]


def _text(value: bytes | None) -> str:
    return "NULL" if value is None else value.decode(errors="backslashreplace")
