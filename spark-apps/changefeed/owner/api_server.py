"""The API server as a driver's pod reaches it: as its ServiceAccount, whose files may be replaced at any moment."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from changefeed.errors import NeedsHuman

#: Where a pod finds its ServiceAccount's `token` and `ca.crt`; both rotate, so they are read each time.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ApiServer:
    """Each request blocks for some seconds at most."""

    host: str
    port: int
    service_account: Path = SERVICE_ACCOUNT

    def request(self, method: str, path: str, body: Mapping[str, Any], content_type: str) -> tuple[int, bytes]:
        """The answer's status and body; 0 and nothing when there is none."""
        try:
            connection = HTTPSConnection(self.host, self.port, timeout=_TIMEOUT_S, context=self._tls())
            try:
                connection.request(method, path, json.dumps(body), self._headers(content_type))
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()
        except (OSError, HTTPException, ValueError):  # ValueError: a token or CA that is being replaced
            return 0, b""

    def _headers(self, content_type: str) -> dict[str, str]:
        token = (self.service_account / "token").read_text().strip()
        return {"Authorization": f"Bearer {token}", "Content-Type": content_type}

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.service_account / "ca.crt"))


def api_server(environment: Mapping[str, str]) -> ApiServer:
    """The one of this pod's cluster. Raises NeedsHuman when the pod does not know it."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise NeedsHuman(
            "The driver's pod does not know the API server: KUBERNETES_SERVICE_HOST or _PORT is missing.",
            "Kubernetes sets them in every pod: find out what modifies this one.",
        )
    return ApiServer(host, int(port))
