"""A small Google Cloud Storage for tests: the calls of the XML API that obstore makes, and nothing else.

It is strict: a request that it does not know, or a PUT without a precondition, is answered with 400. No emulator takes
these calls, so this says what the product sends, not what Google does.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "lake"
LOST, REFUSED = "lost", "refused"
_PAGE = 500


class GcsStub(ThreadingHTTPServer):
    """`faults` are taken one by PUT, from the front; `classes`: the storage class each object was written with."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, tuple[bytes, int]] = {}  # name -> body, generation
        self.classes: dict[str, str] = {}
        self.faults: list[str] = []
        self.puts = 0
        self.without_conditions = False
        self.forbidden = False
        self.lock = threading.Lock()
        self._generation = time.time_ns()

    def uri(self, path: str = "", bucket: str = BUCKET, more: str = "") -> str:
        return f"gs://{bucket}{path and '/'}{path}?endpoint=http://127.0.0.1:{self.server_address[1]}{more}"

    def put(self, name: str, body: bytes, condition: int) -> int | None:
        """The new generation, None when another one stands there."""
        with self.lock:
            found = self.objects.get(name, (b"", 0))[1]
            if found != condition and not self.without_conditions:
                return None
            self._generation += 1
            self.objects[name] = (body, self._generation)
            return self._generation


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: GcsStub

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        _, bucket, *name = unquote(parts.path).split("/", 2)
        if self.server.forbidden:
            return self._refuse(403, "AccessDenied")
        if bucket != BUCKET:
            return self._refuse(404, "NoSuchBucket")
        if self.command == "GET" and not name:
            return self._list(parse_qs(parts.query, strict_parsing=True))
        if not name or parts.query:
            return self._refuse(400, "InvalidArgument")
        return getattr(self, f"_{self.command.lower()}")(name[0], body)

    do_GET = do_HEAD = do_DELETE = do_PUT = do_POST = _serve

    def _put(self, name: str, body: bytes) -> None:
        self.server.puts += 1
        condition = self.headers["x-goog-if-generation-match"]
        if condition is None:
            return self._refuse(400, "MissingPrecondition")
        fault = self.server.faults.pop(0) if self.server.faults else ""
        if fault == REFUSED:
            return self._refuse(503, "ServiceUnavailable")
        generation = self.server.put(name, body, int(condition))
        if fault == LOST:
            self.close_connection = True
            return None
        if generation is None:
            return self._refuse(412, "PreconditionFailed")
        self.server.classes[name] = self.headers["x-goog-storage-class"] or ""
        return self._answer(200, b"", {"ETag": f'"{generation:x}"', "x-goog-generation": str(generation)})

    def _get(self, name: str, _: bytes) -> None:
        if name not in self.server.objects:
            return self._refuse(404, "NoSuchKey")
        body, generation = self.server.objects[name]
        headers = {
            "ETag": f'"{generation:x}"',
            "x-goog-generation": str(generation),
            "Last-Modified": formatdate(generation / 1e9, usegmt=True),
        }
        if asked := self.headers["Range"]:
            first, last = (int(each) for each in asked.removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}"
            return self._answer(206, body[first : last + 1], headers)
        return self._answer(200, body, headers)

    _head = _get

    def _delete(self, name: str, _: bytes) -> None:
        with self.server.lock:
            found = self.server.objects.pop(name, None)
        return self._refuse(404, "NoSuchKey") if found is None else self._answer(204, b"", {})

    def _list(self, query: dict[str, list[str]]) -> None:
        if not query.keys() <= {"list-type", "prefix", "continuation-token"} or query["list-type"] != ["2"]:
            return self._refuse(400, "InvalidArgument")
        (prefix,), (after,) = query.get("prefix", [""]), query.get("continuation-token", [""])
        with self.server.lock:
            names = sorted(name for name in self.server.objects if name.startswith(prefix) and name > after)
            sizes = [(name, len(self.server.objects[name][0])) for name in names[:_PAGE]]
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>e</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, size in sizes
        )
        more = f"<NextContinuationToken>{escape(sizes[-1][0])}</NextContinuationToken>" if len(names) > _PAGE else ""
        return self._answer(200, f"<ListBucketResult>{found}{more}</ListBucketResult>".encode(), {})

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode(), {})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what is sent is the test's own."""


@contextlib.contextmanager
def running_gcs() -> Iterator[GcsStub]:
    with GcsStub() as stub:
        thread = threading.Thread(target=stub.serve_forever, name="gcs-stub", daemon=True, args=(0.02,))
        thread.start()
        try:
            yield stub
        finally:
            stub.shutdown()
            thread.join()


def write_service_account(folder: Path) -> Path:
    """A Secret whose key asks for no token."""
    folder.mkdir(parents=True, exist_ok=True)
    key = {
        "disable_oauth": True,
        "client_email": "",
        "private_key": "hunter2",
        "private_key_id": "",
        "gcs_base_url": "",
    }
    (folder / "service-account.json").write_text(json.dumps(key))
    return folder
