"""A PostgreSQL of the test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration_debian import program

_START_S = 60.0
_PACKAGE = "postgresql"


@contextlib.contextmanager
def running(user: str, password: str, certificates: Path | None = None) -> Iterator[int]:
    """The port of a server that lets only this user in, with the password; its database is `postgres`.

    `certificates`: a folder of changefeed_devcluster's; then it also wants TLS, and a certificate of that CA.
    """
    server, initdb, is_ready = (program(name, _PACKAGE) for name in ("postgres", "initdb", "pg_isready"))
    run_as = "nobody" if os.geteuid() == 0 else None  # it refuses to be run by root
    with tempfile.TemporaryDirectory() as name, (Path(name) / "log").open("w+") as log:
        folder = Path(name)
        (folder / "password").write_text(password)
        options = _secured(folder, certificates) if certificates else ()
        if run_as is not None:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, run_as)

        def start(*command: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, user=run_as)

        account = (f"--username={user}", f"--pwfile={folder}/password", "--auth=scram-sha-256")
        if start(initdb, f"--pgdata={folder}/data", *account, "--no-sync", "--encoding=UTF8").wait(_START_S):
            pytest.fail(f"{initdb} has failed:\n{(folder / 'log').read_text()[-2000:]}")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        where = ("-h", "127.0.0.1", "-p", str(port), "-k", name)
        with start(server, "-D", f"{folder}/data", "-F", *where, *options) as process:
            try:
                deadline = time.monotonic() + _START_S
                while subprocess.run([is_ready, "-q", "-h", "127.0.0.1", "-p", str(port)], check=False).returncode:
                    if process.poll() is not None or time.monotonic() > deadline:
                        pytest.fail(f"{server} has not started:\n{(folder / 'log').read_text()[-2000:]}")
                yield port
            finally:
                process.send_signal(signal.SIGINT)  # a server that is to terminate waits for its clients


def _secured(folder: Path, certificates: Path) -> tuple[str, ...]:
    """The options for it. The server's files are to be its own."""
    for name in ("ca.crt", "server.pem"):
        shutil.copy(certificates / name, folder / name)
        (folder / name).chmod(0o600)
    (folder / "hba").write_text("hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n")
    files = {"ssl_ca_file": "ca.crt", "ssl_cert_file": "server.pem", "ssl_key_file": "server.pem", "hba_file": "hba"}
    return ("-c", "ssl=on", *(word for option, file in files.items() for word in ("-c", f"{option}={folder}/{file}")))
