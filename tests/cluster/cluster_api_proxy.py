"""A proxy in front of the API server that counts what a client writes and harms it: kills, refusals, freezes, cuts.

Only the client under test is given the proxy's address, so every request here is that client's. HTTP/1.1 with TLS on
both sides, a connection to the API server for each of the client's; what is passed on is passed on as it is. It can't
upgrade connections (exec, attach).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from cluster_control_plane import ControlPlane

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Renewed by the clock, or questions in the form of a POST: a count with them would differ from run to run.
_NOT_STATE = ("leases", "selfsubjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews", "tokenreviews")
_REASONS = {
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_LARGEST_HEAD = 1 << 20
_START_S = 30.0


@dataclass(frozen=True)
class Request:
    """`body` is empty unless it is a JSON object."""

    method: str
    target: str
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def is_write(self) -> bool:
        """Whether it changes what a cluster is to look like: no Lease, no review."""
        return self.method in _WRITES and self.plural not in _NOT_STATE

    @property
    def is_watch(self) -> bool:
        return parse_qs(urlsplit(self.target).query).get("watch", [""])[0] in ("true", "1")

    @property
    def plural(self) -> str:
        return self._parts[0] if self._parts else ""

    @property
    def name(self) -> str:
        """As `PATCH changefeeds/a/status`; a POST is named by its body."""
        parts = self._parts
        if self.method == "POST" and len(parts) == 1:
            metadata = self.body.get("metadata") or {}
            parts = [*parts, metadata.get("name") or metadata.get("generateName") or ""]
        return f"{self.method} {'/'.join(parts)}"

    @property
    def _parts(self) -> list[str]:
        """The parts of the path, from the resource's plural on."""
        parts = urlsplit(self.target).path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        return rest[2:] if rest[:1] == ["namespaces"] and len(rest) > 2 else rest


@dataclass
class Write:
    """A write that came in. `status`: of the answer, 0 while there is none."""

    request: Request
    status: int = 0

    @property
    def name(self) -> str:
        return self.request.name


@dataclass
class _Kill:
    write: int  # how many writes from now on
    before_answer: bool
    kill: Callable[[], None]


@dataclass
class _Refusal:
    status: int
    matches: Callable[[Request], bool]


@dataclass(eq=False)
class _Client:
    """A connection to us. `upstream`: ours to the API server for it, from its first request on."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def abort(self) -> None:
        self.writer.transport.abort()
        self.abort_upstream()

    def abort_upstream(self) -> None:
        if self.upstream:
            self.upstream[1].transport.abort()


class ApiProxy:
    """`with ApiProxy(cluster) as proxy`; give the client `proxy.server`. It runs in a thread of its own."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster
        self.writes: list[Write] = []  # in the order in which they came
        self._kill: _Kill | None = None
        self._refusals: list[_Refusal] = []
        self._watches: set[_Client] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="api-proxy", daemon=True)
        self._listening = threading.Event()

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listening.wait(_START_S):
            raise TimeoutError(f"the proxy does not listen after {_START_S:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def kill_at(self, write: int, kill: Callable[[], None], before_answer: bool) -> None:
        """`kill()` once at the `write`-th write from now (1: the next), when the API server has done it.

        `before_answer`: the client dies without having read the answer; otherwise with it in its hands.
        """
        self._in_loop(lambda: setattr(self, "_kill", _Kill(write, before_answer, kill)))

    def disarm(self) -> None:
        """No kill is asked for any more."""
        self._in_loop(lambda: setattr(self, "_kill", None))

    @property
    def kill_is_due(self) -> bool:
        """Whether the kill asked for has not been reached."""
        return self._kill is not None

    @contextlib.contextmanager
    def refusing(self, status: int, matches: Callable[[Request], bool] = lambda r: r.is_write) -> Iterator[None]:
        """Inside it, what matches is answered with `status` and never reaches the API server."""
        refusal = _Refusal(status, matches)
        self._in_loop(lambda: self._refusals.append(refusal))
        try:
            yield
        finally:
            self._in_loop(lambda: self._refusals.remove(refusal))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside it nothing passes, in neither direction; connections stay open. What waited goes on afterwards."""
        self._in_loop(self._flowing.clear)
        try:
            yield
        finally:
            self._in_loop(self._flowing.set)

    def drop_watches(self) -> int:
        """Cuts every watch that is open, in the middle, as a restart of a load balancer does; how many."""
        return int(self._in_loop(self._abort_watches))

    @property
    def open_watches(self) -> int:
        return len(self._watches)

    def _in_loop(self, action: Callable[[], Any]) -> Any:
        async def act() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(_START_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: set[asyncio.Task[None]] = set()
        certificate, key = self._cluster.authority.issue(f"api-proxy-{id(self)}", "api-proxy", hosts=["127.0.0.1"])
        ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        ours.load_cert_chain(certificate, key)
        self._theirs = ssl.create_default_context(cafile=self._cluster.authority.ca)
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=ours, limit=_LARGEST_HEAD)
        self._port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stopping.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        client = _Client(reader, writer)
        closed = asyncio.create_task(writer.wait_closed())
        # A client that has left in the middle of a watch would go unnoticed until its next event.
        closed.add_done_callback(lambda _: client.abort_upstream())
        try:
            while await self._one_request(client):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client, the API server or the proxy ends; who is left is told by the close
        finally:
            self._connections.discard(task)
            client.abort()
            await asyncio.gather(closed, return_exceptions=True)  # how it broke is of no interest

    async def _one_request(self, client: _Client) -> bool:
        """False: this connection ends here."""
        head = await client.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = _headers(lines)
        body = await client.reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(method, target, _json_object(body))
        write = Write(request)
        if request.is_write:
            self.writes.append(write)
        await self._flowing.wait()
        for refusal in self._refusals:
            if refusal.matches(request):
                write.status = refusal.status
                client.writer.write(_refused(refusal.status))
                await client.writer.drain()
                return True
        return await self._pass_on(head + body, write, client)

    async def _pass_on(self, request: bytes, write: Write, client: _Client) -> bool:
        if client.upstream is None:
            host = urlsplit(self._cluster.server)
            client.upstream = await asyncio.open_connection(
                host.hostname, host.port, ssl=self._theirs, limit=_LARGEST_HEAD, server_hostname=host.hostname
            )
        theirs, to_them = client.upstream
        if write.request.is_watch:
            self._watches.add(client)
        try:
            to_them.write(request)
            await to_them.drain()
            head = await theirs.readuntil(b"\r\n\r\n")
            write.status = int(head.split(b" ", 2)[1])
            return await self._answer(write, head, theirs, client.writer)
        finally:
            self._watches.discard(client)

    async def _answer(
        self, write: Write, head: bytes, theirs: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        due = self._due(write.request)
        if due and due.before_answer:
            due.kill()
            return False
        await self._flowing.wait()
        writer.write(head)
        headers = _headers(head.decode("latin-1").split("\r\n"))
        async for piece in _body(theirs, headers):
            await self._flowing.wait()
            writer.write(piece)
            await writer.drain()
        await writer.drain()
        if due:
            due.kill()
            return False
        return headers.get("connection", "").lower() != "close"

    def _due(self, request: Request) -> _Kill | None:
        if self._kill is None or not request.is_write:
            return None
        self._kill.write -= 1
        if self._kill.write:
            return None
        due, self._kill = self._kill, None
        return due

    def _abort_watches(self) -> int:
        for watch in self._watches:
            watch.abort()
        return len(self._watches)


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines[1:] if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(theirs: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """An answer's body, piece by piece as it comes, chunk marks and all. The API server sends its length or chunks."""
    if headers.get("transfer-encoding") == "chunked":
        size = -1
        while size:
            mark = await theirs.readuntil(b"\r\n")
            size = int(mark, 16)
            yield mark + await theirs.readexactly(size + 2)
    left = int(headers.get("content-length", "0"))
    while left:
        piece = await theirs.read(min(left, 1 << 16))
        if not piece:
            raise asyncio.IncompleteReadError(piece, left)
        left -= len(piece)
        yield piece


def _json_object(body: bytes) -> dict[str, Any]:
    if not body.startswith(b"{"):
        return {}
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def _refused(status: int) -> bytes:
    reason = _REASONS[status]
    message = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status}
    body = json.dumps({**message, "message": f"refused by the test: {reason}"}).encode()
    lines = [f"HTTP/1.1 {status} {reason}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += ["Retry-After: 1"] if status == 429 else []
    return "\r\n".join([*lines, "", ""]).encode() + body
