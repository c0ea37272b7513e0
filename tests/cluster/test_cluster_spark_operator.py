"""The real kubeflow controller, Spark's own spark-submit, and pods whose lives are played."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_api import Namespace
from cluster_pods import DRIVER_CONTAINER, End, PlayedNode, role
from cluster_processes import wait_until

_SUBMIT_S = 400.0  # a JVM on a busy machine
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark_operator")]


@pytest.fixture
def application(namespace: Namespace) -> str:
    """The name of a new SparkApplication, in the shape of ours."""
    namespace.api.create(namespace.core("serviceaccounts"), {"metadata": {"name": "changefeed-a"}})
    labels = {
        "app.kubernetes.io/managed-by": "changefeed-operator",
        "changefeed.dev/name": "a",
        "changefeed.dev/attempt": "1",
    }
    sizes = {"cores": 1, "memory": "512m", "memoryOverhead": "256m", "labels": labels}
    spec = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": "4.3.0",
        "image": "changefeed-spark:test",
        "imagePullPolicy": "Never",
        "mainApplicationFile": "local:///opt/changefeed/changefeed_app.py",
        "arguments": ["run", "-f", "/etc/changefeed/changefeed.yaml"],
        "restartPolicy": {"type": "Never"},
        "sparkConf": {
            "spark.ui.enabled": "false",
            # The controller's chart gives no right to the NetworkPolicy that Spark 4.2 and newer create.
            "spark.kubernetes.driver.pod.excludedFeatureSteps": (
                "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
            ),
        },
        "driver": {**sizes, "serviceAccount": "changefeed-a", "template": _template()},
        "executor": {**sizes, "instances": 2},
    }
    body = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": spec}
    namespace.api.create(namespace.applications(), {**body, "metadata": {"name": "changefeed-a", "labels": labels}})
    return "changefeed-a"


def _template() -> dict[str, Any]:
    container = {"name": DRIVER_CONTAINER, "env": [{"name": "CHANGEFEED_ATTEMPT", "value": "1"}]}
    return {"spec": {"terminationGracePeriodSeconds": 90, "containers": [container]}}


def _state(namespace: Namespace, application: str) -> dict[str, Any]:
    found = namespace.api.get(namespace.applications(application))
    state: dict[str, Any] = found.get("status", {}).get("applicationState", {})
    return state


def _until_state(namespace: Namespace, application: str, *wanted: str) -> str:
    """Its message, once it is in one of these states."""
    state = wait_until(
        lambda: (found := _state(namespace, application)).get("state") in wanted and found,
        f"{application} is {' or '.join(wanted)}",
        _SUBMIT_S,
    )
    return str(state.get("errorMessage", ""))


def test_an_application_becomes_a_driver_pod_with_our_labels(
    namespace: Namespace, node: PlayedNode, application: str
) -> None:
    node.starts = lambda _: False

    pod = wait_until(lambda: node.pod("changefeed-a-driver"), "spark-submit has made the driver pod", _SUBMIT_S)

    labels = pod["metadata"]["labels"]
    assert role(pod) == "driver"
    assert labels["changefeed.dev/name"] == "a"
    assert labels["changefeed.dev/attempt"] == "1"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 90
    assert pod["spec"]["serviceAccountName"] == "changefeed-a"
    container = next(found for found in pod["spec"]["containers"] if found["name"] == DRIVER_CONTAINER)
    assert container["args"][0] == "driver"
    assert container["args"][-3:] == ["run", "-f", "/etc/changefeed/changefeed.yaml"]
    assert {"name": "CHANGEFEED_ATTEMPT", "value": "1"} in container["env"]
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("SparkApplication", "changefeed-a")
    _until_state(namespace, application, "SUBMITTED")


def test_a_driver_that_waits_and_then_fails_is_reported(
    namespace: Namespace, node: PlayedNode, application: str
) -> None:
    node.starts = lambda _: False
    wait_until(lambda: node.pod("changefeed-a-driver"), "spark-submit has made the driver pod", _SUBMIT_S)

    node.unschedulable("changefeed-a-driver")
    conditions = {found["type"]: found for found in node.pods()[0]["status"]["conditions"]}
    assert conditions["PodScheduled"]["reason"] == "Unschedulable"
    node.wait_for_image("changefeed-a-driver")
    waiting = node.pods()[0]["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "ImagePullBackOff"
    _until_state(namespace, application, "SUBMITTED")

    node.run("changefeed-a-driver")
    _until_state(namespace, application, "RUNNING")
    node.end("changefeed-a-driver", End(69, '{"class":"SinkUnavailable"}'))

    assert "69" in _until_state(namespace, application, "FAILED")
    ended = node.pods()[0]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (69, '{"class":"SinkUnavailable"}')


def test_a_deleted_driver_is_drained_and_its_executors_go_after_it(
    namespace: Namespace, node: PlayedNode, application: str
) -> None:
    _until_state(namespace, application, "RUNNING")
    executors = node.start_executors("changefeed-a-driver", 2)
    running = "spark-role=executor,changefeed.dev/attempt=1"
    wait_until(lambda: [pod["status"]["phase"] for pod in node.pods(running)] == ["Running"] * 2, "the executors run")
    node.stops = lambda pod: None if role(pod) == "driver" else End(143)

    namespace.api.delete(namespace.core("pods", "changefeed-a-driver"))

    assert (node.pod("changefeed-a-driver") or {})["metadata"]["deletionGracePeriodSeconds"] == 90
    assert [pod["metadata"]["name"] for pod in node.pods(running)] == executors
    node.stops = lambda _: End(0)
    wait_until(lambda: not node.pods(), "all pods are gone")
    # "driver pod not found" when the pod is gone before the controller looks: the operator takes either for the end.
    _until_state(namespace, application, "COMPLETED", "FAILED")
    namespace.api.delete(namespace.applications(application))
    wait_until(lambda: namespace.api.find(namespace.applications(application)) is None, "the application is gone")
