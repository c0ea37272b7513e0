"""Containers that really run on a node that is not there: the driver of each pod is `changefeed run` as the pod says
it, with its ConfigMap and Secrets as files, and so are the containers of Jobs.

Only executors are played: a driver's tasks are threads of its process (cluster_driver_forks.py).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from cluster_api import ApiRefused, Namespace
from cluster_control_plane import ControlPlane
from cluster_forks import Forks
from cluster_pods import End, PlayedNode, Pod, role

_EVERY_S = 0.5
_KILLED = 137
_ACCOUNT = "serviceaccount"
# gRPC and polars start threads, which a fork does not take along.
_ENVIRONMENT = {"GRPC_ENABLE_FORK_SUPPORT": "0", "POLARS_MAX_THREADS": "1"}
_APPLICATION = "local:///opt/changefeed/changefeed_app.py"


@dataclass
class _Container:
    pid: int
    folder: Path
    is_stopping: bool = False

    @property
    def lives(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def end(self) -> End:
        code, said = self.folder / "exit", self.folder / "termination-log"
        message = said.read_text() if said.exists() else ""
        return End(int(code.read_text()) if code.exists() else _KILLED, message)


class RunningDrivers:
    """`with RunningDrivers(cluster, folder, nodes) as drivers`, `nodes` by namespace, of which each plays the pods.

    `registry_away`: no image can be pulled. `started`: how many containers of drivers were.
    """

    def __init__(self, cluster: ControlPlane, folder: Path, nodes: dict[Namespace, PlayedNode]) -> None:
        self._cluster = cluster
        self._folder = folder
        self._nodes = nodes
        self._containers: dict[str, _Container] = {}  # by uid of the pod
        self.registry_away = False
        self.started = 0
        self._forks = Forks("cluster_driver_forks.py", folder / "driver-forks.log", _ENVIRONMENT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._play, name="running-drivers", daemon=True)

    def __enter__(self) -> Self:
        self._forks.__enter__()
        for namespace, node in self._nodes.items():
            node.starts = lambda pod, namespace=namespace, node=node: self._starts(namespace, node, pod)
            node.ends = lambda pod, namespace=namespace: self._ends(namespace, pod)
            node.stops = self._stops
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for container in self._containers.values():
            container.signal(signal.SIGKILL)
        self._forks.__exit__()

    @property
    def living(self) -> list[int]:
        """Process ids."""
        return [container.pid for container in list(self._containers.values()) if container.lives]

    def outputs(self) -> str:
        """The end of what each container printed, the newest last."""
        found = sorted(self._folder.glob("containers/*/output"), key=lambda path: path.stat().st_mtime)
        return "\n".join(f"== {path.parent.name}\n{path.read_text()[-1500:]}" for path in found[-6:])

    # A node's questions

    def _starts(self, namespace: Namespace, node: PlayedNode, pod: Pod) -> bool:
        if role(pod) == "executor":
            return True
        if self.registry_away:
            node.wait_for_image(pod["metadata"]["name"], "ErrImagePull", "dial tcp 10.0.0.9:443: i/o timeout")
            return False
        return self._mount(namespace, pod)

    def _ends(self, namespace: Namespace, pod: Pod) -> End | None:
        if role(pod) == "executor":
            return None
        container = self._containers.get(pod["metadata"]["uid"])
        if container is None:
            self._run(namespace, pod)
            return None
        return None if container.lives else container.end

    def _stops(self, pod: Pod) -> End | None:
        container = self._containers.get(pod["metadata"]["uid"])
        if container is None:
            return End(143)
        if not container.is_stopping:
            container.is_stopping = True
            container.signal(signal.SIGTERM)
        return None if container.lives else container.end

    # Containers

    def _root(self, pod: Pod) -> Path:
        return self._folder / "containers" / f"{pod['metadata']['name']}-{pod['metadata']['uid'][:8]}"

    def _mount(self, namespace: Namespace, pod: Pod) -> bool:
        """The pod's volumes as files; False while one is missing, as a kubelet waits for it."""
        root = self._root(pod)
        mounts = {each["name"]: each["mountPath"] for each in pod["spec"]["containers"][0].get("volumeMounts", ())}
        for volume in pod["spec"].get("volumes", ()):
            data = self._content(namespace, pod, volume)
            if data is None:
                return False
            folder = root / mounts.get(volume["name"], "/nowhere").lstrip("/")
            for name, text in data.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
        return self._mount_account(namespace, pod)

    def _content(self, namespace: Namespace, pod: Pod, volume: dict[str, Any]) -> dict[str, str] | None:
        if "configMap" in volume:
            found = namespace.api.find(namespace.core("configmaps", volume["configMap"]["name"]))
            is_optional = volume["configMap"].get("optional", False)
            return dict(found.get("data", {})) if found else ({} if is_optional else None)
        if "secret" in volume:
            found = namespace.api.find(namespace.core("secrets", volume["secret"]["secretName"]))
            return {name: base64.b64decode(text).decode() for name, text in found["data"].items()} if found else None
        if "downwardAPI" in volume:
            marks = pod["metadata"].get("annotations", {})
            fields = {item["path"]: item["fieldRef"]["fieldPath"] for item in volume["downwardAPI"]["items"]}
            return {path: marks.get(field.partition("'")[2].rstrip("']"), "") for path, field in fields.items()}
        return {}

    def _mount_account(self, namespace: Namespace, pod: Pod) -> bool:
        root = self._root(pod)
        try:
            name = pod["spec"].get("serviceAccountName", "default")
            file = self._cluster.service_account_kubeconfig(namespace.name, name, root / "kubeconfig")
        except ApiRefused:
            return False  # it was deleted, and is made anew
        config = json.loads(file.read_text())
        account = root / _ACCOUNT
        account.mkdir(exist_ok=True)
        (account / "token").write_text(config["users"][0]["user"]["token"])
        authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
        (account / "ca.crt").write_bytes(base64.b64decode(authority))
        return True

    def _run(self, namespace: Namespace, pod: Pod) -> None:
        root, metadata, container = self._root(pod), pod["metadata"], pod["spec"]["containers"][0]
        words = [*container.get("command", ()), *container.get("args", ())]
        is_driver = role(pod) == "driver"
        words = words[words.index(_APPLICATION) + 1 :] if is_driver else words[1:]
        words = [f"{root}{word}" if word.startswith("/etc/") else word for word in words]
        address = f"127.{1 + int(metadata['uid'][:2], 16) % 250}.{int(metadata['uid'][2:4], 16)}.1"
        server = urlsplit(self._cluster.server)
        (root / "spark.properties").write_text("")
        environment = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
        environment |= {
            "HOME": str(root),
            "POD_IP": address,
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
            "CHANGEFEED_TERMINATION_LOG": str(root / "termination-log"),
            "CHANGEFEED_SPARK_PROPERTIES": str(root / "spark.properties"),
            "SPARK_DRIVER_BIND_ADDRESS": address,
            "PYSPARK_PYTHON": sys.executable,
        }
        more = ["--metrics-port", "0"] if is_driver else []
        pid = self._forks.start({"arguments": [*words, *more], "environment": environment, "folder": str(root)})
        self._containers[metadata["uid"]] = _Container(pid, root)
        if is_driver:
            self.started += 1
            with contextlib.suppress(ApiRefused):  # its application has just gone
                self._nodes[namespace].start_executors(metadata["name"], 2)

    def _play(self) -> None:
        """Containers without a pod are ended, as kubelets do it."""
        while not self._stopping.wait(_EVERY_S):
            known = dict(self._containers)
            try:
                there = {pod["metadata"]["uid"] for node in self._nodes.values() for pod in node.pods()}
            except (ApiRefused, OSError):
                continue
            for uid in known.keys() - there:
                if known[uid].lives:
                    known[uid].signal(signal.SIGKILL)
                else:
                    del self._containers[uid]
                    if known[uid].end.exit_code == 0:
                        shutil.rmtree(known[uid].folder, ignore_errors=True)
