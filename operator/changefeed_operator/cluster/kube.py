"""The API server, as the operator speaks to it: get, list, apply, create, delete; nothing is cached.

Every failure is one of `changefeed.errors`, so that the caller knows what to do: `Conflict` (read again), `Transient`
(again after `retry_after`), `NotFound`, `NeedsHuman` (refused for good: rights, or a manifest that is not valid).
Writes are idempotent: server-side apply as one field manager, create-if-absent, deletes with preconditions.
It must never log or raise with a token in it, and never write when `may_write` says no (a lost lease).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
from changefeed.errors import AlreadyExists, ChangefeedError, Conflict, NeedsHuman, NotFound, Transient

from changefeed_operator.api import FIELD_MANAGER, KINDS, Kind
from changefeed_operator.cluster.connection import Connection

#: A request that takes longer has failed; seconds. Nothing that the operator sends is slow.
REQUEST_TIMEOUT = 20.0

#: A log that does not come in so many seconds is done without.
LOG_TIMEOUT = 5.0

LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
EVENT = Kind("v1", "Event", "events")
NAMESPACE = Kind("v1", "Namespace", "namespaces")
_KINDS = {**KINDS, "Lease": LEASE, "Event": EVENT}

#: An object as the API server has it: JSON.
Manifest = dict[str, Any]

_LACKS_RIGHT = re.compile(r'User "[^"]*" cannot ')
_ANSWER = re.compile(r"[A-Z]+ /\S*: (\d+): (.*)", re.DOTALL)
#: Of errors that come and go by themselves, and say nothing about the object.
_PASSING = ("401", "408", "409", "429", "502", "503", "504")

_RETRIED = (408, 429, 500, 502, 503, 504)


def path_of(kind: Kind, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The URL path of an object, or of a kind in one namespace or all (`""`)."""
    parts = ["apis" if kind.group else "api", *kind.api_version.split("/")]
    parts += ["namespaces", namespace] if namespace else []
    parts += [kind.plural, *filter(None, (name, subresource))]
    return "/" + "/".join(quote(part, safe="") for part in parts)


class Kube:
    """A client of one API server.

    `may_write`: asked right before each write; False makes the write a Conflict. `count`: told of every answer,
    (HTTP method, status), status 0 for none.
    """

    def __init__(
        self,
        connection: Connection,
        may_write: Callable[[], bool] = lambda: True,
        count: Callable[[str, int], None] = lambda method, status: None,
    ) -> None:
        self._server = connection.server
        self._session = connection.session(timeout=REQUEST_TIMEOUT)
        self._may_write = may_write
        self._count = count

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """The object, or None when there is none."""
        try:
            return await self._request("GET", path_of(kind, namespace, name))
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
        url = self._server + path_of(KINDS["Pod"], namespace, pod, "log")
        try:
            async with asyncio.timeout(LOG_TIMEOUT), self._session.get(url, params=query) as response:
                return await response.text(errors="replace") if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError):
            return ""

    async def apply(self, manifest: Mapping[str, Any], subresource: str = "") -> Manifest:
        """Server-side apply, forced, as the operator; gives the object as it stands then.

        A `metadata.uid` or `metadata.resourceVersion` in the manifest is a precondition: else Conflict. Without
        `subresource` an object that does not exist is created.
        """
        path = _path(manifest, subresource)
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        return await self._request("PATCH", path, query, manifest, "application/apply-patch+yaml")

    async def create(self, manifest: Mapping[str, Any]) -> Manifest:
        """Create it if absent; AlreadyExists otherwise."""
        path = path_of(_KINDS[manifest["kind"]], manifest["metadata"]["namespace"])
        return await self._request("POST", path, {"fieldManager": FIELD_MANAGER}, manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> Manifest:
        """Put it over the object of the `resourceVersion` that it carries; Conflict when that is not the newest."""
        path = _path(manifest)
        return await self._request("PUT", path, {"fieldManager": FIELD_MANAGER}, manifest)

    async def set_finalizers(
        self, kind: Kind, namespace: str, name: str, finalizers: Sequence[str], resource_version: str
    ) -> None:
        """Put these in the place of all that it has; Conflict when the object is another or newer one by now.

        No apply: after a restore from a backup the field belongs to nobody, and could not be taken back.
        """
        body = {"metadata": {"resourceVersion": resource_version, "finalizers": list(finalizers)}}
        await self._request("PATCH", path_of(kind, namespace, name), {}, body, "application/merge-patch+json")

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
            await self._request("DELETE", path_of(kind, namespace, name), {}, body)
        except NotFound:
            return

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
                answer: Manifest = json.loads(text)
                return answer
        except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as e:
            self._count(method, 0)
            raise Transient(
                f"{method} {path}: no answer of the API server ({type(e).__name__}: {e}).",
                "It is tried again; look at the API server if this lasts.",
                retry_after=0.0,
            ) from e


def _path(manifest: Mapping[str, Any], subresource: str = "") -> str:
    metadata = manifest["metadata"]
    return path_of(_KINDS[manifest["kind"]], metadata["namespace"], metadata["name"], subresource)


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


def refusal_in(error: ChangefeedError) -> str:
    """What the API server answered, when that is about the object; "" when it did not answer, or is only busy."""
    answer = _ANSWER.fullmatch(error.message)
    return answer[2].rstrip(".") if answer and answer[1] not in _PASSING else ""


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
