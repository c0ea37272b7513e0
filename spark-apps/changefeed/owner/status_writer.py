"""Writes the driver's part of the resource's status: server-side apply, with a field manager of its own.

A shell. The changefeed goes on when the API server is away or refuses: the status is late then, and a metric counts it.
It never reads the resource, and writes no field that is not the driver's.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

from changefeed.errors import ChangefeedError, Fenced, NeedsHuman
from changefeed.owner.patience import in_thread
from changefeed.owner.pod import Pod
from changefeed.owner.status import Seen, Status
from changefeed.spec.names import API_VERSION, KIND

FIELD_MANAGER = "changefeed-driver"
#: Where a pod finds its ServiceAccount's `token` and `ca.crt`; both rotate, so they are read each time.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 5.0
_STEP_S = 0.5


class StatusWriter:
    """`apply` blocks for some seconds at most; one caller at a time."""

    def __init__(self, pod: Pod, host: str, port: int, service_account: Path = SERVICE_ACCOUNT) -> None:
        self._pod = pod
        self._host = host
        self._port = port
        self._service_account = service_account

    def apply(self, status: Mapping[str, Any]) -> str | None:
        """Write it. What went wrong, in a word for a metric ("409", "unreachable"), or None.

        The uid goes with it, so that a namesake made later is left alone (409).
        """
        metadata = {"name": self._pod.name, "namespace": self._pod.namespace, "uid": self._pod.uid}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}
        try:
            connection = HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=self._tls())
            try:
                connection.request("PATCH", self._path(), json.dumps(body), self._headers())
                answer = connection.getresponse()
                answer.read()
            finally:
                connection.close()
        except (OSError, HTTPException, ValueError):  # ValueError: a token or CA that is being replaced
            return "unreachable"
        return None if answer.status < 300 else str(answer.status)

    def _path(self) -> str:
        query = urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})  # what is ours is ours, whoever wrote it
        namespace, name = quote(self._pod.namespace), quote(self._pod.name)
        return f"/apis/{API_VERSION}/namespaces/{namespace}/changefeeds/{name}/status?{query}"

    def _headers(self) -> dict[str, str]:
        token = (self._service_account / "token").read_text().strip()
        return {"Authorization": f"Bearer {token}", "Content-Type": "application/apply-patch+yaml"}

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self._service_account / "ca.crt"))


def status_writer(pod: Pod, environment: Mapping[str, str]) -> StatusWriter:
    """The one of this pod. Raises NeedsHuman when the pod does not know its API server."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise NeedsHuman(
            "The driver's pod does not know the API server: KUBERNETES_SERVICE_HOST or _PORT is missing.",
            "Kubernetes sets them in every pod: look at what changes this one.",
        )
    return StatusWriter(pod, host, int(port))


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
