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
from changefeed.upstream.postgresql.reading.table_rows import begin, own_number, rows, session_for_rows
from changefeed.upstream.postgresql.schema.catalog import read_published, read_table
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession, quoted
from changefeed.upstream.postgresql.slot.anchors import EMIT

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
        reading = session_for_rows(self._server, "changefeed verify")
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
        found = read_table(self._reading, self._publication, table.id)
        assert found is not None, "it is locked"
        yield from rows(self._reading, found)

    def _take(self, reading: PostgresqlSession, asking: PostgresqlSession) -> None:
        """Take locks first: a table that is emptied or rewritten has no rows for who began before that."""
        until = time.monotonic() + PATIENCE_S
        while True:
            names = [quoted(table.schema_name, table.name) for table in self._selected(asking)]
            self.after_ts = int(asking.rows(EMIT)[0][0])
            own = own_number(asking)
            if begin(reading, names) >= own:
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
