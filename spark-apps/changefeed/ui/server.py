"""Serves the pages. A shell: what is on them is somebody's `Source`, how they look is `pages`.

Nobody logs in, and there is nothing to write: GET and HEAD alone. The page gets nothing from elsewhere, runs no script
but its own, and is shown in no frame.
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
from changefeed.ui.view import Changefeed, Overview

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


class Source(Protocol):
    """Who knows the changefeeds. Both may raise ChangefeedError, whose message is shown then."""

    @property
    def where(self) -> str:
        """Whose page it is, in a few words."""
        ...

    async def overview(self) -> Overview: ...

    async def changefeed(self, namespace: str, name: str) -> Changefeed | None:
        """With all that is known of it; None: there is no such changefeed."""
        ...


def parse_address(address: str, field: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; the host of ":PORT" is "": every address of this machine. Raises InvalidSpec."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if port is None or address != parts.netloc or "@" in address:
        raise InvalidSpec(field, f"{address!r}; allowed: HOST:PORT, or :PORT for every address of this machine")
    return host, port


async def serve(source: Source, address: tuple[str, int], field: str) -> tuple[web.AppRunner, int]:
    """Serve until its `cleanup()`. Gives the port, too: 0 takes a free one. Raises NeedsHuman when it is taken.

    On loopback only those names of it are answered to: a web site whose name leads here must not read the page.
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
    """Without a host one socket for both families, where there are two."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def application(source: Source, hosts: Collection[str] = ()) -> web.Application:
    """`hosts`: answer only to these names; empty: to any."""

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
            raise web.HTTPMisdirectedRequest(text=f"Ask for one of: {', '.join(sorted(hosts))}.")
        try:
            return await handler(request)
        except ChangefeedError as error:
            page = failure_page("Can't be shown right now", error.message, error.next_step, source.where, _now_ms())
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
