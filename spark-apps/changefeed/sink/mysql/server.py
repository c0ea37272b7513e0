"""One connection to a MySQL-compatible server. The only module that uses the client library."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.constants import CLIENT, CR
from pymysql.converters import encoders
from pymysql.cursors import SSCursor

from changefeed.errors import ChangefeedError, Refused
from changefeed.schema.sql.dialect import TIDB, Dialect
from changefeed.secret_files import TlsFiles
from changefeed.sink.mysql.failures import failure, is_of_client, too_large

#: Every session has them: a row's text means the same on each server, and one that has frozen loses its locks soon.
SESSION = (
    b"SET NAMES utf8mb4",
    b"SET SESSION wait_timeout=60, time_zone='+00:00', foreign_key_checks=0, sql_mode="
    b"'STRICT_TRANS_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES'",
    b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
#: Of TiDB besides: what is written is of other rows' upstream, and not of the past (tidb_external_ts).
_TIDB_SESSION = (
    b"SET SESSION allow_auto_random_explicit_insert=1",
    b"SET SESSION tidb_txn_mode='pessimistic'",
    b"SET SESSION tidb_enable_external_ts_read=0",
)
#: Of MariaDB besides: who locks a row that another has changed since is told so (error 1020), and begins anew.
_MARIADB_SESSION = (b"SET SESSION innodb_snapshot_isolation=ON",)
#: How long a server may take over the statements of a batch.
ANSWER_S = 120
_CONNECT_S, IDLE_S = 10, 30
_HEAD = 64  # of a packet, more than enough

Row = tuple[bytes, ...]


@dataclass(frozen=True)
class MysqlServer:
    """Where a server is, and who we are there."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tls: TlsFiles | None = None

    def __str__(self) -> str:
        return f"mysql://{self.host}:{self.port}"


class Session:
    """A connection that is opened when it is needed. One thread at a time.

    Each method raises what `failures.failure` says of an error. After one no transaction is open; after a lost
    connection the next call opens another.
    """

    def __init__(self, server: MysqlServer, answer_s: int = ANSWER_S, one_by_one: bool = False) -> None:
        """`one_by_one`: the server takes one statement at a time and refuses a text that holds two."""
        self._server, self._answer_s, self._one_by_one = server, answer_s, one_by_one
        self._connection: Any = None
        self._used_s = 0.0
        self._packet = 0  # bytes that the server takes at once
        self._dialect = Dialect("MySQL")

    def begin(self) -> None:
        """Before calls that one connection must answer: a new one, if the server may close this one as idle."""
        if time.monotonic() - self._used_s > IDLE_S:
            self.close()

    @property
    def dialect(self) -> Dialect:
        with self._answers():
            return self._dialect

    @property
    def is_tidb(self) -> bool:
        return self.dialect.is_tidb

    def run(self, statements: Sequence[bytes]) -> list[int]:
        """How many rows each has changed. They are sent at once, if they are not too large for that; none is run after
        one that fails.
        """
        return list(self.answers(statements))

    def answers(self, statements: Sequence[bytes]) -> Iterator[int]:
        """The same, each when it is answered. All must be taken."""
        return self._answered(statements)

    def rows(self, query: bytes) -> list[Row]:
        """What a SELECT gives; NULL is None there."""
        with self._answers() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def pages(self, query: bytes, size: int) -> Iterator[list[Row]]:
        """What a SELECT gives, up to `size` rows at a time, as the server sends them: nobody holds all of them."""
        with self._answers() as connection, connection.cursor(SSCursor) as cursor:
            cursor.execute(query)
            while page := list(cursor.fetchmany(size)):
                yield page

    def commit(self, following: Sequence[bytes] = ()) -> Iterator[int]:
        """Raises OutcomeUnknown when the connection is lost before the answer.

        `following` are sent with it, and run after it; their answers are given as by `answers`.
        """
        given = self._answered([b"COMMIT", *following], committing=True)
        next(given)
        return given

    def rollback(self) -> None:
        """What the open transaction has done is undone, at once or when the server sees the connection close."""
        if self._connection is not None:
            try:
                self._connection.query(b"ROLLBACK")
            except pymysql.MySQLError:
                self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.MySQLError):  # what is open is rolled back by the server all the same
                connection.close()

    def _answered(self, statements: Sequence[bytes], committing: bool = False) -> Iterator[int]:
        """`committing`: the first is COMMIT."""
        if not statements:
            return
        with self._answers():
            sent = [(each, 1) for each in statements]
            if not self._one_by_one:
                sent = packets(statements, self._packet, str(self._server))
        for packet, count in sent:
            with self._answers(committing) as connection:
                answer = connection.query(packet)
            committing = False
            yield answer
            for _ in range(count - 1):
                with self._answers() as connection:
                    answer = connection.next_result()
                yield answer

    @contextlib.contextmanager
    def _answers(self, committing: bool = False) -> Any:
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._used_s = time.monotonic()
            yield self._connection
        except pymysql.MySQLError as error:
            raise self._failed(error, committing) from None  # its arguments may have what a message must not
        except RuntimeError as error:  # the client library lacks what this user's kind of password takes
            raise Refused(
                f"{self._server}: {error}.", "Give the changefeed a user with another kind of password."
            ) from None

    def _failed(self, error: Any, committing: bool) -> ChangefeedError:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        if isinstance(getattr(error, "original_exception", None), ssl.SSLError):
            number = CR.CR_SSL_CONNECTION_ERROR
        if is_of_client(number):
            self.close()
        else:
            self.rollback()
        return failure(str(self._server), number, text, committing)

    def _connect(self) -> Any:
        server = self._server
        options: dict[str, Any] = {}
        if server.tls is not None:
            files = {"ssl_ca": server.tls.ca, "ssl_cert": server.tls.certificate, "ssl_key": server.tls.key}
            options = {name: str(path) for name, path in files.items() if path is not None}
            options |= {"ssl_verify_cert": True, "ssl_verify_identity": True}
        connection = pymysql.connect(
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password,
            charset="utf8mb4",
            use_unicode=False,
            conv=encoders,  # none decodes: values stay bytes
            autocommit=True,
            client_flag=0 if self._one_by_one else CLIENT.MULTI_STATEMENTS,
            connect_timeout=_CONNECT_S,
            read_timeout=self._answer_s,
            write_timeout=self._answer_s,
            **options,
        )
        for statement in SESSION:
            connection.query(statement)
        with connection.cursor() as cursor:
            cursor.execute(b"SELECT @@max_allowed_packet, VERSION()")
            packet, version = cursor.fetchone()
        self._packet = int(packet) - _HEAD
        # Whoever runs a TiDB may let it say any version.
        self._dialect = TIDB if _knows(connection, b"SELECT tidb_version()") else Dialect.of(version.decode())
        more = _MARIADB_SESSION if self._dialect.is_mariadb else _TIDB_SESSION if self._dialect.is_tidb else ()
        for statement in more:
            _knows(connection, statement)
        return connection


def packets(statements: Sequence[bytes], limit: int, where: str) -> list[tuple[bytes, int]]:
    """The statements in their order, in as few packets of at most `limit` bytes as they fit in; and of each packet how
    many it has.

    Raises StatementTooLarge.
    """
    found: list[list[bytes]] = []
    size = limit
    for statement in statements:
        if len(statement) > limit:
            raise too_large(where, len(statement), limit)
        if size + len(statement) < limit:
            found[-1].append(statement)
            size += 1 + len(statement)
        else:
            found.append([statement])
            size = len(statement)
    return [(b";".join(each), len(each)) for each in found]


def _knows(connection: Any, statement: bytes) -> bool:
    """Whether the server knows what the statement is about."""
    try:
        connection.query(statement)
    except pymysql.MySQLError as error:
        if is_of_client(error.args[0]):
            raise
        return False
    return True
