"""The Spark operator, the kubelets and the drivers of many changefeeds, as far as the API server sees them.

A SparkApplication gets a driver pod, with executors, and is RUNNING; the driver of each running one reports its
progress in the Changefeed's status, as its own field manager, and finishes when its configuration has a targetTs. Pods
that are to be deleted drain and go; those of Jobs succeed. A thousand spark-submits and JVMs would not fit on one
machine. The real Spark operator (cluster_spark_operator.py) leaves these namespaces alone.

Apache's Spark operator is played only: neither its chart nor its images can be had here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from changefeed.spec.live import settings_of
from changefeed.spec.parse import from_effective
from cluster_api import APPLY_PATCH, CORE, MERGE_PATCH, Api
from cluster_played_driver import ATTEMPT_LABEL, FINISHED, NAME_LABEL, now, report
from cluster_pods import DRIVER_CONTAINER, EXECUTOR_CONTAINER, NODE, Pod, role
from cluster_spark_operator import PLAYED_LABELS
from spark_applications import APACHE, KUBEFLOW, asked, told, word

_OURS = "labelSelector=app.kubernetes.io/managed-by=changefeed-operator"
_IMAGE = "changefeed-spark:test"
_NEVER = float("inf")
#: Of Apache's operator on its applications.
_FINALIZER = "sparkapplications.spark.apache.org/finalizer"
_REFUSED = (
    "Failed to request driver from scheduler backend. StackTrace: io.fabric8.kubernetes.client."
    "KubernetesClientException: Failure executing: POST at: {path}. Message: {message}. Received status: Status(...).\n"
    "\tat io.fabric8.kubernetes.client.KubernetesClientException.copyAsCause(KubernetesClientException.java:205)\n"
)


def mounted_config(application: dict[str, Any]) -> str:
    """Name of the ConfigMap that the driver reads."""
    volumes = asked(application).driver.template["spec"]["volumes"]
    (name,) = (volume["configMap"]["name"] for volume in volumes if "configMap" in volume)
    return str(name)


@dataclass
class _Driver:
    """`report_at`: when it reports next. `reports`: how many it made. `end`: of its container, after the first.
    `settings`: those that it takes over while it runs."""

    report_at: float = 0.0
    reports: int = 0
    end: Mapping[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


class PlayedSpark:
    """`with PlayedSpark(api, namespaces) as spark`. `report_s`: how often each driver reports; 0 for once only.
    `executors`: of each driver; None for as many as its application asks for. `group`: API group and version of the
    SparkApplications. `ends`: by changefeed, how the container of its first driver ends once it has reported.

    `reports`: how many there were; `started`: (namespace, changefeed, attempt) of each driver, in their order;
    `broken`: rules of attempts that were; `errors`: answers that are bad news, as 422 and 500 are. `unsaid`: fields of
    status that the first attempt, of a version before them, does not report.
    """

    def __init__(
        self,
        api: Api,
        namespaces: Iterable[str],
        report_s: float = 10.0,
        poll_s: float = 0.2,
        executors: int | None = None,
        unsaid: Iterable[str] = (),
        group: str = KUBEFLOW,
        ends: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._api = api
        self._namespaces = frozenset(namespaces)
        self._report_s = report_s
        self._poll_s = poll_s
        self._executors = executors
        self._unsaid = frozenset(unsaid)
        self._group = group
        self._ends = dict(ends or {})
        self.reports = 0
        self.started: list[tuple[str, str, int]] = []
        self.broken: list[str] = []
        self.errors: list[str] = []
        self._refusal = ""  # the last one
        self._drivers: dict[str, _Driver] = {}  # by uid of the application
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), name="played-spark", daemon=True)

    def __enter__(self) -> Self:
        for namespace in self._namespaces:
            self._api.merge(f"{CORE}/namespaces/{namespace}", {"metadata": {"labels": PLAYED_LABELS}})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    async def _play(self) -> None:
        connector = aiohttp.TCPConnector(limit=16, ssl=self._api.tls)
        async with aiohttp.ClientSession(headers=self._api.headers, connector=connector) as self._session:
            while not self._stopping.is_set():
                with contextlib.suppress(aiohttp.ClientError):
                    await self._round()
                await asyncio.sleep(self._poll_s)

    async def _round(self) -> None:
        applications = await self._list(f"/apis/{self._group}/sparkapplications", "SparkApplication")
        pods = await self._list(f"{CORE}/pods", "Pod")
        alive = {application["metadata"]["uid"] for application in applications}
        self._drivers = {uid: driver for uid, driver in self._drivers.items() if uid in alive}
        by_name = {_place(pod): pod for pod in pods}
        async with asyncio.TaskGroup() as steps:
            for pod in pods:
                if "deletionTimestamp" in pod["metadata"]:
                    steps.create_task(self._ask("DELETE", f"{_path(pod)}?gracePeriodSeconds=0"))
                elif role(pod) == "job" and pod["status"]["phase"] == "Pending":
                    steps.create_task(self._patch(_path(pod), {"phase": "Succeeded"}))
            for application in applications:
                metadata = application["metadata"]
                if "deletionTimestamp" in metadata:
                    driver_pod = by_name.get((metadata["namespace"], f"{metadata['name']}-driver"))
                    steps.create_task(self._let_go(application, driver_pod))
                elif metadata["uid"] not in self._drivers:
                    self._drivers[metadata["uid"]] = _Driver()
                    steps.create_task(self._start(application, pods))
                else:
                    driver_pod = by_name.get((metadata["namespace"], f"{metadata['name']}-driver"))
                    self._go_on(steps, application, driver_pod)

    def _go_on(self, steps: asyncio.TaskGroup, application: dict[str, Any], pod: Pod | None) -> None:
        """What follows the start of an application's driver."""
        driver = self._drivers[application["metadata"]["uid"]]
        if pod is None:
            if driver.report_at != _NEVER:
                driver.report_at = _NEVER
                state = word(application, "failed")
                steps.create_task(self._set_state(application, state, "driver pod not found"))
        elif driver.end and driver.reports and driver.report_at != _NEVER:
            driver.report_at = _NEVER
            steps.create_task(self._end(application, pod, driver.end))
        elif driver.report_at < time.monotonic() and _lives(pod):
            # The drivers of many must not report all at once.
            spread = int(application["metadata"]["uid"][:4], 16) / 0xFFFF if not driver.reports else 1.0
            driver.report_at = time.monotonic() + self._report_s * spread if self._report_s else _NEVER
            driver.reports += 1
            steps.create_task(self._report(application))

    async def _start(self, application: dict[str, Any], pods: Iterable[Pod]) -> None:
        metadata, wanted = application["metadata"], asked(application)
        labels = wanted.driver.labels
        namespace, name, attempt = metadata["namespace"], labels[NAME_LABEL], int(labels[ATTEMPT_LABEL])
        self.started.append((namespace, name, attempt))
        await self._check(application, [pod for pod in pods if pod["metadata"]["namespace"] == namespace])
        config = await self._ask("GET", f"{_of(CORE, namespace)}/configmaps/{mounted_config(application)}")
        if not config:
            self.broken.append(f"attempt {attempt} of {name} starts without its configuration")
            return
        resource = json.loads(config["data"]["changefeed.yaml"])
        played = self._drivers[metadata["uid"]]
        if resource["spec"].get("targetTs"):
            played.end = {"exitCode": 0, "reason": "Completed", "message": FINISHED}
        elif attempt == 1:
            played.end = self._ends.get(name, {})
        played.settings = settings_of(from_effective(resource))
        owner = {"apiVersion": application["apiVersion"], "kind": application["kind"], "controller": True}
        if self._group == APACHE:
            held = {"metadata": {"finalizers": [_FINALIZER]}}
            await self._ask("PATCH", self._application(application), held, MERGE_PATCH)
        driver = await self._run(
            namespace,
            f"{metadata['name']}-driver",
            {**labels, "spark-role": "driver"},
            {**owner, "name": metadata["name"], "uid": metadata["uid"]},
            DRIVER_CONTAINER,
            wanted.driver.template["spec"].get("priorityClassName", ""),
        )
        if driver is None and self._group == APACHE:
            played.report_at = _NEVER
            said = _REFUSED.format(path=f"{_of(CORE, namespace)}/pods", message=self._refusal)
            await self._set_state(application, "SchedulingFailure", said)
            return
        await self._set_state(application, word(application, "running"))
        if driver is None:
            return
        executors = wanted.executors if self._executors is None else self._executors
        for number in range(1, executors + 1):
            await self._run(
                namespace,
                f"{metadata['name']}-{attempt}-exec-{number}",
                {**wanted.executor.labels, "spark-role": "executor"},
                {"apiVersion": "v1", "kind": "Pod", "name": driver["name"], "uid": driver["uid"], "controller": True},
                EXECUTOR_CONTAINER,
            )

    async def _check(self, application: dict[str, Any], pods: Iterable[Pod]) -> None:
        """Nothing of another attempt may live when one starts."""
        labels = asked(application).driver.labels
        for pod in pods:
            theirs = pod["metadata"]["labels"]
            is_other = theirs.get(ATTEMPT_LABEL, labels[ATTEMPT_LABEL]) != labels[ATTEMPT_LABEL]
            if theirs[NAME_LABEL] == labels[NAME_LABEL] and is_other and await self._ask("GET", _path(pod)):
                self.broken.append(f"attempt {labels[ATTEMPT_LABEL]} starts beside {pod['metadata']['name']}")

    async def _let_go(self, application: dict[str, Any], driver_pod: Pod | None) -> None:
        """Apache's operator deletes the driver's pod itself, and only then lets the application go."""
        if self._group != APACHE:
            return
        if driver_pod is None:
            released = {"metadata": {"finalizers": None}}
            await self._ask("PATCH", self._application(application), released, MERGE_PATCH)
        elif "deletionTimestamp" not in driver_pod["metadata"]:
            await self._ask("DELETE", _path(driver_pod))

    async def _run(
        self,
        namespace: str,
        name: str,
        labels: dict[str, str],
        owner: dict[str, Any],
        container: str,
        priority: str = "",
    ) -> dict[str, Any] | None:
        """A pod that runs; its metadata, None when it can't be made."""
        pod = {
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": {
                "nodeName": NODE,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "containers": [{"name": container, "image": _IMAGE}],
                **({"priorityClassName": priority} if priority else {}),
            },
        }
        made = await self._ask("POST", f"{_of(CORE, namespace)}/pods", pod)
        if not made:
            return None
        said = {"name": container, "image": _IMAGE, "imageID": "", "restartCount": 0}
        running = {**said, "ready": True, "started": True, "state": {"running": {"startedAt": now()}}}
        status = {"phase": "Running", "startTime": now(), "containerStatuses": [running]}
        await self._patch(_path(made), status)
        metadata: dict[str, Any] = made["metadata"]
        return metadata

    async def _report(self, application: dict[str, Any]) -> None:
        labels = asked(application).driver.labels
        namespace, name = application["metadata"]["namespace"], labels[NAME_LABEL]
        attempt = int(labels[ATTEMPT_LABEL])
        driver = self._drivers[application["metadata"]["uid"]]
        path, body = report(namespace, name, attempt, self.reports, driver.settings)
        if attempt == 1:
            body["status"] = {field: value for field, value in body["status"].items() if field not in self._unsaid}
        answer = await self._ask("PATCH", f"{path}?fieldManager=changefeed-driver&force=true", body, APPLY_PATCH)
        driver.settings |= answer.get("status", {}).get("liveSettings", {})
        self.reports += 1

    async def _end(self, application: dict[str, Any], pod: Pod, end: Mapping[str, Any]) -> None:
        said = {"name": DRIVER_CONTAINER, "image": _IMAGE, "imageID": "", "restartCount": 0, "ready": False}
        ended = [{**said, "state": {"terminated": {**end, "finishedAt": now()}}}]
        status = {"phase": "Failed" if end["exitCode"] else "Succeeded", "containerStatuses": ended}
        await self._patch(_path(pod), status)
        state = word(application, "failed" if end["exitCode"] else "completed")
        await self._set_state(application, state, driver_status=status)

    async def _set_state(
        self, application: dict[str, Any], state: str, message: str = "", driver_status: dict[str, Any] | None = None
    ) -> None:
        metadata = application["metadata"]
        status = told(application, state, message, driver_status)
        if self._group == KUBEFLOW:
            status |= {"driverInfo": {"podName": f"{metadata['name']}-driver"}, "executionAttempts": 1}
        await self._patch(
            f"{_of(f'/apis/{self._group}', metadata['namespace'])}/sparkapplications/{metadata['name']}", status
        )

    def _application(self, application: dict[str, Any]) -> str:
        namespace, name = _place(application)
        return f"{_of(f'/apis/{self._group}', namespace)}/sparkapplications/{name}"

    async def _list(self, path: str, kind: str) -> list[dict[str, Any]]:
        # From the API server's cache: what has just gone may be in it.
        found = (await self._ask("GET", f"{path}?{_OURS}&resourceVersion=0")).get("items", [])
        mine = [item for item in found if item["metadata"]["namespace"] in self._namespaces]
        group = path.removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0]
        return [{"apiVersion": group, "kind": kind, **item} for item in mine]  # the items of a list carry neither

    async def _patch(self, path: str, status: dict[str, Any]) -> None:
        await self._ask("PATCH", f"{path}/status", {"status": status}, MERGE_PATCH)

    async def _ask(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """The answer; empty when it is a refusal."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self._api.server + path, data=data, headers=headers) as answer:
            found = await answer.json()
            if answer.status < 400:
                return found
            if answer.status not in (404, 409, 429):
                self._refusal = str(found.get("message"))
                self.errors.append(f"{method} {path}: {answer.status}: {self._refusal}")
            return {}


def _lives(pod: Pod) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"


def _of(group: str, namespace: str) -> str:
    return f"{group}/namespaces/{namespace}"


def _place(pod: Pod) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _path(pod: Pod) -> str:
    namespace, name = _place(pod)
    return f"{_of(CORE, namespace)}/pods/{name}"
