"""The little of Kubernetes that the operator's process needs: discovery, list, watch, and writes that watches tell of.

No schemas, no field ownership, no garbage collection: tests/cluster has the real ones.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web
from changefeed.kube.kind import EVENT, LEASE, NAMESPACE
from changefeed_operator import api
from changefeed_operator.spark_operator.choice import KNOWN
from operator_api_server import ApiServer, refusal

_CRD = api.Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
#: Of those that share a plural, SparkApplications, lists know the first one's API group only.
_SERVED = (*(each.kind for each in KNOWN), *api.KINDS.values(), LEASE, EVENT, NAMESPACE, _CRD)
_KINDS = {kind.plural: kind for kind in reversed(_SERVED)}


class TinyCluster(ApiServer):
    """`objects`: path -> object. `watches`: what is sent to each open watch, by the path it watches; `selectors`: its
    label selector."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.selectors: dict[str, str] = {}
        self._history: list[tuple[int, str, bytes]] = []
        self.forbidden: set[str] = set()  # namespaces
        self.watches: dict[str, list[asyncio.Queue[bytes | None]]] = {}
        self.deaf = False  # watches are told of nothing
        self.without: set[str] = set()  # API groups that it does not serve

    def put(self, kind: api.Kind, manifest: dict[str, Any]) -> None:
        """As somebody else's write."""
        metadata = manifest["metadata"]
        self._store(f"{self._list_path(kind, metadata['namespace'])}/{metadata['name']}", manifest)

    def remove(self, kind: api.Kind, namespace: str, name: str) -> None:
        self._remove(f"{self._list_path(kind, namespace)}/{name}")

    def end_watches(self) -> int:
        """Cut them all, as a restart of the API server does; how many."""
        cut = [queue for queues in self.watches.values() for queue in queues]
        for queue in cut:
            queue.put_nowait(None)
        return len(cut)

    def expire_watches(self) -> None:
        """Tell each that its place is lost (410): all has to be listed anew."""
        gone = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "message": "too old"}
        line = json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
        for queues in list(self.watches.values()):
            for queue in queues:
                queue.put_nowait(line)

    def find(self, kind: api.Kind, namespace: str, name: str) -> dict[str, Any] | None:
        return self.objects.get(f"{self._list_path(kind, namespace)}/{name}")

    @staticmethod
    def _list_path(kind: api.Kind, namespace: str) -> str:
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        return f"{root}/namespaces/{namespace}/{kind.plural}" if namespace else f"{root}/{kind.plural}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if any(f"/namespaces/{namespace}/" in request.path for namespace in self.forbidden):
            return refusal(403, "Forbidden", 'User "operator" cannot list')
        if request.query.get("watch") == "true":
            return await self._watch(request)
        last = request.path.rpartition("/")[2]
        if self.faults[f"{request.method} {request.path}"]:
            return await super()._answer(request)
        if any(request.path.startswith(f"/apis/{group}/") for group in self.without):
            return await super()._answer(request)  # there is nothing
        if request.method == "GET" and last in _KINDS:
            return self._list(request, _KINDS[last])
        if found := self._discovery(request.path):
            return web.json_response(found)
        if request.method == "GET":
            return await super()._answer(request)
        return await self._write(request)

    def _discovery(self, path: str) -> dict[str, Any] | None:
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            served = {kind.group: kind.api_version for kind in self._served() if kind.group}
            versions = {group: {"groupVersion": gv, "version": gv.split("/")[1]} for group, gv in served.items()}
            return {
                "groups": [
                    {"name": group, "versions": [version], "preferredVersion": version}
                    for group, version in versions.items()
                ]
            }
        resources = [
            {"name": kind.plural, "kind": kind.kind, "singularName": "", "namespaced": True, "verbs": ["list", "watch"]}
            for kind in self._served()
            if path == (f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}")
        ]
        return {"resources": resources} if resources else None

    def _served(self) -> list[api.Kind]:
        return [kind for kind in _SERVED if kind.group not in self.without]

    def _list(self, request: web.Request, kind: api.Kind) -> web.Response:
        items = [found for found in self._of(request.path, kind) if _matches(found, request.query)]
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    def _of(self, path: str, kind: api.Kind) -> list[dict[str, Any]]:
        namespace = path.split("/namespaces/")[1].split("/")[0] if "/namespaces/" in path else ""
        return [
            found
            for key, found in self.objects.items()
            if found["kind"] == kind.kind and namespace in ("", found["metadata"]["namespace"]) and key
        ]

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, watched, line in self._history:
            if version > int(request.query["resourceVersion"]) and watched == request.path:
                queue.put_nowait(line)
        self.watches.setdefault(request.path, []).append(queue)
        self.selectors[request.path] = request.query.get("labelSelector", "")
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        finally:
            self.watches[request.path].remove(queue)
        return response

    async def _write(self, request: web.Request) -> web.Response:
        answer = await super()._answer(request)
        assert isinstance(answer, web.Response)
        body = self.asked[-1].body
        if request.method == "DELETE":
            self.version += 1
            self._tell("DELETED", request.path, body)
            return answer
        path = request.path if request.method != "POST" else f"{request.path}/{body['metadata']['name']}"
        found = self.objects.get(path.removesuffix("/status"))
        if request.method == "POST" and found is not None:
            return refusal(409, "AlreadyExists")
        expected = body["metadata"].get("resourceVersion")
        if expected and found and expected != found["metadata"]["resourceVersion"]:
            return refusal(409, "Conflict")
        merged = {**(found or {}), **{name: part for name, part in body.items() if name != "metadata"}}
        merged["metadata"] = {**(found or {}).get("metadata", {}), **body["metadata"]}
        self._store(path.removesuffix("/status"), merged)
        return web.json_response(self.objects[path.removesuffix("/status")])

    def _store(self, path: str, manifest: dict[str, Any]) -> None:
        self.version += 1
        event = "MODIFIED" if path in self.objects else "ADDED"
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version)}
        metadata.setdefault("uid", f"uid-{self.version}")
        self.objects[path] = {**manifest, "metadata": metadata}
        self._tell(event, path, self.objects[path])

    def _remove(self, path: str) -> None:
        self.version += 1
        self._tell("DELETED", path, self.objects.pop(path))

    def _tell(self, event: str, path: str, manifest: dict[str, Any]) -> None:
        if self.deaf:
            return
        line = json.dumps({"type": event, "object": manifest}).encode() + b"\n"
        parts = path.split("/")
        everywhere = "/".join([*parts[: parts.index("namespaces")], parts[-2]])
        for watched in (everywhere, path.rpartition("/")[0]):
            self._history.append((self.version, watched, line))
            for queue in self.watches.get(watched, ()):
                queue.put_nowait(line)


def _matches(found: dict[str, Any], query: Any) -> bool:
    """Selectors `name=value` and `name` only."""
    labels = {**found["metadata"].get("labels", {}), "metadata.name": found["metadata"]["name"]}
    terms = [term for part in ("labelSelector", "fieldSelector") for term in query.get(part, "").split(",") if term]
    return all(
        labels.get(term.partition("=")[0]) == term.partition("=")[2] if "=" in term else term in labels
        for term in terms
    )
