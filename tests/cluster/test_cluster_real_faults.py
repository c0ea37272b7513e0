"""Faults on a real node, in the kubelet's, Spark's and the API server's own words: each is named within a minute in
status.message and in an event, and is over by itself when its cause is.

One changefeed lives through all of these tests, in their order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import Namespace
from cluster_control_plane import CommandFailed
from cluster_node import Node
from cluster_processes import wait_until
from cluster_product import LATE_S, Demo, Resource, Store

pytestmark = pytest.mark.timeout(1800)
_EXECUTORS = 2  # of examples/demo.yaml
_EACH_PROCESS = """
import os, pathlib, time
def said(file):
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
for process in pathlib.Path("/proc").glob("[0-9]*"):
    is_java = said(process / "comm") == b"java\\n"
    is_driver = b"changefeed_app.py" in said(process / "cmdline") and process.name != "1" and not is_java
"""
_USE_UP_MEMORY = f"""{_EACH_PROCESS}
    if is_java:
        (process / "oom_score_adj").write_text("1000")
while os.fork():
    time.sleep(0.05)
held = b"x" * (48 << 20)
time.sleep(600)
"""
_KILL_JAVA = f"""{_EACH_PROCESS}
    if is_java:
        os.kill(int(process.name), 9)
"""
_FREEZE_DRIVER = f"""{_EACH_PROCESS}
    if is_driver and int(process.name) != os.getpid():  # this program's text names it too
        os.kill(int(process.name), 19)
"""


@pytest.fixture(scope="module")
def demo(real_node: Node, product: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """With a short grace, which one that hangs does not use. It ends with its tests: the next ones need the machine."""
    namespace = Namespace(real_node.cluster.api, "faults")
    made = Demo(real_node, product, namespace, tmp_path_factory.mktemp("faults"), {"drainTimeout": "1s"})
    yield made
    made.kubectl("delete", "cf", "demo", "--ignore-not-found", "--wait=false")


def test_without_a_node_the_history_is_held_as_soon_as_there_is_one(
    real_node: Node, product: Store, tmp_path: Path
) -> None:
    """As with a pool of nodes that is scaled from zero. The changefeed is paused: nothing but the hold has to run."""
    start_ts = json.loads(real_node.cluster.processes.log("devcluster").read_text().splitlines()[0])["startTs"]
    more = {"startTs": start_ts, "paused": True}
    held = Demo(real_node, product, Namespace(real_node.cluster.api, "held"), tmp_path, more)
    held.kubectl("cordon", real_node.name)
    held.kubectl("apply", "-k", held.kustomization)

    found = held.wait_for(lambda found: "lastError" in found["status"].get("hold", {}), "the hold's trouble is named")
    assert "nodes are available" in found["status"]["hold"]["lastError"]["message"]
    assert _history(found)["status"] == "False"
    _wait_until_told(held, "HoldFailed", "nodes are available")

    held.kubectl("uncordon", real_node.name)

    found = held.wait_for(lambda found: _history(found)["status"] == "True", "the history is held")
    assert int(found["status"]["hold"]["ts"]) <= int(start_ts)
    held.kubectl("delete", "cf", "demo")


def test_a_missing_secret_is_named_and_the_driver_starts_when_it_is_there(demo: Demo) -> None:
    secret = json.loads(demo.kubectl("get", "secret", "lake-writer", "-o", "json"))
    demo.kubectl("delete", "secret", "lake-writer")
    demo.kubectl("apply", "-k", demo.kustomization)

    _wait_until_named(demo, "DriverPending", 'secret "lake-writer" not found')

    del secret["metadata"]["resourceVersion"], secret["metadata"]["uid"]
    demo.kubectl("create", "-f", _file(demo, "secret", secret))
    demo.wait_until_past(demo.now())
    assert demo.status["attempt"] == 1


def test_an_executor_without_memory_is_named(demo: Demo) -> None:
    victim = min(pod["metadata"]["name"] for pod in demo.pods("executor"))

    _use_up_memory(demo, victim)

    _wait_until_named(demo, "ExecutorOutOfMemory", f"{victim} was OOM-killed")
    ts = demo.now()
    demo.wait_for(lambda found: int(found["status"]["checkpointTs"]) > ts, "the checkpoint rises")


def test_a_quota_that_refuses_spark_an_executor_is_named(demo: Demo) -> None:
    attempt = demo.status["attempt"]
    before = wait_until(lambda: len(found := _running(demo, "executor")) == _EXECUTORS and found, "all run", LATE_S)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}},
    }
    demo.kubectl("create", "-f", _file(demo, "quota", quota))
    for name in before:
        demo.kubectl("exec", name, "--", "python", "-c", _KILL_JAVA)

    _wait_until_named(demo, "Refused", "an executor's pod", "exceeded quota: small")

    demo.kubectl("delete", "resourcequota", "small")
    demo.wait_until_past(demo.now())
    assert demo.status["attempt"] == attempt


def test_a_driver_that_hangs_is_killed_named_and_followed_and_its_log_is_kept(demo: Demo) -> None:
    attempt = demo.status["attempt"]

    demo.kubectl("exec", "changefeed-demo-driver", "--", "python", "-c", _FREEZE_DRIVER)

    found = demo.wait_for(lambda found: "Hung" in found["status"]["restarts"].get("failures", {}), "its end is noted")
    assert "iveness probe failed" in found["status"]["message"]
    demo.wait_until_past(demo.now())
    assert demo.status["attempt"] == attempt + 1
    assert f"of attempt {attempt}" in demo.cli("logs", "demo", "-n", demo.namespace.name, "--previous")


def test_a_registry_that_is_away_is_named(demo: Demo) -> None:
    image = demo.pods("driver")[0]["spec"]["containers"][0]["image"]
    demo.edit({"spark": {"image": "127.0.0.1:9/changefeed-spark:away"}})

    _wait_until_named(demo, "ImagePullFailed", "127.0.0.1:9/changefeed-spark:away", "connection refused")

    demo.edit({"spark": {"image": image}})
    demo.wait_until_past(demo.now())
    assert demo.verify()["ok"]


def _wait_until_named(demo: Demo, reason: str, *words: str) -> None:
    """In the status, and in an event."""

    def is_named(found: dict[str, Any]) -> bool:
        return all(word in found["status"].get("message", "") for word in words)

    demo.wait_for(is_named, f"{reason} is named")
    _record(demo, reason)
    _wait_until_told(demo, reason, *words)


def _wait_until_told(demo: Demo, reason: str, *words: str) -> None:
    def is_told() -> bool:
        events = demo.namespace.api.items(demo.namespace.core("events"))
        return any(each["reason"] == reason and all(word in each["message"] for word in words) for each in events)

    wait_until(is_told, f"an event says {words}", LATE_S)


def _running(demo: Demo, role: str) -> set[str]:
    """Names of the pods whose container runs."""
    return {
        pod["metadata"]["name"]
        for pod in demo.pods(role)
        if any("running" in each["state"] for each in pod["status"].get("containerStatuses", ()))
    }


def _history(found: Resource) -> dict[str, Any]:
    """The condition, empty before there is one."""
    conditions: list[dict[str, Any]] = found["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == "HistoryHeld"), {"status": ""})


def _use_up_memory(demo: Demo, pod: str) -> None:
    with pytest.raises(CommandFailed):  # with the container
        demo.kubectl("exec", pod, "--", "python", "-c", _USE_UP_MEMORY)


def _file(demo: Demo, name: str, content: dict[str, Any]) -> Path:
    file = demo.folder / f"{name}.json"
    file.write_text(json.dumps(content))
    return file


def _record(demo: Demo, name: str) -> None:
    """What the unit tests' testdata/recorded is made of: RECORD=FOLDER."""
    if folder := os.environ.get("RECORD"):
        events = demo.namespace.api.items(demo.namespace.core("events"))
        Path(folder, f"events-{name}.json").write_text(json.dumps(events, indent=1))
        Path(folder, f"pods-{name}.json").write_text(json.dumps(demo.pods(), indent=1))
        if any(pod["status"]["phase"] == "Running" for pod in demo.pods("driver")):
            Path(folder, f"log-{name}.txt").write_text(demo.kubectl("logs", "changefeed-demo-driver", "--tail=400"))
