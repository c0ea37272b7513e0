"""Connections to a PostgreSQL server. The only module that uses the client library.

It is given a socket that is connected and secured already, so that we read what a replication connection sends from
that socket, in whatever pieces it comes.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pg8000.native
import scramp

from changefeed.errors import Refused
from changefeed.secret_files import TlsFiles
from changefeed.upstream.contract import PATIENCE_S
from changefeed.upstream.postgresql.failures import failure, lost

#: Every session has them, whatever server, database and user are set to: a value's text means the same on each. Names
#: that a value refers to are whole ones.
SETTINGS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "search_path": "",
    "statement_timeout": "0",
    "lock_timeout": "0",
}
_CONNECT_S, _LEAVE_S = 10.0, 1.0
_TLS_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)
_READY, _NETWORK_ERROR = b"S", "network error"


@dataclass(frozen=True)
class PostgresqlServer:
    """Where a database is, and who we are there."""

    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    tls: TlsFiles | None = None

    def __str__(self) -> str:
        return f"postgresql://{self.host}:{self.port}/{self.database}"


class PostgresqlSession:
    """A connection that has logged in. One thread at a time.

    Each method raises what `failures` says of an error. After one, close it.
    """

    def __init__(self, server: PostgresqlServer, *, is_replication: bool = False, name: str = "changefeed") -> None:
        """`is_replication`: it takes the commands of the replication protocol, too. `name`: how the server lists it."""
        self.server = server
        with _failures(server):
            self.socket = _connected(server)
            try:
                self._connection: Any = pg8000.native.Connection(
                    server.user,
                    server.host,
                    server.database,
                    server.port,
                    server.password,
                    sock=self.socket,
                    ssl_context=False,
                    application_name=name,
                    replication="database" if is_replication else None,
                    startup_params=SETTINGS,
                )
            except BaseException:
                self.socket.close()
                raise

    def rows(self, statement: str, **values: Any) -> list[list[Any]]:
        """What a statement gives; `values` are those of its `:name`s, which commands of replication can't have."""
        with _failures(self.server):
            return self._connection.run(statement, **values) or []

    def close(self) -> None:
        """Take leave, if somebody is there: what the server still sends is nobody's."""
        with suppress(pg8000.native.InterfaceError, OSError):
            self.socket.settimeout(_LEAVE_S)
            self._connection.close()
        self.socket.close()


def quoted(*names: str) -> str:
    """Give a name for SQL, as of a table in its schema."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@contextmanager
def _failures(server: PostgresqlServer) -> Iterator[None]:
    try:
        yield
    except pg8000.native.DatabaseError as error:
        said = error.args[0]
        raise failure(str(server), said.get("C", ""), said.get("M", "")) from None
    except ssl.SSLError as error:
        why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
        raise _not_secure(server, f"its TLS handshake has failed: {why or error}") from None
    except pg8000.native.InterfaceError as error:
        if str(error) == _NETWORK_ERROR:
            raise lost(str(server), "the connection broke") from None
        raise Refused(f"{server}: {error}.", "Give the changefeed's user a password that is kept as SCRAM.") from None
    except scramp.ScramException as error:
        raise Refused(
            f"{server}: its proof that it knows the password is wrong: {error}.",
            "Somebody stands between, or the server needs another kind of password.",
        ) from None
    except TimeoutError:
        raise lost(str(server), "no answer in time") from None
    except socket.gaierror:
        raise lost(str(server), "its host name is not known") from None
    except OSError as error:
        raise lost(str(server), error.strerror or "the connection broke") from None


def _connected(server: PostgresqlServer) -> socket.socket:
    """A socket that has its peer's word, if TLS is wanted."""
    context = None if server.tls is None else _context(server, server.tls)
    connection = socket.create_connection((server.host, server.port), _CONNECT_S)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connection.sendall(_TLS_REQUEST)
            if (answer := connection.recv(1)) != _READY:
                if not answer:
                    raise ConnectionResetError
                raise _not_secure(server, "it speaks no TLS")
            connection = context.wrap_socket(connection, server_hostname=server.host)
        connection.settimeout(PATIENCE_S)
    except BaseException:
        connection.close()
        raise
    return connection


def _context(server: PostgresqlServer, tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of the certificate and of the host's name in it
    try:
        context.load_verify_locations(tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password="")  # else it asks the terminal
    except (OSError, ValueError) as error:
        raise _not_secure(server, f"its files can't be read: {error}") from None
    return context


def _not_secure(server: PostgresqlServer, why: str) -> Refused:
    refused = Refused(f"{server}: {why}.", "Look at the server's certificate and at the Secret's ca, cert and key.")
    refused.answered = True
    return refused
