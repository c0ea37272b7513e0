"""`make bench`: sysbench rows from a development cluster in its own process, through `changefeed run`, to files.

It has no way into the product but the commands that a user has, the metrics and what is left on disk. Prints the
figures with a table of stages, and writes bench/out/bench.json (INTERFACES.md, bench.json).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Case:
    """`shape`: how the upstream has the rows, in the past (a scan) or while it is watched (live)."""

    protocol: str
    shape: str

    @property
    def name(self) -> str:
        return f"sysbench-insert-{self.protocol}" + ("" if self.shape == "scan" else f"-{self.shape}")


CASES = (Case("csv", "scan"), Case("canal-json", "scan"), Case("csv", "live"))


@dataclass
class Meter:
    """CPU seconds and memory of a run's processes, sampled; its metrics; when its first segment appeared."""

    process: psutil.Process
    port: int
    state: Path
    cpu: dict[int, tuple[str, float]] = field(default_factory=dict)
    peak_rss: int = 0
    first_segment: float | None = None
    metrics: dict[tuple[str, str], float] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.done.wait(0.1):
            if self.first_segment is None and any(self.state.rglob("puller-*")):
                self.first_segment = time.time()
            self._sample_processes()
            self._sample_metrics()

    def _sample_processes(self) -> None:
        rss = 0
        for process in [self.process, *self.process.children(recursive=True)]:
            try:
                times, memory = process.cpu_times(), process.memory_info()
                kind = self._kind(process)
            except psutil.Error:
                continue
            self.cpu[process.pid] = (kind, times.user + times.system)
            rss += memory.rss
        self.peak_rss = max(self.peak_rss, rss)

    def _sample_metrics(self) -> None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=1) as answer:
                text = answer.read().decode()
        except (OSError, urllib.error.URLError):
            return  # not yet, or not any more
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.metrics[sample.name, sample.labels.get("type", "")] = sample.value

    def _kind(self, process: psutil.Process) -> str:
        """Which part of the product a process is."""
        if process.pid == self.process.pid:
            return "owner"
        return "jvm" if "java" in process.name() else "tasks"

    def stages(self) -> dict[str, float]:
        """CPU seconds: the pullers, the pipeline's stages, the owner, the JVM, and the rest of Spark's Python."""
        total: dict[str, float] = defaultdict(float)
        for kind, seconds in self.cpu.values():
            total[kind] += seconds
        found = {"puller": self.metrics.get(("changefeed_puller_cpu_seconds_total", ""), 0.0)}
        for (name, stage), seconds in self.metrics.items():
            if name == "changefeed_pipeline_cpu_seconds_total" and stage:
                found[stage] = seconds
        found["python start"] = max(0.0, total.pop("tasks", 0.0) - sum(found.values()))
        return {**found, **total}


def resource(case: Case, pd: str, start_ts: str, target_ts: str, folder: Path) -> dict[str, Any]:
    storage: dict[str, Any] = {"uri": (folder / "lake").as_uri(), "protocol": case.protocol}
    if case.protocol == "csv":
        storage["csv"] = {"includeCommitTs": True}
    else:
        storage["canalJson"] = {"enableTidbExtension": True}
    return {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "bench"},
        "spec": {
            "upstream": {"pdAddresses": [f"http://{pd}"]},
            "startTs": start_ts,
            "targetTs": target_ts,
            "filter": {"rules": ["sbtest.*"]},
            "state": {"uri": (folder / "state").as_uri()},
            "sink": {"storage": storage},
        },
    }


def bench(case: Case, rows: int, tables: int, regions: int, folder: Path, verify: bool) -> dict[str, Any]:
    """One run; the measured interval begins with the run's first segment and ends with its last commit record."""
    cluster = subprocess.Popen(
        [
            BIN / "changefeed-devcluster",
            "start",
            *("--workload", "sysbench", "--tables", str(tables), "--regions", str(regions)),
            *("--rows", str(rows), "--rate", "0", "--frozen", case.shape),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert cluster.stdout is not None
        ready = json.loads(cluster.stdout.readline())
        loaded = json.loads(cluster.stdout.readline())
        spec = folder / "bench.json"
        spec.write_text(json.dumps(resource(case, ready["pd"], ready["startTs"], loaded["ts"], folder)))
        port = _free_port()
        options = ("--master", "local[4,8]", "--metrics-port", str(port), "--json")
        served = psutil.Process(cluster.pid).cpu_times()
        began = time.monotonic()
        run = subprocess.Popen([BIN / "changefeed", "run", "-f", spec, *options], stdout=subprocess.DEVNULL)
        meter = Meter(psutil.Process(run.pid), port, folder / "state")
        sampler = threading.Thread(target=meter.run)
        sampler.start()
        code = run.wait()
        total_s = time.monotonic() - began
        meter.done.set()
        sampler.join()
        after = psutil.Process(cluster.pid).cpu_times()
        if code != 0:
            raise SystemExit(f"changefeed run ended with {code}")
        verified = _verify(spec) if verify else {}
    finally:
        cluster.terminate()
        cluster.wait()
    cluster_cpu_s = after.user + after.system - served.user - served.system
    return figures(case, folder, rows * tables, total_s, cluster_cpu_s, meter, verified)


def _verify(spec: Path) -> dict[str, Any]:
    command = [BIN / "changefeed", "verify", "-f", spec, "--json"]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=False, capture_output=True, text=True).stdout)
    return answer


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def figures(
    case: Case,
    folder: Path,
    rows: int,
    total_s: float,
    cluster_cpu_s: float,
    meter: Meter,
    verified: dict[str, Any],
) -> dict[str, Any]:
    files = [path for path in (folder / "lake").rglob("CDC*") if path.suffix != ".index"]
    last_commit = max(path.stat().st_mtime for path in (folder / "state").rglob("log/*.json"))
    assert meter.first_segment is not None, "the run ended before a sample was taken: give it more rows"
    wall_s = last_commit - meter.first_segment
    written = sum(path.stat().st_size for path in files)
    stages = meter.stages()
    millions = rows / 1e6
    return {
        "name": case.name,
        "rows": rows,
        "bytes_out": written,
        "wall_s": round(wall_s, 3),
        "total_s": round(total_s, 3),
        "rows_per_s": round(rows / wall_s),
        "mb_per_s": round(written / wall_s / 1e6, 1),
        "cpu_s_per_mrow": round(sum(stages.values()) / millions, 2),
        "stages": {stage: round(seconds / millions, 3) for stage, seconds in stages.items()},
        "cluster_cpu_s_per_mrow": round(cluster_cpu_s / millions, 2),
        "files": len(files),
        "peak_rss_bytes": meter.peak_rss,
        "verified": verified.get("ok"),
    }


def table(run: dict[str, Any]) -> str:
    """What one run came to, and where the CPU went."""
    lines = [
        f"{run['name']}: {run['rows']:,} rows in {run['wall_s']:.1f} s = {run['rows_per_s']:,} rows/s, "
        f"{run['mb_per_s']} MB/s, {run['files']} files, verified: {run['verified']}",
        f"  {'stage':<14}CPU-s per million rows",
        *(f"  {stage:<14}{seconds:6.2f}" for stage, seconds in run["stages"].items()),
        f"  {'sum':<14}{run['cpu_s_per_mrow']:6.2f}   (dev cluster: {run['cluster_cpu_s_per_mrow']:.2f})",
    ]
    return "\n".join(lines) + "\n"


def machine() -> dict[str, Any]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "mem_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "java": java,
        "spark": version("pyspark"),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=2_500_000, help="rows a table")
    arguments.add_argument("--tables", type=int, default=2)
    arguments.add_argument("--regions", type=int, default=4)
    arguments.add_argument("--case", action="append", choices=[case.name for case in CASES], help="default: all")
    arguments.add_argument("--no-verify", action="store_true")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "bench.json")
    given = arguments.parse_args()
    runs = []
    for case in (case for case in CASES if not given.case or case.name in given.case):
        folder = Path(tempfile.mkdtemp(prefix="changefeed-bench-"))
        try:
            runs.append(bench(case, given.rows, given.tables, given.regions, folder, not given.no_verify))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.write(table(runs[-1]))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"schema": 1, "commit": commit, "machine": machine(), "runs": runs}
    given.out.write_text(json.dumps(report, indent=2) + "\n")
    sys.stdout.write(f"written to {given.out}\n")
    if any(run["verified"] is False for run in runs):
        raise SystemExit("verify does not hold")


if __name__ == "__main__":
    main()
