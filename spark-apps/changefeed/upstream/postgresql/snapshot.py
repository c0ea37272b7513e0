"""Reads the rows of tables as of one moment, which is between two anchors: PostgreSQL has no read as of a ts.

Rows come as pgoutput sends them, so the decoder of the stream reads them, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from changefeed.errors import ChangefeedError, Unavailable
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.contract import PATIENCE_S
from changefeed.upstream.postgresql.anchors import EMIT
from changefeed.upstream.postgresql.catalog import read_published, read_table
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession, quoted

#: A policy must not leave rows out without a word, nor a setting of the server's end what takes its time.
_SETTINGS = """
SELECT set_config(name, CASE name WHEN 'row_security' THEN 'off' ELSE '0' END, false) FROM pg_settings
WHERE name IN ('row_security', 'idle_in_transaction_session_timeout', 'transaction_timeout')"""
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: The first of a transaction that reads: it fixes what is seen.
_OLDEST = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_OWN_NUMBER = "SELECT pg_current_xact_id()::text::bigint"
#: Rows that are asked for together: these first, then as many as have some MiB.
_FIRST_ROWS, _MOST_ROWS, _PIECE_BYTES = 100, 20_000, 4 << 20
_PAUSE_S = 0.1


class DatabaseSnapshot:
    """The published tables that are selected, as of one moment: `with DatabaseSnapshot(...) as snapshot: ...`.

    All commits up to `after_ts` are in it, and none behind `before_ts`. A transaction that was about to commit when
    `after_ts` was taken may stand in the WAL ahead of it without being seen yet, so such ones are waited for.
    """

    after_ts: int
    before_ts: int
    tables: Sequence[TableInfo]

    def __init__(self, server: PostgresqlServer, publication: str, selects: Callable[[str, str], bool]) -> None:
        self._server, self._publication, self._selects = server, publication, selects
        self._reading: PostgresqlSession | None = None

    def __enter__(self) -> Self:
        """Raises Unavailable while transactions are open, and what PostgresqlSession does."""
        reading = PostgresqlSession(self._server, name="changefeed verify")
        try:
            asking = PostgresqlSession(self._server, name="changefeed verify")
            try:
                self._take(reading, asking)
            finally:
                asking.close()
        except ChangefeedError:
            reading.close()
            raise
        self._reading = reading
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._reading is not None:
            self._reading.close()

    def rows(self, table: TableInfo) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
        """Keys and values in pieces, as a feed hands them on. One table after the other."""
        assert self._reading is not None
        columns = {column.name: _cell(column.name) for column in table.output_columns}
        keys = [cell for column, cell in zip(table.output_columns, columns.values(), strict=True) if column.is_pk]
        value = " || ".join([f"int2send({len(columns)}::int2)", *columns.values()])
        found = read_table(self._reading, self._publication, table.id)
        assert found is not None, "it is locked"
        only = "" if found.is_partitioned else "ONLY "
        where = f" WHERE {found.row_filter}" if found.row_filter else ""
        self._reading.rows(
            f"DECLARE changefeed_rows NO SCROLL CURSOR FOR SELECT {' || '.join(keys) or 'NULL'}, {value} "
            f"FROM {only}{quoted(table.schema_name, table.name)} AS r{where}"
        )
        count = _FIRST_ROWS
        while rows := self._reading.rows(f"FETCH {count} FROM changefeed_rows"):
            values = pa.array([value for _, value in rows], pa.binary())
            yield pa.array([key for key, _ in rows], pa.binary()), values
            count = min(max(_PIECE_BYTES * len(rows) // values.nbytes, 1), _MOST_ROWS)
        self._reading.rows("CLOSE changefeed_rows")

    def _take(self, reading: PostgresqlSession, asking: PostgresqlSession) -> None:
        """Take locks first: a table that is emptied or rewritten has no rows for who began before that."""
        until = time.monotonic() + PATIENCE_S
        reading.rows(_SETTINGS)
        while True:
            names = [quoted(table.schema_name, table.name) for table in self._selected(asking)]
            reading.rows(_BEGIN)
            if names:
                reading.rows(f"LOCK TABLE {', '.join(names)} IN ACCESS SHARE MODE")
            self.after_ts = int(asking.rows(EMIT)[0][0])
            ((own,),) = asking.rows(_OWN_NUMBER)
            ((oldest,),) = reading.rows(_OLDEST)
            if oldest >= own:
                break
            reading.rows("ROLLBACK")
            if time.monotonic() > until:
                raise Unavailable(
                    f"{self._server}: a transaction that has written is open for more than {PATIENCE_S:.0f} s.",
                    "Wait for it, or end it: the oldest backend_xid in pg_stat_activity, or the oldest in "
                    "pg_prepared_xacts. Then try again.",
                )
            time.sleep(_PAUSE_S)
        self.before_ts = int(asking.rows(EMIT)[0][0])
        locked = set(names)
        self.tables = [t for t in self._selected(reading) if quoted(t.schema_name, t.name) in locked]

    def _selected(self, session: PostgresqlSession) -> list[TableInfo]:
        found = read_published(session, self._publication).tables
        return [table for table in found if self._selects(table.schema_name, table.name)]


def _cell(column: str) -> str:
    """SQL for one cell. concat() has the text that the type's output function gives; a cast may have another."""
    value = f"r.{quoted(column)}"
    text = f"convert_to(CASE WHEN {value} IS DISTINCT FROM NULL THEN concat({value}) END, 'UTF8')"
    return f"coalesce((SELECT 't'::bytea || int4send(octet_length(b)) || b FROM {text} AS b), 'n'::bytea)"
