"""The operator's process against a real API server: it leads alone, hands over, and outlives what an API server does.

Spark's part is played (cluster_played_spark.py).
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator

import pytest
from changefeed_operator.settings import Settings
from cluster_api import CORE, Namespace
from cluster_api_proxy import ApiProxy
from cluster_changefeed_operator import ChangefeedOperator, ForkedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_played_spark import PlayedSpark
from cluster_processes import wait_until

#: What an hour brings: looks of the operator at each changefeed though nothing happened, and reports of its driver.
_RETRIES = "changefeed_operator_retries_total"
LOOKS_AN_HOUR = 12
REPORTS_AN_HOUR = 360
GONE_S = 30.0
#: How many kinds are watched: the Changefeeds and everything that belongs to them.
WATCHED = 1 + len(Settings("image").child_kinds)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def spark(namespace: Namespace, spark_crds: None) -> Iterator[PlayedSpark]:
    with PlayedSpark(namespace.api, [namespace.name], report_s=1.0) as played:
        yield played
    assert played.errors == []
    assert played.broken == []


@pytest.fixture
def behind_proxy(operator: ChangefeedOperator, proxy: ApiProxy) -> ChangefeedOperator:
    operator.server = proxy.server
    return operator


@pytest.mark.usefixtures("spark_crds")
def test_a_namespace_that_forbids_the_operator_stops_only_itself(
    cluster: ControlPlane, namespace: Namespace, forked: ForkedOperator, feeds: Feeds
) -> None:
    other = cluster.create_namespace(f"{namespace.name[:40]}-other")
    forked.install(f"watchNamespaces={{{other.name},{namespace.name}}}")
    binding = other.of("rbac.authorization.k8s.io/v1", "rolebindings", f"{forked.release}-changefeed-operator")
    kept = other.api.get(binding)
    other.api.delete(binding)
    forked.start()
    with PlayedSpark(namespace.api, [namespace.name, other.name]):
        theirs = Feeds(other, feeds.history)
        feeds.create("orders")
        theirs.create("orders")
        feeds.wait_until("orders", "Normal")
        wait_until(lambda: forked.leads, "the operator says that it works")
        assert f'refused_namespace_info{{watched="{other.name}"}} 1.0' in forked.metrics()

        kept["metadata"] = {name: kept["metadata"][name] for name in ("name", "namespace")}
        other.api.create(binding.rpartition("/")[0], kept)
        theirs.wait_until("orders", "Normal")
        wait_until(lambda: "refused_namespace_info{" not in forked.metrics(), "it is served again")
    other.api.delete(f"{CORE}/namespaces/{other.name}")


def another(operator: ChangefeedOperator, folder: str) -> ChangefeedOperator:
    made = ChangefeedOperator(operator.cluster, operator.namespace, operator.folder / folder)
    made.folder.mkdir()
    return made


def pass_time(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > deadline, f"{seconds:g} s pass", seconds + 60.0)


@pytest.mark.usefixtures("spark_crds")
def test_a_steady_hour_has_no_write(
    cluster: ControlPlane, namespace: Namespace, forked: ForkedOperator, feeds: Feeds
) -> None:
    """The hour is shortened: the operator looks again after a second, and the driver reports all the time."""
    forked.resync_s = 1.0
    forked.install()
    forked.start()
    with PlayedSpark(namespace.api, [namespace.name], report_s=0.03, poll_s=0.03) as spark:
        feeds.create("orders")
        feeds.wait_until("orders", "Normal")
        settled = _looks(forked) + 2
        wait_until(lambda: _looks(forked) > settled, "the last write is done")
        writes, looks, reports = _writes(cluster, forked), _looks(forked), spark.reports
        retries = forked.number(_RETRIES)  # while it came up it may have met the driver's reports
        wait_until(lambda: _looks(forked) >= looks + LOOKS_AN_HOUR, "the operator looks again and again")
        wait_until(lambda: spark.reports >= reports + REPORTS_AN_HOUR, "the driver reports")
        assert _writes(cluster, forked) == writes
    assert spark.errors == []
    assert forked.number("changefeed_operator_unexpected_errors_total") == 0
    assert forked.number(_RETRIES) == retries


def _looks(operator: ChangefeedOperator) -> float:
    return operator.number("changefeed_operator_reconciles_total")


def _writes(cluster: ControlPlane, operator: ChangefeedOperator) -> list[str]:
    writes = cluster.writes(operator.user)
    return [f"{event['verb']} {event['requestURI']}" for event in writes if event["objectRef"]["resource"] != "leases"]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_of_two_operators_one_leads_and_the_other_takes_over(
    operator: ChangefeedOperator, feeds: Feeds, end: signal.Signals
) -> None:
    operator.install()
    operator.start()
    wait_until(lambda: operator.leads, "the first leads")
    second = another(operator, "second")
    try:
        second.start()
        second.wait_until_ready()  # a standby is ready
        assert not second.leads
        feeds.create("orders")
        feeds.wait_until("orders", "Normal")
        assert not second.leads
        ended = time.monotonic()
        operator.kill() if end is signal.SIGKILL else operator.stop()
        wait_until(lambda: second.leads, "the second leads")
        led = time.monotonic() - ended
        feeds.create("late")
        feeds.wait_until("late", "Normal")
        worked = time.monotonic() - ended
        sys.stdout.write(
            f"\n{end.name}: the second operator leads after {led:.1f} s, has worked after {worked:.1f} s\n"
        )
    finally:
        second.end()


@pytest.mark.usefixtures("spark")
def test_watches_that_are_cut_lose_nothing(behind_proxy: ChangefeedOperator, feeds: Feeds, proxy: ApiProxy) -> None:
    behind_proxy.install()
    behind_proxy.start()
    wait_until(lambda: proxy.open_watches == WATCHED, "all is watched")
    assert proxy.drop_watches() == WATCHED
    feeds.create("orders")
    feeds.wait_until("orders", "Normal")
    wait_until(lambda: proxy.open_watches == WATCHED, "all is watched again")
    assert behind_proxy.process.poll() is None


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("code", [409, 429, 500])
def test_a_storm_of_refusals_passes(behind_proxy: ChangefeedOperator, feeds: Feeds, proxy: ApiProxy, code: int) -> None:
    behind_proxy.install()
    behind_proxy.start()
    behind_proxy.wait_until_ready()
    with proxy.refusing(code):
        feeds.create("orders")
        wait_until(lambda: behind_proxy.number("changefeed_operator_retries_total") >= 4, "it tries again")
        assert len(proxy.writes) < 100, "a storm must not be answered with one"
    feeds.wait_until("orders", "Normal")
    assert behind_proxy.number("changefeed_operator_unexpected_errors_total") == 0
    assert behind_proxy.process.poll() is None


@pytest.mark.usefixtures("spark")
def test_an_api_server_that_is_gone_longer_than_the_lease_ends_the_leader_and_all_goes_on_after_it(
    behind_proxy: ChangefeedOperator, feeds: Feeds, proxy: ApiProxy
) -> None:
    behind_proxy.install()
    behind_proxy.start()
    feeds.create("before")
    feeds.wait_until("before", "Normal")
    attempt = feeds.status("before")["attempt"]
    with proxy.frozen():
        gone = time.monotonic()
        feeds.create("meanwhile")
        code = wait_until(behind_proxy.process.poll, "the leader ends, because it may lead no more")
        assert code == 75
        behind_proxy.start()  # as the kubelet does
        wait_until(lambda: _answers(behind_proxy), "the new process answers")
        pass_time(GONE_S - (time.monotonic() - gone))
        assert not behind_proxy.leads
    feeds.wait_until("meanwhile", "Normal")
    assert feeds.status("before")["attempt"] == attempt
    assert behind_proxy.process.poll() is None


@pytest.mark.usefixtures("spark")
def test_an_api_server_that_is_gone_for_a_moment_costs_nothing(
    behind_proxy: ChangefeedOperator, feeds: Feeds, proxy: ApiProxy
) -> None:
    behind_proxy.install()
    behind_proxy.start()
    behind_proxy.wait_until_ready()
    with proxy.frozen():
        feeds.create("orders")
        pass_time(4.0)
    feeds.wait_until("orders", "Normal")
    assert behind_proxy.process.poll() is None


def _answers(operator: ChangefeedOperator) -> bool:
    try:
        return bool(operator.metrics())
    except OSError:
        return False


@pytest.mark.usefixtures("spark")
def test_operators_with_selectors_work_side_by_side(
    namespace: Namespace, operator: ChangefeedOperator, feeds: Feeds
) -> None:
    second = another(operator, "second")
    second.release = "second"
    operator.install("selector=release=old")
    second.install("selector=release=new")
    operator.start()
    try:
        second.start()
        feeds.create("old", {"release": "old"})
        feeds.create("new", {"release": "new"})
        feeds.create("nobodys")
        feeds.wait_until("old", "Normal")
        feeds.wait_until("new", "Normal")
        for log, name, others in ((operator.log, "old", "new"), (second.log, "new", "old")):
            assert f'"changefeed": "{namespace.name}/{name}"' in log
            assert f'"changefeed": "{namespace.name}/{others}"' not in log
        assert feeds.status("nobodys") == {"observedGeneration": -1}
    finally:
        second.end()
