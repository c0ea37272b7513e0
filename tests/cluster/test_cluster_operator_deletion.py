"""Held history and deletion on a real API server: Jobs that fail are seen, and tried again; nothing gets stuck.

The changefeeds are paused and have a startTs, so that there is history to hold and no Spark. Pods' lives are played.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_api import CORE, Namespace
from cluster_changefeed_operator import ChangefeedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_history import History
from cluster_pods import End, PlayedNode, Pod
from cluster_processes import wait_until

CLOSE, HOLD = "changefeed-orders-close", "changefeed-orders-hold"
START_TS = "450000000000000000"
UNTIL = "2099-01-01T00:00:00Z"
HELD = End(0, json.dumps({"class": "Held", "message": "It is held.", "ts": START_TS, "until": UNTIL}))
NO_PD = End(69, json.dumps({"class": "Unavailable", "message": "PD does not answer.", "next": "Look at PD."}))
RBAC = "/apis/rbac.authorization.k8s.io/v1"

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("spark_crds")]


def _verb(pod: Pod) -> str:
    return str(pod["metadata"]["labels"].get("changefeed.dev/job", ""))


def _holds(pod: Pod) -> End | None:
    return HELD if _verb(pod) == "hold" else End()


@pytest.fixture
def held(operator: ChangefeedOperator, feeds: Feeds, node: PlayedNode) -> ChangefeedOperator:
    """The changefeed `orders` is paused, and its history is held."""
    node.ends = _holds
    operator.install()
    operator.start()
    feeds.create("orders", paused=True, startTs=START_TS)
    feeds.wait_for(lambda: _held(feeds) == ("True", "Held"), "history is held")
    return operator


def _held(feeds: Feeds) -> tuple[str, str]:
    found = [each for each in feeds.status("orders").get("conditions", []) if each["type"] == "HistoryHeld"]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def _reasons(namespace: Namespace) -> list[str]:
    return [event["reason"] for event in namespace.api.items(namespace.core("events"))]


def _job(namespace: Namespace, name: str, **spec: Any) -> None:
    """Edit it: what else would take minutes."""
    namespace.api.merge(namespace.of("batch/v1", "jobs", name), {"spec": spec})


def _wait_for_job(namespace: Namespace, name: str, without: str = "") -> str:
    """Its uid, another one than `without`."""

    def uid() -> str:
        found = namespace.api.find(namespace.of("batch/v1", "jobs", name))
        return "" if found is None or found["metadata"]["uid"] == without else str(found["metadata"]["uid"])

    wait_until(uid, f"there is a Job {name}")
    return uid()


def test_history_that_can_not_be_held_is_told_and_held_as_soon_as_it_can_be(
    namespace: Namespace, operator: ChangefeedOperator, feeds: Feeds, node: PlayedNode
) -> None:
    node.ends = lambda pod: NO_PD if _verb(pod) == "hold" else End()
    operator.install()
    operator.start()
    feeds.create("orders", paused=True, startTs=START_TS)
    first = _wait_for_job(namespace, HOLD)
    _job(namespace, HOLD, backoffLimit=0)
    feeds.wait_for(lambda: _held(feeds) == ("False", "NotHeld"), "it is told that nothing is held")
    assert feeds.status("orders")["hold"]["lastError"]["message"] == "PD does not answer. Look at PD."
    wait_until(lambda: "HoldFailed" in _reasons(namespace), "an event says so")
    node.ends = _holds
    _job(namespace, HOLD, ttlSecondsAfterFinished=0)  # as though a minute passed
    _wait_for_job(namespace, HOLD, without=first)
    feeds.wait_for(lambda: _held(feeds) == ("True", "Held"), "history is held")
    assert feeds.status("orders")["hold"] == {"ts": START_TS, "until": UNTIL}
    assert namespace.api.find(namespace.of("batch/v1", "cronjobs", HOLD)), "which goes on holding it"


def test_a_close_that_failed_is_tried_again_also_by_another_operator(
    namespace: Namespace, held: ChangefeedOperator, feeds: Feeds, node: PlayedNode
) -> None:
    node.ends = lambda _: NO_PD
    feeds.ask_to_delete("orders")
    first = _wait_for_job(namespace, CLOSE)
    _job(namespace, CLOSE, backoffLimit=0)
    feeds.wait_until_said("orders", "The log could not be closed: PD does not answer. Look at PD.")
    wait_until(lambda: "CloseFailed" in _reasons(namespace), "an event says so")
    held.kill()
    _job(namespace, CLOSE, ttlSecondsAfterFinished=0)
    wait_until(lambda: namespace.api.find(namespace.of("batch/v1", "jobs", CLOSE)) is None, "the failed Job is gone")
    assert namespace.api.find(namespace.changefeeds("orders")), "it waits for an operator"
    node.ends = _holds
    held.start()
    _wait_for_job(namespace, CLOSE, without=first)
    wait_until(lambda: namespace.api.find(namespace.changefeeds("orders")) is None, "it is gone")
    assert "Closed" in _reasons(namespace)
    wait_until(lambda: all("close" in child for child in feeds.children("orders")), "so are its children")


def test_one_that_is_deleted_while_there_is_no_operator_is_closed_later(
    namespace: Namespace, held: ChangefeedOperator, feeds: Feeds
) -> None:
    held.kill()
    feeds.ask_to_delete("orders")
    held.start()
    _wait_for_job(namespace, CLOSE)
    wait_until(lambda: namespace.api.find(namespace.changefeeds("orders")) is None, "it is gone")


def test_foreground_deletion_as_argo_cd_does_it_is_closed_too(
    namespace: Namespace, held: ChangefeedOperator, feeds: Feeds
) -> None:
    namespace.api.delete(namespace.changefeeds("orders"), {"propagationPolicy": "Foreground"})
    _wait_for_job(namespace, CLOSE)
    wait_until(lambda: namespace.api.find(namespace.changefeeds("orders")) is None, "it is gone")
    assert "Closed" in _reasons(namespace)


def test_retain_lets_it_go_and_starts_no_job(namespace: Namespace, held: ChangefeedOperator, feeds: Feeds) -> None:
    feeds.edit("orders", deletionPolicy="Retain")
    path = namespace.changefeeds("orders")
    wait_until(lambda: not namespace.api.get(path)["metadata"].get("finalizers"), "the finalizer is gone")
    feeds.delete("orders")
    assert namespace.api.find(namespace.of("batch/v1", "jobs", CLOSE)) is None


@pytest.fixture
def doomed(cluster: ControlPlane, namespace: Namespace) -> Iterator[Namespace]:
    """Another namespace; the operator's account has rights of the cluster, since those in it go with it."""
    made = cluster.create_namespace(f"doomed-{namespace.name}"[:60])
    accounts = {"kind": "Group", "name": f"system:serviceaccounts:{namespace.name}"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {
        "metadata": {"name": made.name},
        "roleRef": role,
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", **accounts}],
    }
    cluster.api.create(f"{RBAC}/clusterrolebindings", binding)
    yield made
    cluster.api.delete(f"{RBAC}/clusterrolebindings/{made.name}")


def test_a_namespace_that_is_deleted_goes_and_the_operator_says_what_was_not_closed(
    cluster: ControlPlane, namespace: Namespace, doomed: Namespace, operator: ChangefeedOperator, history: History
) -> None:
    feeds = Feeds(doomed, history)
    operator.install(f"watchNamespaces={{{namespace.name},{doomed.name}}}")
    operator.start()
    with PlayedNode(doomed) as node:
        node.ends = _holds
        feeds.create("orders", paused=True, startTs=START_TS)
        feeds.wait_for(lambda: _held(feeds) == ("True", "Held"), "history is held")
        path = f"{CORE}/namespaces/{doomed.name}"
        cluster.api.delete(path)
        wait_until(lambda: cluster.api.find(path) is None, "the namespace is gone")
    assert 'changefeed_operator_events_total{reason="CloseGivenUp"}' in operator.metrics()
