"""Everything in the topics, in a database that spills to disk, and the checks that need no table.

For each row, DDL and resolved-ts: `part`, the number of its partition among all; `message`, its message's offset there,
and `nth`, its number within that; and what its head says (heads).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from changefeed.verify.kafka.heads import DDL, RESOLVED, ROW

_BATCH_ROWS = 1 << 14


@dataclass(frozen=True)
class LinePosition:
    """Where a line stands."""

    part: int
    offset: int


class StoredLines:
    """`parts`: (topic, partition) of each partition."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self.db = db
        self.parts: list[tuple[str, int]] = []
        db.execute(
            "CREATE OR REPLACE TABLE lines(part INTEGER, message BIGINT, nth INTEGER, kind VARCHAR, database VARCHAR, "
            "name VARCHAR, ts UBIGINT, line BLOB, h UBIGINT)"
        )

    def add(self, positions: Sequence[LinePosition], heads: pa.Table) -> None:
        """`positions`: of the messages that the heads' numbers mean."""
        parts = pa.array([position.part for position in positions], pa.int32()).take(heads["number"])
        offsets = pa.array([position.offset for position in positions], pa.int64()).take(heads["number"])
        self.db.register("given", heads.append_column("part", parts).append_column("message", offsets))
        try:
            self.db.execute(
                "INSERT INTO lines SELECT part, message, nth, kind, database, name, ts, line, hash(line) FROM given"
            )
        finally:
            self.db.unregister("given")

    def where(self, position: LinePosition) -> str:
        """For a person."""
        topic, partition = self.parts[position.part]
        return f"Topic {topic}, partition {partition}, offset {position.offset}"

    # -- of a table

    def lines_of(self, table: TableLines) -> Iterator[list[bytes]]:
        """In the order of (part, message, nth). Other statements may run meanwhile."""
        cursor = self.db.cursor()
        try:
            for batch in cursor.sql(f"SELECT line {table.chosen}").to_arrow_reader(_BATCH_ROWS):
                lines: list[bytes] = batch.column(0).to_pylist()
                yield lines
        finally:
            cursor.close()

    def line(self, table: TableLines, number: int) -> tuple[LinePosition, bytes]:
        """One of those."""
        ((part, message, line),) = self._all(f"SELECT part, message, line {table.chosen} LIMIT 1 OFFSET {number}")
        return LinePosition(part, message), line

    def begin_of_parts(self, table: TableLines) -> list[tuple[int, int]]:
        """(number of its first line, part) of each partition that has some."""
        return self._all(
            f"SELECT (sum(count(*)) OVER (ORDER BY part) - count(*))::BIGINT, part FROM lines {table.where} "
            "GROUP BY part ORDER BY part"
        )

    # -- of all

    def count(self, kind: str) -> int:
        ((count,),) = self._all(f"SELECT count(*) FROM lines WHERE kind = '{kind}'")
        return int(count)

    def early(self) -> tuple[int, LinePosition | None, int, int]:
        """How many rows and DDLs stand behind a resolved-ts not below theirs; of the first its position and both.

        One that comes again where it stood before tells readers nothing new.
        """
        return self._first_of(f"kind <> '{RESOLVED}' AND is_first AND ts <= resolved")

    def went_back(self) -> tuple[int, LinePosition | None, int, int]:
        """How many resolved-ts stand behind a higher one; of the first its position and both."""
        return self._first_of(f"kind = '{RESOLVED}' AND ts < resolved")

    def highest_resolved(self) -> tuple[int, LinePosition] | None:
        found = self._all(f"SELECT ts, part, message FROM lines WHERE kind = '{RESOLVED}' ORDER BY ts DESC LIMIT 1")
        return (found[0][0], LinePosition(*found[0][1:])) if found else None

    def ddls(self) -> Iterator[tuple[int, tuple[str, str], LinePosition]]:
        """Yield each DDL that readers are told: its ts, the (database, table) of a message, and where it is first."""
        found = (
            f"SELECT ts, database, name, min((part, message)) FROM lines WHERE kind = '{DDL}' GROUP BY ALL ORDER BY ts"
        )
        for ts, database, name, position in self._all(found):
            yield ts, (database, name), LinePosition(*position)

    def statements(self) -> Iterator[tuple[int, tuple[str, str], bytes]]:
        """Yield each DDL's ts, (database, table) and line, in their order."""
        found = f"SELECT DISTINCT ts, database, name, line FROM lines WHERE kind = '{DDL}' ORDER BY ts"
        for ts, database, name, line in self._all(found):
            yield ts, (database, name), line

    def names(self, upto_ts: int) -> list[tuple[str, str]]:
        """(database, table) of all rows up to a ts."""
        return self._all(
            f"SELECT DISTINCT database, name FROM lines WHERE kind = '{ROW}' AND ts <= {upto_ts} ORDER BY ALL"
        )

    def foreign(self, tables: Sequence[TableLines], upto_ts: int) -> tuple[int, LinePosition | None, str, int]:
        """How many rows up to a ts are of none of the tables; of the first one its position, table and ts."""
        self.db.execute(
            "CREATE OR REPLACE TEMP TABLE known(database VARCHAR, name VARCHAR, from_ts UBIGINT, to_ts UBIGINT, "
            "first INTEGER, last INTEGER)"
        )
        for table in tables:
            bounds = [table.from_ts, table.to_ts, *table.parts]
            self.db.execute("INSERT INTO known VALUES (?, ?, ?, ?, ?, ?)", [table.database, table.name, *bounds])
        ((count, first),) = self._all(
            f"""SELECT count(*), min((part, message, database || '.' || name, ts)) FROM lines l
            WHERE kind = '{ROW}' AND ts <= {upto_ts} AND NOT EXISTS (
                SELECT 1 FROM known k WHERE k.database = l.database AND k.name = l.name
                AND l.ts > k.from_ts AND l.ts <= k.to_ts AND l.part BETWEEN k.first AND k.last)"""
        )
        if not count:
            return 0, None, "", 0
        part, message, name, ts = first
        return count, LinePosition(part, message), name, ts

    def _first_of(self, where: str) -> tuple[int, LinePosition | None, int, int]:
        ((count, first),) = self._all(
            f"""WITH seen AS (
                SELECT part, message, nth, kind, ts,
                row_number() OVER (PARTITION BY part, ts, h ORDER BY message, nth) = 1 AS is_first,
                max(CASE kind WHEN '{RESOLVED}' THEN ts END) OVER (
                    PARTITION BY part ORDER BY message, nth ROWS UNBOUNDED PRECEDING) AS resolved
                FROM lines)
            SELECT count(*), min((part, message, ts, resolved)) FROM seen WHERE {where}"""
        )
        if not count:
            return 0, None, 0, 0
        part, message, ts, resolved = first
        return count, LinePosition(part, message), ts, resolved

    def _all(self, sql: str) -> list[tuple[Any, ...]]:
        return self.db.execute(sql).fetchall()


@dataclass(frozen=True)
class TableLines:
    """The rows of one life of a table in `(from_ts, to_ts]`, and where they must stand. `parts`: first and last."""

    topic: str
    database: str
    name: str
    from_ts: int
    to_ts: int
    parts: tuple[int, int]

    @property
    def where(self) -> str:
        """SQL."""
        return (
            f"WHERE kind = '{ROW}' AND database = {_text(self.database)} AND name = {_text(self.name)} "
            f"AND ts > {self.from_ts} AND ts <= {self.to_ts} AND part BETWEEN {self.parts[0]} AND {self.parts[1]}"
        )

    @property
    def chosen(self) -> str:
        return f"FROM lines {self.where} ORDER BY part, message, nth"


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"
