"""A MySQL-compatible server into which tables are restored, or whose rows are set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import duckdb
import numpy as np
import pyarrow as pa

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.objectstore.patience import Patience
from changefeed.restore.report import Restored
from changefeed.restore.rows import RowChanges, batches
from changefeed.restore.schema.definition import definition
from changefeed.restore.schema.table import RestoredTable, TableVersion
from changefeed.sink.mysql.rows.literals import identifier, joined, literals_of, text_literal
from changefeed.sink.mysql.rows.pieces import CONDITIONS, between, conditions, offsets, parts, text
from changefeed.sink.mysql.server import MysqlServer, Session

SCHEME = "mysql://"
_PORT = 3306
_PASSWORD = "MYSQL_PWD"
#: In which the upstream's statements are read: a backslash escapes.
_OF_DDLS = b"SET SESSION sql_mode='STRICT_TRANS_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO'"


def server_of(uri: str, field: str) -> MysqlServer:
    """Return the server at mysql://USER@HOST:PORT, with the password in MYSQL_PWD. Raises InvalidSpec."""
    found = urlsplit(uri)
    if found.password is not None:
        raise InvalidSpec(
            field, "contains a password, which other users of this machine could see", f"Put it into {_PASSWORD}."
        )
    if not uri.startswith(SCHEME) or not found.hostname or found.path.strip("/") or found.query:
        raise InvalidSpec(field, "is not a server", "Allowed: mysql://USER@HOST:PORT.")
    return MysqlServer(found.hostname, found.port or _PORT, found.username or "root", os.environ.get(_PASSWORD, ""))


class Database:
    """One connection. Each transaction is tried again when it fails, so it must be one that may be repeated."""

    def __init__(self, server: MysqlServer) -> None:
        self._server, self._session, self._patience, self.where = server, Session(server), Patience(), str(server)

    def run(self, *statements: bytes) -> None:
        """One after the other, in no transaction."""
        self._patience.call(self.where, lambda: self._session.run(statements))

    def define(self, database: str, statements: Sequence[str]) -> None:
        """The upstream's statements, in a session of their own: a backslash means another thing there than in rows."""
        session = Session(self._server, one_by_one=True)
        try:
            for statement in statements:
                session.run([b"USE " + identifier(database), _OF_DDLS, statement.encode()])
        finally:
            session.close()

    def rows(self, query: bytes) -> list[tuple[bytes, ...]]:
        return self._patience.call(self.where, lambda: self._session.rows(query))

    def transact(self, statements: Sequence[bytes]) -> None:
        """All of them or none. Raises Unavailable, and what a person must mend."""

        def attempt() -> None:
            self._session.begin()
            self._session.run([b"BEGIN", *statements])
            self._session.commit()

        self._patience.call(self.where, attempt)

    def has(self, table: tuple[str, str]) -> bool:
        where = b"table_schema=%s AND table_name=%s" % (text_literal(table[0]), text_literal(table[1]))
        return bool(self.rows(b"SELECT 1 FROM information_schema.tables WHERE " + where))

    def written(self, table: tuple[str, str], segment: TableVersion) -> list[int]:
        """Numbers of the columns that are written: those that the server does not compute."""
        where = b"table_schema=%s AND table_name=%s" % (text_literal(table[0]), text_literal(table[1]))
        query = b"SELECT column_name FROM information_schema.columns WHERE extra LIKE '% GENERATED%' AND " + where
        computed = {name.decode().lower() for (name,) in self.rows(query)}
        return [n for n, column in enumerate(segment.columns) if column.name.lower() not in computed]

    def close(self) -> None:
        self._session.close()


class Statements:
    """The SQL text that sets rows of a table; `written`: numbers of the columns that a REPLACE names."""

    def __init__(self, table: tuple[str, str], segment: TableVersion, written: Sequence[int]) -> None:
        self._table = identifier(table[0]) + b"." + identifier(table[1])
        self._segment, self._written = segment, written
        self._keys = [column.name for column in segment.columns if column.is_pk]
        names = b",".join(identifier(segment.columns[number].name) for number in written)
        self._replace = b"REPLACE INTO " + self._table + b" (" + names + b") VALUES "

    def put(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        """Rows that are to be there as they are given: c0..cn of the segment's."""
        literals = self._literals(rows)
        values = joined([b"(", *between(b",", [[literals[number]] for number in self._written]), b"),"])
        for some in parts(np.arange(rows.num_rows), offsets(values)):
            yield self._replace + text(values, some, b",")

    def delete(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        """Rows that are not to be there, by the key."""
        literals = self._literals(rows)
        names = {column.name: array for column, array in zip(self._segment.columns, literals, strict=True)}
        before, separator, behind, each = conditions(self._keys, names)
        for some in parts(np.arange(rows.num_rows), offsets(each), CONDITIONS):
            yield b"DELETE FROM " + self._table + b" WHERE " + before + text(each, some, separator) + behind

    def _literals(self, rows: pa.RecordBatch) -> list[pa.BinaryArray]:
        pairs = enumerate(zip(self._segment.columns, self._segment.stored, strict=True))
        return [
            _decimal(rows[f"c{n}"])
            if column.base == "DECIMAL"
            else literals_of(rows[f"c{n}"], stored.type == pa.binary())
            for n, (column, stored) in pairs
        ]


def _decimal(texts: pa.Array) -> pa.BinaryArray:
    return texts.cast(pa.binary()).fill_null(b"NULL")


def values_of(segment: TableVersion) -> str:
    """For a query of rows as `Statements` takes them."""
    return ", ".join(f"{stored.name} AS c{number}" for number, stored in enumerate(segment.stored))


class Restoring:
    """Restored tables in a database: they are loaded under other names, and get their own all at once.

    So a run that is killed leaves none of them, and the next one begins anew.
    """

    def __init__(self, database: Database, to_ts: int, tables: Sequence[RestoredTable]) -> None:
        """Raises InvalidSpec when one of the tables is there."""
        self._database = database
        self._beside = f"changefeed_restore_{to_ts}"
        self._renames: list[tuple[str, tuple[str, str]]] = []
        for table in tables:
            if database.has(table.now.name):
                raise InvalidSpec("--into", f"{table.name} already exists", "Drop it, or restore into another server.")
        made = b"CREATE DATABASE " + identifier(self._beside) + b" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        database.run(b"DROP DATABASE IF EXISTS " + identifier(self._beside), made)

    def write(self, table: RestoredTable, db: duckdb.DuckDBPyConnection, changes: RowChanges) -> Restored:
        """Raises NeedsHuman for a definition or a row that the server does not take."""
        name = self._beside, f"t{len(self._renames)}"
        self._database.define(self._beside, definition(table, name))
        statements = Statements(name, table.now, self._database.written(name, table.now))
        for rows in batches(db, f"SELECT {values_of(table.now)} FROM {changes.table} ORDER BY {changes.key}"):
            for statement in statements.put(rows):
                self._database.transact([statement])
        ((there,),) = self._database.rows(b"SELECT COUNT(*) FROM " + identifier(name[0]) + b"." + identifier(name[1]))
        if int(there) != (rows_wanted := changes.count()):
            raise NeedsHuman(
                f"{self._database.where}: of {rows_wanted} rows of {table.name} only {int(there)} are there.",
                "A collation or an index there takes some for equal. Restore into a folder, make the table by hand "
                "with the upstream's collations and unique keys, and load its file.",
            )
        self._renames.append((name[1], table.now.name))
        return Restored(table.name, rows_wanted)

    def discard(self) -> None:
        self._database.run(b"DROP DATABASE " + identifier(self._beside))

    def publish(self) -> None:
        for schema in sorted({name[0] for _, name in self._renames}):
            self._database.run(b"CREATE DATABASE IF NOT EXISTS " + identifier(schema))
        pairs = [
            identifier(self._beside) + b"." + identifier(old) + b" TO " + identifier(new[0]) + b"." + identifier(new[1])
            for old, new in self._renames
        ]
        self._database.run(b"RENAME TABLE " + b", ".join(pairs))
        self.discard()
