"""The whole product on a real node, from `kubectl apply` to `kubectl delete`, and what happens to it in between.

One changefeed lives through all of these tests, in their order. At the end every file is held against the upstream.
"""

from __future__ import annotations

import json
import os
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cluster_images
import pytest
from changefeed_operator.manifests.pods import METRICS_PORT, OWNER_PORT
from cluster_api import CORE, Namespace
from cluster_control_plane import CommandFailed
from cluster_network import NODE_ADDRESS, Address
from cluster_node import Node
from cluster_processes import wait_until
from cluster_product import ENDPOINT, LATE_S, PD, STORE_PORTS, SYSTEM, Demo, Store

pytestmark = pytest.mark.timeout(1800)
_FROZEN_MS = 30_000

_KINDS = (
    "changefeeds,sparkapplications,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings,"
    "poddisruptionbudgets,networkpolicies,cronjobs,jobs,persistentvolumeclaims,leases"
)

_EACH_PROCESS = """
import os, pathlib, time
def said(file):
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile, as Spark's workers do
        return b""
for process in pathlib.Path("/proc").glob("[0-9]*"):
    is_java = said(process / "comm") == b"java\\n"
"""

#: In a pod: the JVM dies.
_KILL_JAVA = f"""{_EACH_PROCESS}
    if is_java:
        os.kill(int(process.name), 9)
"""

#: In a pod: whether the JVM has mapped the class archive; one that it refuses it starts without.
_MAPPED = f"""{_EACH_PROCESS}
    if is_java:
        print("spark-classes" in (process / "maps").read_text())
"""

#: In the driver's pod: its memory is used up by many small processes, so that the kernel ends those of the driver.
_USE_UP_MEMORY = f"""{_EACH_PROCESS}
    if is_java or (b"changefeed_app.py" in said(process / "cmdline") and process.name != "1"):
        (process / "oom_score_adj").write_text("1000")
while os.fork():
    time.sleep(0.05)
held = b"x" * (48 << 20)
time.sleep(600)
"""

#: In a pod: which of the addresses and ports can be connected to.
_CONNECT = """
import json, socket, sys
def connects(end):
    try:
        socket.create_connection(end, timeout=3).close()
    except OSError:
        return False
    return True
print(json.dumps([end for end in json.loads(sys.argv[1]) if connects(tuple(end))]))
"""
_API_SERVER, _KUBELET, _OPERATOR_METRICS = 6443, 10250, 8080
_SPARK = (7078, 7079)
_LISTENER, _LISTENS_AT = "listener", 8000
_OPERATOR = "app.kubernetes.io/component=operator"


@pytest.fixture(scope="module")
def demo(real_node: Node, product: Store, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    namespace = Namespace(real_node.cluster.api, "bank")
    return Demo(real_node, product, namespace, tmp_path_factory.mktemp("bank"))


@pytest.fixture(scope="module")
def before(demo: Demo) -> set[str]:
    """What there is in the namespace before anything is applied."""
    return _everything(demo)


@pytest.mark.usefixtures("before")
def test_what_is_applied_becomes_ready_and_its_checkpoint_rises(demo: Demo) -> None:
    assert "created" in demo.kubectl("apply", "-k", demo.kustomization)

    assert "condition met" in demo.wait_until_ready()

    demo.wait_until_past(demo.now())
    assert demo.verify()["ok"]


def test_its_driver_starts_without_a_stack_trace(demo: Demo) -> None:
    said = demo.kubectl("logs", "changefeed-demo-driver")
    assert "\n\tat " not in said, said


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_its_jvms_start_with_the_images_class_archive(demo: Demo, role: str) -> None:
    pod = demo.pods(role)[0]["metadata"]["name"]
    assert demo.kubectl("exec", pod, "--", "python", "-c", _MAPPED).split() == ["True"]


def test_a_column_that_somebody_adds_is_told_of_in_the_sink_and_in_the_status(demo: Demo) -> None:
    ts = demo.alter("add-column", "bank.accounts_0", "note varchar(20)")

    found = demo.wait_for(lambda found: found["status"].get("lastDdl", {}).get("ts") == str(ts), "the status has it")
    assert found["status"]["lastDdl"]["statement"].endswith("ADD COLUMN `note` varchar(20) NULL")
    meta = demo.store.folder / "lake" / demo.namespace.name / "bank" / "accounts_0" / "meta"
    (file,) = meta.glob(f"schema_{ts}_*.json")
    assert [column["ColumnName"] for column in json.loads(file.read_text())["TableColumns"]][-1] == "note"
    assert f"Last DDL    {ts}" in demo.cli("describe", "demo", "-n", demo.namespace.name)
    assert demo.verify()["ok"]


def test_its_policy_lets_nothing_else_in_or_out(demo: Demo) -> None:
    """What is refused listens: the node, whose packets no policy stops, reaches it."""
    (operator,) = demo.node.cluster.api.items(f"{CORE}/namespaces/{SYSTEM}/pods", _OPERATOR)
    driver, executor = (demo.pods(role)[0] for role in ("driver", "executor"))
    stranger = _start_listener(demo.namespace)
    scraper = _start_listener(demo.node.cluster.create_namespace("monitoring"))
    upstream, store = [int(PD.rpartition(":")[2]), *STORE_PORTS], int(ENDPOINT.rpartition(":")[2])
    reached = [(NODE_ADDRESS, port) for port in (*upstream, store, _API_SERVER)]
    refused = [(NODE_ADDRESS, _KUBELET), (_address(operator), _OPERATOR_METRICS), (_address(stranger), _LISTENS_AT)]
    for each in (driver, executor):
        assert _reaches(demo, each, [*reached, *refused]) == reached
    of_driver = [(_address(driver), port) for port in (METRICS_PORT, OWNER_PORT, *_SPARK)]
    assert _reaches(demo, executor, of_driver) == of_driver
    assert _reaches(demo, scraper, of_driver) == of_driver[:1]
    assert _reaches(demo, stranger, of_driver) == []
    assert demo.node.reaches([*refused, *of_driver]) == [*refused, *of_driver]

    demo.kubectl("delete", "pod", _LISTENER, "--now")


def test_a_killed_executor_is_replaced_and_the_driver_goes_on(demo: Demo) -> None:
    attempt, before = demo.status["attempt"], _names(demo, "executor")
    victim = min(before)

    demo.kubectl("exec", victim, "--", "python", "-c", _KILL_JAVA)

    wait_until(lambda: len(_running(demo, "executor") - before) == 1, "another executor runs", LATE_S)
    demo.wait_until_past(demo.now())
    assert victim not in _names(demo, "executor")
    assert demo.status["attempt"] == attempt


def test_a_driver_without_memory_is_followed_by_another(demo: Demo) -> None:
    attempt = demo.status["attempt"]

    with pytest.raises(CommandFailed) as ended:  # with the container
        demo.kubectl("exec", "changefeed-demo-driver", "--", "python", "-c", _USE_UP_MEMORY)
    assert "Traceback" not in str(ended.value)

    found = demo.wait_for(lambda found: "lastError" in found["status"], "its end is noted")
    assert found["status"]["lastError"]["class"] == "OutOfMemory"
    assert "spec.spark.driver.memory" in found["status"]["message"]
    found = demo.wait_until_past(demo.now())
    assert found["status"]["attempt"] == attempt + 1


def test_a_paused_changefeed_has_no_pods_and_goes_on_from_its_checkpoint(demo: Demo) -> None:
    demo.edit({"paused": True})
    found = demo.wait_for(lambda found: found["status"]["state"] == "Stopped", "it is paused")
    assert demo.pods("driver") + demo.pods("executor") == []  # one that holds its history may be there
    drained = demo.published()
    assert int(found["status"]["checkpointTs"]) == drained
    hold = demo.namespace.api.get(demo.namespace.of("batch/v1", "cronjobs", "changefeed-demo-hold"))
    assert not hold["spec"].get("suspend")
    assert demo.published() == drained

    demo.edit({"paused": False})

    demo.wait_until_past(demo.now())


def test_an_edit_restarts_it_only_where_it_must(demo: Demo) -> None:
    attempt = demo.status["attempt"]
    demo.kubectl("label", "cf", "demo", "team=billing")
    with pytest.raises(CommandFailed, match="the uri that it was created with"):
        demo.kubectl("patch", "cf", "demo", "--type=merge", "-p", '{"spec":{"sink":{"storage":{"uri":"s3://x/y"}}}}')
    demo.wait_until_past(demo.now())
    assert demo.status["attempt"] == attempt

    pods = _lives(demo)
    edited = {"lagThreshold": "5m", "drainTimeout": "50s", "upstream.safepointTtl": "12h"}
    demo.edit({"lagThreshold": "5m", "drainTimeout": "50s", "upstream": {"safepointTtl": "12h"}})
    found = demo.wait_for(lambda found: found["status"]["appliedSettings"] == edited, "the driver runs with them")
    assert found["status"]["version"] == version("changefeed-operator")
    demo.wait_until_past(demo.now())
    assert _lives(demo) == pods

    rules = [*demo.resource["spec"]["filter"]["rules"], "shop.later"]
    routes = [{"match": ["shop.later"], "schema": "lake", "table": "all_later"}]
    demo.edit({"sink": {"storage": {"flushInterval": "2s"}}, "filter": {"rules": rules}, "routes": routes})

    found = demo.wait_until_past(demo.now())
    assert found["status"]["attempt"] == attempt + 1
    assert [record for record in demo.log_records() if record["kind"] == "epoch"][-1]["attempt"] == attempt + 1


def test_a_rule_is_told_of_until_its_table_comes_which_is_written_where_its_route_leads(demo: Demo) -> None:
    """The last test verifies it with all others."""

    def rules(found: dict[str, Any]) -> str:
        return next((each["reason"] for each in found["status"]["conditions"] if each["type"] == "RulesMatch"), "")

    demo.wait_for(lambda found: rules(found) == "TableMissing", "the rule has no table")
    sent = ("get", "events", "--field-selector=reason=RulesUnmatched", "--output=name")
    wait_until(lambda: bool(demo.kubectl(*sent).split()), "there is an event", LATE_S)

    ts = demo.alter("create-table", "shop.later", "id bigint", "note varchar(20)")

    demo.wait_for(lambda found: rules(found) == "AllMatch", "it has one")
    demo.wait_until_past(ts)
    meta = demo.store.folder / "lake" / demo.namespace.name / "lake" / "all_later" / "meta"
    assert len(list(meta.glob(f"schema_{ts}_*.json"))) == 1


def _lives(demo: Demo) -> dict[str, tuple[str, int]]:
    """Return each pod's uid, and how often its containers were restarted."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ())),
        )
        for pod in demo.pods()
    }


def test_while_the_api_server_is_frozen_files_go_on_being_written(demo: Demo) -> None:
    attempt, driver = demo.status["attempt"], demo.pods("driver")[0]["metadata"]["uid"]
    frozen_at = demo.now()
    server = demo.node.cluster.processes.running["kube-apiserver"]
    os.kill(server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: demo.published() > frozen_at + (_FROZEN_MS << 18), "30 s are published", LATE_S)
    finally:
        os.kill(server.pid, signal.SIGCONT)

    demo.wait_until_past(demo.now())
    assert demo.status["attempt"] == attempt
    assert demo.pods("driver")[0]["metadata"]["uid"] == driver
    # The operator has lost its Lease meanwhile: the deletion that comes next waits for another one.


def test_what_is_deleted_leaves_nothing_but_its_files(demo: Demo, before: set[str], tmp_path: Path) -> None:
    verify = demo.verify_later()

    demo.kubectl("delete", "cf", "demo")  # waits for it

    assert demo.log_records()[-1]["kind"] == "closed"
    wait_until(lambda: _everything(demo) == before, f"nothing is left but {before}", LATE_S)
    assert verify()["ok"]


def _start_listener(namespace: Namespace) -> dict[str, Any]:
    """A pod that is no changefeed's; it, when it listens."""
    container = {
        "name": "main",
        "image": cluster_images.SPARK,
        "imagePullPolicy": "Never",
        "command": ["python", "-m", "http.server", str(_LISTENS_AT)],
        "readinessProbe": {"tcpSocket": {"port": _LISTENS_AT}, "periodSeconds": 1},
    }
    pod = {"metadata": {"name": _LISTENER}, "spec": {"containers": [container]}}
    namespace.api.create(namespace.core("pods"), pod)

    def listens() -> dict[str, Any] | None:
        found = namespace.api.get(namespace.core("pods", _LISTENER))
        conditions = found["status"].get("conditions", ())
        return found if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions) else None

    ready: dict[str, Any] = wait_until(listens, "the pod listens", LATE_S)
    return ready


def _address(pod: dict[str, Any]) -> str:
    address: str = pod["status"]["podIP"]
    return address


def _reaches(demo: Demo, pod: dict[str, Any], ends: list[Address]) -> list[Address]:
    """Those of `ends` that a program in the pod reaches."""
    where = (pod["metadata"]["name"], "--namespace", pod["metadata"]["namespace"])
    said = demo.node.cluster.kubectl("exec", *where, "--", "python", "-c", _CONNECT, json.dumps(ends))
    return [(address, port) for address, port in json.loads(said)]


def _everything(demo: Demo) -> set[str]:
    return set(demo.kubectl("get", _KINDS, "-o", "name").split())


def _names(demo: Demo, role: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in demo.pods(role)}


def _running(demo: Demo, role: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in demo.pods(role) if pod["status"]["phase"] == "Running"}
