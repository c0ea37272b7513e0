"""The Spark operator, the kubelets and the drivers of many changefeeds, as far as the API server sees them.

A SparkApplication gets a driver pod and is RUNNING; the driver of each running one reports its progress in the
Changefeed's status, as its own field manager. A thousand spark-submits and JVMs would not fit on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import threading
import time
from typing import Any, Self

import aiohttp
from cluster_api import APPLY_PATCH, CHANGEFEEDS, MERGE_PATCH, SPARK, Api
from cluster_pods import DRIVER_CONTAINER, NODE

_TSO_SHIFT = 18


class PlayedSpark:
    """`with PlayedSpark(api, namespace) as spark`. `report_s`: how often each driver reports; 0 for once only.

    `reports`: how many there were; `errors`: answers that are bad news, as 422 and 500 are.
    """

    def __init__(self, api: Api, namespace: str, report_s: float = 10.0, poll_s: float = 0.5) -> None:
        self._api = api
        self._namespace = namespace
        self._report_s = report_s
        self._poll_s = poll_s
        self.reports = 0
        self.errors: list[str] = []
        self.running: dict[str, float] = {}  # uid of the application -> when its driver reports next
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), name="played-spark", daemon=True)

    def __enter__(self) -> Self:
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
        applications = (await self._ask("GET", f"{self._of(SPARK)}/sparkapplications"))["items"]
        alive = {application["metadata"]["uid"] for application in applications}
        self.running = {uid: due for uid, due in self.running.items() if uid in alive}
        async with asyncio.TaskGroup() as steps:
            for application in applications:
                uid = application["metadata"]["uid"]
                if uid not in self.running:
                    self.running[uid] = 0.0
                    steps.create_task(self._start(application))
                elif self.running[uid] < time.monotonic():
                    spread = (int(uid[:4], 16) / 0xFFFF) if self.running[uid] == 0.0 else 1.0
                    self.running[uid] = time.monotonic() + (self._report_s * spread or 1e9)
                    steps.create_task(self._report(application))

    async def _start(self, application: dict[str, Any]) -> None:
        metadata, driver = application["metadata"], application["spec"]["driver"]
        name = f"{metadata['name']}-driver"
        owner = {"apiVersion": application["apiVersion"], "kind": application["kind"], "controller": True}
        pod = {
            "metadata": {
                "name": name,
                "labels": {**driver["labels"], "spark-role": "driver"},
                "ownerReferences": [{**owner, "name": metadata["name"], "uid": metadata["uid"]}],
            },
            "spec": {
                "nodeName": NODE,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "containers": [{"name": DRIVER_CONTAINER, "image": "changefeed-spark:test"}],
            },
        }
        container = {"name": DRIVER_CONTAINER, "image": "changefeed-spark:test", "imageID": "", "restartCount": 0}
        running = {**container, "ready": True, "started": True, "state": {"running": {"startedAt": _now()}}}
        status = {"phase": "Running", "startTime": _now(), "containerStatuses": [running]}
        await self._ask("POST", f"{self._of('/api/v1')}/pods", pod)
        await self._ask("PATCH", f"{self._of('/api/v1')}/pods/{name}/status", {"status": status}, MERGE_PATCH)
        state = {"applicationState": {"state": "RUNNING"}, "driverInfo": {"podName": name}}
        path = f"{self._of(SPARK)}/sparkapplications/{metadata['name']}/status"
        await self._ask("PATCH", path, {"status": state}, MERGE_PATCH)

    async def _report(self, application: dict[str, Any]) -> None:
        labels = application["metadata"]["labels"]
        name, epoch = (
            labels["changefeed.dev/name"],
            int(application["spec"]["driver"]["labels"]["changefeed.dev/attempt"]),
        )
        ts = str(int((time.time() - 1.0) * 1000) << _TSO_SHIFT)
        conditions = [
            {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": _now()}
            for kind, reason in (("SinkAvailable", "Written"), ("UpstreamAvailable", "Connected"), ("WithinLag", "Ok"))
        ]
        status = {
            "checkpointTs": ts,
            "checkpointTime": _now(),
            "resolvedTs": ts,
            "lagSeconds": 1,
            "epoch": epoch,
            "tables": 3,
            "rows": self.reports,
            "conditions": conditions,
        }
        body = {
            "apiVersion": "changefeed.dev/v1alpha1",
            "kind": "Changefeed",
            "metadata": {"name": name, "namespace": self._namespace},
            "status": status,
        }
        path = f"{self._of(CHANGEFEEDS)}/changefeeds/{name}/status?fieldManager=changefeed-driver&force=true"
        await self._ask("PATCH", path, body, APPLY_PATCH)
        self.reports += 1

    def _of(self, group: str) -> str:
        return f"{group}/namespaces/{self._namespace}"

    async def _ask(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self._api.server + path, data=data, headers=headers) as answer:
            found = await answer.json()
            if answer.status >= 400 and answer.status not in (404, 409, 429):
                self.errors.append(f"{method} {path}: {answer.status}: {found.get('message')}")
            return found if answer.status < 400 else {"items": []}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
