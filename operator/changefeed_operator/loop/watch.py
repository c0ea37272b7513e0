"""The watches that wake the operator and fill its caches, by kopf.

kopf only lists and watches; nothing here decides, writes, or keeps state for kopf in the cluster: no timers, daemons,
finalizers or patches (they end silently). kopf's index is not the cache either: it blocks an
operator with more objects than workers forever, and never drops what was deleted while a watch had expired (410). kopf
doesn't report such deletions at all, so a new kopf then lists everything again. Nor does it report bookmarks: responses
are observed as they arrive, which is how the age of a watch is known.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import kopf
from changefeed.errors import Unavailable
from changefeed.kube.client import Manifest
from changefeed.kube.connection import Connection

from changefeed_operator import api
from changefeed_operator.loop.queue import Key

#: Seconds without an event or a bookmark after which kopf reconnects (the API server sends one every minute).
INACTIVITY = 70.0

#: Seconds after which the API server ends a watch.
WATCH_SECONDS = 300

#: Seconds between stopping kopf's tasks after an expired watch, and starting them again.
ANEW_SECONDS = 1.0


@dataclass(frozen=True)
class Endless:
    """An endless series of pauses between retries: kopf gives up and exits when its list is exhausted."""

    pauses: Sequence[float] = (0.5, 1, 2, 4, 8, 15)

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(self.pauses, itertools.repeat(self.pauses[-1]))


class Watch:
    """Watches `kinds` in all namespaces (`namespaces` empty) or the given ones.

    Of kinds other than Changefeed, only objects with a changefeed's label are watched.

    `event(kind, type, object)`: ADDED, MODIFIED, DELETED, or "" for an object that existed already. `heard(kind,
    namespace)`: the API server responded or sent something on that watch; namespace "" for all. `anew()`: everything is
    about to be listed again, and whatever isn't listed then is gone.
    """

    def __init__(
        self,
        connection: Connection,
        kinds: Sequence[api.Kind],
        namespaces: Sequence[str],
        selector: str,
        event: Callable[[api.Kind, str, Manifest], None],
        heard: Callable[[api.Kind, str], None],
        anew: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._kinds = kinds
        self._namespaces = namespaces
        self._selector = selector
        self._event = event
        self._heard = heard
        self._anew = anew
        self._listed: set[tuple[str, str]] = set()  # kind and namespace
        self._lost = asyncio.Event()

    async def run(self, started: Callable[[], None]) -> None:
        """Watch until cancelled; `started` is called once kopf has installed its signal handlers, to replace them.

        Raises Unavailable if a watch ended for good, for instance because a CRD was deleted.
        """
        while True:
            await self._watch(started)
            self._anew()
            await asyncio.sleep(ANEW_SECONDS)

    async def _watch(self, started: Callable[[], None]) -> None:
        """Until a watch has expired."""
        self._listed.clear()
        self._lost.clear()
        registry, settings = kopf.OperatorRegistry(), self._settings()
        kopf.on.login(registry=registry)(self._login)
        for kind in self._kinds:
            kopf.on.event(*_selector(kind), id=kind.kind, param=kind, registry=registry)(self._on_event)
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
        )
        started()
        lost = asyncio.create_task(self._lost.wait(), name="lost")
        try:
            done, _ = await asyncio.wait([*tasks, lost], return_when=asyncio.FIRST_COMPLETED)
            if lost in done:
                return
            causes = [repr(task.exception()) for task in done if not task.cancelled() and task.exception()]
            raise Unavailable(
                f"The watches ended: {', '.join(causes) or 'no cause given'}.",
                "The operator restarts; if this persists, check for deleted CRDs and missing permissions.",
            )
        finally:
            for task in (*tasks, lost):
                task.cancel()
            await asyncio.gather(*tasks, lost, return_exceptions=True)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        # We cancel it; its own last resort is to kill the process.
        settings.process.ultimate_exiting_timeout = None
        settings.watching.server_timeout = WATCH_SECONDS
        settings.watching.client_timeout = WATCH_SECONDS + 30
        settings.watching.connect_timeout = 10
        settings.watching.inactivity_timeout = INACTIVITY
        settings.watching.reconnect_backoff = 1
        settings.watching.chunk_size = 500
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 10
        settings.networking.error_backoffs = Endless()
        settings.networking.enforce_retry_after = True
        settings.persistence.diffbase_storage = _NoState()
        settings.queueing.worker_limit = 50
        # A worker waiting for further events of its object occupies another one's slot.
        settings.queueing.idle_timeout = 0.02
        for kind in self._kinds:
            labels = self._selector if kind is api.CHANGEFEED else api.NAME_LABEL
            if labels:
                settings.watching.label_selectors[_selector(kind)] = labels
        return settings

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        hears = listening(self._kinds, self._heard, self._on_list)
        session = self._connection.session(timeout=30, limit=0, middlewares=(hears,))
        return kopf.AiohttpSession(server=self._connection.server, aiohttp_session=session)

    def _on_list(self, kind: api.Kind, namespace: str) -> None:
        if (kind.kind, namespace) in self._listed:
            self._lost.set()
        self._listed.add((kind.kind, namespace))

    async def _on_event(self, *, event: Any, param: Any = None, **_: Any) -> None:
        self._event(param, event["type"] or "", dict(event["object"]))


class _NoState(kopf.DiffBaseStorage):
    """Disables kopf's diffing, which we don't use: it would copy every object of every event."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        raise AssertionError("Nothing here lets kopf write.")


def _selector(kind: api.Kind) -> tuple[str, str, str]:
    return kind.group, kind.api_version.rpartition("/")[2], kind.plural


def listening(
    watched: Sequence[api.Kind],
    heard: Callable[[api.Kind, str], None],
    listed: Callable[[api.Kind, str], None] = lambda kind, namespace: None,
) -> aiohttp.ClientMiddlewareType:
    """Calls `heard(kind, namespace)` for each successful response to a list or watch and for each chunk of its stream;
    `listed` for the first page of each list."""
    kinds = {kind.plural: kind for kind in watched}

    async def middleware(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        response = await handler(request)
        kind = kinds.get(request.url.name)
        if kind and response.status == 200:
            namespace = request.url.parts[-2] if "namespaces" in request.url.parts else ""
            heard(kind, namespace)
            if not {"watch", "continue"} & request.url.query.keys():
                listed(kind, namespace)
            response.content = _Heard(response.content, lambda: heard(kind, namespace))  # type: ignore[assignment]
        return response

    return middleware


class _Heard:
    """A response's content that reports each chunk read."""

    def __init__(self, content: aiohttp.StreamReader, heard: Callable[[], None]) -> None:
        self._content = content
        self._tell = heard

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for chunk in self._content.iter_chunked(size):
            self._tell()
            yield chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


def watch_key(kind: api.Kind, manifest: Manifest) -> Key:
    """The changefeed that an object is or belongs to."""
    metadata = manifest["metadata"]
    name = metadata["name"] if kind is api.CHANGEFEED else metadata["labels"][api.NAME_LABEL]
    return metadata["namespace"], name
