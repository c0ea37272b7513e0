"""A node is lost with a driver that lives on: two drivers of one changefeed at once, and one history.

The node is cut off from the API server: its pods run, reach upstream and sink, and nobody tells them that they were
given up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_images
import pytest
from cluster_api import Namespace
from cluster_node import Node
from cluster_processes import wait_until
from cluster_product import LATE_S, Change, Demo, Store
from cluster_programs import cache_folder

pytestmark = pytest.mark.timeout(1800)
_DONE, _CAME_LATE = 200, 412  # of HTTP
_DELETES_STATE = "/cdc-state?delete"


@pytest.fixture(scope="module")
def second_node(real_node: Node) -> Iterator[Node]:
    with Node(real_node.cluster, real_node.network, cache_folder() / "containerd-2", 2) as made:
        with cluster_images.built() as registry:
            made.pull(registry, cluster_images.PAUSE, cluster_images.SPARK)
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


def test_rule_6_the_older_of_two_living_drivers_has_no_effect_of_its_own(demo: Demo, second_node: Node) -> None:
    demo.wait_until_past(demo.now())
    driver, before = demo.pods("driver")[0], demo.status
    executors = {pod["status"]["podIP"] for pod in demo.pods("executor")}
    pods = {pod["metadata"]["uid"] for pod in demo.pods()}

    with second_node.cut_off():
        demo.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{second_node.name}", f"--timeout={LATE_S}s")
        wait_until(lambda: not pods & {pod["metadata"]["uid"] for pod in demo.pods()}, "the pods are given up", LATE_S)
        given_up = demo.published()
        wait_until(lambda: demo.published() > given_up, "the older driver goes on", LATE_S)
        assert len(_epochs(demo)) == 1
        demo.wait_for(lambda found: found["status"]["attempt"] > before["attempt"], "another driver is on its way")
        assert second_node.runs(driver["metadata"]["uid"])
        taken_over = wait_until(lambda: _epochs(demo)[1:], "it is taken over", LATE_S)[0]["n"]
        planned = _planned(demo, taken_over)
        demo.wait_until_past(demo.now())
        wait_until(lambda: not second_node.runs(driver["metadata"]["uid"]), "the older driver ends by itself", LATE_S)
        assert second_node.last_words(driver["metadata"]["uid"])["class"] == "Fenced"

    assert [epoch["attempt"] for epoch in _epochs(demo)] == [1, 2]
    changes = _changes_since(demo, taken_over)
    by_driver = [change for change in changes if change.address == driver["status"]["podIP"]]
    assert any(change.status == _CAME_LATE for change in by_driver)
    # It learns of the takeover when a write of its own comes late. Meanwhile it may end what it knew before: what both
    # drivers write alike, and to delete the segments that its own last record made unneeded.
    assert all(
        change.status == _CAME_LATE or _only_grows(change) or change.key == _DELETES_STATE for change in by_driver
    )
    by_executors = {change.key for change in changes if change.address in executors and change.status == _DONE}
    assert {key for key in by_executors if key.startswith(f"{demo.namespace.name}/bank/")} <= planned
    assert demo.verify()["ok"]


def _epochs(demo: Demo) -> list[dict[str, Any]]:
    return [record for record in demo.log_records() if record["kind"] == "epoch"]


def _planned(demo: Demo, before: int) -> set[str]:
    """The files that the log named before its record `before`."""
    plans = [record for record in demo.log_records() if record["kind"] == "plan" and record["n"] < before]
    return {f"{demo.namespace.name}/{entry['output']['path']}" for plan in plans for entry in plan["entries"]}


def _changes_since(demo: Demo, record: int) -> list[Change]:
    """What was asked of the store after the log's record was written."""
    changes = demo.store.changes()
    log = re.compile(rf"{demo.namespace.name}/demo/[^/]+/log/{record:020}\.json")
    written = next(n for n, change in enumerate(changes) if log.fullmatch(change.key))
    assert changes[written].status == _DONE
    return changes[written + 1 :]


def _only_grows(change: Change) -> bool:
    """Written by compare-and-swap (rule 8)."""
    return change.key.endswith(("/meta/CDC.index", "/metadata", "/alive.json"))
