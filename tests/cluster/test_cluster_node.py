"""The real node: containers run, find each other by name, and the Spark operator's own chart works on it unmodified."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_images
import cluster_node_remains
import cluster_spark_operator
import pytest
from cluster_api import Namespace
from cluster_network import NODE_ADDRESS, Bridge
from cluster_node import Node
from cluster_processes import wait_until

# The first test waits until some GB of images are unpacked.
pytestmark = pytest.mark.timeout(1800)
_POD_S = 600.0

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


#: A test run with one pod, which waits to be killed.
_RUN = """
import os, signal, sys
from pathlib import Path
import cluster_images
from cluster_control_plane import ControlPlane
from cluster_network import new_network
from cluster_node import Node
folder = Path(sys.argv[1])
with (
    new_network(f"changefeed-{os.getpid()}") as network,
    ControlPlane(folder, network) as cluster,
    Node(cluster, network, folder / "images") as node,
):
    with cluster_images.built() as registry:
        node.pull(registry, cluster_images.PAUSE)
    pause = {"name": "main", "image": cluster_images.PAUSE, "imagePullPolicy": "Never"}
    pod = {"metadata": {"name": "idle"}, "spec": {"containers": [pause]}}
    cluster.api.create("/api/v1/namespaces/default/pods", pod)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/idle", "--timeout=300s")
    print("the pod runs", flush=True)
    signal.pause()
"""


@pytest.mark.usefixtures("can_have_nodes")
def test_what_a_killed_run_leaves_is_removed_by_the_next(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")  # a short path: that of a socket has 107 characters at most
    command = [sys.executable, "-c", _RUN, str(folder)]
    before = _shim_sockets()
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "the pod runs\n"
        finally:
            run.kill()
    left = _left_by(run.pid)
    sockets = _shim_sockets() - before
    assert sockets
    assert {what.split()[0] for what in left} == {"process", "mount", "network", "cgroup", "record", "log"}

    cluster_node_remains.remove_killed()

    assert _left_by(run.pid) == []
    assert not sockets & _shim_sockets()


def _left_by(pid: int) -> list[str]:
    """What of a test run is on this machine, outside of its folder."""
    network = f"changefeed-{pid}"
    mark = f"{network}-node1"
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    left = [f"process {command}" for command in _commands() if mark in command]
    left += [f"mount {mount}" for mount in mounts if mark in mount]
    left += [f"network {path}" for path in Path("/run/netns").glob(network)]
    left += [f"cgroup {path}" for depth in ("", "*/") for path in Path("/sys/fs/cgroup").glob(depth + mark)]
    left += [f"record {path}" for path in Path("/var/lib/cni/results").glob("*") if mark in path.read_text()]
    links = [path for path in Path("/var/log/containers").glob("*") if path.is_symlink()]
    return left + [f"log {path}" for path in links if mark in str(path.readlink())]


def _shim_sockets() -> set[Path]:
    return set(Path("/run/containerd/s").glob("*"))


def _commands() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            yield file.read_text()


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
