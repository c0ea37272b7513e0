"""Liveness and readiness of the operator, judged from its vital signs, and the server that reports them.

A stuck event loop answers nothing, which fails a probe too. A standby is ready: if readiness depended on the Lease, a
rollout would never finish. An unreachable API server doesn't fail liveness: a restart would not bring it back.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from changefeed.errors import NeedsHuman

#: Seconds of silence after which a watch makes the operator unready, and unhealthy (kopf reconnects after 70).
WATCH_SILENT = 150.0
WATCH_DEAD = 330.0

#: The API server counts as reachable if it answered about the Lease within this many seconds.
REACHED = 30.0

#: A pass that takes this many seconds is stuck: passes time out before.
PASS_STUCK = 180.0

#: A key that waits this many seconds while no pass runs means that the queue is stuck.
QUEUE_STUCK = 120.0


@dataclass(frozen=True)
class Vitals:
    """All ages in seconds. `watch_ages`: since each watch was last heard from, or since the start; empty for a standby.
    `oldest_wait`: of the key that has waited longest; `longest_pass`: of the longest-running pass."""

    lease_age: float
    watch_ages: Mapping[str, float]
    longest_pass: float = 0.0
    oldest_wait: float = 0.0
    running: int = 0
    #: What keeps the operator from watching, or "".
    waits_for: str = ""


def sick(vitals: Vitals) -> list[str]:
    """Say why the process should be restarted; empty while it is healthy."""
    reached = vitals.lease_age < REACHED
    problems = [
        f"the {kind} watch has been silent for {age:.0f} s although the API server responds"
        for kind, age in vitals.watch_ages.items()
        if reached and not vitals.waits_for and age > WATCH_DEAD
    ]
    if vitals.longest_pass > PASS_STUCK:
        problems.append(f"a pass has been running for {vitals.longest_pass:.0f} s")
    if not vitals.running and vitals.oldest_wait > QUEUE_STUCK:
        problems.append(f"a changefeed has been queued for {vitals.oldest_wait:.0f} s while no pass runs")
    return problems


def unready(vitals: Vitals) -> list[str]:
    """Say why it can't do its work now; empty if it can, or could as the leader."""
    problems = sick(vitals)
    if vitals.waits_for:
        problems.append(vitals.waits_for)
    if vitals.lease_age > REACHED:
        problems.append(f"the API server has not answered about the Lease for {vitals.lease_age:.0f} s")
    problems += [
        f"the {kind} watch has been silent for {age:.0f} s"
        for kind, age in vitals.watch_ages.items()
        if age > WATCH_SILENT
    ]
    return problems


async def serve(
    port: int, vitals: Callable[[], Vitals], metrics: Callable[[], bytes], address: str | None = None
) -> tuple[web.AppRunner, int]:
    """Serve `/healthz`, `/readyz` and `/metrics`; port 0 picks a free one. Returns what to `cleanup()`, and the port.

    `address` None: all addresses of the pod, IPv4 and IPv6.

    Raises NeedsHuman if the port is taken.
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
        raise NeedsHuman(f"Can't listen on port {port}: {e.strerror}.", "Choose another --metrics-port.") from e
    return runner, int(runner.addresses[0][1])


def _listen(address: str | None, port: int) -> socket.socket:
    """One socket for both address families, if there are two: two would get different free ports."""
    if address is None and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((address or "", port))
