"""The replication connection on a real server: what it sends comes whole, and what goes wrong is named."""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import ChangefeedError, NeedsHuman, Refused, SnapshotLostByGC, Transient
from changefeed.secret_files import TlsFiles
from changefeed.upstream.postgresql.pgoutput.messages import Commit
from changefeed.upstream.postgresql.pgoutput.transactions import TransactionStream
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession
from changefeed.upstream.postgresql.slot import replication
from changefeed.upstream.postgresql.slot.replication import Replication
from changefeed_devcluster.certificates import Certificates
from conftest import wait_for
from integration_postgresql import Postgresql, reached, running

USER, PASSWORD = "keeper", "p@ss/word"


@pytest.fixture(scope="module")
def database() -> Iterator[Postgresql]:
    with running(USER, PASSWORD, of="newest") as server:
        server.query("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
        yield server


@pytest.fixture
def slot(database: Postgresql, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name[:60].lower().translate({ord(mark): "_" for mark in "[]-"})
    database.query(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    yield name
    wait_for(lambda: not _slot(database, name, "active"), "the reader's end")
    database.query(f"SELECT pg_drop_replication_slot('{name}')")


def _slot(database: Postgresql, slot: str, column: str) -> Any:
    ((value,),) = database.query(f"SELECT {column} FROM pg_replication_slots WHERE slot_name = '{slot}'")
    return value


def _lsn(database: Postgresql) -> int:
    ((value,),) = database.query("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
    return int(value)


def until(reader: Replication, is_there: Callable[[bytes], bool]) -> bytes:
    read = bytearray()

    def more() -> bool:
        read.extend(reader.read(0.1, 0.01))
        return is_there(read)

    wait_for(more, "what the server is to send")
    return bytes(read)


def test_changes_come_until_they_are_confirmed(database: Postgresql, slot: str) -> None:
    """Promise: what is not recorded here comes again, byte for byte; what is does not."""
    database.query("INSERT INTO t SELECT i, 'first ' || i FROM generate_series(1, 5000) i")
    position = _lsn(database)
    database.query("INSERT INTO t VALUES (9000, 'second 9000')")
    copies = []
    for _ in range(2):
        with closing(Replication(reached(database), slot, ["p"])) as reader:
            copies.append(until(reader, lambda read: b"second 9000" in read))
    assert all(b"first %d" % i in copy for copy in copies for i in range(1, 5001))
    with closing(Replication(reached(database), slot, ["p"])) as reader:
        until(reader, lambda read: b"second 9000" in read)
        reader.confirm(_lsn(database), position)
        wait_for(lambda: _slot(database, slot, "confirmed_flush_lsn - '0/0'") == position, "the confirmed position")
    with closing(Replication(reached(database), slot, ["p"])) as reader:
        rest = until(reader, lambda read: b"second 9000" in read)
    assert b"first" not in rest


def test_a_reader_with_nothing_to_read_stays(database: Postgresql, slot: str) -> None:
    """Unhappy path: the server ends a connection of which it has heard nothing for two seconds; it does hear of us."""
    database.query(
        f"CREATE ROLE hasty LOGIN REPLICATION PASSWORD '{PASSWORD}'", "ALTER ROLE hasty SET wal_sender_timeout = '2s'"
    )
    with closing(Replication(reached(database, user="hasty"), slot, ["p"])) as reader:
        heard: set[object] = set()

        def is_heard() -> bool:
            reader.read(0.1)
            ((time, age),) = database.query(
                "SELECT reply_time, now() - backend_start > '5 s' FROM pg_stat_replication "
                f"WHERE pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot}')"
            )
            heard.add(time)
            return bool(age)

        wait_for(is_heard, "an age of five seconds")
        assert len(heard) > 2
        database.query("INSERT INTO t VALUES (9001, 'still here')")
        until(reader, lambda read: b"still here" in read)


def test_a_server_that_is_frozen_is_taken_for_dead(database: Postgresql, slot: str) -> None:
    with closing(Replication(reached(database), slot, ["p"], silence_s=1.0)) as reader:
        pid = _slot(database, slot, "active_pid")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Transient, match=r"127\.0\.0\.1.*it has sent nothing for 1 s"):
                until(reader, lambda _: False)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_server_that_is_gone_is_worth_another_try(database: Postgresql, slot: str) -> None:
    """Unhappy path: SIGKILL in the stream; then nobody is there, and then it is as before."""
    database.query("INSERT INTO t VALUES (9002, 'before the kill')")
    with closing(Replication(reached(database), slot, ["p"])) as reader:
        until(reader, lambda read: b"before the kill" in read)
        database.kill()
        with pytest.raises(Transient, match=r"postgresql://127\.0\.0\.1:\d+/postgres: .*Check the server"):
            until(reader, lambda _: False)
    with pytest.raises(Transient, match="Connection refused"):
        Replication(reached(database), slot, ["p"])
    database.start()
    with closing(Replication(reached(database), slot, ["p"])) as reader:
        until(reader, lambda read: b"before the kill" in read)


def test_a_slot_has_one_reader(database: Postgresql, slot: str) -> None:
    with (
        closing(Replication(reached(database), slot, ["p"])),
        pytest.raises(Transient, match=r"is active for PID.*\(55006\)\. Another process reads the slot"),
    ):
        Replication(reached(database), slot, ["p"])


def test_a_slot_that_is_gone_has_taken_history_with_it(database: Postgresql) -> None:
    with pytest.raises(SnapshotLostByGC, match=r'"nowhere" does not exist \(42704\)'):
        Replication(reached(database), "nowhere", ["p"])


@pytest.mark.parametrize(
    ("other", "kind", "said"),
    [
        ({"password": "wrong"}, Refused, "password authentication failed.*28P01.*username, password"),
        ({"user": "stranger"}, Refused, "password authentication failed"),
        ({"database": "elsewhere"}, Refused, "3D000"),
        ({"user": "reader", "password": "read"}, Refused, "42501.*Grant"),
        ({"host": "nobody.invalid"}, Transient, "host name is not known"),
        ({"tls": TlsFiles(Path(__file__))}, Refused, "its files can't be read"),
    ],
    ids=["password", "user", "database", "rights", "host", "files"],
)
def test_who_may_not_enter_is_told_why(
    database: Postgresql, other: dict[str, Any], kind: type[ChangefeedError], said: str
) -> None:
    """Promise: an error names the server and the next step, and never the password."""
    database.query("DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN PASSWORD 'read'")
    server = reached(database, **other)
    with pytest.raises(kind, match=said) as refused:
        Replication(server, "none", ["p"])
    assert str(server) in str(refused.value)
    assert server.password not in str(refused.value).replace("password", "").replace("read:", "")
    assert refused.value.next_step


def test_what_is_no_server_of_postgresql_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"220 ready\r\n")

        threading.Thread(target=greet).start()
        server = PostgresqlServer("127.0.0.1", listener.getsockname()[1], "d", "u", "secret")
        with pytest.raises(ChangefeedError, match=r"postgresql://127\.0\.0\.1:\d+/d: "):
            PostgresqlSession(server)


def test_values_have_one_text_whatever_the_server_is_set_to(database: Postgresql) -> None:
    """Promise: settings of the server, the database and the user change no byte of a value."""
    database.query(
        "CREATE SCHEMA s",
        "CREATE TYPE s.mood AS ENUM ('happy')",
        "CREATE TABLE typed (id int PRIMARY KEY, d date, i interval, z timestamptz, f float8, b bytea, m money, "
        "c regclass)",
        "CREATE PUBLICATION typed FOR TABLE typed",
        "SELECT pg_create_logical_replication_slot('typed', 'pgoutput')",
        "INSERT INTO typed VALUES (1, '2026-03-04', '1 mon 2 days 03:04:05', '2026-03-04 05:06:07+02', 0.1::float4, "
        "'\\x00ff', 1234.5, 't')",
    )
    for setting in (
        "DateStyle = 'German, DMY'",
        "IntervalStyle = 'sql_standard'",
        "TimeZone = 'Asia/Tokyo'",
        "extra_float_digits = 0",
        "bytea_output = 'escape'",
        "search_path = public, s",
    ):
        database.query(f"ALTER ROLE {USER} SET {setting}", f"ALTER DATABASE postgres SET {setting}")
    with closing(Replication(reached(database), "typed", ["typed"])) as reader:
        read = until(reader, lambda read: b"public.t" in read)
    database.query(f"ALTER ROLE {USER} RESET ALL", "ALTER DATABASE postgres RESET ALL")
    values = (b"2026-03-04", b"P1M2DT3H4M5S", b"2026-03-04 03:06:07+00", b"0.10000000149011612", b"\\x00ff")
    for value in (*values, b"$1,234.50", b"public.t"):
        assert len(value).to_bytes(4) + value in read
    wait_for(lambda: not _slot(database, "typed", "active"), "the reader's end")
    database.query("SELECT pg_drop_replication_slot('typed')")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    Certificates(made, ["127.0.0.1"])
    return made


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[PostgresqlServer]:
    """It lets in who shows a certificate of its CA, and has the password."""
    with running(USER, PASSWORD, folder) as server:
        yield reached(server, tls=_tls(folder / "client"))


def _tls(client: Path) -> TlsFiles:
    return TlsFiles(client / "ca.crt", client / "tls.crt", client / "tls.key")


def test_changes_come_by_tls(secure: PostgresqlServer) -> None:
    with closing(PostgresqlSession(secure)) as session:
        for statement in (
            "CREATE TABLE public.t (id int PRIMARY KEY, v text)",
            "CREATE PUBLICATION p FOR TABLE public.t",
            "SELECT pg_create_logical_replication_slot('tls', 'pgoutput')",
            "INSERT INTO public.t SELECT i, repeat('x', 100) || i FROM generate_series(1, 20000) i",
        ):
            session.rows(statement)
        with closing(Replication(secure, "tls", ["p"])) as reader:
            assert session.rows("SELECT ssl FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)") == [[True]]
            read = until(reader, lambda read: b"x20000" in read)
    assert all(b"x%d" % i in read for i in range(1, 20001, 97))


def test_what_tls_has_taken_in_already_is_not_waited_for(
    secure: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: what is left of a record that was larger than one read comes with the next, with an empty socket."""
    poll, waited = select.poll, []

    class Watched:
        def register(self, connection: ssl.SSLSocket, mask: int) -> None:
            self._connection, self._poll = connection, poll()
            self._poll.register(connection, mask)

        def poll(self, wait_ms: float) -> list[tuple[int, int]]:
            if wait_ms:
                waited.append(self._connection.pending())
            return self._poll.poll(wait_ms)

    monkeypatch.setattr(select, "poll", Watched)
    monkeypatch.setattr(replication, "_MAX_BYTES", 16)
    with closing(PostgresqlSession(secure)) as session:
        for statement in (
            "CREATE TABLE public.small (id int PRIMARY KEY, v text)",
            "CREATE PUBLICATION small FOR TABLE public.small",
            "SELECT pg_create_logical_replication_slot('small', 'pgoutput')",
            "INSERT INTO public.small VALUES (1, 'one')",
        ):
            session.rows(statement)
        with closing(Replication(secure, "small", ["small"])) as reader:
            stream = TransactionStream()
            while not any(isinstance(event, Commit) for event in stream.take(reader.read(1.0, 0.0)).events):
                pass
    assert set(waited) == {0}


def test_who_is_not_trusted_is_named(secure: PostgresqlServer, folder: Path, tmp_path: Path) -> None:
    Certificates(tmp_path / "other", ["127.0.0.1"])
    stranger = TlsFiles(folder / "client" / "ca.crt")
    for tls, said in (
        (_tls(tmp_path / "other" / "client"), "TLS handshake has failed.*certificate"),
        (stranger, "certificate"),
        (None, "28000"),
    ):
        with pytest.raises(NeedsHuman, match=said) as refused:
            PostgresqlSession(replace(secure, tls=tls))
        assert str(secure) in str(refused.value)
        assert PASSWORD not in str(refused.value)


def test_a_server_without_tls_is_refused(database: Postgresql, folder: Path) -> None:
    """Promise: where TLS is asked for, no byte of a login goes without it."""
    with pytest.raises(Refused, match="it speaks no TLS"):
        PostgresqlSession(reached(database, tls=_tls(folder / "client")))
