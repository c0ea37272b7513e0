"""Plain requests to an API server: what it answers, status code and all, is what the tests assert on."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
CORE = "/api/v1"
CHANGEFEEDS = "/apis/changefeed.dev/v1alpha1"
SPARK = "/apis/sparkoperator.k8s.io/v1beta2"
_TIMEOUT_S = 60.0


class ApiRefused(Exception):
    """The API server's answer is not 2xx."""

    def __init__(self, request: str, status: int, message: str) -> None:
        super().__init__(f"{request}: {status} {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict[str, Any]


class Api:
    """One user's way to one API server; a connection per request, safe to use from several threads.

    `headers` and `tls` are what any other connection of this user needs.
    """

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server: str = cluster["server"]
        self._host = urlsplit(self.server).netloc
        self.headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.tls = ssl.create_default_context(cadata=authority)
        if "client-certificate-data" in user:
            self._load_client_certificate(kubeconfig, user)

    def _load_client_certificate(self, kubeconfig: Path, user: Mapping[str, str]) -> None:
        pem = b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
        file = kubeconfig.with_suffix(".pem")
        file.touch(mode=0o600)
        file.write_bytes(pem)
        self.tls.load_cert_chain(file)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        **query: str,
    ) -> Answer:
        """Whatever the answer is; only a broken connection raises."""
        connection = http.client.HTTPSConnection(self._host, context=self.tls, timeout=_TIMEOUT_S)
        try:
            headers = {**self.headers, "Content-Type": content_type, "Accept": "application/json"}
            target = f"{path}?{urlencode(query)}" if query else path
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        parsed = json.loads(content) if content.startswith(b"{") else {"message": content.decode(errors="replace")}
        return Answer(answer.status, parsed)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        return self._accepted("GET", path, None, **query)

    def items(self, path: str, labels: str = "") -> list[dict[str, Any]]:
        """The list at `path`, those with `labels` (a selector)."""
        found: list[dict[str, Any]] = self.get(path, **({"labelSelector": labels} if labels else {}))["items"]
        return found

    def find(self, path: str) -> dict[str, Any] | None:
        """The object, or None when there is none."""
        answer = self.request("GET", path)
        if answer.status == 404:
            return None
        return _checked("GET", path, answer)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._accepted("POST", path, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._accepted("PATCH", path, body, MERGE_PATCH)

    def apply(self, path: str, body: Mapping[str, Any], manager: str = "test") -> dict[str, Any]:
        """Server-side apply."""
        return self._accepted("PATCH", path, body, APPLY_PATCH, fieldManager=manager, force="true")

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> bool:
        """False when there was none."""
        answer = self.request("DELETE", path, body)
        if answer.status == 404:
            return False
        _checked("DELETE", path, answer)
        return True

    def _accepted(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        content_type: str = "application/json",
        **query: str,
    ) -> dict[str, Any]:
        return _checked(method, path, self.request(method, path, body, content_type, **query))


@dataclass(frozen=True)
class Namespace:
    """The paths of one namespace's objects."""

    api: Api
    name: str

    def core(self, plural: str, name: str = "", subresource: str = "") -> str:
        return self._path(CORE, plural, name, subresource)

    def changefeeds(self, name: str = "", subresource: str = "") -> str:
        return self._path(CHANGEFEEDS, "changefeeds", name, subresource)

    def applications(self, name: str = "", subresource: str = "") -> str:
        return self._path(SPARK, "sparkapplications", name, subresource)

    def of(self, group: str, plural: str, name: str = "") -> str:
        """`group`: with its version, as batch/v1."""
        return self._path(f"/apis/{group}", plural, name, "")

    def as_user(self, api: Api) -> Self:
        return type(self)(api, self.name)

    def _path(self, group: str, plural: str, name: str, subresource: str) -> str:
        return "/".join(part for part in (f"{group}/namespaces/{self.name}/{plural}", name, subresource) if part)


def _checked(method: str, path: str, answer: Answer) -> dict[str, Any]:
    if not 200 <= answer.status < 300:
        raise ApiRefused(f"{method} {path}", answer.status, str(answer.body.get("message")))
    return answer.body
