"""Reads the rows of chunks, each with what its transaction sees. Blocks, so it has a thread."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from changefeed.errors import NeedsHuman, Transient
from changefeed.upstream.postgresql.copies.key_ranges import condition
from changefeed.upstream.postgresql.reading.table_rows import begin, own_number, rows, session_for_rows, sql_name
from changefeed.upstream.postgresql.schema.catalog import ReadableTable, read_table
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession, quoted

_RETRY_S = 0.5


class TableReader:
    """One transaction at a time. One thread at a time. After an error, close it: it opens again by itself."""

    def __init__(self, server: PostgresqlServer, publication: str) -> None:
        self._server, self._publication = server, publication
        self._session: PostgresqlSession | None = None
        self._table: ReadableTable | None = None

    def xid(self) -> int:
        """Give the number of a transaction that begins now: all that has been committed has lower ones."""
        return own_number(self._open())

    def begin(self, table: int, seen: int) -> ReadableTable:
        """Begin a transaction that sees all that ever is committed by transactions with numbers below `seen`.

        Raises Transient while one of these is open, NeedsHuman if the table is not there.
        """
        session = self._open()
        known = read_table(session, self._publication, table)
        if known is not None:
            if begin(session, [sql_name(known)]) < seen:
                raise Transient(
                    f"{self._server}: the copy of {known.info.full_name} waits until transactions that were open when "
                    "it began have ended.",
                    "End those that are old (pg_stat_activity has them by backend_xid, pg_prepared_xacts those that "
                    "are prepared); it is tried again.",
                    _RETRY_S,
                )
            found = read_table(session, self._publication, table)
            if found is not None and sql_name(found) != sql_name(known):
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
        first = self._table.identity[0]
        name = quoted(self._table.info.columns[first].name)
        yield from rows(self._open(), self._table, f"({condition(name, self._table.types[first], start, end)})")

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
            self._session = session_for_rows(self._server)
        return self._session
