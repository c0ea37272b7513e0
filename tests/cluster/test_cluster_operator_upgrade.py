"""From the version before, its CRD and its objects, upgraded by the chart: what runs goes on without a restart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_api import Namespace
from cluster_changefeed_operator import CHART, CRD, ChangefeedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_played_spark import PlayedSpark
from cluster_processes import wait_until

#: As it was before spec.drainTimeout.
PREVIOUS = Path(__file__).with_name("cluster_previous_crd.yaml")
#: What the operator had made of a changefeed when configs were mutable and all in ConfigMap changefeed-X.
PREVIOUS_CHILDREN = Path(__file__).with_name("cluster_previous_children.yaml")
_UNKNOWN_BEFORE = ("hold", "version", "appliedSettings")
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/changefeeds.changefeed.dev"
WITH_CRD = "crds.install=true"
pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("spark_crds")]


@pytest.fixture
def previous(cluster: ControlPlane, operator: ChangefeedOperator, tmp_path: Path) -> Iterator[ChangefeedOperator]:
    """The operator's release, its CRD that of the version before; at the end the CRD is today's again."""
    # Helm takes over only what bears its marks, and the CRD was applied by hand.
    namespace = operator.namespace.name
    marks = {"meta.helm.sh/release-name": operator.release, "meta.helm.sh/release-namespace": namespace}
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    cluster.api.merge(_CRD, {"metadata": {"annotations": marks, "labels": labels}})
    operator.chart = tmp_path / "chart"
    shutil.copytree(CHART, operator.chart)
    shutil.copy(PREVIOUS, operator.chart / "files" / "changefeeds.yaml")
    operator.install(WITH_CRD)
    yield operator
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", CRD)


def test_an_upgrade_disturbs_nothing_that_runs(
    cluster: ControlPlane, namespace: Namespace, previous: ChangefeedOperator, feeds: Feeds, tmp_path: Path
) -> None:
    with PlayedSpark(cluster.api, [namespace.name], report_s=1.0, unsaid=_UNKNOWN_BEFORE) as spark:
        wait_until(lambda: (fields := _fields(namespace)) and "drainTimeout" not in fields, "the CRD is the one before")
        feeds.create("orders")
        _runs_as_before(cluster, namespace, tmp_path / "children.yaml")
        feeds.wait_for(lambda: feeds.status("orders").get("checkpointTs"), "the driver reports")
        pod, application = feeds.driver("orders"), feeds.application("orders")

        previous.chart = CHART
        previous.install(WITH_CRD)
        wait_until(lambda: "drainTimeout" in _fields(namespace), "the CRD is today's")
        previous.start()
        feeds.wait_for(lambda: feeds.status("orders").get("configDigest"), "its config is immutable")
        status = feeds.wait_until("orders", "Normal")
        wait_until(lambda: previous.is_quiet, "all is done")

        assert _uid(feeds.driver("orders")) == _uid(pod)
        assert _uid(feeds.application("orders")) == _uid(application)
        assert status["attempt"] == 1
        assert _configs(namespace) == {"changefeed-orders", _config(feeds)}, "the application names the old one"
        assert {event["type"] for event in namespace.api.items(namespace.core("events"))} <= {"Normal"}

        writes = _writes(cluster, previous)
        previous.stop()
        previous.start()
        wait_until(lambda: previous.number("changefeed_operator_reconciles_total") >= 1, "it has looked at it")
        wait_until(lambda: previous.is_quiet, "all is done")
        assert _writes(cluster, previous) == writes
        reported = feeds.status("orders")["checkpointTs"]
        feeds.wait_for(lambda: feeds.status("orders")["checkpointTs"] > reported, "the checkpoint goes on rising")

        assert status["image"] == application["spec"]["image"]
        feeds.edit("orders", drainTimeout="5s")
        feeds.wait_for(lambda: feeds.status("orders")["liveSettings"]["drainTimeout"] == "5s", "the edit is accepted")
        status = feeds.wait_until("orders", "Normal")
        assert status["attempt"] == 1
        assert "appliedSettings" not in status, "its driver does not know of such a thing"
        feeds.edit("orders", timeZone="CET")
        assert feeds.wait_until("orders", "Normal")["attempt"] == 2, "what is new can be used"
        feeds.wait_for(lambda: feeds.status("orders").get("appliedSettings") == status["liveSettings"], "and is used")
        feeds.wait_for(lambda: feeds.status("orders").get("hold"), "what is new is reported")
        wait_until(lambda: _configs(namespace) == {_config(feeds)}, "nobody reads the old configs")
        assert spark.errors == []


def _runs_as_before(cluster: ControlPlane, namespace: Namespace, file: Path) -> None:
    """The objects and the status of the version before, for the changefeed `orders`."""
    uid = namespace.api.get(namespace.changefeeds("orders"))["metadata"]["uid"]
    text = PREVIOUS_CHILDREN.read_text().replace("the-namespace", namespace.name).replace("the-uid", uid)
    file.write_text(text)
    cluster.kubectl("apply", "--server-side", "--field-manager=changefeed-operator", "-f", file)
    *_, application = yaml.safe_load_all(text)
    answers = {"Ready": "True", "Reconciling": "False", "Stalled": "False"}
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Running", "message": "Running."}
    status = {
        "observedGeneration": 1,
        "state": "Normal",
        "message": "Running.",
        "sink": "storage",
        "attempt": 1,
        "attemptPhase": "Created",
        "effectiveSpecHash": application["metadata"]["labels"]["changefeed.dev/spec-hash"],
        "stateUri": "s3://cdc-state",
        "restarts": {"total": 0},
        "conditions": [{"type": kind, "status": answer, **since} for kind, answer in answers.items()],
    }
    body = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "orders"}}
    path = namespace.changefeeds("orders", "status")
    namespace.api.apply(path, {**body, "status": status}, manager="changefeed-operator")


def _uid(found: dict[str, Any] | None) -> str:
    assert found is not None
    return str(found["metadata"]["uid"])


def _config(feeds: Feeds) -> str:
    return f"changefeed-orders-{feeds.status('orders')['configDigest']}"


def _configs(namespace: Namespace) -> set[str]:
    """Names of the changefeed's ConfigMaps."""
    found = namespace.api.items(namespace.core("configmaps"), "changefeed.dev/name=orders")
    return {str(each["metadata"]["name"]) for each in found}


def _fields(namespace: Namespace) -> set[str]:
    """Return the fields of the spec, as the API server knows it; empty while it says nothing of the kind."""
    answer = namespace.api.request("GET", "/openapi/v3/apis/changefeed.dev/v1alpha1")
    if answer.status != 200:
        return set()
    kind = answer.body["components"]["schemas"]["dev.changefeed.v1alpha1.Changefeed"]
    return set(kind["properties"]["spec"]["properties"])


def _writes(cluster: ControlPlane, operator: ChangefeedOperator) -> list[str]:
    writes = cluster.writes(operator.user)
    return [f"{event['verb']} {event['requestURI']}" for event in writes if event["objectRef"]["resource"] != "leases"]
