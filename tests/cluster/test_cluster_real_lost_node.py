"""A node is lost with a driver that lives on: two drivers of one changefeed at once, of which the older writes nothing.

The node's kubelet is stopped. Its pods keep their network, and nobody tells them that they were given up.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import cluster_images
import pytest
from cluster_api import Namespace
from cluster_node import Node
from cluster_processes import wait_until
from cluster_product import Demo, Store
from cluster_programs import cache_folder

pytestmark = pytest.mark.timeout(900)
_LATE_S = 180.0
#: Bucket owner, bucket, [time], address, requester, request, operation, key, URI, status.
_ACCESS = re.compile(r"\S+ \S+ \[[^]]*\] (?P<address>\S+) \S+ \S+ (?P<operation>\S+) (?P<key>\S+) \S+ (?P<status>\d+) ")
_READS = ("Get", "Head", "List")


@pytest.fixture(scope="module")
def second_node(real_node: Node) -> Iterator[Node]:
    with Node(real_node.cluster, real_node.network, cache_folder() / "containerd-2", 2) as made:
        with cluster_images.built() as registry:
            made.pull(registry)
        yield made


@pytest.fixture
def demo(real_node: Node, second_node: Node, product: Store, tmp_path: Path) -> Demo:
    """With all its pods on the second node."""
    made = Demo(real_node, product, Namespace(real_node.cluster.api, "lost"), tmp_path)
    made.kubectl("cordon", real_node.name)
    made.kubectl("apply", "-k", made.kustomization)
    made.wait_until_ready()
    made.kubectl("uncordon", real_node.name)
    assert {pod["spec"]["nodeName"] for pod in made.pods()} == {second_node.name}
    return made


def test_the_older_of_two_living_drivers_writes_nothing_more(demo: Demo, second_node: Node) -> None:
    demo.wait_until_past(demo.now())
    driver, before = demo.pods("driver")[0], demo.status
    pods = {pod["metadata"]["uid"] for pod in demo.pods()}
    kubelet = demo.node.cluster.processes.running[second_node.kubelet]

    os.kill(kubelet.pid, signal.SIGSTOP)
    try:
        demo.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{second_node.name}", "--timeout=60s")
        lived_on = demo.published()
        demo.kubectl("taint", "node", second_node.name, "node.kubernetes.io/out-of-service=lost:NoExecute")
        wait_until(lambda: not pods & {pod["metadata"]["uid"] for pod in demo.pods()}, "the pods are given up", _LATE_S)
        assert second_node.runs(driver["metadata"]["uid"])
        assert demo.published() > lived_on
        demo.wait_for(lambda found: found["status"]["attempt"] > before["attempt"], "it is taken over", _LATE_S)
        demo.wait_until_past(demo.now(), _LATE_S)
        wait_until(lambda: not second_node.runs(driver["metadata"]["uid"]), "the older driver ends by itself")
        assert second_node.last_words(driver["metadata"]["uid"])["class"] == "Fenced"
    finally:
        os.kill(kubelet.pid, signal.SIGCONT)

    epochs = [record for record in demo.log_records() if record["kind"] == "epoch"]
    assert [epoch["attempt"] for epoch in epochs] == [1, 2]
    assert not _written(demo.store, driver["status"]["podIP"], epochs[-1]["n"])
    assert demo.verify()["ok"]


def _written(store: Store, address: str, record: int) -> list[str]:
    """What the pod at `address` changed in the store after the log's record was written."""
    requests = [match for line in store.access_log.read_text().splitlines() if (match := _ACCESS.match(line))]
    done = [found for found in requests if found["status"].startswith("2")]
    changes = [found for found in done if not any(read in found["operation"] for read in _READS)]
    keys = [found["key"] for found in changes]
    taken_over = next(n for n, key in enumerate(keys) if key.endswith(f"/log/{record:020}.json"))
    return [found[0] for found in changes[taken_over:] if found["address"] == address]
