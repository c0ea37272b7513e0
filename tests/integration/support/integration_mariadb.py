"""A MariaDB of the test's own, and a proxy that cuts connections where it hurts."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from changefeed.sink.mysql.server import MysqlServer
from integration_mysql_programs import PROGRAMS
from pymysql.converters import encoders

_START_S = 60.0
_SEQUENCE = re.compile(r"\bseq_1_to_(\d+)\b")
_SIZE, _COMMIT = 3, b"\x00\x03COMMIT"  # of a packet that is the first of its command, a query, which begins so


@dataclass(frozen=True)
class MariaDb:
    """`is_mysql`: it lacks what only MariaDB has."""

    port: int
    is_mysql: bool = False

    def server(self, port: int | None = None) -> MysqlServer:
        return MysqlServer("127.0.0.1", port or self.port, "root", "")

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        """Each by itself; the rows of the last, values as bytes or None."""
        options = {"conv": encoders, "use_unicode": False, "ssl_disabled": True}  # else it reads all CAs first
        connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root", **options)
        with connection, connection.cursor() as cursor:
            for statement in ("SET NAMES utf8mb4, time_zone='+00:00', autocommit=1", *statements):
                cursor.execute(_SEQUENCE.sub(_numbers, statement) if self.is_mysql else statement)
            return list(cursor.fetchall())


def _numbers(sequence: re.Match[str]) -> str:
    """A table of numbers from 1, as MariaDB has one of each name such as seq_1_to_9."""
    digits = range(len(sequence[1]))
    ten = " UNION ALL ".join(f"SELECT {digit} d" for digit in range(10))
    places = " + ".join(f"t{place}.d * {10**place}" for place in digits)
    crossed = " CROSS JOIN ".join(f"({ten}) t{place}" for place in digits)
    return f"(SELECT {places} seq FROM {crossed} HAVING seq BETWEEN 1 AND {sequence[1]}) seq"


@contextlib.contextmanager
def running(folder: Path, *options: str, of: str = "") -> Iterator[MariaDb]:
    """A server with an empty data folder; stopped at the end, whatever happens.

    `of`: its name in PROGRAMS; else what the environment says, or MariaDB 10.11.
    """
    programs = PROGRAMS[of or os.environ.get("CHANGEFEED_TEST_SERVER", "mariadb-10.11")]()
    data, log_path = folder / "data", folder / "mariadb.log"
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    temporary = folder / "tmp"  # a server that starts removes every other's temporary tables from a folder they share
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), **programs.environment}
    programs.make_data(data, log_path, environment, *as_root)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    settings = ["--character-set-server=utf8mb4", "--collation-server=utf8mb4_bin", "--innodb-log-file-size=16M"]
    settings += ["--innodb-flush-log-at-trx-commit=2"]  # a process that is killed loses nothing by that
    where = [f"--datadir={data}", f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--port={port}"]
    command = [programs.daemon, "--no-defaults", "--bind-address=127.0.0.1", *programs.arguments, *where, *settings]
    with log_path.open("ab") as log:
        process = subprocess.Popen([*command, *as_root, *options], stdout=log, stderr=log, env=environment)
    database = MariaDb(port, programs.is_mysql)
    try:
        _wait_until_up(database, process, log_path)
        yield database
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_up(database: MariaDb, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(pymysql.OperationalError):
            database.query("SELECT 1")
            return
        time.sleep(0.05)
    pytest.fail(f"MariaDB has not started:\n{log.read_text(errors='replace')[-2000:]}")


def _of_mysql() -> Callable[[bytes], bool]:
    return lambda said: said.startswith(_COMMIT, _SIZE)


class Proxy:
    """Stands before a server. `cuts(n)`: whether the n-th COMMIT loses its connection: by turns before the server has
    it, and before its answer. `commits`: makes, for a connection, what tells that its client says COMMIT.
    """

    def __init__(
        self,
        port: int,
        cuts: Callable[[int], bool],
        commits: Callable[[], Callable[[bytes], bool]] = _of_mysql,
    ) -> None:
        self._target, self._cuts, self._is_commit = port, cuts, commits
        self._lock = threading.Lock()
        self.commits = 0
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Passes on what the client says, and beside it what the server says."""
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            answers = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            answers.start()
            is_commit = self._is_commit()
            with contextlib.suppress(OSError):
                while data := client.recv(1 << 16):
                    if is_commit(data) and self._is_to_be_cut():
                        client.shutdown(socket.SHUT_RDWR)
                        if self.lost % 2:
                            server.sendall(data)
                        break
                    server.sendall(data)
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)
            answers.join()

    def _is_to_be_cut(self) -> bool:
        with self._lock:
            self.commits += 1
            cut = self._cuts(self.commits)
            self.lost += cut
            return cut


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
