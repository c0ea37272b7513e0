"""Whether the operator lives and is ready, judged from its vital signs; and the server that tells.

A loop that is stuck answers nothing, which fails a probe too. A standby is ready: readiness must not hang on the Lease,
or a rollout would never end. An API server that is gone is no reason to be killed: a restart would not bring it back.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from changefeed.errors import NeedsHuman

#: A watch without a sign of life is not trusted after so many seconds (kopf connects anew after 70); dead after more.
WATCH_SILENT = 150.0
WATCH_DEAD = 330.0

#: The API server counts as reached when it answered about the Lease within so many seconds.
REACHED = 30.0

#: No pass takes so many seconds: each is ended before.
PASS_STUCK = 180.0

#: Keys don't wait so many seconds while no worker works.
QUEUE_STUCK = 120.0


@dataclass(frozen=True)
class Vitals:
    """All ages in seconds. `watch_ages`: of each watch since it was last heard of, or since the start; empty when
    standby. `oldest_wait`: of the key that waits longest; `longest_pass`: of the pass that runs longest."""

    lease_age: float
    watch_ages: Mapping[str, float]
    longest_pass: float = 0.0
    oldest_wait: float = 0.0
    running: int = 0
    #: What the operator waits for before it can watch, or "".
    waits_for: str = ""


def sick(vitals: Vitals) -> list[str]:
    """Why the process should be started again; empty while it lives."""
    reached = vitals.lease_age < REACHED
    problems = [
        f"the watch of {kind} is silent for {age:.0f} s while the API server answers"
        for kind, age in vitals.watch_ages.items()
        if reached and not vitals.waits_for and age > WATCH_DEAD
    ]
    if vitals.longest_pass > PASS_STUCK:
        problems.append(f"a pass runs for {vitals.longest_pass:.0f} s")
    if not vitals.running and vitals.oldest_wait > QUEUE_STUCK:
        problems.append(f"a changefeed waits for {vitals.oldest_wait:.0f} s while nobody works")
    return problems


def unready(vitals: Vitals) -> list[str]:
    """Why it can't do its work now; empty while it can, or could if it led."""
    problems = sick(vitals)
    if vitals.waits_for:
        problems.append(vitals.waits_for)
    if vitals.lease_age > REACHED:
        problems.append(f"the API server has not answered about the Lease for {vitals.lease_age:.0f} s")
    problems += [
        f"the watch of {kind} is silent for {age:.0f} s"
        for kind, age in vitals.watch_ages.items()
        if age > WATCH_SILENT
    ]
    return problems


async def serve(
    port: int, vitals: Callable[[], Vitals], metrics: Callable[[], bytes], address: str | None = None
) -> tuple[web.AppRunner, int]:
    """Answer `/healthz`, `/readyz`, `/metrics`; port 0 takes a free one. Gives what to `cleanup()`, and the port.

    `address` None: all of the pod's, whatever family.

    Raises NeedsHuman when the port is taken.
    """

    def verdict(problems: list[str]) -> web.Response:
        return web.Response(status=503 if problems else 200, text="\n".join(problems or ["ok"]) + "\n")

    async def healthz(_: web.Request) -> web.Response:
        return verdict(sick(vitals()))

    async def readyz(_: web.Request) -> web.Response:
        return verdict(unready(vitals()))

    async def numbers(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", numbers)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, _listen(address, port)).start()
    except OSError as e:
        await runner.cleanup()
        raise NeedsHuman(f"Can't serve on port {port}: {e.strerror}.", "Choose another --metrics-port.") from e
    return runner, int(runner.addresses[0][1])


def _listen(address: str | None, port: int) -> socket.socket:
    """One socket for both families, where there are two: a free port would be another one in each."""
    if address is None and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((address or "", port))
