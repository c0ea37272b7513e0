"""Serves the pages. A shell: a `ChangefeedsSource` provides the content, `pages` renders it.

There is no login and nothing to modify: only GET and HEAD are served. The page loads nothing from other hosts, runs
only its own script, and can't be framed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from changefeed.errors import ChangefeedError, InvalidSpec, NeedsHuman
from changefeed.ui.pages import ASSETS, changefeed_page, failure_page, overview_page
from changefeed.ui.view import ChangefeedView, Overview

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ASSET_TYPES = {"style.css": "text/css", "refresh.js": "text/javascript", "icon.svg": "image/svg+xml"}
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class ChangefeedsSource(Protocol):
    """Provides the changefeeds. Both methods may raise ChangefeedError, whose message is then shown."""

    @property
    def where(self) -> str:
        """Who serves the page, in a few words."""
        ...

    async def overview(self) -> Overview: ...

    async def changefeed(self, namespace: str, name: str) -> ChangefeedView | None:
        """Everything known about it; None if it does not exist."""
        ...


def parse_address(address: str, field: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; for ":PORT" the host is "", meaning all addresses. Raises InvalidSpec."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if port is None or address != parts.netloc or "@" in address:
        raise InvalidSpec(field, f"{address!r}; allowed: HOST:PORT, or :PORT for every address of this machine")
    return host, port


async def serve(source: ChangefeedsSource, address: tuple[str, int], field: str) -> tuple[web.AppRunner, int]:
    """Serve until the runner's `cleanup()`. Returns the port too: 0 picks a free one. Raises NeedsHuman if it is taken.

    On loopback, only requests for loopback host names are answered, so that DNS rebinding can't read the page.
    """
    host, port = address
    app = application(source, _LOOPBACK if host in _LOOPBACK else ())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, _listen(host, port)).start()
    except OSError as e:
        await runner.cleanup()
        raise NeedsHuman(f"Can't serve on {host}:{port}: {e.strerror}.", f"Choose another {field}.") from e
    return runner, int(runner.addresses[0][1])


def _listen(host: str, port: int) -> socket.socket:
    """Without a host, one dual-stack socket where supported."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def application(source: ChangefeedsSource, hosts: Collection[str] = ()) -> web.Application:
    """Build the web application.

    `hosts`: answer only requests for these host names; empty: all.
    """

    async def show_overview(_: web.Request) -> web.Response:
        return _html(overview_page(await source.overview(), source.where, _now_ms()))

    async def show_changefeed(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = await source.changefeed(namespace, name)
        if found is None:
            why = f"There is no changefeed {namespace}/{name}."
            return _html(failure_page("Not found", why, "See the list of changefeeds.", source.where, _now_ms()), 404)
        return _html(changefeed_page(found, source.where, _now_ms()))

    async def show_asset(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _ASSET_TYPES:
            raise web.HTTPNotFound
        return web.Response(body=(ASSETS / name).read_bytes(), content_type=_ASSET_TYPES[name], charset="utf-8")

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if hosts and urlsplit(f"//{request.host}").hostname not in hosts:
            raise web.HTTPMisdirectedRequest(
                text=f"This host name is not served. Use one of: {', '.join(sorted(hosts))}."
            )
        try:
            return await handler(request)
        except ChangefeedError as error:
            page = failure_page("Not available right now", error.message, error.next_step, source.where, _now_ms())
            return _html(page, 503)

    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    app = web.Application(middlewares=[guard])
    app.on_response_prepare.append(add_headers)
    app.add_routes(
        [
            web.get("/", show_overview),
            web.get("/changefeeds/{namespace}/{name}", show_changefeed),
            web.get("/assets/{name}", show_asset),
        ]
    )
    return app


def _html(page: str, status: int = 200) -> web.Response:
    return web.Response(text=page, status=status, content_type="text/html", charset="utf-8")


def _now_ms() -> int:
    return int(time.time() * 1000)
