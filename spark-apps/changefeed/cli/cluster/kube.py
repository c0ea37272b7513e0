"""The Changefeeds of one API server, as reached through the kubeconfig's context.

The client is imported only when a command needs a cluster: on a laptop it is not needed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from changefeed.errors import ChangefeedError, Conflict, InvalidSpec, NeedsHuman, NotFound, Unavailable
from changefeed.kube.kind import CHANGEFEED, CONFIG_MAP, EVENT
from changefeed.spec.names import KIND

if TYPE_CHECKING:
    from changefeed.kube.client import Answer, Kube
    from changefeed.kube.connection import Connection

T = TypeVar("T")

FIELD_MANAGER = "changefeed-cli"
_CONTAINER = "spark-kubernetes-driver"
_NONCES = 1 << 31
POLL_S = 1.0

Resource = dict[str, Any]


@dataclass
class ChangefeedCluster:
    """What the verbs ask of a cluster. Every method raises ChangefeedError: NotFound, Unavailable, NeedsHuman ..."""

    namespace: str
    _connection: Connection

    @classmethod
    def connect(cls, context: str | None, namespace: str | None) -> ChangefeedCluster:
        """Reads the kubeconfig; asks the API server nothing yet.

        Raises NeedsHuman without the library, InvalidSpec for a context that is not there.
        """
        try:
            from changefeed.kube.connection import from_kubeconfig
        except ImportError:
            raise NeedsHuman(
                "This verb talks to Kubernetes, and the library `aiohttp` is not installed.",
                "Install the extra: pip install 'changefeed-operator[operator]'.",
            ) from None
        paths = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        try:
            connection = from_kubeconfig(paths, context or "")
        except NeedsHuman as e:
            raise InvalidSpec("--context", e.message, e.next_step) from e
        return cls(namespace or connection.namespace, connection)

    def changefeeds(self, everywhere: bool) -> list[Resource]:
        """Return those of the namespace, or of all, by namespace and name."""
        found = self._ask("Changefeeds", lambda kube: kube.list(CHANGEFEED, "" if everywhere else self.namespace))
        return sorted(found, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))

    def get(self, name: str) -> Resource:
        return self._ask(self._shown(name), lambda kube: kube.read(CHANGEFEED, self.namespace, name))

    def set_paused(self, name: str, paused: bool) -> Resource:
        """Changes nothing but `spec.paused`. Gives the resource as it is now."""
        return self._patch_spec(self.namespace, name, {"paused": paused})

    def restart(self, resource: Resource) -> Resource:
        """Changes nothing but `spec.restartNonce`. Gives the resource as it is now."""
        metadata = resource["metadata"]
        nonce = (resource["spec"].get("restartNonce", 0) + 1) % _NONCES
        return self._patch_spec(metadata["namespace"], metadata["name"], {"restartNonce": nonce})

    def _patch_spec(self, namespace: str, name: str, spec: dict[str, Any]) -> Resource:
        what = f"Changefeed {namespace}/{name}"
        return self._ask(what, lambda kube: kube.merge(CHANGEFEED, namespace, name, {"spec": spec}))

    def wait(self, name: str, is_done: Callable[[Resource], bool], seconds: float) -> Resource:
        """The resource, as soon as `is_done` says so.

        Raises Unavailable after `seconds`, NotFound when it is deleted; `is_done` may raise, too.
        """
        deadline = time.monotonic() + seconds
        while True:
            if is_done(resource := self.get(name)):
                return resource
            if (left := deadline - time.monotonic()) <= 0:
                break
            time.sleep(min(left, POLL_S))
        raise Unavailable(
            f"{self._shown(name)} is not there after {seconds:g} s.", f"See changefeed describe {name}; or wait longer."
        )

    def events(self, name: str) -> list[Resource]:
        """What Kubernetes' events say about it, the newest last: type, reason, message, count, last (a time)."""
        about = f"involvedObject.kind={KIND},involvedObject.name={name}"
        found = self._ask("Events", lambda kube: kube.list(EVENT, self.namespace, fields=about))
        return sorted(map(_event, found), key=lambda event: str(event["last"]))

    def last_log(self, name: str) -> tuple[str, str]:
        """The last attempt that failed, and the end of its log. Raises NotFound when none has."""
        kept = f"changefeed-{name}-last-log"
        what = f"The log of an attempt of {self._shown(name)} that failed"
        found = self._ask(what, lambda kube: kube.read(CONFIG_MAP, self.namespace, kept))
        return found["data"]["attempt"], found["data"]["log"]

    def log(self, name: str, tail: int | None, follow: bool, write: Callable[[bytes], object]) -> None:
        """The driver's log, as it comes."""
        pod = f"changefeed-{name}-driver"

        async def stream(kube: Kube) -> None:
            async for part in kube.stream_log(self.namespace, pod, _CONTAINER, tail, follow):
                write(part)

        self._ask(f"The driver's pod {self.namespace}/{pod}", stream)

    def _shown(self, name: str) -> str:
        return f"Changefeed {self.namespace}/{name}"

    def _ask(self, what: str, ask: Callable[[Kube], Awaitable[T]]) -> T:
        from changefeed.kube.client import Kube, answer_to

        async def asked() -> T:
            async with Kube(self._connection, FIELD_MANAGER) as kube:
                return await ask(kube)

        try:
            return asyncio.run(asked())
        except ChangefeedError as e:
            if answer := answer_to(e):
                raise _refusal(what, answer) from e
            if isinstance(e, NeedsHuman):
                raise
            raise Unavailable(
                f"The API server at {self._connection.server} does not answer.",
                "See kubectl cluster-info, or choose another --context.",
            ) from e


def _event(event: Resource) -> Resource:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    last = next(filter(None, times), event["metadata"].get("creationTimestamp"))
    return {
        **{name: event.get(name) for name in ("type", "reason", "message")},
        "count": series.get("count") or event.get("count") or 1,
        "last": datetime.fromisoformat(last),
    }


def _refusal(what: str, answer: Answer) -> ChangefeedError:
    status, message = answer.status, answer.message
    if status == 404 and "page not found" in message:
        return NeedsHuman("This cluster has no Changefeeds.", "Install the CRD: crds/changefeeds.yaml, or the chart.")
    if status == 404:
        return NotFound(f"{what}: there is none.", "See changefeed get --all-namespaces.")
    if status in (401, 403):
        return NeedsHuman(f"{what}: {message}", "Ask for the right, or choose another --context.")
    if status == 409:
        return Conflict(f"{what}: {message}", "Try again.")
    if status in (400, 422):
        return InvalidSpec(what, message, "Fix it.")
    return Unavailable(f"{what}: the API server says {status}: {message}", "Try again.")
