"""TLS to catalogs of Iceberg tables: who is trusted, and what is said of who isn't."""

from __future__ import annotations

import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from changefeed.errors import ChangefeedError, Refused
from changefeed.objectstore import Location
from changefeed.sink.iceberg.endpoint import IcebergEndpoint, told
from changefeed_devcluster.certificates import Certificates
from integration_catalogs import PASSWORD, mariadb, postgresql, write_account


class _Empty(BaseHTTPRequestHandler):
    """A REST catalog with nothing in it."""

    def do_GET(self) -> None:
        body = b'{"namespaces": [], "defaults": {}, "overrides": {}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def rest(_: Path, certificates: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem")
    context.load_verify_locations(certificates / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("running", [rest, mariadb, postgresql])
def test_both_ends_show_certificates(
    running: Callable[[Path, Path], AbstractContextManager[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        Certificates(folder, ["127.0.0.1"])
    keys = tmp_path / "keys"
    write_account(keys)
    nameless, deceived = tmp_path / "nameless", tmp_path / "deceived"
    nameless.mkdir()
    shutil.copy(ours / "client" / "ca.crt", nameless)
    shutil.copytree(ours / "client", deceived)
    shutil.copy(others / "client" / "ca.crt", deceived)  # would show the right certificate, to anyone else

    with running(tmp_path, ours) as address:

        def namespaces(tls: Path | None) -> list[tuple[str, ...]]:
            endpoint = IcebergEndpoint(Location("s3://bucket"), address, catalog_secret=keys, catalog_tls=tls)
            with closing(endpoint.open()) as catalog, told(address):
                return list(catalog.list_namespaces())

        assert namespaces(ours / "client") == []
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ours / "ca.crt"))  # trusts more than the Secret does
        with pytest.raises(Refused, match=r"TLS has failed: .*certificate.* spec\.sink\.iceberg\.catalog\.tls"):
            namespaces(deceived)
        for tls in (nameless, None):
            with pytest.raises(ChangefeedError) as refused:
                namespaces(tls)
            assert PASSWORD not in str(refused.value)
