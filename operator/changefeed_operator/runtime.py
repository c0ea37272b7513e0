"""The operator as a process: one leader that watches and works, standbys that wait, an end that loses nothing.

Nothing here decides about a changefeed. When something ends that must not (a watch, the workers, the Lease), the
process ends with it and says why: a new one lists everything again, which is the one way back that is always right.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from changefeed.errors import ChangefeedError, Fenced

from changefeed_operator import api
from changefeed_operator.connection import Connection
from changefeed_operator.decide import decide
from changefeed_operator.health import Vitals, serve
from changefeed_operator.kube import Kube, Manifest
from changefeed_operator.leader import Leadership
from changefeed_operator.metrics import Metrics, Standing
from changefeed_operator.queue import Queue, Workers
from changefeed_operator.reconcile import Reconciler
from changefeed_operator.seen import Seen
from changefeed_operator.settings import Settings
from changefeed_operator.watch import WATCHED, Watch, key_of

#: Passes that run get so many seconds to end after SIGTERM (a pod has 30).
STOP_SECONDS = 15.0

#: Seconds between two looks for a missing CRD or right.
WAIT_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Options:
    """How one operator runs; `namespaces` empty: all. `workers`: passes at the same moment."""

    settings: Settings
    lease_namespace: str
    namespaces: Sequence[str] = ()
    selector: str = ""
    lease: str = api.OPERATOR
    metrics_port: int = 8080
    workers: int = 8


class Operator:
    """To be made inside a running loop. `exit_now` ends the process on the spot, when it must not act any more."""

    def __init__(self, connection: Connection, options: Options, exit_now: Callable[[int], object] = os._exit) -> None:
        self._connection = connection
        self._options = options
        self._exit_now = exit_now
        self._stop = asyncio.Event()
        self._metrics = Metrics()
        self._seen = Seen()
        self._lease_kube = Kube(connection)
        identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._leadership = Leadership(self._lease_kube, options.lease_namespace, options.lease, identity)
        self._kube = Kube(connection, self._leadership.holds, self._metrics.count_request)
        reconciler = Reconciler(self._kube, self._seen, options.settings, self._metrics, decide, options.selector)
        self._workers = Workers(Queue(options.workers), reconciler.work)
        self._heard: dict[tuple[str, str], float] = {}  # kind and namespace of a watch -> when it was last heard of
        self._waits_for = ""

    async def run(self) -> int:
        """Run until SIGTERM (0), or until something ended that must not (1)."""
        async with contextlib.AsyncExitStack() as open_things:
            open_things.push_async_callback(self._kube.close)
            open_things.push_async_callback(self._lease_kube.close)
            self._take_signals()
            self._metrics.show(self._standing)
            server, port = await serve(self._options.metrics_port, self._vitals, self._metrics.text)
            open_things.push_async_callback(server.cleanup)
            open_things.push_async_callback(self._leadership.release)
            log.info("started", server=self._connection.server, port=port, identity=self._leadership.election.identity)
            if not await self._or_stop(self._leadership.acquire()):
                return 0
            log.info("leads", lease=f"{self._options.lease_namespace}/{self._options.lease}")
            return await self._lead()

    def stop(self) -> None:
        """End in good order."""
        log.info("stopping")
        self._stop.set()

    async def _lead(self) -> int:
        """Work as the leader until told to stop; the exit code."""
        work = asyncio.create_task(self._work(), name="work")
        keep = asyncio.create_task(self._leadership.keep(), name="lease")
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait((work, keep, stop), return_when=asyncio.FIRST_COMPLETED)
            if keep.done():
                log.critical("does not lead any more", error=str(keep.exception()))
                self._exit_now(Fenced.exit_code)
                return 1
            if work.done() and (work.exception() is not None or not self._stop.is_set()):
                log.critical("ended unexpectedly", error=str(work.exception()), exc_info=work.exception())
                return 1
            return 0
        finally:
            self._workers.stop()
            # A pass that runs may end what it does; the Lease is kept meanwhile.
            await asyncio.wait((work, keep), timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in (work, keep, stop):
                task.cancel()
            await asyncio.gather(work, keep, stop, return_exceptions=True)

    async def _work(self) -> None:
        """Watch and work; returns after `Workers.stop`, raises when a watch ends."""
        await self._served()
        if self._stop.is_set():
            return
        options, now = self._options, time.monotonic()
        self._heard = {(kind.kind, namespace): now for kind in WATCHED for namespace in options.namespaces or ("",)}
        watch = Watch(self._connection, options.namespaces, options.selector, self._on_event, self._on_heard)
        watching = asyncio.create_task(watch.run(self._take_signals), name="watch")
        working = asyncio.create_task(self._workers.run(), name="workers")
        try:
            await asyncio.wait((watching, working), return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, working):
                if task.done():
                    task.result()
        finally:
            for task in (watching, working):
                task.cancel()
            await asyncio.gather(watching, working, return_exceptions=True)

    async def _served(self) -> None:
        """Return once everything that is watched can be listed: CRDs may come later than the operator. Or at `stop`."""
        for namespace in self._options.namespaces or ("",):
            for kind in WATCHED:
                while not self._stop.is_set():
                    try:
                        await self._kube.list(kind, namespace, limit=1)
                        break
                    except ChangefeedError as e:
                        self._waits_for = f"{kind.kind} objects can't be listed: {e}"
                        log.warning("waits", kind=kind.kind, error=str(e))
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._stop.wait(), WAIT_SECONDS)
        self._waits_for = ""

    def _on_event(self, kind: api.Kind, event: str, manifest: Manifest) -> None:
        key = key_of(kind, manifest)
        if kind is not api.CHANGEFEED or self._seen.note(key, event, manifest):
            self._workers.add(key)

    def _on_heard(self, kind: api.Kind, namespace: str) -> None:
        self._heard[kind.kind, namespace] = time.monotonic()

    async def _or_stop(self, what: Coroutine[Any, Any, None]) -> bool:
        """Await it; False when told to stop first."""
        task, stop = asyncio.create_task(what), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            return task.done()
        finally:
            task.cancel()
            stop.cancel()

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def _watch_ages(self) -> dict[str, float]:
        """By kind, the oldest of all namespaces."""
        now, ages = time.monotonic(), dict[str, float]()
        for (kind, _), heard in self._heard.items():
            ages[kind] = max(ages.get(kind, 0.0), now - heard)
        return ages

    def _vitals(self) -> Vitals:
        now = time.monotonic()
        queue = self._workers.queue
        return Vitals(
            lease_age=now - self._leadership.answered_at,
            watch_ages=self._watch_ages(),
            longest_pass=queue.longest_pass(now),
            oldest_wait=queue.oldest_age(now),
            running=queue.running,
            waits_for=self._waits_for,
        )

    def _standing(self) -> Standing:
        queue = self._workers.queue
        plurals = {kind.kind: kind.plural for kind in WATCHED}
        return Standing(
            queue_keys=queue.depth,
            queue_oldest=queue.oldest_age(time.monotonic()),
            running_passes=queue.running,
            leads=self._leadership.holds(),
            watch_ages={plurals[kind]: age for kind, age in self._watch_ages().items()},
            changefeeds=self._seen.live(),
        )
