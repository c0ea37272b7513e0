"""The drivers that are not there: what the data plane does that others see, beside the lives of pods (cluster_pods.py).

Each driver pod that runs gets its executors, and reports its progress in the status of its changefeed as the driver's
ServiceAccount may, and no more.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cluster_api import CHANGEFEEDS, Api
from cluster_control_plane import ControlPlane
from cluster_pods import PlayedNode, Pod

NAME_LABEL = "changefeed.dev/name"
ATTEMPT_LABEL = "changefeed.dev/attempt"
FINISHED = json.dumps({"class": "Finished", "message": "targetTs is reached.", "next": ""})
VERSION = "0.1.0"
_TSO_SHIFT = 18
_EVERY_S = 0.25


def report(
    namespace: str, name: str, epoch: int, rows: int, settings: Mapping[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """Path and body of the server-side apply of a driver that is a second behind. `settings`: it runs with these."""
    ts = str(int((time.time() - 1.0) * 1000) << _TSO_SHIFT)
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now()}
        for kind, reason in (("SinkAvailable", "Written"), ("UpstreamAvailable", "Connected"), ("WithinLag", "Ok"))
    ]
    status = {
        "checkpointTs": ts,
        "checkpointTime": now(),
        "resolvedTs": ts,
        "lagSeconds": 1,
        "epoch": epoch,
        "tables": 3,
        "rows": rows,
        "version": VERSION,
        "appliedSettings": dict(settings or {}),
        "hold": {"ts": "450000000000000000", "until": "2099-01-01T00:00:00Z"},
        "conditions": conditions,
    }
    body = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": name, "namespace": namespace},
        "status": status,
    }
    return f"{CHANGEFEEDS}/namespaces/{namespace}/changefeeds/{name}/status", body


class PlayedDrivers:
    """`with PlayedDrivers(cluster, node, folder) as drivers`. `reports`: how many each attempt made, by pod uid."""

    def __init__(self, cluster: ControlPlane, node: PlayedNode, folder: Path, executors: int = 2) -> None:
        self._cluster = cluster
        self._node = node
        self._folder = folder
        self._executors = executors
        self._apis: dict[str, Api] = {}  # by changefeed
        self.reports: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._play, name="played-drivers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _play(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            for pod in self._node.pods("spark-role=driver"):
                if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                    self._live(pod)

    def _live(self, pod: Pod) -> None:
        metadata = pod["metadata"]
        name, namespace = metadata["labels"][NAME_LABEL], metadata["namespace"]
        if metadata["uid"] not in self.reports:
            self.reports[metadata["uid"]] = 0
            self._node.start_executors(metadata["name"], self._executors)
        if name not in self._apis:
            account = f"changefeed-{name}"
            config = self._folder / f"{account}.kubeconfig"
            self._apis[name] = Api(self._cluster.service_account_kubeconfig(namespace, account, config))
        epoch, rows = int(metadata["labels"][ATTEMPT_LABEL]), self.reports[metadata["uid"]]
        self._apis[name].apply(*report(namespace, name, epoch, rows), manager="changefeed-driver")
        self.reports[metadata["uid"]] += 1


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
