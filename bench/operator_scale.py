"""`python bench/operator_scale.py`: the operator with many changefeeds on a real API server.

Prints, and writes to bench/out/operator_scale.json: seconds until all run, the operator's memory and CPU, how long its
passes take, and what it reads and writes once all run. The control plane is the cluster tests' own; Spark's part is
played, because a thousand spark-submits would not fit. All share one machine's cores: times are upper bounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from measured import ROOT, write_report
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
import cluster_changefeed_operator
import cluster_spark_operator
from cluster_api import Api, Namespace
from cluster_control_plane import ControlPlane
from cluster_played_spark import PlayedSpark
from cluster_processes import Processes, free_ports, wait_until

USER = "bench-operator"
SETTLE_S = 1800.0
#: Seconds between two looks of the played Spark operator: a list of a thousand applications is no small thing.
POLL_S = 2.0
SPEC: dict[str, Any] = {
    "upstream": {"pdAddresses": ["http://pd:2379"]},
    "state": {"uri": "s3://cdc-state"},
    "sink": {"storage": {"uri": "s3://lake/orders", "protocol": "csv"}},
    # One executor, which is played: a driver that lacks some is looked at all the time.
    "spark": {"executor": {"instances": 1, "cores": 3}},
}


@dataclass(frozen=True)
class Operator:
    """The process under measurement."""

    process: psutil.Process
    port: int

    def numbers(self) -> dict[str, float]:
        """Every metric, those with labels as `name{label values}`."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30.0) as answer:
            text = answer.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {"/".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}

    def running(self) -> int:
        """Changefeeds in state Normal, as the operator's watch has them."""
        return sum(name.startswith(_STATE) and name.endswith("Normal") for name in self.numbers())

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss(self) -> int:
        return int(self.process.memory_info().rss)


_STATE = "changefeed_operator_changefeed_state_info"
_PASSES = "changefeed_operator_reconcile_seconds"


@contextmanager
def started(cluster: ControlPlane, namespace: Namespace) -> Iterator[Operator]:
    """Start it with the rights of an administrator: rights are not what is measured."""
    config = cluster.folder / "operator.kubeconfig"
    cluster.authority.kubeconfig(config, cluster.server, USER, USER, ["system:masters"])
    processes, port = Processes(cluster.folder), free_ports(1)[0]
    options = ("--namespaces", namespace.name, "--lease-namespace", namespace.name, "--metrics-port", str(port))
    command = [sys.executable, "-m", "changefeed_operator", "--image", "changefeed-spark:bench", *options]
    process = processes.start("operator", command, {"KUBECONFIG": str(config)})
    try:
        operator = Operator(psutil.Process(process.pid), port)
        processes.wait_until(lambda: _answers(operator), "the operator answers")
        yield operator
    finally:
        processes.stop_all()


def _answers(operator: Operator) -> bool:
    try:
        return bool(operator.numbers())
    except OSError:
        return False


def create(api: Api, namespace: Namespace, count: int) -> None:
    """All at once, as a GitOps tool would."""

    def one(number: int) -> None:
        metadata = {"name": f"feed-{number:04}"}
        body = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": metadata, "spec": SPEC}
        api.create(namespace.changefeeds(), body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(count)))


def quantile(q: float, before: dict[str, float], after: dict[str, float]) -> float:
    """Return the quantile of the passes between two looks, in seconds: the upper bound of its bucket."""
    prefix = f"{_PASSES}_bucket/"
    counts = sorted(
        (float(name.removeprefix(prefix)), after[name] - before.get(name, 0.0))
        for name in after
        if name.startswith(prefix)
    )
    wanted = q * counts[-1][1]
    return next(bound for bound, count in counts if count >= wanted)


def measure(count: int, steady_s: float, report_s: float, folder: Path) -> dict[str, Any]:
    with ControlPlane(folder) as cluster:
        cluster_changefeed_operator.install_crd(cluster)
        cluster_spark_operator.install_crds(cluster)
        namespace = cluster.create_namespace("bench")
        with (
            PlayedSpark(cluster.api, [namespace.name], report_s, POLL_S) as spark,
            started(cluster, namespace) as operator,
        ):
            empty, cpu_s, rss = operator.numbers(), operator.cpu_s(), operator.rss()
            began = time.monotonic()
            create(cluster.api, namespace, count)
            created_s = time.monotonic() - began
            wait_until(lambda: operator.running() == count, "all run", SETTLE_S)
            settled_s = time.monotonic() - began
            # The pass that finds nothing left to do, of the last one.
            wait_until(lambda: _is_quiet(operator), "the queue is empty")
            settled = operator.numbers()
            report = {
                "name": f"operator-scale-{count}",
                "changefeeds": count,
                "created_s": round(created_s, 1),
                "settled_s": round(settled_s, 1),
                "settle_cpu_s": round(operator.cpu_s() - cpu_s, 1),
                "settle_writes": len(_writes(cluster)),
                "rss_bytes_empty": rss,
                "rss_bytes_settled": operator.rss(),
                "settle_pass_p50_s": quantile(0.5, empty, settled),
                "settle_pass_p99_s": quantile(0.99, empty, settled),
            }
            steady = _steady(cluster, operator, spark, settled, steady_s)
            return {**report, **steady, "verified": steady["steady_writes"] == 0 and not spark.errors}


def _is_quiet(operator: Operator) -> bool:
    numbers = operator.numbers()
    return not numbers["changefeed_operator_queue_keys_count"] + numbers["changefeed_operator_running_passes_count"]


def _steady(
    cluster: ControlPlane, operator: Operator, spark: PlayedSpark, before: dict[str, float], seconds: float
) -> dict[str, Any]:
    """Return what the operator does while nothing happens but the drivers' reports."""
    writes, reports, cpu_s = len(_writes(cluster)), spark.reports, operator.cpu_s()
    time.sleep(seconds)
    after = operator.numbers()
    passes = after[f"{_PASSES}_count"] - before[f"{_PASSES}_count"]
    reads = after["changefeed_operator_requests_total/GET"] - before["changefeed_operator_requests_total/GET"]
    return {
        "steady_s": seconds,
        "steady_driver_reports": spark.reports - reports,
        "steady_writes": len(_writes(cluster)) - writes,
        "steady_passes_per_s": round(passes / seconds, 2),
        "steady_reads_per_s": round(reads / seconds, 1),
        "steady_pass_p99_s": quantile(0.99, before, after) if passes else None,
        "steady_cpu_cores": round((operator.cpu_s() - cpu_s) / seconds, 3),
        "rss_bytes_steady": operator.rss(),
    }


def _writes(cluster: ControlPlane) -> list[dict[str, Any]]:
    return [event for event in cluster.writes(USER) if event["objectRef"]["resource"] != "leases"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--changefeeds", type=int, default=1000)
    arguments.add_argument("--steady", type=float, default=360.0, help="seconds; more than the 300 of the resync")
    arguments.add_argument("--report-every", type=float, default=10.0, help="seconds between a driver's reports")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "operator_scale.json")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="changefeed-operator-scale-") as folder:
        run = measure(given.changefeeds, given.steady, given.report_every, Path(folder))
    sys.stdout.write(json.dumps(run, indent=2) + "\n")
    write_report(given.out, [run])


if __name__ == "__main__":
    main()
