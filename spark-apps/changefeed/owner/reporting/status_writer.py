"""Writes the driver's part of the resource's status: server-side apply, with its own field manager.

A shell. If the API server is down or refuses, the changefeed continues: the status is late then, and a metric counts
it. It writes only the driver's fields. From the response, which is the resource, it reads only the settings that the
operator has accepted for a running driver.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from changefeed.errors import ChangefeedError, Fenced
from changefeed.kube.client import Kube, answer_to
from changefeed.kube.connection import Connection
from changefeed.kube.kind import CHANGEFEED
from changefeed.owner.patience import to_its_end
from changefeed.owner.pod import Pod
from changefeed.owner.reporting.snapshot import RunSnapshot
from changefeed.owner.reporting.status import Status
from changefeed.spec.names import API_VERSION, KIND

FIELD_MANAGER = "changefeed-driver"
_TIMEOUT_S = 5.0
_NOT_IN_SCHEMA = re.compile(r"\.status\.(\w+)[^:]*: field not declared in schema")


@dataclass(frozen=True)
class Applied:
    """How a write went. `failure`: a word for a metric ("409", "unreachable"), or "". `settings`: as the resource has
    them, whatever they may be."""

    failure: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)


class StatusWriter:
    """One caller at a time. Each write has a connection of its own: token and CA rotate."""

    def __init__(self, pod: Pod, connection: Connection) -> None:
        self._pod = pod
        self._connection = connection
        self._unknown: set[str] = set()  # fields of the status that the CRD lacks

    async def apply(self, status: Mapping[str, Any]) -> Applied:
        """Write it, in a few seconds. The uid goes with it, so that a namesake made later is left alone (409).

        Fields that an older CRD does not know are left out: the API server would refuse all of it for one of them.
        """
        try:
            async with Kube(self._connection, FIELD_MANAGER, timeout=_TIMEOUT_S) as kube:
                while True:
                    known = {name: value for name, value in status.items() if name not in self._unknown}
                    try:
                        found = await kube.apply(CHANGEFEED, self._body(known), "status", strict=False)
                        return Applied(settings=_settings_in(found))
                    except ChangefeedError as e:
                        answer = answer_to(e)
                        refused = _NOT_IN_SCHEMA.search(answer.message) if answer else None
                        if refused is None or refused[1] not in known:
                            raise
                        self._unknown.add(refused[1])
        except ChangefeedError as e:
            answer = answer_to(e)
            return Applied(str(answer.status) if answer else "unreachable")

    def _body(self, status: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {"name": self._pod.name, "namespace": self._pod.namespace, "uid": self._pod.uid}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}


def _settings_in(found: Mapping[str, Any]) -> Mapping[str, object]:
    """`status.liveSettings` of the resource; empty when an operator of before has not written any."""
    status = found.get("status")
    settings = status.get("liveSettings") if isinstance(status, dict) else None
    return settings if isinstance(settings, dict) else {}


class StatusReports:
    """Says, while a run goes on and at its end, how it goes.

    `confirm` is asked before each write, and raises Fenced: a driver that has been taken over writes nothing.
    `told` hears of the settings that each answer has; False: they can't be used.
    """

    def __init__(
        self,
        status: Status,
        writer: StatusWriter,
        seen: Callable[[], RunSnapshot],
        confirm: Callable[[], Awaitable[None]],
        failed: Callable[[str], None],
        told: Callable[[Mapping[str, object]], bool],
        step_s: float,
    ) -> None:
        self._status = status
        self._writer = writer
        self._seen = seen
        self._confirm = confirm
        self._failed = failed
        self._told = told
        self._step_s = step_s

    async def keep(self) -> NoReturn:
        while True:
            if (body := self._status.due(time.monotonic(), self._seen())) is not None:
                await self._write(body)
            await asyncio.sleep(self._step_s)

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
        applied = await to_its_end(self._writer.apply(body))
        if applied.failure:
            self._failed(applied.failure)
        elif not self._told(applied.settings):
            self._failed("settings")
