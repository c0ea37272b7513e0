"""The node that is not there: plays the scheduler's and the kubelet's part in the lives of one namespace's pods.

The API server, the controllers and the Spark operator see real pods with the status that a node would report; no
container runs. By itself a pod starts, a Job's pod succeeds, and a pod whose deletion is asked for ends by SIGTERM; a
test changes `starts`, `ends` and `stops`, or says what happens to one pod.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from cluster_api import CORE, ApiRefused, Namespace

NODE = "played"
DRIVER_CONTAINER = "spark-kubernetes-driver"
EXECUTOR_CONTAINER = "spark-kubernetes-executor"
_EVERY_S = 0.05
_SIGTERM = 143

Pod = dict[str, Any]


@dataclass(frozen=True)
class End:
    """How a pod's containers end. `message`: what they left in /dev/termination-log. `reason`: as OOMKilled."""

    exit_code: int = 0
    message: str = ""
    reason: str = ""

    @property
    def phase(self) -> str:
        return "Failed" if self.exit_code else "Succeeded"


def role(pod: Pod) -> str:
    """driver, executor, job (any Job's), or an empty string."""
    owners = pod["metadata"].get("ownerReferences") or ()
    if any(owner["kind"] == "Job" for owner in owners):
        return "job"
    return str(pod["metadata"].get("labels", {}).get("spark-role", ""))


class PlayedNode:
    """`with PlayedNode(namespace) as node`.

    `starts(pod)`: whether a new pod is scheduled and runs by itself. `ends(pod)`: how a running one ends
    by itself; None: it goes on. `stops(pod)`: how one ends that is to be deleted; None: it stays Terminating, as it
    does on a lost node.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._api = namespace.api
        self.starts: Callable[[Pod], bool] = lambda _: True
        self.ends: Callable[[Pod], End | None] = lambda pod: End() if role(pod) == "job" else None
        self.stops: Callable[[Pod], End | None] = lambda _: End(_SIGTERM)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._play, name=f"node-of-{namespace.name}", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(ApiRefused):  # another namespace's has made it
            self._api.create(f"{CORE}/nodes", {"metadata": {"name": NODE}})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def pods(self, labels: str = "") -> list[Pod]:
        return self._api.items(self._namespace.core("pods"), labels)

    def pod(self, name: str) -> Pod | None:
        return self._api.find(self._namespace.core("pods", name))

    def run(self, name: str) -> None:
        """Scheduled, started, ready."""
        pod = self._get(name)
        if not pod["spec"].get("nodeName"):
            target = {"target": {"kind": "Node", "name": NODE}, "metadata": {"name": name}}
            self._api.create(self._namespace.core("pods", name, "binding"), target)
        address = f"10.88.{int(pod['metadata']['uid'][:4], 16) % 250}.{int(pod['metadata']['uid'][4:8], 16) % 250 + 1}"
        state = {"running": {"startedAt": _now()}}
        conditions = [_condition(kind, True) for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]
        addresses = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "10.87.0.1", "startTime": _now()}
        self._report(pod, "Running", state, conditions, addresses)

    def end(self, name: str, end: End | None = None) -> None:
        """All containers end so (default: with success); the pod stays."""
        self._end(self._get(name), end or End())

    def wait_for_image(self, name: str, reason: str = "ImagePullBackOff", message: str = "no such image") -> None:
        """Scheduled, but Pending for ever: its containers wait with `reason`."""
        state = {"waiting": {"reason": reason, "message": message}}
        self._report(self._get(name), "Pending", state, [_condition("PodScheduled", True)])

    def tell(self, name: str, reason: str, message: str) -> None:
        """An event about the pod, as the kubelet posts it again and again; this is the one after 16 seconds."""
        metadata = self._get(name)["metadata"]
        created = datetime.datetime.fromisoformat(metadata["creationTimestamp"])
        event = {
            "metadata": {"name": f"{name}.{reason.lower()}"},
            "involvedObject": {"kind": "Pod", "namespace": metadata["namespace"], "name": name, "uid": metadata["uid"]},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "count": 6,
            "lastTimestamp": (created + datetime.timedelta(seconds=16)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "source": {"component": "kubelet"},
        }
        self._api.create(self._namespace.core("events"), event)

    def lose(self, name: str) -> None:
        """What the controller of lost nodes does to a pod: not ready, and asked to go by its tolerations."""
        lost = {**_condition("Ready", False)}
        taken = {**_condition("DisruptionTarget", True), "reason": "DeletionByTaintManager"}
        taken["message"] = "Taint manager: deleting due to NoExecute taint"
        self._patch(name, {"conditions": [_condition("PodScheduled", True), lost, taken]})
        self._api.delete(self._namespace.core("pods", name))

    def unschedulable(self, name: str, message: str = "0/1 nodes are available: 1 Insufficient cpu.") -> None:
        unplaced = {**_condition("PodScheduled", False), "reason": "Unschedulable", "message": message}
        self._patch(name, {"phase": "Pending", "conditions": [unplaced]})

    def start_executors(self, driver: str, count: int) -> list[str]:
        """What a running driver does first: its executor pods, labelled and owned as Spark does it; their names."""
        pod = self._get(driver)
        labels, application = pod["metadata"]["labels"], pod["metadata"]["labels"]["sparkoperator.k8s.io/app-name"]
        spec = self._api.get(self._namespace.applications(application))["spec"]
        taken = ("spark-app-selector", "spark-app-name", "spark-version")
        kept = {name: labels[name] for name in labels if name in taken or name.startswith("sparkoperator.k8s.io/")}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": driver, "uid": pod["metadata"]["uid"], "controller": True}
        names = [f"{application}-exec-{number}" for number in range(1, count + 1)]
        for number, name in enumerate(names, 1):
            own = {"spark-role": "executor", "spark-exec-id": str(number), **spec["executor"].get("labels", {})}
            metadata = {"name": name, "labels": {**kept, **own}, "ownerReferences": [owner]}
            containers = [{"name": EXECUTOR_CONTAINER, "image": pod["spec"]["containers"][0]["image"]}]
            body = {"metadata": metadata, "spec": {"containers": containers, "restartPolicy": "Never"}}
            self._api.create(self._namespace.core("pods"), body)
        return names

    def _play(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            for pod in self.pods():
                with _moved_on():
                    self._next(pod)

    def _next(self, pod: Pod) -> None:
        metadata, phase = pod["metadata"], pod["status"]["phase"]
        if "deletionTimestamp" in metadata:
            if end := self.stops(pod):
                if phase == "Running":
                    self._end(pod, end)
                now = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                self._api.delete(self._namespace.core("pods", metadata["name"]), now)
        elif phase == "Pending" and not pod["spec"].get("nodeName") and self.starts(pod):
            self.run(metadata["name"])
        elif phase == "Running" and (end := self.ends(pod)):
            self._end(pod, end)

    def _end(self, pod: Pod, end: End) -> None:
        reason = end.reason or ("Error" if end.exit_code else "Completed")
        state = {"exitCode": end.exit_code, "reason": reason, "message": end.message, "finishedAt": _now()}
        conditions = [_condition("PodScheduled", True), _condition("Ready", False)]
        self._report(pod, end.phase, {"terminated": state}, conditions)

    def _report(
        self,
        pod: Pod,
        phase: str,
        state: dict[str, Any],
        conditions: list[dict[str, Any]],
        more: dict[str, Any] | None = None,
    ) -> None:
        containers = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": phase == "Running",
                "restartCount": 0,
                "state": state,
            }
            for container in pod["spec"]["containers"]
        ]
        status = {"phase": phase, "containerStatuses": containers, "conditions": conditions, **(more or {})}
        self._patch(pod["metadata"]["name"], status)

    def _patch(self, name: str, status: dict[str, Any]) -> None:
        self._api.merge(self._namespace.core("pods", name, "status"), {"status": status})

    def _get(self, name: str) -> Pod:
        return self._api.get(self._namespace.core("pods", name))


@contextlib.contextmanager
def _moved_on() -> Iterator[None]:
    """The pod has changed or gone since it was listed: the next round sees it as it is."""
    try:
        yield
    except ApiRefused as refused:
        if refused.status not in (404, 409, 422):
            raise


def _condition(kind: str, holds: bool) -> dict[str, Any]:
    return {"type": kind, "status": str(holds), "lastTransitionTime": _now()}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
