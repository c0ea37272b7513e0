"""An HTTP proxy before a real S3 server: it loses answers, refuses, cuts short, repeats, as networks and stores do."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

from integration_s3_servers import S3Server

#: What happens to a request: its answer is lost, comes too late, or it is sent twice and the second answer given.
LOST, LATE, REPEATED = "lost", "late", "repeated"
#: Half of its body arrives: the connection breaks there, or somebody has made the rest of the headers fit.
CUT, SHORTENED = "cut", "shortened"
#: Nobody is there; or a listing is the one of `freeze`.
AWAY, STALE = "away", "stale"
#: It is refused unseen.
REFUSED, BROKEN, CONFLICT, FORBIDDEN, FULL = "refused", "broken", "conflict", "forbidden", "full"

_REFUSALS = {
    REFUSED: (503, b"SlowDown"),
    BROKEN: (500, b"InternalError"),
    CONFLICT: (409, b"ConditionalRequestConflict"),
    FORBIDDEN: (403, b"AccessDenied"),
    FULL: (507, b"XMinioStorageFull"),
}
_LATE_S = 20.0

Server = TypeVar("Server", bound=S3Server)
_Answer = tuple[int, dict[str, str], bytes]


class FaultyProxy(ThreadingHTTPServer):
    """`strike` names the fault of a request, by method and path; `struck` counts them.

    `faults` are taken one by PUT, from the front; without a fault a request is passed on as it is.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend = server
        self.faults: list[str] = []
        self.puts = 0
        self.strike: Callable[[str, str], str] = _nothing
        self.struck: Counter[str] = Counter()
        self.look: Callable[[str, Message], object] = lambda method, headers: None  # at each request that comes
        self.pages = 0  # of listings, passed on
        self.late = threading.Event()  # answers that are late are given up
        self._listings: dict[str, _Answer] | None = None

    def freeze(self) -> None:
        """From now on a listing that is STALE is the first one that was asked for after this."""
        self._listings = {}

    def heal(self) -> None:
        """No more faults."""
        self.strike = _nothing
        self.late.set()
        self.late = threading.Event()

    def fault(self, method: str, path: str) -> str:
        if method == "PUT":
            self.puts += 1
        fault = self.faults.pop(0) if method == "PUT" and self.faults else self.strike(method, path)
        self.struck[fault] += bool(fault)
        return fault

    def listing(self, path: str, fault: str, ask: Callable[[], _Answer]) -> _Answer:
        if fault == STALE and self._listings is not None and path in self._listings:
            return self._listings[path]
        answer = ask()
        self.pages += 1
        if self._listings is not None:
            self._listings.setdefault(path, answer)
        return answer


def _nothing(method: str, path: str) -> str:
    return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: each answer would wait 40 ms for the client's ACK
    server: FaultyProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.look(self.command, self.headers)
        late = self.server.late
        fault = self.server.fault(self.command, self.path)
        if fault in _REFUSALS:
            status, code = _REFUSALS[fault]
            return self._answer(status, {}, b"<Error><Code>%s</Code></Error>" % code)
        if fault == AWAY:
            return self._hang_up()
        if self.command == "GET" and "list-type=2" in self.path:
            return self._answer(*self.server.listing(self.path, fault, lambda: self._pass_on(body)))
        if fault == CUT:
            self._send_half(body)
            return self._hang_up()
        answer = self._pass_on(body[: len(body) // 2] if fault == SHORTENED else body)
        if fault == REPEATED:
            answer = self._pass_on(body)
        if fault == LATE:
            late.wait(_LATE_S)
        if fault in (LOST, LATE):
            return self._hang_up()
        return self._answer(*answer)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT = _serve

    def _hang_up(self) -> None:
        self.close_connection = True

    def _pass_on(self, body: bytes) -> _Answer:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.backend.port)) as backend:
            # The signature covers the Host that the client knows, so every header is passed on as it came.
            if body:
                self.headers.replace_header("Content-Length", str(len(body)))
            backend.request(self.command, self.path, body, dict(self.headers))
            answer = backend.getresponse()
            headers = {name.title(): value for name, value in answer.getheaders()}
            return answer.status, headers, answer.read()

    def _send_half(self, body: bytes) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.backend.port)) as backend:
            backend.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                backend.putheader(name, value)
            backend.endheaders(body[: len(body) // 2])

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

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that gave up
            super().handle_one_request()
            return
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what is sent is the test's own."""


@contextlib.contextmanager
def before(server: Server) -> Iterator[tuple[FaultyProxy, Server]]:
    """The proxy, and the server as its clients see it."""
    with FaultyProxy(server) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, name="s3-proxy", daemon=True, args=(0.05,))
        thread.start()
        try:
            yield proxy, replace(server, port=proxy.server_address[1])
        finally:
            proxy.shutdown()
            thread.join()
