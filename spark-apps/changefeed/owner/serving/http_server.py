"""The driver's HTTP server: `/metrics`, `/healthz` for the kubelet's probe, `/status` for whoever asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import make_wsgi_app, start_http_server

from changefeed.errors import NeedsHuman, Unavailable
from changefeed.metrics import Registry

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

#: Silence after which a process should be killed. Who watches the JVM kills it before: this is for when that hangs too.
SILENT_S = 15.0
TURN_EVERY_S = 0.5
STATUS_WAIT_S = 5.0
_STATUS_KEPT_S = 1.0  # one answer serves all who ask so soon after it
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


@contextmanager
def served(
    metrics: Registry,
    port: int,
    address: str = "127.0.0.1",
    ill: Callable[[], str | None] = lambda: None,
    status: Callable[[], bytes] = lambda: b"{}",
) -> Iterator[int]:
    """Answer requests in threads until the block ends; port 0 takes a free one. Gives the port.

    `ill`: why this process should be killed, asked in one of these threads; None: it works. `status`: JSON, asked
    there too; it may raise Unavailable. Raises NeedsHuman when the port is taken.
    """
    try:
        server, thread = start_http_server(port, address, metrics.registry)
    except OSError as e:
        raise NeedsHuman(
            f"Can't serve metrics on {address}:{port}: {e.strerror}.",
            "Choose another port with --metrics-port; 0 takes a free one.",
        ) from e
    server.set_app(_beside_metrics(make_wsgi_app(metrics.registry), ill, status))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _beside_metrics(
    metrics: WSGIApplication, ill: Callable[[], str | None], status: Callable[[], bytes]
) -> WSGIApplication:
    """Adds `/healthz`, 200 while the process works, else 503 and why it does not; and `/status`, JSON."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/healthz":
            why = ill()
            start_response("503 Service Unavailable" if why else "200 OK", [_TEXT])
            return [f"{why or 'ok'}\n".encode()]
        if environ["PATH_INFO"] == "/status":
            try:
                body = status()
            except Unavailable as error:
                start_response("503 Service Unavailable", [_TEXT])
                return [f"{error}\n".encode()]
            start_response("200 OK", [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
            return [body]
        return metrics(environ, start_response)

    return answer


class Health:
    """Whether this driver still works: its event loop runs and Spark's JVM responds. Made on the loop."""

    def __init__(self, jvm_silent_s: Callable[[], float]) -> None:
        """`jvm_silent_s`: for how long it has not answered; asked in any thread, and must not block."""
        self._jvm_silent_s = jvm_silent_s
        self._loop = asyncio.get_running_loop()
        self._turn()

    def close(self) -> None:
        self._next.cancel()

    def ill(self) -> str | None:
        """Why this process should be killed; None while it works. Any thread, at once."""
        still_s = time.monotonic() - self._turned_at
        if still_s >= SILENT_S:
            return f"The driver's event loop has stood still for {still_s:.0f} s."
        if (silent_s := self._jvm_silent_s()) >= SILENT_S:
            return f"Spark's JVM has not answered for {silent_s:.0f} s."
        return None

    def _turn(self) -> None:
        self._turned_at = time.monotonic()
        self._next = self._loop.call_later(TURN_EVERY_S, self._turn)


class Inquiry:
    """Lets the server's threads ask for the status: `make` is called on the loop that this is made on."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._made_at = float("-inf")
        self._made = b""

    def ask(self) -> bytes:
        """Any thread but the loop's. Raises Unavailable when the loop does not answer in time, or has ended."""
        asked = None
        try:
            asked = asyncio.run_coroutine_threadsafe(answer := self._answer(), self._loop)
            return asked.result(STATUS_WAIT_S)
        except TimeoutError:
            raise Unavailable(f"The driver's event loop has not answered for {STATUS_WAIT_S:g} s.") from None
        except RuntimeError:  # of a loop that is closed
            raise Unavailable("The driver ends.") from None
        finally:
            if asked is None:
                answer.close()
            else:
                asked.cancel()

    async def _answer(self) -> bytes:
        now = time.monotonic()
        if now - self._made_at >= _STATUS_KEPT_S:
            self._made, self._made_at = self._make(), now
        return self._made
