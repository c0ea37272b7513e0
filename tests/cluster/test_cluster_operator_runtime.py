"""The operator's process against a real API server: it leads alone, hands over, and outlives what an API server does.

Spark's part is played (cluster_played_spark.py).
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import cluster_spark_operator
import pytest
from cluster_api import Namespace
from cluster_api_proxy import ApiProxy
from cluster_changefeed_operator import ChangefeedOperator
from cluster_control_plane import ControlPlane
from cluster_played_spark import PlayedSpark
from cluster_processes import wait_until

SPEC: dict[str, Any] = {
    "upstream": {"pdAddresses": ["http://pd:2379"]},
    "state": {"uri": "s3://cdc-state"},
    "sink": {"storage": {"uri": "s3://lake/orders", "protocol": "csv"}},
}
STEADY_S = 25.0
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="session")
def spark_crds(cluster: ControlPlane) -> None:
    cluster_spark_operator.install_crds(cluster)


@pytest.fixture
def spark(namespace: Namespace, spark_crds: None) -> Iterator[PlayedSpark]:
    with PlayedSpark(namespace.api, namespace.name, report_s=1.0) as played:
        yield played
    assert played.errors == []


@pytest.fixture
def behind_proxy(operator: ChangefeedOperator, proxy: ApiProxy) -> ChangefeedOperator:
    operator.server = proxy.server
    return operator


def create(namespace: Namespace, name: str, **labels: str) -> None:
    body = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "spec": SPEC}
    namespace.api.create(namespace.changefeeds(), {**body, "metadata": {"name": name, "labels": labels}})


def status(namespace: Namespace, name: str) -> dict[str, Any]:
    found: dict[str, Any] = namespace.api.get(namespace.changefeeds(name)).get("status", {})
    return found


def is_running(namespace: Namespace, name: str) -> Callable[[], bool]:
    return lambda: status(namespace, name).get("state") == "Normal"


def leads(operator: ChangefeedOperator) -> bool:
    try:
        return "changefeed_operator_leader_info 1.0" in operator.metrics()
    except OSError:
        return False


def number(operator: ChangefeedOperator, name: str) -> float:
    """The sum over all labels."""
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", operator.metrics(), re.MULTILINE)
    return sum(map(float, found))


def another(operator: ChangefeedOperator, folder: str) -> ChangefeedOperator:
    made = ChangefeedOperator(operator.cluster, operator.namespace, operator.folder / folder)
    made.folder.mkdir()
    return made


@pytest.mark.usefixtures("spark")
def test_a_changefeed_runs_and_then_nothing_is_written(
    cluster: ControlPlane, namespace: Namespace, operator: ChangefeedOperator
) -> None:
    operator.install()
    operator.start()
    operator.wait_until_ready()
    create(namespace, "orders")
    wait_until(is_running(namespace, "orders"), "the changefeed runs")
    for kind, path in (
        ("ConfigMap", namespace.core("configmaps", "changefeed-orders")),
        ("Service", namespace.core("services", "changefeed-orders")),
        ("ServiceAccount", namespace.core("serviceaccounts", "changefeed-orders")),
        ("SparkApplication", namespace.applications("changefeed-orders")),
    ):
        assert namespace.api.find(path), kind
    before = _writes(cluster, operator)
    reports = status(namespace, "orders")["rows"]
    deadline = time.monotonic() + STEADY_S
    wait_until(lambda: time.monotonic() > deadline, "time passes")
    assert _writes(cluster, operator) == before
    assert status(namespace, "orders")["rows"] > reports, "the driver went on reporting"
    assert number(operator, "changefeed_operator_unexpected_errors_total") == 0
    assert operator.stop() == 0


def _writes(cluster: ControlPlane, operator: ChangefeedOperator) -> list[str]:
    writes = cluster.writes(operator.user)
    return [f"{event['verb']} {event['requestURI']}" for event in writes if event["objectRef"]["resource"] != "leases"]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_of_two_operators_one_leads_and_the_other_takes_over(
    namespace: Namespace, operator: ChangefeedOperator, end: signal.Signals
) -> None:
    operator.install()
    operator.start()
    wait_until(lambda: leads(operator), "the first leads")
    second = another(operator, "second")
    try:
        second.start()
        second.wait_until_ready()  # a standby is ready
        assert not leads(second)
        create(namespace, "orders")
        wait_until(is_running(namespace, "orders"), "the changefeed runs")
        assert not leads(second)
        ended = time.monotonic()
        operator.kill() if end is signal.SIGKILL else operator.stop()
        wait_until(lambda: leads(second), "the second leads")
        led = time.monotonic() - ended
        create(namespace, "late")
        wait_until(is_running(namespace, "late"), "the second works")
        worked = time.monotonic() - ended
        sys.stdout.write(
            f"\n{end.name}: the second operator leads after {led:.1f} s, has worked after {worked:.1f} s\n"
        )
    finally:
        second.end()


@pytest.mark.usefixtures("spark")
def test_watches_that_are_cut_lose_nothing(
    namespace: Namespace, behind_proxy: ChangefeedOperator, proxy: ApiProxy
) -> None:
    behind_proxy.install()
    behind_proxy.start()
    wait_until(lambda: proxy.open_watches == 4, "all is watched")
    assert proxy.drop_watches() == 4
    create(namespace, "orders")
    wait_until(is_running(namespace, "orders"), "the changefeed runs")
    wait_until(lambda: proxy.open_watches == 4, "all is watched again")
    assert behind_proxy.process.poll() is None


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("code", [409, 429, 500])
def test_a_storm_of_refusals_passes(
    namespace: Namespace, behind_proxy: ChangefeedOperator, proxy: ApiProxy, code: int
) -> None:
    behind_proxy.install()
    behind_proxy.start()
    behind_proxy.wait_until_ready()
    with proxy.refusing(code):
        create(namespace, "orders")
        wait_until(lambda: number(behind_proxy, "changefeed_operator_retries_total") >= 4, "it tries again")
        assert len(proxy.writes) < 100, "a storm must not be answered with one"
    wait_until(is_running(namespace, "orders"), "the changefeed runs")
    assert number(behind_proxy, "changefeed_operator_unexpected_errors_total") == 0
    assert behind_proxy.process.poll() is None


@pytest.mark.usefixtures("spark")
def test_an_api_server_that_is_gone_longer_than_the_lease_ends_the_leader_and_all_goes_on_after_it(
    namespace: Namespace, behind_proxy: ChangefeedOperator, proxy: ApiProxy
) -> None:
    behind_proxy.install()
    behind_proxy.start()
    create(namespace, "before")
    wait_until(is_running(namespace, "before"), "the changefeed runs")
    attempt = status(namespace, "before")["attempt"]
    with proxy.frozen():
        create(namespace, "meanwhile")
        code = wait_until(behind_proxy.process.poll, "the leader ends, because it may lead no more")
        assert code == 75
        behind_proxy.start()  # as the kubelet does
        wait_until(lambda: _answers(behind_proxy), "the new process answers")
        assert not leads(behind_proxy)
    wait_until(is_running(namespace, "meanwhile"), "what was asked meanwhile is done")
    assert status(namespace, "before")["attempt"] == attempt
    assert behind_proxy.process.poll() is None


@pytest.mark.usefixtures("spark")
def test_an_api_server_that_is_gone_for_a_moment_costs_nothing(
    namespace: Namespace, behind_proxy: ChangefeedOperator, proxy: ApiProxy
) -> None:
    behind_proxy.install()
    behind_proxy.start()
    behind_proxy.wait_until_ready()
    with proxy.frozen():
        create(namespace, "orders")
        deadline = time.monotonic() + 4.0
        wait_until(lambda: time.monotonic() > deadline, "a moment passes")
    wait_until(is_running(namespace, "orders"), "the changefeed runs")
    assert behind_proxy.process.poll() is None


def _answers(operator: ChangefeedOperator) -> bool:
    try:
        return bool(operator.metrics())
    except OSError:
        return False


@pytest.mark.usefixtures("spark")
def test_operators_with_selectors_work_side_by_side(namespace: Namespace, operator: ChangefeedOperator) -> None:
    second = another(operator, "second")
    second.release = "second"
    operator.install("selector=release=old")
    second.install("selector=release=new")
    operator.start()
    try:
        second.start()
        create(namespace, "old", release="old")
        create(namespace, "new", release="new")
        create(namespace, "nobodys")
        wait_until(is_running(namespace, "old"), "the first works")
        wait_until(is_running(namespace, "new"), "the second works")
        for log, name, others in ((operator.log, "old", "new"), (second.log, "new", "old")):
            assert f'"changefeed": "{namespace.name}/{name}"' in log
            assert f'"changefeed": "{namespace.name}/{others}"' not in log
        assert status(namespace, "nobodys") == {"observedGeneration": -1}
    finally:
        second.end()
