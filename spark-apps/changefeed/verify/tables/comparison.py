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
        keys = ", ".join(self._key)
        self._db.execute(
            f"""CREATE OR REPLACE TEMP TABLE unequal AS
            SELECT {keys}, count(*) FILTER (is_upstream) AS want, count(*) FILTER (NOT is_upstream) AS have,
            min(v) AS low, max(v) AS high FROM rows GROUP BY {keys} HAVING have <> want OR low <> high"""
        )
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
