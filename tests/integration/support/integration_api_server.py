"""As much of a Kubernetes API server as a driver sees, over TLS and with a ServiceAccount's files: PATCH of a status,
POST of a Secret."""

from __future__ import annotations

import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass
class ApiServer:
    """What it was asked, and what it answers."""

    account: Path  # a ServiceAccount's files, as pods have them
    port: int = 0
    answer: int = 200
    settings: dict[str, str] = field(default_factory=dict)  # status.liveSettings
    unknown: set[str] = field(default_factory=set)  # fields of the status that the CRD lacks
    said_back: str = ""  # in the place of the resource
    asked: list[dict[str, Any]] = field(default_factory=list)  # path, token, type, body

    def statuses(self) -> list[dict[str, Any]]:
        return [each["body"]["status"] for each in list(self.asked)]


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    account = folder / "serviceaccount"
    account.mkdir(parents=True)
    key, certificate = _certificate()
    (account / "ca.crt").write_bytes(certificate)
    (account / "token").write_text("first\n")
    (folder / "server.pem").write_bytes(key + certificate)
    made = ApiServer(account)

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            resource = json.dumps({"status": {"liveSettings": made.settings}})
            self.answer(made.answer, (made.said_back or resource).encode(), made.unknown)

        def do_POST(self) -> None:
            status = 201 if made.answer == 200 else made.answer
            self.answer(status, json.dumps({"metadata": {"name": "given"}}).encode())

        def answer(self, status: int, said_back: bytes, unknown: Set[str] = frozenset()) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = {"path": self.path, "token": self.headers["Authorization"], "type": self.headers["Content-Type"]}
            made.asked.append({**said, "body": body})
            if refused := sorted(unknown & body.get("status", {}).keys(), reverse=True):
                why = f"failed to create typed patch object: .status.{refused[0]}: field not declared in schema"
                status, said_back = 500, json.dumps({"kind": "Status", "message": why}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(said_back)))
            self.end_headers()
            self.wfile.write(said_back)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _certificate() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)
