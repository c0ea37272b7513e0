"""Edits that take no restart, on a real API server, with drivers of this version, of one before and of one to come.

Spark's part is played (cluster_played_spark.py); test_cluster_real_changefeed.py has the real one.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from changefeed.kube.connection import from_kubeconfig
from changefeed.owner.pod import Pod
from changefeed.owner.reporting.status_writer import Applied, StatusWriter
from changefeed.spec.field.kind import LIVE
from changefeed.spec.live import marked
from cluster_api import Namespace
from cluster_changefeed_operator import ChangefeedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import SPEC, Feeds
from cluster_played_driver import VERSION, report
from cluster_played_spark import PlayedSpark
from cluster_processes import wait_until

PINNED = "registry.example/changefeed-spark:before"
#: Another value of each, as it is edited.
EDITS: dict[str, dict[str, Any]] = {
    "lagThreshold": {"lagThreshold": "10m"},
    "drainTimeout": {"drainTimeout": "7s"},
    "upstream.safepointTtl": {"upstream": {"safepointTtl": "720h"}},
    "deletionPolicy": {"deletionPolicy": "Retain"},
}
WITHOUT = {"lagThreshold": None, "drainTimeout": None, "deletionPolicy": None, "upstream": {"safepointTtl": None}}
pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("spark_crds")]


@pytest.fixture
def running(operator: ChangefeedOperator) -> ChangefeedOperator:
    operator.install()
    operator.start()
    return operator


def _pods(namespace: Namespace) -> dict[str, str]:
    """Return the uids of the pods of all changefeeds, and of their applications, by name."""
    found = namespace.api.items(namespace.core("pods"), "changefeed.dev/name")
    found += namespace.api.items(namespace.applications(), "changefeed.dev/name")
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in found}


def _config(namespace: Namespace, feeds: Feeds) -> dict[str, Any]:
    """The spec that the next attempt's driver would read."""
    name = f"changefeed-orders-{feeds.status('orders')['configDigest']}"
    spec: dict[str, Any] = json.loads(namespace.api.get(namespace.core("configmaps", name))["data"]["changefeed.yaml"])[
        "spec"
    ]
    return spec


@pytest.mark.usefixtures("running")
def test_each_live_field_reaches_the_driver_that_runs(namespace: Namespace, feeds: Feeds) -> None:
    assert set(EDITS) == set(marked(LIVE))
    with PlayedSpark(namespace.api, [namespace.name], report_s=0.5) as spark:
        feeds.create("orders")
        feeds.wait_until("orders", "Normal")
        feeds.wait_for(lambda: feeds.status("orders").get("version") == VERSION, "the driver reports")
        pods = _pods(namespace)
        for path, edit in EDITS.items():
            feeds.edit("orders", **edit)
            feeds.wait_until("orders", "Normal")
            if path == "deletionPolicy":
                continue
            value = edit.get(path) or edit["upstream"]["safepointTtl"]
            for field in ("liveSettings", "appliedSettings"):
                feeds.wait_for(
                    lambda at=(field, path), value=value: feeds.status("orders")[at[0]][at[1]] == value,
                    f"{path} is in {field}",
                )
        assert _pods(namespace) == pods
        assert feeds.status("orders")["attempt"] == 1
        assert {event["type"] for event in namespace.api.items(namespace.core("events"))} <= {"Normal"}
        assert not [child for child in feeds.children("orders") if child.startswith(("jobs/", "cronjobs/"))]

        feeds.edit("orders", **{**WITHOUT, "spark": {"driver": {"memory": "512Mi"}}, "lagThreshold": "3m"})
        feeds.wait_until("orders", "Warning")
        assert feeds.status("orders")["liveSettings"]["lagThreshold"] == "10m", "of what is valid alone"
        feeds.edit("orders", spark=None)
        feeds.wait_until("orders", "Normal")
        feeds.wait_for(lambda: feeds.status("orders")["appliedSettings"]["lagThreshold"] == "3m", "now it is")
        assert _pods(namespace) == pods
    assert spark.errors == []
    assert spark.broken == []


def test_a_pinned_image_of_before_is_sent_nothing_that_its_spec_does_not_say(
    namespace: Namespace, running: ChangefeedOperator, feeds: Feeds
) -> None:
    """Its driver knows neither of settings nor of versions, and goes on."""
    before = ("version", "appliedSettings")
    with PlayedSpark(namespace.api, [namespace.name], report_s=0.5, unsaid=before) as spark:
        feeds.create("orders", spark={"image": PINNED})
        feeds.wait_until("orders", "Normal")
        feeds.wait_for(lambda: feeds.status("orders").get("checkpointTs"), "the driver reports")
        pods, config = _pods(namespace), _config(namespace, feeds)
        assert config == {**SPEC, "spark": {"image": PINNED}}
        assert feeds.status("orders")["image"] == PINNED
        running.stop()
        running.install("sparkImage.tag=of-another-version")  # an upgrade
        running.start()
        wait_until(lambda: running.leads, "the new one leads")
        feeds.edit("orders", drainTimeout="7s")
        feeds.wait_until("orders", "Normal")
        edited = {**config, "drainTimeout": "7s"}
        feeds.wait_for(lambda: _config(namespace, feeds) == edited, "accepted once its ConfigMap is seen")
        wait_until(lambda: running.is_quiet, "all is done")
        assert _pods(namespace) == pods
        assert "appliedSettings" not in feeds.status("orders")
    assert spark.errors == []


@pytest.mark.usefixtures("running")
def test_a_pinned_image_to_come_may_say_what_nobody_knows_yet(
    cluster: ControlPlane, namespace: Namespace, feeds: Feeds, tmp_path: Path
) -> None:
    """As after a rollback of the operator: the image stays. The CRD is the operator's."""
    with PlayedSpark(namespace.api, [namespace.name], report_s=0.0) as spark:
        feeds.create("orders", spark={"image": PINNED})
        feeds.wait_until("orders", "Normal")
        pods = _pods(namespace)
        account = cluster.service_account_kubeconfig(namespace.name, "changefeed-orders", tmp_path / "driver")
        uid = namespace.api.get(namespace.changefeeds("orders"))["metadata"]["uid"]
        writer = StatusWriter(Pod(namespace.name, "orders", uid, "127.0.0.1"), from_kubeconfig(str(account)))
        _, body = report(namespace.name, "orders", 1, 7)
        to_come = {"version": "99.0.0", "ofTomorrow": {"a": 1}, "appliedSettings": {"of.tomorrow": "1"}}
        last = {"statement": "DROP TABLE `a`", "ofTomorrow": 1}
        applied = asyncio.run(writer.apply({**body["status"], **to_come, "lastDdl": last}))
        assert applied == Applied(settings=feeds.status("orders")["liveSettings"])
        feeds.wait_for(lambda: feeds.status("orders").get("version") == "99.0.0", "what is known is there")
        feeds.edit("orders", lagThreshold="10m")
        feeds.wait_until("orders", "Normal")
        status = feeds.status("orders")
        assert (status["rows"], status["appliedSettings"]) == (7, {"of.tomorrow": "1"})
        assert not {"ofTomorrow", "lastDdl"} & status.keys()
        assert _pods(namespace) == pods
    assert spark.errors == []
