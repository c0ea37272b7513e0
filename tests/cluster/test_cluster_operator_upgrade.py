"""The CRD of the version before, upgraded by the chart: what runs goes on as though nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_api import Namespace
from cluster_changefeed_operator import CHART, CRD, ChangefeedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_played_spark import PlayedSpark
from cluster_processes import wait_until

#: As it was before spec.drainTimeout.
PREVIOUS = Path(__file__).with_name("cluster_previous_crd.yaml")
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/changefeeds.changefeed.dev"
WITH_CRD = "crds.install=true"
pytestmark = [pytest.mark.timeout(200), pytest.mark.usefixtures("spark_crds")]


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


def test_an_upgrade_of_the_crd_disturbs_nothing_that_runs(
    cluster: ControlPlane, namespace: Namespace, previous: ChangefeedOperator, feeds: Feeds
) -> None:
    with PlayedSpark(cluster.api, [namespace.name], report_s=1.0):
        wait_until(lambda: not _takes(namespace, "drainTimeout"), "the CRD is the one before")
        previous.start()
        feeds.create("orders")
        status = feeds.wait_until("orders", "Normal")
        wait_until(lambda: _is_quiet(previous), "all is done")
        pod, writes = feeds.driver("orders"), _writes(cluster, previous)

        previous.chart = CHART
        previous.install(WITH_CRD)
        wait_until(lambda: _takes(namespace, "drainTimeout"), "the CRD is today's")
        previous.stop()  # with the release comes a new operator
        previous.start()
        wait_until(lambda: previous.number("changefeed_operator_reconciles_total") >= 1, "it has looked at it")
        wait_until(lambda: _is_quiet(previous), "all is done")

        after = feeds.driver("orders")
        assert pod is not None
        assert after is not None
        assert after["metadata"]["uid"] == pod["metadata"]["uid"]
        assert _writes(cluster, previous) == writes
        assert feeds.status("orders")["attempt"] == status["attempt"] == 1
        reported = feeds.status("orders")["checkpointTs"]
        feeds.wait_for(lambda: feeds.status("orders")["checkpointTs"] > reported, "the checkpoint goes on rising")

        feeds.edit("orders", drainTimeout="5s")
        assert feeds.wait_until("orders", "Normal")["attempt"] == 2, "what is new can be used"


def _takes(namespace: Namespace, field: str) -> bool:
    """Whether the API server knows a field of the spec."""
    found = namespace.api.request("GET", "/openapi/v3/apis/changefeed.dev/v1alpha1").body["components"]["schemas"][
        "dev.changefeed.v1alpha1.Changefeed"
    ]
    return field in found["properties"]["spec"]["properties"]


def _is_quiet(operator: ChangefeedOperator) -> bool:
    keys = operator.number("changefeed_operator_queue_keys_count")
    return operator.leads and not keys + operator.number("changefeed_operator_running_passes_count")


def _writes(cluster: ControlPlane, operator: ChangefeedOperator) -> list[str]:
    writes = cluster.writes(operator.user)
    return [f"{event['verb']} {event['requestURI']}" for event in writes if event["objectRef"]["resource"] != "leases"]
