"""The operator process: one leader that watches and reconciles, standbys that wait, a shutdown that loses nothing.

Nothing here decides about a changefeed. If something ends that must not (a watch, the workers, the Lease), the process
exits and says why: a new one lists everything again, which is the one recovery that is always correct.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from changefeed.errors import ChangefeedError, Fenced, NeedsHuman, NotFound
from changefeed.kube.client import Kube, Manifest
from changefeed.kube.connection import Connection
from changefeed.ui.drivers import Drivers
from changefeed.ui.server import serve as serve_pages

from changefeed_operator import api
from changefeed_operator.decision.decide import decide
from changefeed_operator.decision.no_spark_operator import no_spark_operator
from changefeed_operator.health import Vitals, serve, unready
from changefeed_operator.loop.leader import Leadership
from changefeed_operator.loop.queue import Key, Outcome, Queue, Requeue, Workers
from changefeed_operator.loop.reconcile import Reconciler
from changefeed_operator.loop.seen import SeenObjects
from changefeed_operator.loop.watch import Watch, watch_key
from changefeed_operator.metrics import Metrics, Standing
from changefeed_operator.page import ClusterChangefeeds
from changefeed_operator.settings import Settings
from changefeed_operator.spark_operator.choice import OperatorName, candidates, missing

#: Seconds that running passes get to finish after SIGTERM (a pod has 30).
STOP_SECONDS = 15.0

#: Seconds between checks for a missing CRD or permission: while nothing can be served, and while something can.
WAIT_SECONDS = 5.0
LOOK_SECONDS = 30.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class OperatorOptions:
    """Options of one operator; `namespaces` empty: all. `workers`: concurrent passes.

    `spark_operator`: decides `settings.spark`, which is not used before.
    """

    settings: Settings
    lease_namespace: str
    spark_operator: OperatorName = "Auto"
    namespaces: Sequence[str] = ()
    selector: str = ""
    lease: str = api.OPERATOR
    metrics_port: int = 8080
    workers: int = 8
    web: tuple[str, int] | None = None  # host and port of the web page; None: off


class Operator:
    """Create it inside a running event loop. `exit_now` kills the process at once, when it may no longer act."""

    def __init__(
        self, connection: Connection, options: OperatorOptions, exit_now: Callable[[int], object] = os._exit
    ) -> None:
        self._connection = connection
        self._options = options
        self._exit_now = exit_now
        self.stopping = asyncio.Event()
        self.metrics = Metrics()
        self.seen = SeenObjects()
        self._lease_kube = Kube(connection, api.FIELD_MANAGER)
        identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._leadership = Leadership(self._lease_kube, options.lease_namespace, options.lease, identity)
        self._kube = Kube(connection, api.FIELD_MANAGER, self._leadership.holds, self.metrics.count_request)
        self._spark = candidates(options.spark_operator)  # those that come into question: one, once it is chosen
        self._reconciler = self._new_reconciler()
        self._workers = Workers(Queue(options.workers), self._pass)
        self._heard: dict[tuple[str, str], float] = {}  # kind and namespace of a watch -> when last heard from
        self._refused: dict[str, str] = {}  # namespace -> why it can't be served
        self._watches = False
        self.web_port = 0  # once the web page is served

    async def run(self) -> int:
        """Run until SIGTERM (0), or until something ends that must not (1)."""
        async with contextlib.AsyncExitStack() as open_things:
            open_things.push_async_callback(self._kube.close)
            open_things.push_async_callback(self._lease_kube.close)
            self._take_signals()
            self.metrics.show(self._standing)
            server, port = await serve(self._options.metrics_port, self.vitals, self.metrics.text)
            open_things.push_async_callback(server.cleanup)
            await self._serve_page(open_things)
            open_things.push_async_callback(self._leadership.release)
            log.info("started", server=self._connection.server, port=port, identity=self._leadership.election.identity)
            if not await self._or_stop(self._leadership.acquire()):
                return 0
            log.info("leading", lease=f"{self._options.lease_namespace}/{self._options.lease}")
            return await self._lead()

    async def _serve_page(self, open_things: contextlib.AsyncExitStack) -> None:
        """Serve the web page, as the leader or as a standby."""
        if self._options.web is None:
            return
        drivers = Drivers()
        open_things.push_async_callback(drivers.close)
        pages, self.web_port = await serve_pages(
            ClusterChangefeeds(self._changefeeds, drivers), self._options.web, "--web-address"
        )
        open_things.push_async_callback(pages.cleanup)
        log.info("serving the web page", web_port=self.web_port)

    async def _changefeeds(self) -> Iterable[api.Json]:
        """The Changefeeds that this operator serves: from the watch caches, or listed while it does not watch."""
        if self._watches:
            return self.seen.live().values()
        lists = [await self._lease_kube.list(api.CHANGEFEED, each, self._options.selector) for each in self._namespaces]
        return [each for found in lists for each in found]

    @property
    def leads(self) -> bool:
        """Tell whether it holds the Lease."""
        return self._leadership.holds()

    def stop(self) -> None:
        """Shut down gracefully."""
        log.info("stopping")
        self.stopping.set()

    async def _lead(self) -> int:
        """Work as the leader until told to stop; returns the exit code."""
        work = asyncio.create_task(self.work(), name="work")
        keep = asyncio.create_task(self._leadership.keep(), name="lease")
        stop = asyncio.create_task(self.stopping.wait(), name="stop")
        try:
            await asyncio.wait((work, keep, stop), return_when=asyncio.FIRST_COMPLETED)
            if keep.done():
                log.critical("lost leadership", error=str(keep.exception()))
                self._exit_now(Fenced.exit_code)
                return 1
            if work.done() and (work.exception() is not None or not self.stopping.is_set()):
                log.critical("ended unexpectedly", error=str(work.exception()), exc_info=work.exception())
                return 1
            return 0
        finally:
            self._workers.stop()
            # Running passes may finish; the Lease is kept meanwhile.
            await asyncio.wait((work, keep), timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in (work, keep, stop):
                task.cancel()
            await asyncio.gather(work, keep, stop, return_exceptions=True)

    def _new_reconciler(self) -> Reconciler:
        options, settings = self._options, self._settings
        return Reconciler(self._kube, self.seen, settings, self.metrics, decide, options.selector)

    @property
    def _settings(self) -> Settings:
        return replace(self._options.settings, spark=self._spark[0])

    @property
    def _watched(self) -> Sequence[api.Kind]:
        return api.CHANGEFEED, *self._settings.child_kinds

    def _new_watch(self) -> Watch:
        options, tell = self._options, (self._on_event, self._on_heard, self.seen.clear)
        return Watch(self._connection, self._watched, options.namespaces, options.selector, *tell)

    async def work(self) -> None:
        """Watch and work; returns after `Workers.stop`, raises when a watch ends."""
        await self._served()
        if self.stopping.is_set():
            return
        self._reconciler = self._new_reconciler()
        log.info("chose", spark_operator=self._settings.spark.name)
        now = time.monotonic()
        self._heard = {(kind.kind, namespace): now for kind in self._watched for namespace in self._namespaces}
        watching = asyncio.create_task(self._new_watch().run(self._take_signals), name="watch")
        working = asyncio.create_task(self._workers.run(), name="workers")
        looking = asyncio.create_task(self._look_after_namespaces(), name="namespaces")
        tasks = (watching, working, looking)
        self._watches = True
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            self._watches = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _namespaces(self) -> Sequence[str]:
        return self._options.namespaces or ("",)

    async def _pass(self, key: Key) -> Outcome:
        """Skips namespaces that can't be read."""
        return Requeue(LOOK_SECONDS) if key[0] in self._refused else await self._reconciler.work(key)

    async def _served(self) -> None:
        """Return at `stop`, or once a namespace can be served: CRDs may be installed later than the operator."""
        while not self.stopping.is_set():
            await self._look_at_namespaces(is_first=True)
            if not self._waits_for:
                return
            await self._sleep(WAIT_SECONDS)

    async def _look_after_namespaces(self) -> None:
        """Until `stop`. A namespace that is gone or forbidden affects no other, and is served again once it is back."""
        while not self.stopping.is_set():
            await self._sleep(LOOK_SECONDS)
            await self._look_at_namespaces()

    async def _look_at_namespaces(self, is_first: bool = False) -> None:
        """`is_first`: nothing was served yet, so a missing response counts as a refusal, too."""
        try:
            lack = await self._lacks_spark_operator()
        except ChangefeedError as e:
            for namespace in self._namespaces if is_first else ():
                self._refuse(namespace, f"The Spark operator's CRD can't be looked up: {e}")
            return
        for namespace in self._namespaces:
            await self._look_at(namespace, lack, is_first)

    async def _look_at(self, namespace: str, lack: str, is_first: bool) -> None:
        """`lack`: why nothing can run, whatever the namespace."""
        kind = api.CHANGEFEED
        try:
            if lack:
                self._refuse(namespace, lack)
                await self._tell_lack(namespace, lack)
                return
            for kind in self._watched:
                await self._kube.list(kind, namespace, limit=1)
        except (NeedsHuman, NotFound) as e:
            self._refuse(namespace, f"{kind.kind} objects can't be listed: {e}")
        except ChangefeedError as e:
            if is_first:
                self._refuse(namespace, f"{kind.kind} objects can't be listed: {e}")
        else:
            if self._refused.pop(namespace, None) is not None:
                log.info("namespace served", namespace=namespace or "all")
                now = time.monotonic()
                self._heard |= {at: now for at in self._heard if at[1] == namespace}

    async def _lacks_spark_operator(self) -> str:
        """Choose the Spark operator, if the cluster has one; else say why nothing can run."""
        for each in self._spark:
            if await self._kube.serves(each.kind):
                self._spark = (each,)
                return ""
        return missing(self._spark)

    async def _tell_lack(self, namespace: str, why: str) -> None:
        """In the status of each Changefeed of the namespace."""
        for found in await self._kube.list(api.CHANGEFEED, namespace, self._options.selector):
            try:
                await self._reconciler.say(found, no_spark_operator(found, why, time.time()).actions)
            except ChangefeedError as e:
                log.warning("lack of a Spark operator not reported", error=str(e))

    def _refuse(self, namespace: str, why: str) -> None:
        if self._refused.get(namespace) != why:
            log.warning("namespace not served", namespace=namespace or "all", error=why)
        self._refused[namespace] = why

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or until `stop`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    @property
    def _waits_for(self) -> str:
        """Say why nothing can be served, or ""."""
        return next(iter(self._refused.values())) if len(self._refused) == len(set(self._namespaces)) else ""

    def _on_event(self, kind: api.Kind, event: str, manifest: Manifest) -> None:
        key = watch_key(kind, manifest)
        keys = {key} if kind is api.CHANGEFEED else self.seen.note_child(kind, key, event, manifest)
        if kind is not api.CHANGEFEED or self.seen.note(key, event, manifest):
            for each in keys:
                self._workers.add(each)

    def _on_heard(self, kind: api.Kind, namespace: str) -> None:
        self._heard[kind.kind, namespace] = time.monotonic()

    async def _or_stop(self, what: Coroutine[Any, Any, None]) -> bool:
        """Await it; False if told to stop first."""
        task, stop = asyncio.create_task(what), asyncio.create_task(self.stopping.wait())
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
        """By kind, the oldest among the served namespaces."""
        now, ages = time.monotonic(), dict[str, float]()
        for (kind, namespace), heard in self._heard.items():
            if namespace not in self._refused:
                ages[kind] = max(ages.get(kind, 0.0), now - heard)
        return ages

    def vitals(self) -> Vitals:
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
        plurals = {kind.kind: kind.plural for kind in self._watched}
        return Standing(
            queue_keys=queue.depth,
            queue_oldest=queue.oldest_age(time.monotonic()),
            running_passes=queue.running,
            works=self.leads and self._watches and not unready(self.vitals()),
            refused_namespaces=tuple(self._refused),
            failed_passes=queue.failing(),
            watch_ages={plurals[kind]: age for kind, age in self._watch_ages().items()},
            changefeeds=self.seen.live(),
        )
