"""The life of a changefeed on a real API server with the real Spark operator and Spark's own spark-submit.

Our operator has the rights that its chart gives it, the driver's part those that our operator gives. Pods' lives and
the driver's reports are played.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import Namespace
from cluster_changefeed_operator import ChangefeedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_played_driver import FINISHED, PlayedDrivers
from cluster_pods import End, PlayedNode, Pod, role
from cluster_processes import wait_until

DRIVER = "changefeed-orders-driver"
HOLD = "changefeed-orders-hold"
CLOSE = "changefeed-orders-close"
TARGET_TS = "450000000000000000"
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark_operator")]


@pytest.fixture
def drivers(cluster: ControlPlane, node: PlayedNode, tmp_path: Path) -> Iterator[PlayedDrivers]:
    node.stops = _drains
    with PlayedDrivers(cluster, node, tmp_path) as played:
        yield played


def _drains(_: Pod) -> End:
    return End(0)


@pytest.fixture
def running(operator: ChangefeedOperator, feeds: Feeds, drivers: PlayedDrivers) -> ChangefeedOperator:
    """The changefeed `orders` runs."""
    operator.install()
    operator.start("--web-address", "127.0.0.1:0")
    feeds.create("orders")
    feeds.wait_until("orders", "Normal")
    return operator


def _attempt(pod: Pod) -> str:
    return str(pod["metadata"]["labels"]["changefeed.dev/attempt"])


def _answers(status: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


def test_a_changefeed_lives_from_its_creation_to_its_deletion_and_leaves_nothing(
    cluster: ControlPlane, namespace: Namespace, running: ChangefeedOperator, feeds: Feeds, node: PlayedNode
) -> None:
    _runs(namespace, feeds, running)
    _is_on_the_page(namespace, feeds, running)
    _pauses_and_resumes(cluster, namespace, feeds, node)
    _takes_edits(namespace, feeds)
    _finishes(feeds, node)
    _leaves_nothing(namespace, feeds)
    assert running.number("changefeed_operator_unexpected_errors_total") == 0
    refused = re.findall(r'request_errors_total{reason="(\d+)"}', running.metrics())
    assert set(refused) <= {"409"}, "the driver's reports come between; nothing else is refused"


def _runs(namespace: Namespace, feeds: Feeds, operator: ChangefeedOperator) -> None:
    status = feeds.status("orders")
    assert _answers(status) == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "HistoryHeld": "True",
        "SinkAvailable": "True",
        "UpstreamAvailable": "True",
        "WithinLag": "True",
    }
    pod = feeds.driver("orders")
    assert pod is not None
    assert (_attempt(pod), status["attempt"]) == ("1", 1)
    assert pod["metadata"]["labels"]["changefeed.dev/spec-hash"] == status["effectiveSpecHash"]
    assert pod["spec"]["enableServiceLinks"] is False
    assert [pod["metadata"]["name"] for pod in namespace.api.items(namespace.core("pods"), "spark-role=executor")]
    before = status["checkpointTs"]
    feeds.wait_for(lambda: feeds.status("orders")["checkpointTs"] > before, "the checkpoint rises")
    assert all("attempt" not in fields for fields in _fields_of(namespace, "changefeed-driver"))
    assert all("checkpointTs" not in fields for fields in _fields_of(namespace, "changefeed-operator"))


def _is_on_the_page(namespace: Namespace, feeds: Feeds, operator: ChangefeedOperator) -> None:
    """Here with what its status says: no name of the cluster can be resolved outside of it."""
    path = f"changefeeds/{namespace.name}/orders"
    assert f'href="/{path}"' in operator.page("")
    page, status = html.unescape(operator.page(path)), feeds.status("orders")
    for condition in status["conditions"]:
        assert all(condition[part] in page for part in ("type", "status", "reason", "message"))
    assert status["message"] in page
    assert f"No driver answers at changefeed-orders.{namespace.name}.svc:9464" in page


def _fields_of(namespace: Namespace, manager: str) -> list[str]:
    """What of the status a field manager owns, as JSON."""
    entries = namespace.api.get(namespace.changefeeds("orders"))["metadata"]["managedFields"]
    return [json.dumps(entry["fieldsV1"]) for entry in entries if entry["manager"] == manager]


def _pauses_and_resumes(cluster: ControlPlane, namespace: Namespace, feeds: Feeds, node: PlayedNode) -> None:
    node.stops = lambda pod: None if role(pod) == "driver" else End(0)
    feeds.edit("orders", paused=True)
    feeds.wait_until_said("orders", "The driver is draining before the pause.")
    wait_until(lambda: "deletionTimestamp" in (node.pod(DRIVER) or {})["metadata"], "the driver is asked to drain")
    assert feeds.application("orders"), "an application that went first would take the driver's executors with it"
    assert len(node.pods("spark-role=executor")) == 2, "a draining driver has its executors"
    node.stops = _drains

    status = feeds.wait_until("orders", "Stopped")
    assert status["message"].startswith("Paused as requested.")
    assert _answers(status)["Ready"] == "True"
    assert node.pods() == []
    assert feeds.application("orders") is None
    cluster.kubectl("-n", namespace.name, "create", "job", "hold-now", f"--from=cronjob/{HOLD}")
    wait_until(lambda: _is_complete(namespace, "hold-now"), "what the CronJob makes can run")

    feeds.edit("orders", paused=False)
    assert feeds.wait_until("orders", "Normal")["attempt"] == 2
    assert namespace.api.find(namespace.of("batch/v1", "cronjobs", HOLD)) is None


def _is_complete(namespace: Namespace, job: str) -> bool:
    found = namespace.api.get(namespace.of("batch/v1", "jobs", job))
    return bool(found.get("status", {}).get("succeeded"))


def _takes_edits(namespace: Namespace, feeds: Feeds) -> None:
    pod = feeds.driver("orders")
    namespace.api.merge(namespace.changefeeds("orders"), {"metadata": {"labels": {"team": "shop"}}})
    feeds.edit("orders", sink={"storage": {"flushInterval": "1s"}})
    status = feeds.wait_until("orders", "Normal")
    assert status["attempt"] == 3, "one for the spec, none for the label"
    name = f"changefeed-orders-{status['configDigest']}"
    config = namespace.api.get(namespace.core("configmaps", name))["data"]["changefeed.yaml"]
    assert json.loads(config)["spec"]["sink"]["storage"]["flushInterval"] == "1s"
    after = feeds.driver("orders")
    assert pod is not None
    assert after is not None
    assert after["metadata"]["uid"] != pod["metadata"]["uid"]


def _finishes(feeds: Feeds, node: PlayedNode) -> None:
    feeds.edit("orders", targetTs=TARGET_TS)
    assert feeds.wait_until("orders", "Normal")["attempt"] == 4
    node.end(DRIVER, End(0, FINISHED))
    status = feeds.wait_until("orders", "Finished")
    assert status["restarts"]["total"] == 0, "none of the attempts failed"
    assert _answers(status)["Ready"] == "True"
    wait_until(lambda: not node.pods("spark-role=executor"), "its executors are gone")
    assert node.pod(DRIVER), "its log can be read"


def _leaves_nothing(namespace: Namespace, feeds: Feeds) -> None:
    feeds.delete("orders")
    wait_until(lambda: _is_there_and_complete(namespace), "the close Job has run")
    wait_until(lambda: _no_pods_but_the_jobs(feeds), "its children are gone")
    job = namespace.of("batch/v1", "jobs", CLOSE)
    assert namespace.api.get(job)["spec"]["ttlSecondsAfterFinished"] == 60
    namespace.api.merge(job, {"spec": {"ttlSecondsAfterFinished": 0}})  # as though a minute passed
    wait_until(lambda: feeds.children("orders") == [], "the Job and its pod are gone")


def _is_there_and_complete(namespace: Namespace) -> bool:
    return namespace.api.find(namespace.of("batch/v1", "jobs", CLOSE)) is not None and _is_complete(namespace, CLOSE)


def _no_pods_but_the_jobs(feeds: Feeds) -> bool:
    return all(child.startswith((f"jobs/{CLOSE}", f"pods/{CLOSE}")) for child in feeds.children("orders"))


def test_a_spec_edited_while_the_operator_is_down_is_taken_up_with_one_new_attempt(
    running: ChangefeedOperator, feeds: Feeds
) -> None:
    before = feeds.status("orders")["effectiveSpecHash"]
    running.kill()
    feeds.edit("orders", sink={"storage": {"flushInterval": "1s"}})
    running.start()
    status = feeds.wait_until("orders", "Normal")
    pod = feeds.driver("orders")
    assert pod is not None
    assert (_attempt(pod), status["attempt"]) == ("2", 2)
    assert status["effectiveSpecHash"] != before
    assert pod["metadata"]["labels"]["changefeed.dev/spec-hash"] == status["effectiveSpecHash"]
    assert status["restarts"]["total"] == 0, "an edit is no failure"


def test_a_deleted_application_is_made_anew_when_its_driver_has_drained(
    namespace: Namespace, running: ChangefeedOperator, feeds: Feeds, node: PlayedNode
) -> None:
    node.stops = lambda pod: None if role(pod) == "driver" else End(0)
    namespace.api.delete(namespace.applications("changefeed-orders"))
    feeds.wait_until_said("orders", "The previous attempt's driver is being stopped.")
    wait_until(lambda: "deletionTimestamp" in (node.pod(DRIVER) or {})["metadata"], "the driver is asked to drain")
    assert feeds.status("orders")["attempt"] == 1
    node.stops = _drains
    feeds.wait_for(lambda: feeds.is_in("orders", "Normal") and feeds.status("orders")["attempt"] == 2, "it runs again")
    status = feeds.status("orders")
    assert status["restarts"] == {"total": 1, "failures": {"Lost": 1}}
    assert status["lastError"]["message"] == "Its SparkApplication was deleted by someone else."
    pod = feeds.driver("orders")
    assert pod is not None
    assert _attempt(pod) == "2"


def test_a_driver_on_a_lost_node_is_followed_by_another_at_once(
    namespace: Namespace, running: ChangefeedOperator, feeds: Feeds, node: PlayedNode
) -> None:
    """Its pod has half a minute of toleration, and no kubelet that ends it."""
    pod = feeds.driver("orders")
    assert pod is not None
    seconds = {each["key"]: each.get("tolerationSeconds") for each in pod["spec"]["tolerations"]}
    assert seconds["node.kubernetes.io/unreachable"] == seconds["node.kubernetes.io/not-ready"] == 30
    node.stops = lambda stopped: None if role(stopped) == "driver" and _attempt(stopped) == "1" else End(0)

    node.lose(DRIVER)

    feeds.wait_for(lambda: feeds.is_in("orders", "Normal") and feeds.status("orders")["attempt"] == 2, "it runs again")
    events = namespace.api.items(namespace.core("events"))
    forced = [each["message"] for each in events if each["reason"] == "PodForceDeleted"]
    assert f"Pod {DRIVER} was force-deleted because its node played is lost. Check the node." in forced
