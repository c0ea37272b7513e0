"""A client of one API server: get, list, apply, create, patch, delete, logs; nothing is cached.

Every failure is one of `changefeed.errors`, so that the caller knows what to do: `Conflict` (read again), `Transient`
(again after `retry_after`), `NotFound`, `NeedsHuman` (refused for good: rights, or a manifest that is not valid).
Writes are idempotent: server-side apply as one field manager, create-if-absent, deletes with preconditions.
It must never log or raise with a token in it, and never write when `may_write` says no (a lost lease).
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

#: A request that takes longer has failed; seconds. Nothing that is sent is slow.
REQUEST_TIMEOUT = 20.0

#: A log that does not come in so many seconds is done without.
LOG_TIMEOUT = 5.0

#: An object as the API server has it: JSON.
Manifest = dict[str, Any]

_LACKS_RIGHT = re.compile(r'User "[^"]*" cannot ')
_ANSWER = re.compile(r"[A-Z]+ /\S*: (\d+): (.*)", re.DOTALL)
#: Of errors that come and go by themselves, and say nothing about the object.
_PASSING = (401, 408, 409, 429, 502, 503, 504)

_RETRIED = (408, 429, 500, 502, 503, 504)


class Kube:
    """To be made inside a running loop. `manager`: the field manager of its writes; `timeout`: seconds of a request.

    `may_write`: asked right before each write; False makes the write a Conflict. `count`: told of every answer,
    (HTTP method, status), status 0 for none.
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
        """The object; NotFound when there is none."""
        return await self._request("GET", path_of(kind, namespace, name))

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """The object, or None when there is none."""
        try:
            return await self.read(kind, namespace, name)
        except NotFound:
            return None

    async def list(
        self, kind: Kind, namespace: str = "", labels: str = "", fields: str = "", limit: int = 0
    ) -> list[Manifest]:
        """The objects of a kind in one namespace (or all) that match a label and a field selector.

        `limit`: no more than so many of them, 0 for all.
        """
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(limit or "")}
        answer = await self._request(
            "GET", path_of(kind, namespace), {name: value for name, value in query.items() if value}
        )
        # The items of a list carry neither.
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer["items"]]

    async def log(self, namespace: str, pod: str, container: str, lines: int) -> str:
        """The last lines of a container's log, "" when they can't be had: its node may be the one that is lost.

        It is the kubelet that answers, through the API server: no failure of that counts as one of the API server's.
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
        """A container's log as it comes, from its start or the last `lines` on; `follow`: as it grows, too."""
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
        """Server-side apply, forced; gives the object as it stands then.

        A `metadata.uid` or `metadata.resourceVersion` in the manifest is a precondition: else Conflict. Without
        `subresource` an object that does not exist is created. `strict`: refused when it has a field that the API
        server doesn't know, which else is left out.
        """
        query = {"force": "true", "fieldValidation": "Strict" if strict else "Ignore"}
        path = _path(kind, manifest, subresource)
        return await self._write("PATCH", path, manifest, "application/apply-patch+yaml", **query)

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Manifest:
        """Create it if absent; AlreadyExists otherwise. `generateName` gives it a name."""
        return await self._write("POST", path_of(kind, manifest["metadata"]["namespace"]), manifest)

    async def replace(self, kind: Kind, manifest: Mapping[str, Any]) -> Manifest:
        """Put it over the object of the `resourceVersion` that it carries; Conflict when that is not the newest."""
        return await self._write("PUT", _path(kind, manifest), manifest)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        """Lay `patch` over the object; a `metadata.resourceVersion` in it is a precondition: else Conflict."""
        path = path_of(kind, namespace, name)
        return await self._write("PATCH", path, patch, "application/merge-patch+json", fieldValidation="Strict")

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, grace_s: int | None = None) -> None:
        """Delete that very object, as it was read; Conflict when the name is another's by now.

        One that is gone is no error. `grace_s`: instead of its own grace. What it owns goes too, in the background.
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
            raise Conflict(f"{method} {path} is not sent: another operator leads now.", "It goes on from here.")
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
    """Raises ValueError for what is no object: something between us and the API server has answered."""
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("no object")
    return answer


def _unanswered(method: str, path: str, e: Exception) -> Transient:
    return Transient(
        f"{method} {path}: no answer of the API server ({type(e).__name__}: {e}).",
        "It is tried again; look at the API server if this lasts.",
        retry_after=0.0,
    )


def error_of(method: str, path: str, status: int, retry_after: str, body: str) -> ChangefeedError:
    """The error that an HTTP answer ≥ 400 stands for.

    `retry_after`: that header; seconds are understood, a date is not (the API server sends none). `body`: a Status.
    """
    why = _message_of(body)
    what = f"{method} {path}: {status}: {why}"
    if status == 404:
        return NotFound(what)
    if status == 409:
        reason = AlreadyExists if _reason_of(body) == "AlreadyExists" else Conflict
        return reason(what, "It is read again and decided anew.")
    if status in _RETRIED or status == 401:
        seconds = float(retry_after) if retry_after.isdigit() else 0.0
        return Transient(what, "It is tried again; look at the API server if this lasts.", retry_after=seconds)
    if status == 403 and _LACKS_RIGHT.search(why):
        return NeedsHuman(what, "Give the operator's ServiceAccount this right: the chart's Role has all it needs.")
    if status == 403:
        return NeedsHuman(what, "Have that rule changed, or ask for less in the spec.")
    return NeedsHuman(what, "The API server refuses this for good; look at the versions of operator and CRD.")


def answer_in(error: ChangefeedError) -> tuple[int, str]:
    """Status and message of the answer that an error stands for; 0 and "" when there was none."""
    answer = _ANSWER.fullmatch(error.message)
    return (int(answer[1]), answer[2]) if answer else (0, "")


def refusal_in(error: ChangefeedError) -> str:
    """What the API server answered, when that is about the object; "" when it did not answer, or is only busy."""
    status, message = answer_in(error)
    return message.rstrip(".") if status and status not in _PASSING else ""


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
