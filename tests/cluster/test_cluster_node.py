"""The real node: containers run, find each other by name, and the Spark operator's own chart works on it unmodified."""

from __future__ import annotations

import json
from typing import Any

import cluster_images
import cluster_spark_operator
import pytest
from cluster_api import Namespace
from cluster_network import NODE_ADDRESS, Bridge
from cluster_node import Node
from cluster_processes import wait_until

# The first test waits until some GB of images are unpacked.
pytestmark = pytest.mark.timeout(900)
_POD_S = 120.0

_ASK_THE_API_SERVER = """
import json, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
tls = ssl.create_default_context(cafile=folder + "/ca.crt")
request = urllib.request.Request("https://kubernetes.default.svc/version")
request.add_header("Authorization", "Bearer " + open(folder + "/token").read())
print(urllib.request.urlopen(request, context=tls).read().decode())
"""


def _pod(name: str, program: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": cluster_images.SPARK,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", program],
    }
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container]}}


def _ended(node: Node, namespace: Namespace, name: str) -> dict[str, Any]:
    """The pod when it has ended."""
    pod: dict[str, Any] = wait_until(
        lambda: (
            (found := namespace.api.get(namespace.core("pods", name)))["status"]["phase"] in ("Succeeded", "Failed")
            and found
        ),
        f"pod {name} has ended",
        _POD_S,
    )
    return pod


@pytest.fixture(scope="module")
def namespace_of_node(real_node: Node) -> Namespace:
    return real_node.cluster.create_namespace("pods")


def test_a_pod_finds_the_api_server_by_its_name(real_node: Node, namespace_of_node: Namespace) -> None:
    namespace_of_node.api.create(namespace_of_node.core("pods"), _pod("asks", _ASK_THE_API_SERVER))

    pod = _ended(real_node, namespace_of_node, "asks")

    said = real_node.logs("pods", "asks")
    assert pod["status"]["phase"] == "Succeeded", said
    assert json.loads(said) == real_node.cluster.api.get("/version")


def test_a_pod_that_fails_says_why(real_node: Node, namespace_of_node: Namespace) -> None:
    program = "import sys; open('/dev/termination-log', 'w').write('no sink'); sys.exit(69)"
    namespace_of_node.api.create(namespace_of_node.core("pods"), _pod("fails", program))

    pod = _ended(real_node, namespace_of_node, "fails")

    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (69, "no sink")


def test_a_pod_reaches_what_a_bridge_offers_and_nothing_else(real_node: Node, namespace_of_node: Namespace) -> None:
    api_port = int(real_node.cluster.server.rpartition(":")[2])
    with Bridge(real_node.network, (NODE_ADDRESS, 0), ("127.0.0.1", api_port), from_inside=True) as bridge:
        program = f"""
import socket
socket.create_connection(("{NODE_ADDRESS}", {bridge.port}), 10).close()
try:
    socket.create_connection(("192.0.2.1", 80), 10)
except OSError as error:
    print("refused", error)
"""
        namespace_of_node.api.create(namespace_of_node.core("pods"), _pod("reaches", program))
        pod = _ended(real_node, namespace_of_node, "reaches")

    said = real_node.logs("pods", "reaches")
    assert pod["status"]["phase"] == "Succeeded", said
    assert said.startswith("refused")


@pytest.mark.usefixtures("spark_operator_pods")
def test_the_spark_operators_chart_works_unmodified(real_node: Node) -> None:
    namespace = Namespace(real_node.cluster.api, cluster_spark_operator.NAMESPACE)
    pods = namespace.api.items(namespace.core("pods"))
    ready = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: _is_ready(pod) for pod in pods}
    assert ready == {"controller": True, "webhook": True}


def _is_ready(pod: dict[str, Any]) -> bool:
    return any(found["type"] == "Ready" and found["status"] == "True" for found in pod["status"]["conditions"])
