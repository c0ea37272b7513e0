"""The secret by which a driver and its executors know each other, and from which they derive the keys of what they say.

Spark by itself writes it into the executors' environment, where all who may look at pods can read it. So the driver
keeps it in a Secret that the executors mount. Nobody has to be able to read Secrets for that: a driver may only create.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from changefeed.errors import ChangefeedError, NeedsHuman, Unavailable
from changefeed.kube.client import Kube, answer_to
from changefeed.kube.connection import Connection, in_pod
from changefeed.kube.kind import SECRET
from changefeed.owner.pod import Pod
from changefeed.spec.names import GROUP

_MANAGER = "changefeed-driver"
_TIMEOUT_S = 5.0
_KEY = "secret"
_FOLDER = "/etc/changefeed/rpc"  # of executors
_FILE = "spark.authenticate.secret"


class SharedSecret(Protocol):
    def settings(self, folder: Path) -> dict[str, str]:
        """Make one, keep the driver's copy below `folder`; Spark's settings for it, which name files alone.

        Blocks for some seconds at most. Raises Unavailable when executors could not be given it.
        """
        ...


@dataclass(frozen=True)
class MountedSecret:
    """Goes with the driver's pod, `pod_name`, which is its owner."""

    pod: Pod
    connection: Connection
    pod_name: str
    pod_uid: str

    def settings(self, folder: Path) -> dict[str, str]:
        value = secrets.token_bytes(32)
        file = folder / "rpc-secret"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as opened:
            opened.write(value)
        name = self._create(value)
        mounted = f"{_FOLDER}/{_KEY}"
        return {
            # The plain one is for an executor's first question, which Spark asks before it takes itself for one.
            f"{_FILE}.file": mounted,
            f"{_FILE}.executor.file": mounted,
            f"{_FILE}.driver.file": str(file),
            f"spark.kubernetes.executor.secrets.{name}": _FOLDER,
        }

    def _create(self, value: bytes) -> str:
        """The name that the API server gave it."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self.pod_name, "uid": self.pod_uid}
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "generateName": f"changefeed-{self.pod.name}-rpc-",
                "namespace": self.pod.namespace,
                "labels": {"app.kubernetes.io/managed-by": _MANAGER, f"{GROUP}/name": self.pod.name},
                "ownerReferences": [owner],
            },
            "immutable": True,
            "data": {_KEY: b64encode(value).decode()},
        }
        return asyncio.run(self._sent(manifest))

    async def _sent(self, manifest: Mapping[str, Any]) -> str:
        try:
            async with Kube(self.connection, _MANAGER, timeout=_TIMEOUT_S) as kube:
                return str((await kube.create(SECRET, manifest))["metadata"]["name"])
        except ChangefeedError as e:  # what the server says may repeat what it was sent
            answer = answer_to(e)
        why = f"the API server answered {answer.status}" if answer else "the API server does not answer"
        raise Unavailable(
            f"The Secret for Spark's own traffic was not created: {why}.",
            "The driver's account must be allowed to create Secrets (docs/operator/security.md, RBAC).",
        )


def mounted_secret(pod: Pod, environment: Mapping[str, str]) -> MountedSecret | None:
    """Return the secret that executors mount.

    None: the operator is one that gives no right to create it, and Spark does it in its own way.

    Raises NeedsHuman when the pod does not know its API server.
    """
    name, uid = (environment.get(variable, "") for variable in ("CHANGEFEED_POD_NAME", "CHANGEFEED_POD_UID"))
    if not name and not uid:
        return None
    if not name or not uid:
        raise NeedsHuman(
            "The driver's pod is only partly configured: CHANGEFEED_POD_NAME or CHANGEFEED_POD_UID is missing.",
            "The operator sets them: check its version, and what else modifies its pods.",
        )
    return MountedSecret(pod, in_pod(environment), name, uid)
