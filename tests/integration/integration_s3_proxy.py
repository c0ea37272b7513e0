"""An HTTP proxy before a real S3 server that loses answers, refuses, or repeats requests as a load balancer may."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from integration_s3_servers import S3Server

#: What happens to a PUT: its answer is lost, it is refused unseen, or it is sent twice and the second answer given.
LOST, REFUSED, REPEATED = "lost", "refused", "repeated"


class FaultyProxy(ThreadingHTTPServer):
    """`faults` are taken one by PUT, from the front; without one it is passed on as it is."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend = server
        self.faults: list[str] = []
        self.puts = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def do_PUT(self) -> None:
        self.server.puts += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self.server.faults.pop(0) if self.server.faults else ""
        if fault == REFUSED:
            self._answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        answer = self._pass_on(body)
        if fault == REPEATED:
            answer = self._pass_on(body)
        if fault == LOST:
            self.close_connection = True
            return
        self._answer(*answer)

    def _pass(self) -> None:
        self._answer(*self._pass_on(self.rfile.read(int(self.headers["Content-Length"] or 0))))

    do_GET = do_HEAD = do_POST = do_DELETE = _pass

    def _pass_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.backend.port)) as backend:
            # The signature covers the Host that the client knows, so every header is passed on as it came.
            backend.request(self.command, self.path, body, dict(self.headers))
            answer = backend.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what is sent is the test's own."""


@contextlib.contextmanager
def before(server: S3Server) -> Iterator[tuple[FaultyProxy, S3Server]]:
    """The proxy, and the server as its clients see it."""
    with FaultyProxy(server) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, name="s3-proxy", daemon=True)
        thread.start()
        try:
            yield proxy, S3Server(server.name, proxy.server_address[1], server.folder)
        finally:
            proxy.shutdown()
            thread.join()
