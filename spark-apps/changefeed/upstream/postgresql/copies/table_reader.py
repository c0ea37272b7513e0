"""Reads the rows of tables, each with what its transaction sees. Blocks, so it has a thread.

The table is locked against changes of its definition before the transaction's snapshot is taken: a TRUNCATE, or an
ALTER TABLE that writes all rows anew, would otherwise leave nothing for an older one to see.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from changefeed.errors import NeedsHuman, Transient
from changefeed.upstream.postgresql.catalog import ReadableTable, read_table
from changefeed.upstream.postgresql.copies.copy_out import copied
from changefeed.upstream.postgresql.copies.key_ranges import condition
from changefeed.upstream.postgresql.copies.text_rows import rows_of
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession, quoted

#: A policy for rows is an error and leaves none out, and nobody ends a transaction that waits for us.
_SETTINGS = """
SELECT set_config(name, CASE name WHEN 'row_security' THEN 'off' WHEN 'lock_timeout' THEN '10s' ELSE '0' END, false)
FROM pg_settings
WHERE name IN ('row_security', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')"""
_XID = "SELECT pg_current_xact_id()::text::bigint"
_OLDEST = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_RETRY_S = 0.5


class TableReader:
    """One transaction at a time. One thread at a time. After an error, close it: it opens again by itself."""

    def __init__(self, server: PostgresqlServer, publication: str) -> None:
        self._server, self._publication = server, publication
        self._session: PostgresqlSession | None = None
        self._table: ReadableTable | None = None

    def xid(self) -> int:
        """Give the number of a transaction that begins now: all that has been committed has lower ones."""
        ((xid,),) = self._open().rows(_XID)
        return int(xid)

    def begin(self, table: int, seen: int) -> ReadableTable:
        """Begin a transaction that sees all that ever is committed by transactions with numbers below `seen`.

        Raises Transient while one of these is open, NeedsHuman if the table is not there.
        """
        session = self._open()
        known = read_table(session, self._publication, table)
        if known is not None:
            session.rows(_BEGIN)
            session.rows(f"LOCK TABLE {_sql_name(known)} IN ACCESS SHARE MODE")
            ((oldest,),) = session.rows(_OLDEST)
            if oldest < seen:
                raise Transient(
                    f"{self._server}: the copy of {known.info.full_name} waits until transactions that were open when "
                    "it began have ended.",
                    "End those that are old (pg_stat_activity has them by backend_xid, pg_prepared_xacts those that "
                    "are prepared); it is tried again.",
                    _RETRY_S,
                )
            found = read_table(session, self._publication, table)
            if found is not None and _sql_name(found) != _sql_name(known):
                raise Transient(f"{known.info.full_name} was renamed just now.", "It is read again.", _RETRY_S)
            known = found
        if known is None:
            raise NeedsHuman(
                f"{self._server}: the table with the OID {table} was dropped, or has left the publication, before its "
                "rows were copied.",
                "Start a new changefeed.",
            )
        self._table = known
        return known

    def rows(self, start: bytes, end: bytes) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
        """Keys and values of the rows in `[start, end)` of the table, in parts."""
        assert self._table is not None, "a transaction has begun"
        table, session = self._table, self._open()
        names = [quoted(column.name) for column in table.info.columns]
        first = table.identity[0]
        where = f"({condition(names[first], table.types[first], start, end)})"
        where += f" AND ({table.row_filter})" if table.row_filter else ""
        query = f"SELECT {', '.join(names)} FROM {_sql_name(table)} WHERE {where}"
        for lines in copied(session, query):
            yield rows_of(lines, len(names), table.identity)

    def end(self) -> None:
        """The transaction."""
        self._open().rows("COMMIT")
        self._table = None

    def cut(self) -> None:
        """Let who waits in another thread for what the server sends wait no more; it meets an error."""
        if (session := self._session) is not None:
            with suppress(OSError):
                socket.socket.shutdown(session.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Nothing when it is not open."""
        session, self._session, self._table = self._session, None, None
        if session is not None:
            session.close()

    def _open(self) -> PostgresqlSession:
        if self._session is None:
            self._session = PostgresqlSession(self._server)
            self._session.rows(_SETTINGS)
        return self._session


def _sql_name(table: ReadableTable) -> str:
    """Without the tables that inherit from it, which are others, and their own."""
    return ("" if table.is_partitioned else "ONLY ") + quoted(*table.info.qualified)
