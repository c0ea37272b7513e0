"""Reads rows of tables as pgoutput would send them, in a transaction of its own. Blocks.

The tables are locked against changes of their definitions before the transaction's snapshot is taken: a TRUNCATE, or an
ALTER TABLE that writes all rows anew, would otherwise leave nothing for an older one to see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from changefeed.upstream.postgresql.reading.copy_out import copied
from changefeed.upstream.postgresql.reading.text_rows import rows_of
from changefeed.upstream.postgresql.schema.catalog import ReadableTable
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession, quoted

#: A policy for rows is an error and leaves none out, and nobody ends a transaction that waits for us.
_SETTINGS = """
SELECT set_config(name, CASE name WHEN 'row_security' THEN 'off' WHEN 'lock_timeout' THEN '10s' ELSE '0' END, false)
FROM pg_settings
WHERE name IN ('row_security', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')"""
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: The first of a transaction that reads: it fixes what is seen.
_OLDEST = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_OWN_NUMBER = "SELECT pg_current_xact_id()::text::bigint"


def session_for_rows(server: PostgresqlServer, name: str = "") -> PostgresqlSession:
    """Open one that sees all rows of a table or fails. `name`: as of PostgresqlSession, which says what this raises."""
    session = PostgresqlSession(server, name=name)
    session.rows(_SETTINGS)
    return session


def own_number(session: PostgresqlSession) -> int:
    """Give the number of a transaction that begins now: all that has been committed has lower ones."""
    ((number,),) = session.rows(_OWN_NUMBER)
    return int(number)


def begin(session: PostgresqlSession, names: Sequence[str]) -> int:
    """Begin a transaction with locks on tables, named as in SQL: it sees all that was ever committed below a number."""
    session.rows(_BEGIN)
    if names:
        session.rows(f"LOCK TABLE {', '.join(names)} IN ACCESS SHARE MODE")
    ((oldest,),) = session.rows(_OLDEST)
    return int(oldest)


def sql_name(table: ReadableTable) -> str:
    """Name it without the tables that inherit from it, which are others, and their own."""
    return ("" if table.is_partitioned else "ONLY ") + quoted(*table.info.qualified)


def rows(
    session: PostgresqlSession, table: ReadableTable, where: str = "true"
) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
    """Keys and values of the rows that the publication sends and for which `where` holds, in parts."""
    names = [quoted(column.name) for column in table.info.columns]
    where += f" AND ({table.row_filter})" if table.row_filter else ""
    for lines in copied(session, f"SELECT {', '.join(names)} FROM {sql_name(table)} WHERE {where}"):
        yield rows_of(lines, len(names), table.identity)
