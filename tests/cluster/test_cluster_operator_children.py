"""Whatever somebody does to a changefeed's children, the real API server has them as they must be within a minute, an
event says so, and what runs is undisturbed. Spark's part is played.
"""

from __future__ import annotations

import contextlib
import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_api import ApiRefused, Namespace
from cluster_changefeed_operator import ForkedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_played_spark import PlayedSpark, mounted_config
from cluster_processes import wait_until

#: As promised.
MINUTE_S = 60.0
LOOKS = 5
CONFIG = "changefeed.yaml"
RBAC, POLICY, NETWORK, BATCH = "rbac.authorization.k8s.io/v1", "policy/v1", "networking.k8s.io/v1", "batch/v1"

Manifest = dict[str, Any]
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark_crds")]


@pytest.fixture
def spark(namespace: Namespace) -> Iterator[PlayedSpark]:
    with PlayedSpark(namespace.api, [namespace.name], report_s=1.0) as played:
        yield played
    assert played.errors == []
    assert played.broken == []


@pytest.fixture
def running(namespace: Namespace, forked: ForkedOperator, feeds: Feeds, spark: PlayedSpark) -> ForkedOperator:
    """`orders` runs, `bills` is paused. The operator looks again after five minutes: what it sees, it is told of."""
    forked.resync_s = 300.0
    forked.install("changefeedNetworkPolicies=true")
    forked.start()
    for name in ("orders", "bills"):
        feeds.create(name, filter={"rules": ["shop.*"]})
        feeds.wait_until(name, "Normal")
    feeds.edit("bills", paused=True)
    feeds.wait_until("bills", "Stopped")
    wait_until(lambda: "CronJob/changefeed-bills-hold" in feeds.status("bills").get("children", []), "the hold is seen")
    wait_until(lambda: len(feeds.status("orders").get("children", [])) == 8, "all children are seen")
    return forked


def _paths(namespace: Namespace, feeds: Feeds) -> dict[str, str]:
    """Return the paths of the children, by kind."""
    application = feeds.application("orders")
    assert application is not None
    return {
        "ConfigMap": namespace.core("configmaps", mounted_config(application)),
        "ServiceAccount": namespace.core("serviceaccounts", "changefeed-orders"),
        "Service": namespace.core("services", "changefeed-orders"),
        "Role": namespace.of(RBAC, "roles", "changefeed-orders"),
        "RoleBinding": namespace.of(RBAC, "rolebindings", "changefeed-orders"),
        "PodDisruptionBudget": namespace.of(POLICY, "poddisruptionbudgets", "changefeed-orders"),
        "NetworkPolicy": namespace.of(NETWORK, "networkpolicies", "changefeed-orders"),
        "CronJob": namespace.of(BATCH, "cronjobs", "changefeed-bills-hold"),
    }


def _data(found: Manifest) -> Manifest:
    """What counts of it."""
    kept = {name: value for name, value in found.items() if name not in ("metadata", "status")}
    kept["spec"] = {
        name: value for name, value in found.get("spec", {}).items() if name not in ("clusterIP", "clusterIPs")
    }
    owners, labels = found["metadata"]["ownerReferences"], found["metadata"]["labels"]
    return {**kept, "owners": [owner["uid"] for owner in owners], "labels": labels}


def _edit_config(found: Manifest) -> None:
    found["data"][CONFIG] = found["data"][CONFIG].replace("shop.*", "nothing.*").replace("s3://lake", "s3://evil")


def _edit_role_ref(found: Manifest) -> None:
    found["roleRef"]["name"] = "somebody-else"


def _edit_cron_job(found: Manifest) -> None:
    spec = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    spec["containers"][0]["env"].append({"name": "EVIL", "value": "1"})


#: PUT as they are.
EDITS: dict[str, Callable[[Manifest], object]] = {
    "ServiceAccount": lambda found: found.pop("automountServiceAccountToken"),
    "Service": lambda found: found["spec"].update(selector={"app": "evil"}),
    "Role": lambda found: found.update(rules=[]),
    "PodDisruptionBudget": lambda found: found["spec"].update(minAvailable=99),
    "NetworkPolicy": lambda found: found["spec"]["ingress"].append({}),
    "CronJob": _edit_cron_job,
}
#: Deleted and made anew like this, as they can't be edited.
REPLACEMENTS: dict[str, Callable[[Manifest], object]] = {"ConfigMap": _edit_config, "RoleBinding": _edit_role_ref}


def test_children_that_were_edited_are_put_back(
    cluster: ControlPlane, namespace: Namespace, running: ForkedOperator, feeds: Feeds
) -> None:
    api, paths, driver = namespace.api, _paths(namespace, feeds), feeds.driver("orders")
    before = {kind: api.get(path) for kind, path in paths.items()}
    with pytest.raises(ApiRefused, match="immutable"):
        api.merge(paths["ConfigMap"], {"data": {CONFIG: "{}"}})
    since = time.monotonic()
    for kind, edit in EDITS.items():
        wait_until(lambda kind=kind, edit=edit: _is_put(namespace, paths[kind], edit), f"the {kind} is edited")
    for kind, edit in REPLACEMENTS.items():
        made = copy.deepcopy(before[kind])
        edit(made)
        made["metadata"] = {
            name: value
            for name, value in made["metadata"].items()
            if name in ("name", "namespace", "labels", "annotations", "ownerReferences")
        }
        api.delete(paths[kind])
        api.create(paths[kind].rpartition("/")[0], made)
    for kind, path in paths.items():
        wait_until(
            lambda kind=kind, path=path: _is_as(api.find(path), before[kind]), f"the {kind} is put back", MINUTE_S
        )
    assert time.monotonic() - since < MINUTE_S
    wait_until(lambda: set(_repaired(namespace)) == set(paths), "events say so")
    assert feeds.driver("orders") == driver or _uid(feeds.driver("orders")) == _uid(driver)
    assert feeds.status("orders")["attempt"] == 1
    _is_quiet(cluster, running)


def test_children_that_were_deleted_are_made_again(
    cluster: ControlPlane, namespace: Namespace, running: ForkedOperator, feeds: Feeds
) -> None:
    api, paths, driver = namespace.api, _paths(namespace, feeds), feeds.driver("orders")
    before = {kind: api.get(path) for kind, path in paths.items()}
    for path in paths.values():
        api.delete(path)
    for kind, path in paths.items():
        wait_until(lambda kind=kind, path=path: _is_as(api.find(path), before[kind]), f"the {kind} is back", MINUTE_S)
    wait_until(lambda: set(_repaired(namespace)) == set(paths), "events say so")
    assert all("was deleted" in message for message in _repaired(namespace).values())
    assert _uid(feeds.driver("orders")) == _uid(driver)
    _is_quiet(cluster, running)


def test_a_name_that_is_deleted_and_made_anew_at_once_waits_for_what_is_left(
    namespace: Namespace, running: ForkedOperator, feeds: Feeds
) -> None:
    feeds.delete("orders")
    wait_until(lambda: _is_created(feeds), "the name is free")
    uid = namespace.api.get(namespace.changefeeds("orders"))["metadata"]["uid"]
    path = namespace.of(RBAC, "roles", "changefeed-orders")
    wait_until(lambda: _owners(namespace.api.find(path)) == [uid], "the Role is the new one's", MINUTE_S)
    feeds.wait_until("orders", "Normal")
    said = [event["reason"] for event in namespace.api.items(namespace.core("events"))]
    assert "ActionFailed" not in said
    assert _repaired(namespace) == {}


def _is_put(namespace: Namespace, path: str, edit: Callable[[Manifest], object]) -> bool:
    """False when somebody was quicker."""
    edited = namespace.api.get(path)
    edit(edited)
    answer = namespace.api.request("PUT", path, edited)
    assert answer.status in (200, 409), answer.body
    return answer.status == 200


def _is_created(feeds: Feeds) -> bool:
    """False while the one before is being deleted."""
    with contextlib.suppress(ApiRefused):
        feeds.create("orders", filter={"rules": ["shop.*"]})
        return True
    return False


def _is_as(found: Manifest | None, before: Manifest) -> bool:
    return found is not None and _data(found) == _data(before)


def _owners(found: Manifest | None) -> list[str]:
    return [owner["uid"] for owner in found["metadata"]["ownerReferences"]] if found else []


def _uid(found: Manifest | None) -> str:
    assert found is not None
    return str(found["metadata"]["uid"])


def _repaired(namespace: Namespace) -> dict[str, str]:
    """Return what an event says of each kind that was repaired."""
    events = namespace.api.items(namespace.core("events"))
    messages = [str(event["message"]) for event in events if event["reason"] == "ChildRepaired"]
    return {message.partition(" ")[0]: message for message in messages}


def _is_quiet(cluster: ControlPlane, operator: ForkedOperator) -> None:
    """The operator finds nothing to repair in what the API server made of its manifests."""
    operator.stop()
    operator.resync_s = 0.5
    operator.start()
    looks = LOOKS + 4
    wait_until(lambda: operator.number("changefeed_operator_reconciles_total") >= looks, "it looks again and again")
    writes = _writes(cluster, operator)
    looks += 2 * LOOKS
    wait_until(lambda: operator.number("changefeed_operator_reconciles_total") >= looks, "it looks again and again")
    assert _writes(cluster, operator) == writes, json.dumps(writes[-5:])


def _writes(cluster: ControlPlane, operator: ForkedOperator) -> list[str]:
    events = [event for event in cluster.writes(operator.user) if event["objectRef"]["resource"] != "leases"]
    return [f"{event['verb']} {event['requestURI']}" for event in events]
