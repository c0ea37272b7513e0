"""Databases that are catalogs of Iceberg tables, for one account."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration_mariadb import running as mariadb_running
from integration_postgresql import running as postgresql_running

USER, PASSWORD = "keeper", "p@ss/word"


def write_account(folder: Path) -> None:
    """As the files of a Secret, in a folder that is made."""
    folder.mkdir()
    (folder / "username").write_text(USER)
    (folder / "password").write_text(PASSWORD)


@contextmanager
def mariadb(folder: Path, certificates: Path | None = None) -> Iterator[str]:
    """Its URI. `certificates`: a folder of changefeed_devcluster's; then the account must show one of that CA."""
    options: list[str] = []
    if certificates is not None:
        pem = certificates / "server.pem"
        options = [f"--ssl-ca={certificates / 'ca.crt'}", f"--ssl-cert={pem}", f"--ssl-key={pem}"]
    with mariadb_running(folder, *options) as database:
        database.query(
            "CREATE DATABASE lake",
            f"CREATE USER {USER} IDENTIFIED BY '{PASSWORD}' REQUIRE {'X509' if certificates else 'NONE'}",
            f"GRANT ALL ON lake.* TO {USER}",
        )
        yield f"mysql://127.0.0.1:{database.port}/lake"


@contextmanager
def postgresql(_: Path, certificates: Path | None = None) -> Iterator[str]:
    """As `mariadb`; the server has a folder of its own."""
    with postgresql_running(USER, PASSWORD, certificates) as server:
        yield f"postgresql://127.0.0.1:{server.port}/postgres"
