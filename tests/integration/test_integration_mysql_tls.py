"""The MySQL sink's connection by TLS: who is trusted, and what is said of who isn't."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from changefeed.errors import NeedsHuman, Refused
from changefeed.secret_files import TlsFiles
from changefeed.sink.mysql.server import MysqlServer, Session
from changefeed_devcluster.certificates import Certificates
from integration_mariadb import MariaDb, running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    Certificates(made, ["127.0.0.1"])
    return made


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[MariaDb]:
    """Its user `secure` must show a certificate."""
    pem = folder / "server.pem"
    options = [f"--ssl-ca={folder / 'ca.crt'}", f"--ssl-cert={pem}", f"--ssl-key={pem}"]
    with running(tmp_path_factory.mktemp("mariadb"), *options) as server:
        server.query("CREATE USER secure IDENTIFIED BY 'secret' REQUIRE X509")
        yield server


def secured(database: MariaDb, tls: TlsFiles | None) -> MysqlServer:
    return replace(database.server(), user="secure", password="secret", tls=tls)


def test_both_sides_show_certificates(database: MariaDb, folder: Path) -> None:
    client = folder / "client"
    session = Session(secured(database, TlsFiles(client / "ca.crt", client / "tls.crt", client / "tls.key")))
    ((_, cipher),) = session.rows(b"SHOW STATUS LIKE 'Ssl_cipher'")
    assert cipher
    session.close()


def test_a_server_of_another_ca_is_refused(database: MariaDb, tmp_path: Path) -> None:
    Certificates(tmp_path / "other", ["127.0.0.1"])
    client = tmp_path / "other" / "client"
    session = Session(secured(database, TlsFiles(client / "ca.crt", client / "tls.crt", client / "tls.key")))
    with pytest.raises(Refused, match=r"certificate.*\(2026\)"):
        session.rows(b"SELECT 1")


def test_who_shows_no_certificate_is_refused(database: MariaDb, folder: Path) -> None:
    for tls in (None, TlsFiles(folder / "client" / "ca.crt")):
        with pytest.raises(NeedsHuman, match="Access denied for user 'secure'") as refused:
            Session(secured(database, tls)).rows(b"SELECT 1")
        assert "secret" not in str(refused.value).replace("Secret", "")
