"""The driver's HTTP server: `/metrics`, `/healthz` for the kubelet's probe, `/status` for whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import make_wsgi_app, start_http_server

from changefeed.errors import NeedsHuman, Unavailable
from changefeed.metrics import Registry

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

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
