"""A client for one API server: get, list, apply, create, patch, delete, logs; nothing is cached.

Every failure is one of `changefeed.errors` and says what to do: `Conflict` (read again), `Transient` (retry after
`retry_after`), `NotFound`, `NeedsHuman` (rejected for good: permissions, or an invalid manifest). Writes are
idempotent: server-side apply as one field manager, create-if-absent, deletes with preconditions. It must never log a
token or put one in an error, and never write when `may_write` forbids it (a lost Lease).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self

import aiohttp

from changefeed.errors import AlreadyExists, ChangefeedError, Conflict, NeedsHuman, NotFound, Transient
from changefeed.kube.connection import Connection
from changefeed.kube.kind import POD, Kind, path_of

#: Request timeout in seconds; no request is slow.
REQUEST_TIMEOUT = 20.0

#: Seconds to wait for a log before going without it.
LOG_TIMEOUT = 5.0

#: An object in the API server's JSON form.
Manifest = dict[str, Any]

_LACKS_RIGHT = re.compile(r'User "[^"]*" cannot ')
#: Statuses of errors that pass on their own and say nothing about the object.
_PASSING = (401, 408, 409, 429, 502, 503, 504)

_RETRIED = (408, 429, 500, 502, 503, 504)


class Answer(Exception):
    """The API server's response behind an error of `Kube`, as that error's `__cause__`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Kube:
    """Create it inside a running event loop. `manager`: the field manager of writes; `timeout`: seconds per request.

    `may_write`: called right before each write; False makes the write a Conflict. `count`: called for every response
    with the HTTP method and status, 0 if there was none.
    """

    def __init__(
        self,
        connection: Connection,
        manager: str,
        may_write: Callable[[], bool] = lambda: True,
        count: Callable[[str, int], None] = lambda method, status: None,
        timeout: float | None = None,
    ) -> None:
        self._server = connection.server
        self._session = connection.session(timeout=REQUEST_TIMEOUT if timeout is None else timeout)
        self._manager = manager
        self._may_write = may_write
        self._count = count

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def read(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """The object; raises NotFound if there is none."""
        return await self._request("GET", path_of(kind, namespace, name))

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """The object, or None."""
        try:
            return await self.read(kind, namespace, name)
        except NotFound:
            return None

    async def list(
        self, kind: Kind, namespace: str = "", labels: str = "", fields: str = "", limit: int = 0
    ) -> list[Manifest]:
        """The objects of a kind in one namespace (or all) that match a label and a field selector.

        `limit`: at most this many, 0 for all.
        """
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(limit or "")}
        answer = await self._request(
            "GET", path_of(kind, namespace), {name: value for name, value in query.items() if value}
        )
        # Items of a list have neither.
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer["items"]]

    async def serves(self, kind: Kind) -> bool:
        """Tell whether the API server knows the kind, as it does once a CRD is established."""
        try:
            answer = await self._request("GET", f"/apis/{kind.api_version}")
        except NotFound:
            return False
        return any(found.get("name") == kind.plural for found in answer.get("resources", ()))

    async def log(self, namespace: str, pod: str, container: str, lines: int) -> str:
        """The last lines of a container's log; "" if unavailable, for instance because its node is lost.

        The kubelet serves logs, through the API server: failures don't count as the API server's.
        """
        query = {"container": container, "tailLines": str(lines)}
        url = self._server + path_of(POD, namespace, pod, "log")
        try:
            async with asyncio.timeout(LOG_TIMEOUT), self._session.get(url, params=query) as response:
                return await response.text(errors="replace") if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError):
            return ""

    async def stream_log(
        self, namespace: str, pod: str, container: str, lines: int | None = None, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Stream a container's log, from its start or the last `lines`; `follow`: keep streaming as it grows."""
        query = {"container": container, "follow": str(follow).lower()} | ({"tailLines": str(lines)} if lines else {})
        path = path_of(POD, namespace, pod, "log")
        endless = aiohttp.ClientTimeout(total=None)
        try:
            async with self._session.get(self._server + path, params=query, timeout=endless) as response:
                if response.status >= 400:
                    raise error_of("GET", path, response.status, "", await response.text())
                async for part in response.content.iter_any():
                    yield part
        except (aiohttp.ClientError, TimeoutError) as e:
            raise _unanswered("GET", path, e) from e

    async def apply(
        self, kind: Kind, manifest: Mapping[str, Any], subresource: str = "", strict: bool = True
    ) -> Manifest:
        """Server-side apply with force; returns the resulting object.

        A `metadata.uid` or `metadata.resourceVersion` in the manifest is a precondition: Conflict if it fails. Without
        `subresource`, a missing object is created. `strict`: reject fields unknown to the API server instead of
        dropping them.
        """
        query = {"force": "true", "fieldValidation": "Strict" if strict else "Ignore"}
        path = _path(kind, manifest, subresource)
        return await self._write("PATCH", path, manifest, "application/apply-patch+yaml", **query)

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Manifest:
        """Create it if absent; raises AlreadyExists otherwise. `generateName` works."""
        return await self._write("POST", path_of(kind, manifest["metadata"]["namespace"]), manifest)

    async def replace(self, kind: Kind, manifest: Mapping[str, Any]) -> Manifest:
        """Replace the object; Conflict if the manifest's `resourceVersion` is stale."""
        return await self._write("PUT", _path(kind, manifest), manifest)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        """Merge patch; a `metadata.resourceVersion` in it is a precondition: Conflict if it fails."""
        path = path_of(kind, namespace, name)
        return await self._write("PATCH", path, patch, "application/merge-patch+json", fieldValidation="Strict")

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        """Delete exactly this object; Conflict if the name now belongs to another one.

        A missing object is not an error. `grace_s`: overrides its grace period. Background propagation.
        """
        body: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._request("DELETE", path_of(kind, namespace, name), body=body)
        except NotFound:
            return

    async def _write(
        self, method: str, path: str, body: Mapping[str, Any], content_type: str = "application/json", **query: str
    ) -> Manifest:
        return await self._request(method, path, {"fieldManager": self._manager, **query}, body, content_type)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        if method != "GET" and not self._may_write():
            raise Conflict(f"{method} {path} was not sent: another operator leads now.", "That operator takes over.")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            async with self._session.request(
                method, self._server + path, params=query, data=data, headers=headers
            ) as response:
                text = await response.text()
                self._count(method, response.status)
                if response.status >= 400:
                    raise error_of(method, path, response.status, response.headers.get("Retry-After", ""), text)
                answer: Manifest = _object(text)
                return answer
        except (aiohttp.ClientError, TimeoutError, ValueError) as e:
            self._count(method, 0)
            raise _unanswered(method, path, e) from e


def _path(kind: Kind, manifest: Mapping[str, Any], subresource: str = "") -> str:
    metadata = manifest["metadata"]
    return path_of(kind, metadata["namespace"], metadata["name"], subresource)


def _object(text: str) -> Manifest:
    """Raises ValueError for anything but an object: then a proxy answered instead of the API server."""
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("not a JSON object")
    return answer


def _unanswered(method: str, path: str, e: Exception) -> Transient:
    return Transient(
        f"{method} {path}: no response from the API server ({type(e).__name__}: {e}).",
        "It is retried; check the API server if this persists.",
        retry_after=0.0,
    )


def error_of(method: str, path: str, status: int, retry_after: str, body: str) -> ChangefeedError:
    """The error for an HTTP response ≥ 400, caused by its `Answer`.

    `retry_after`: the header, in seconds; a date is ignored (the API server sends none). `body`: a Status.
    """
    answer = Answer(status, _message_of(body))
    error = _error_for(f"{method} {path}: {answer}", answer, retry_after, body)
    error.__cause__ = answer
    return error


def _error_for(what: str, answer: Answer, retry_after: str, body: str) -> ChangefeedError:
    status = answer.status
    if status == 404:
        return NotFound(what)
    if status == 409:
        reason = AlreadyExists if _reason_of(body) == "AlreadyExists" else Conflict
        return reason(what, "It is retried with the current object.")
    if status in _RETRIED or status == 401:
        seconds = float(retry_after) if retry_after.isdigit() else 0.0
        return Transient(what, "It is retried; check the API server if this persists.", retry_after=seconds)
    if status == 403 and _LACKS_RIGHT.search(answer.message):
        return NeedsHuman(
            what, "Grant the operator's ServiceAccount this permission; the chart's Role has everything it needs."
        )
    if status == 403:
        return NeedsHuman(what, "Have the rule changed, or request less in the spec.")
    return NeedsHuman(what, "A retry won't help; check the versions of the operator and the CRD.")


def answer_to(error: ChangefeedError) -> Answer | None:
    """The API server's response behind an error; None if there was none."""
    return error.__cause__ if isinstance(error.__cause__, Answer) else None


def refusal_in(error: ChangefeedError) -> str:
    """The API server's response if it is about the object; "" if there was none, or the API server was just busy."""
    answer = answer_to(error)
    return answer.message.rstrip(".") if answer and answer.status not in _PASSING else ""


def _status(body: str) -> Manifest:
    try:
        status = json.loads(body)
    except json.JSONDecodeError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}


def _message_of(body: str) -> str:
    return str(_status(body).get("message") or body.strip()[:200] or "no message")


def _reason_of(body: str) -> str:
    return str(_status(body).get("reason", ""))
