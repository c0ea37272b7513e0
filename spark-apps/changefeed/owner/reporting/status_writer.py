"""Writes the driver's part of the resource's status: server-side apply, with a field manager of its own.

A shell. The changefeed goes on when the API server is away or refuses: the status is late then, and a metric counts it.
It never reads the resource, and writes no field that is not the driver's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

from changefeed.errors import ChangefeedError, Fenced
from changefeed.owner.api_server import ApiServer
from changefeed.owner.patience import in_thread
from changefeed.owner.pod import Pod
from changefeed.owner.reporting.status import Seen, Status
from changefeed.spec.names import API_VERSION, KIND

FIELD_MANAGER = "changefeed-driver"
_STEP_S = 0.5


class StatusWriter:
    """`apply` blocks for some seconds at most; one caller at a time."""

    def __init__(self, pod: Pod, api: ApiServer) -> None:
        self._pod = pod
        self._api = api

    def apply(self, status: Mapping[str, Any]) -> str | None:
        """Write it. What went wrong, in a word for a metric ("409", "unreachable"), or None.

        The uid goes with it, so that a namesake made later is left alone (409).
        """
        metadata = {"name": self._pod.name, "namespace": self._pod.namespace, "uid": self._pod.uid}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}
        answer, _ = self._api.request("PATCH", self._path(), body, "application/apply-patch+yaml")
        if not answer:
            return "unreachable"
        return None if answer < 300 else str(answer)

    def _path(self) -> str:
        query = urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})  # what is ours is ours, whoever wrote it
        namespace, name = quote(self._pod.namespace), quote(self._pod.name)
        return f"/apis/{API_VERSION}/namespaces/{namespace}/changefeeds/{name}/status?{query}"


class StatusReports:
    """Says, while a run goes on and at its end, how it goes.

    `confirm` is asked before each write, and raises Fenced: a driver that has been taken over writes nothing.
    """

    def __init__(
        self,
        status: Status,
        writer: StatusWriter,
        seen: Callable[[], Seen],
        confirm: Callable[[], Awaitable[None]],
        failed: Callable[[str], None],
    ) -> None:
        self._status = status
        self._writer = writer
        self._seen = seen
        self._confirm = confirm
        self._failed = failed

    async def keep(self) -> NoReturn:
        while True:
            if (body := self._status.due(time.monotonic(), self._seen())) is not None:
                await self._write(body)
            await asyncio.sleep(_STEP_S)

    async def last(self) -> None:
        """How it ended; nothing when another driver has taken over meanwhile."""
        with suppress(Fenced):
            await self._write(self._status.last(time.monotonic(), self._seen()))

    @asynccontextmanager
    async def ended(self) -> AsyncIterator[None]:
        """Around a run: its end is said, whatever it was, unless another driver has taken over."""
        try:
            yield
        except Fenced:
            raise
        except ChangefeedError:
            await self.last()
            raise
        else:
            await self.last()

    async def _write(self, body: Mapping[str, Any]) -> None:
        await self._confirm()
        if (what := await in_thread(self._writer.apply, body)) is not None:
            self._failed(what)
