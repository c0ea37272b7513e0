"""An HTTP server that stands for the API server in unit tests: it answers what a test tells it to, and keeps what was
asked. It knows nothing of Kubernetes beyond the shape of a list and of an error."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class ApiServer:
    """`objects`: path -> what GET gives; a list's path gives `{"items": …}`. `faults`: "METHOD path" -> answers that
    come first, one a request."""

    objects: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, list[web.Response | Answer]] = field(default_factory=lambda: defaultdict(list))
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    def fail(self, method: str, path: str, *answers: web.Response | Answer) -> None:
        self.faults[f"{method} {path}"] += answers

    def writes(self) -> list[Asked]:
        return [each for each in self.asked if each.method != "GET"]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body = json.loads(text) if text else None
        self.asked.append(Asked(request.method, request.path, dict(request.query), dict(request.headers), body))
        if faults := self.faults[f"{request.method} {request.path}"]:
            fault = faults.pop(0)
            return fault if isinstance(fault, web.StreamResponse) else await fault(request)
        if request.method == "GET":
            found = self.objects.get(request.path)
            return refusal(404, "NotFound", "no such object") if found is None else web.json_response(found)
        if request.method == "DELETE":
            gone = self.objects.pop(request.path, None)
            return refusal(404, "NotFound", "no such object") if gone is None else web.json_response({"kind": "Status"})
        return web.json_response(body)


def refusal(status: int, reason: str = "", message: str = "no", **headers: str) -> web.Response:
    """An error as the API server gives it."""
    content = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response({**content, "code": status}, status=status, headers=named)
