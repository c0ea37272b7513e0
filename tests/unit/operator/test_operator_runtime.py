"""The whole process but its pod: it leads, watches, works, and ends in good order or at once."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web
from changefeed.kube.connection import Connection
from changefeed.kube.kind import LEASE
from changefeed_operator import api, health
from changefeed_operator.__main__ import main, start_logging
from changefeed_operator.actions import Apply, Decision
from changefeed_operator.loop import leader, runtime, watch
from changefeed_operator.loop.runtime import Operator, OperatorOptions
from changefeed_operator.observe import Observed
from changefeed_operator.settings import Network, Settings
from changefeed_operator.spark_operator.choice import APACHE, KUBEFLOW
from changefeed_operator.spark_operator.contract import SparkApi
from operator_api_server import refusal
from operator_tiny_cluster import TinyCluster

#: How many kinds are watched: the Changefeeds and everything that belongs to them.
WATCHED = 1 + len(Settings("image").child_kinds)
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/changefeed-operator"


def feed(name: str = "orders", generation: int = 1) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name, "generation": generation, "uid": f"uid-of-{name}"}
    return {"apiVersion": api.API_VERSION, "kind": "Changefeed", "metadata": metadata, "spec": {}}


def wanted(observed: Observed) -> dict[str, Any]:
    """What the stand-in for `decide` keeps: one ConfigMap that holds the generation."""
    assert observed.changefeed is not None
    metadata = {"namespace": observed.namespace, "name": observed.name, "labels": api.labels(observed.name)}
    generation = observed.changefeed["metadata"]["generation"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"generation": str(generation)}}


def stand_in(observed: Observed, settings: Settings) -> Decision:
    if observed.changefeed is None:
        return Decision()
    found = observed.child(api.CONFIG_MAP, observed.name)
    if found is not None and found["data"] == wanted(observed)["data"]:
        return Decision()
    return Decision((Apply(wanted(observed)),))


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TinyCluster]:
    monkeypatch.setattr(runtime, "decide", stand_in)
    monkeypatch.setattr(runtime, "WAIT_SECONDS", 0.02)
    monkeypatch.setattr(leader, "RETRY_PERIOD", 0.05)
    started = TinyCluster()
    await started.start()
    yield started
    await started.stop()


class Process:
    """An operator that runs beside the test."""

    def __init__(self, cluster: TinyCluster, **options: Any) -> None:
        self.exits: list[int] = []
        chosen = OperatorOptions(Settings("image"), "ops", metrics_port=0, **options)
        self.operator = Operator(Connection(cluster.url), chosen, self.exits.append)
        self.task = asyncio.create_task(self.operator.run())

    async def until(self, condition: Callable[[], Any]) -> None:
        """Raises what the process raised when it ends before."""
        async with asyncio.timeout(20.0):
            while not condition():
                if self.task.done():
                    raise AssertionError(f"the operator ended with {self.task.result()}")
                await asyncio.sleep(0.005)

    @property
    def metrics(self) -> str:
        return self.operator.metrics.text().decode()

    async def end(self) -> int:
        self.operator.stop()
        async with asyncio.timeout(20.0):
            return await self.task


def generation(cluster: TinyCluster, name: str = "orders") -> str:
    found = cluster.find(api.CONFIG_MAP, "shop", name)
    return str(found["data"]["generation"]) if found else ""


async def test_what_is_there_and_what_comes_and_changes_is_worked_on(cluster: TinyCluster) -> None:
    cluster.put(api.CHANGEFEED, feed())
    process = Process(cluster)
    await process.until(lambda: generation(cluster) == "1")
    await process.until(lambda: len(cluster.watches) == WATCHED and all(cluster.watches.values()))
    cluster.put(api.CHANGEFEED, feed("late"))
    await process.until(lambda: generation(cluster, "late") == "1")
    cluster.put(api.CHANGEFEED, feed(generation=2))
    await process.until(lambda: generation(cluster) == "2")
    assert await process.end() == 0


async def test_only_the_named_namespaces_are_asked_about(cluster: TinyCluster) -> None:
    cluster.put(api.CHANGEFEED, feed())
    process = Process(cluster, namespaces=("shop", "bank"))
    await process.until(lambda: generation(cluster) == "1")
    await process.until(lambda: len(cluster.watches) == 2 * WATCHED)
    assert all("/namespaces/" in path for path in cluster.watches)
    assert await process.end() == 0


async def test_a_namespace_that_is_forbidden_stops_only_itself(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start, and while the operator runs; it is served again when it is back."""
    monkeypatch.setattr(runtime, "LOOK_SECONDS", 0.02)
    impatient = watch.Endless((0.02,))
    monkeypatch.setattr(watch, "Endless", lambda: impatient)
    cluster.put(api.CHANGEFEED, feed())
    cluster.forbidden.add("bank")
    process = Process(cluster, namespaces=("bank", "shop"))
    await process.until(lambda: generation(cluster) == "1")
    await process.until(lambda: "leader_info 1.0" in process.metrics)
    assert 'changefeed_operator_refused_namespace_info{watched="bank"} 1.0' in process.metrics

    cluster.forbidden.clear()
    await process.until(lambda: "refused_namespace_info{" not in process.metrics)
    await process.until(lambda: sum(map(len, cluster.watches.values())) == 2 * WATCHED)
    cluster.forbidden.add("bank")
    cluster.end_watches()
    await process.until(lambda: "refused_namespace_info{" in process.metrics)
    refused_at = time.monotonic()
    cluster.end_watches()  # those of the other namespace come back, and only they are heard from
    await process.until(
        lambda: all(age < time.monotonic() - refused_at for age in process.operator.vitals().watch_ages.values())
    )
    assert health.unready(process.operator.vitals()) == []
    cluster.put(api.CHANGEFEED, feed(generation=2))
    await process.until(lambda: generation(cluster) == "2")
    assert await process.end() == 0


async def test_a_leader_that_can_serve_nothing_does_not_say_that_it_leads(cluster: TinyCluster) -> None:
    cluster.forbidden.add("bank")
    process = Process(cluster, namespaces=("bank",))
    await process.until(lambda: process.operator.vitals().waits_for)
    assert process.operator.leads
    assert "leader_info 0.0" in process.metrics
    assert "cannot list" in health.unready(process.operator.vitals())[0]
    assert await process.end() == 0


async def test_watches_that_are_cut_come_back_and_lose_nothing(cluster: TinyCluster) -> None:
    process = Process(cluster)
    await process.until(lambda: sum(map(len, cluster.watches.values())) == WATCHED)
    assert cluster.end_watches() == WATCHED
    cluster.put(api.CHANGEFEED, feed())
    await process.until(lambda: generation(cluster) == "1")
    assert await process.end() == 0


async def test_a_child_deleted_while_a_watch_had_lost_its_place_is_missed(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list tells of what there is alone."""
    monkeypatch.setattr(watch, "ANEW_SECONDS", 0.0)
    cluster.put(api.CHANGEFEED, feed())
    process = Process(cluster)
    await process.until(lambda: generation(cluster) == "1")
    await process.until(lambda: process.operator.seen.children(("shop", "orders")))
    quiet = len(cluster.asked)

    cluster.deaf = True
    cluster.remove(api.CONFIG_MAP, "shop", "orders")
    cluster.deaf = False
    cluster.expire_watches()
    await process.until(lambda: generation(cluster) == "1")
    assert len(cluster.asked) > quiet
    assert await process.end() == 0


async def test_a_changefeed_deleted_while_a_watch_had_lost_its_place_is_forgotten(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ANEW_SECONDS", 0.0)
    cluster.put(api.CHANGEFEED, feed())
    cluster.put(api.CHANGEFEED, feed("items"))
    process = Process(cluster)
    await process.until(lambda: generation(cluster) == "1" and generation(cluster, "items") == "1")
    cluster.deaf = True
    cluster.remove(api.CHANGEFEED, "shop", "items")
    cluster.deaf = False
    cluster.expire_watches()
    await process.until(lambda: set(process.operator.seen.live()) == {("shop", "orders")})
    assert await process.end() == 0


async def test_passes_over_what_does_not_change_read_nothing(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(api.CHANGEFEED, feed())
    process = Process(cluster)
    await process.until(lambda: generation(cluster) == "1")
    await process.until(lambda: process.operator.seen.children(("shop", "orders")))
    await process.until(lambda: _count(process, _QUEUED) + _count(process, _RUNNING) == 0)
    child = cluster.find(api.CONFIG_MAP, "shop", "orders")
    assert child is not None
    read, passes = (_count(process, name) for name in (_READS, _PASSES))
    for number in range(1, 4):
        cluster.put(api.CONFIG_MAP, child)  # watches tell of it
        await process.until(lambda number=number: _count(process, _PASSES) >= passes + number)
    assert _count(process, _READS) == read
    assert await process.end() == 0


_READS = 'changefeed_operator_requests_total{type="GET"} '
_QUEUED, _RUNNING = "changefeed_operator_queue_keys_count ", "changefeed_operator_running_passes_count "
_PASSES = 'changefeed_operator_reconciles_total{state="done"} '


def _count(process: Process, name: str) -> float:
    return float(process.metrics.partition(f"\n{name}")[2].split()[0])


async def test_a_storm_of_errors_on_a_watch_does_not_end_it(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = watch.Endless((0.0,))
    monkeypatch.setattr(watch, "Endless", lambda: impatient)
    path = "/apis/changefeed.dev/v1alpha1/changefeeds"
    process = Process(cluster)
    # The first answer is for the look whether it is served at all.
    cluster.put(api.CHANGEFEED, feed())
    storm = [refusal(status) for status in (500, 503, 429, 403, 500, 500, 500, 500, 500, 500, 500, 500)]
    cluster.fail("GET", path, web.json_response({"items": []}), *storm)
    await process.until(lambda: generation(cluster) == "1")
    assert not cluster.faults[f"GET {path}"]
    assert await process.end() == 0


async def test_a_selector_is_for_changefeeds_and_of_the_rest_only_children_are_watched(cluster: TinyCluster) -> None:
    process = Process(cluster, selector="tier=gold")
    await process.until(lambda: len(cluster.watches) == WATCHED)
    by_plural = {path.rpartition("/")[2]: selector for path, selector in cluster.selectors.items()}
    assert by_plural.pop("changefeeds") == "tier=gold"
    assert set(by_plural.values()) == {"changefeed.dev/name"}
    assert await process.end() == 0


async def test_it_ends_at_once_while_it_waits_for_a_crd(cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WAIT_SECONDS", 3600.0)
    cluster.without = {KUBEFLOW.kind.group, APACHE.kind.group}
    process = Process(cluster)
    await process.until(lambda: process.operator.vitals().waits_for)
    assert await process.end() == 0


async def test_work_that_ends_at_the_moment_of_the_stop_ends_well(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(operator: Operator) -> None:
        await operator.stopping.wait()

    monkeypatch.setattr(Operator, "work", work)
    process = Process(cluster)
    await process.until(lambda: process.operator.leads)
    assert await process.end() == 0


def _groups(cluster: TinyCluster) -> set[str]:
    """Return the API groups whose SparkApplications are watched."""
    return {path.split("/")[2] for path, open_ in cluster.watches.items() if open_ and "sparkapplications" in path}


@pytest.mark.parametrize(
    ("chosen", "lacking", "comes"),
    [
        ("Auto", ("sparkoperator.k8s.io", "spark.apache.org"), "spark.apache.org"),
        ("Auto", ("sparkoperator.k8s.io", "spark.apache.org"), "sparkoperator.k8s.io"),
        ("Apache", ("spark.apache.org",), "spark.apache.org"),
        ("Kubeflow", ("sparkoperator.k8s.io",), "sparkoperator.k8s.io"),
    ],
)
async def test_a_crd_that_comes_later_is_waited_for_and_each_changefeed_says_so(
    cluster: TinyCluster, chosen: str, lacking: tuple[str, ...], comes: str
) -> None:
    cluster.without = set(lacking)
    cluster.put(api.CHANGEFEED, feed())
    process = Process(cluster, spark_operator=chosen)
    await process.until(lambda: (cluster.find(api.CHANGEFEED, "shop", "orders") or {}).get("status"))
    told = (cluster.find(api.CHANGEFEED, "shop", "orders") or {})["status"]
    ready = next(each for each in told["conditions"] if each["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NoSparkOperator")
    assert all(f"sparkapplications.{group}" in ready["message"] for group in lacking)
    assert process.operator.vitals().waits_for == ready["message"] == told["message"]
    assert not generation(cluster)

    cluster.without.remove(comes)
    await process.until(lambda: generation(cluster) == "1")
    assert process.operator.vitals().waits_for == ""
    await process.until(lambda: _groups(cluster) == {comes})
    assert await process.end() == 0


async def test_the_lack_of_a_spark_operator_is_written_once_and_not_where_reconciliation_is_paused(
    cluster: TinyCluster,
) -> None:
    cluster.without = {KUBEFLOW.kind.group, APACHE.kind.group}
    cluster.put(api.CHANGEFEED, feed())
    paused = feed("paused")
    paused["metadata"]["annotations"] = {api.RECONCILE: "paused"}
    cluster.put(api.CHANGEFEED, paused)
    process = Process(cluster)
    path = f"/apis/{KUBEFLOW.kind.api_version}"
    await process.until(lambda: sum(asked.path == path for asked in cluster.asked) > 5)
    writes = [asked.path for asked in cluster.asked if asked.path.endswith("/status")]
    assert writes == ["/apis/changefeed.dev/v1alpha1/namespaces/shop/changefeeds/orders/status"]
    assert await process.end() == 0


@pytest.mark.parametrize(("chosen", "spark"), [("Auto", KUBEFLOW), ("Kubeflow", KUBEFLOW), ("Apache", APACHE)])
async def test_a_cluster_with_both_spark_operators_is_served_by_kubeflows_unless_told_otherwise(
    cluster: TinyCluster, chosen: str, spark: SparkApi
) -> None:
    process = Process(cluster, spark_operator=chosen)
    await process.until(lambda: sum(map(len, cluster.watches.values())) == WATCHED)
    assert _groups(cluster) == {spark.kind.group}
    assert await process.end() == 0


async def test_sigterm_gives_the_lease_back(cluster: TinyCluster) -> None:
    process = Process(cluster)
    await process.until(lambda: len(cluster.watches) == WATCHED)
    os.kill(os.getpid(), signal.SIGTERM)  # after kopf has taken the signals: they are ours again
    async with asyncio.timeout(20.0):
        assert await process.task == 0
    assert cluster.objects[LEASE_PATH]["spec"]["holderIdentity"] == ""


async def test_a_standby_does_nothing_until_the_leader_is_gone(cluster: TinyCluster) -> None:
    cluster.put(api.CHANGEFEED, feed())
    first = Process(cluster)
    await first.until(lambda: generation(cluster) == "1")
    second = Process(cluster)
    holder = cluster.objects[LEASE_PATH]["spec"]["holderIdentity"]
    asked = time.monotonic()
    await second.until(lambda: second.operator.vitals().lease_age < time.monotonic() - asked)
    assert not second.operator.leads
    assert cluster.objects[LEASE_PATH]["spec"]["holderIdentity"] == holder
    watches = sum(map(len, cluster.watches.values()))
    assert watches == WATCHED
    assert await first.end() == 0
    cluster.put(api.CHANGEFEED, feed(generation=2))
    await second.until(lambda: generation(cluster) == "2")
    assert await second.end() == 0


async def test_a_standby_ends_when_told_to(cluster: TinyCluster) -> None:
    holder = {"holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": "t"}
    metadata = {"namespace": "ops", "name": "changefeed-operator"}
    cluster.put(LEASE, {"apiVersion": LEASE.api_version, "kind": "Lease", "metadata": metadata, "spec": holder})
    process = Process(cluster)
    await process.until(lambda: any(asked.path == LEASE_PATH for asked in cluster.asked))
    assert await process.end() == 0
    assert cluster.objects[LEASE_PATH]["spec"] == holder


async def test_a_lost_lease_ends_the_process_at_once(cluster: TinyCluster) -> None:
    process = Process(cluster)
    await process.until(lambda: len(cluster.watches) == WATCHED)
    lease = cluster.objects[LEASE_PATH]
    cluster.put(LEASE, {**lease, "spec": {**lease["spec"], "holderIdentity": "another"}})
    async with asyncio.timeout(20.0):
        assert await process.task == 1
    assert process.exits == [75]
    assert cluster.objects[LEASE_PATH]["spec"]["holderIdentity"] == "another"


def test_logs_are_one_json_object_a_line_without_what_variables_held(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(token: str) -> None:
        raise ZeroDivisionError(len(token))

    before = logging.root.handlers[:], logging.root.level
    try:
        start_logging("info")
        log = structlog.get_logger("changefeed_operator.test")
        with structlog.contextvars.bound_contextvars(changefeed="shop/orders"):
            try:
                fail("se" + "cret")
            except ZeroDivisionError:
                log.exception("unexpected error")
        logging.getLogger("kopf").warning("from a library")
        ours, theirs = map(json.loads, capsys.readouterr().err.splitlines())
    finally:
        logging.root.handlers, logging.root.level = before
        structlog.reset_defaults()
    assert (ours["changefeed"], ours["level"], ours["event"]) == ("shop/orders", "error", "unexpected error")
    assert ours["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert "secret" not in json.dumps(ours)
    assert (theirs["event"], theirs["logger"]) == ("from a library", "kopf")


def test_bad_options_are_said_plainly(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changefeed_operator.__main__.start_logging", lambda level: None)
    monkeypatch.setenv("CHANGEFEED_IMAGE", "changefeed-spark:1")
    assert main(["--kubeconfig", "/nowhere"]) == 1
    assert "The kubeconfig /nowhere can't be read" in capsys.readouterr().err


def test_options_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[tuple[Connection, OperatorOptions]] = []

    class Given:
        def __init__(self, connection: Connection, options: OperatorOptions) -> None:
            given.append((connection, options))

        async def run(self) -> int:
            return 0

    monkeypatch.setattr("changefeed_operator.__main__.Operator", Given)
    monkeypatch.setattr("changefeed_operator.__main__.start_logging", lambda level: None)
    kubeconfig = tmp_path / "config"
    clusters = [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]
    contexts = [{"name": "here", "context": {"cluster": "c"}}]
    kubeconfig.write_text(json.dumps({"current-context": "here", "contexts": contexts, "clusters": clusters}))
    for name, value in (
        ("CHANGEFEED_IMAGE", "changefeed-spark:1"),
        ("CHANGEFEED_STATE_URI", "s3://state"),
        ("CHANGEFEED_LEASE", "release-changefeed-operator"),
        ("POD_NAMESPACE", "ops"),
        ("KUBECONFIG", str(kubeconfig)),
    ):
        monkeypatch.setenv(name, value)
    assert (
        main(
            [
                "--namespaces",
                "shop, bank",
                "--network-policy",
                '{"metrics_from": []}',
                "--no-disruption-budget",
                "--metrics-port",
                "8081",
            ]
        )
        == 0
    )
    connection, options = given[0]
    assert connection.server == "http://127.0.0.1:1"
    assert options == OperatorOptions(
        Settings(
            "changefeed-spark:1",
            "s3://state",
            network=Network(),
            disruption_budget=False,
            driver_role_kind="Role",
        ),
        lease_namespace="ops",
        namespaces=("shop", "bank"),
        lease="release-changefeed-operator",
        metrics_port=8081,
    )
    assert main([]) == 0
    assert given[1][1].namespaces == ()
