"""`make bench`: sysbench rows from a development cluster in its own process, through `changefeed run`, to csv files.

It has no way into the product but the commands that a user has, and what they leave on disk. Prints the figures and
writes bench/out/bench.json (INTERFACES.md, bench.json).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NAME = "sysbench-insert-csv"


@dataclass
class Meter:
    """CPU seconds and memory of a process and all its descendants, sampled."""

    process: psutil.Process
    cpu: dict[int, tuple[str, float]] = field(default_factory=dict)
    peak_rss: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.done.wait(0.1):
            rss = 0
            for process in [self.process, *self.process.children(recursive=True)]:
                try:
                    times, memory = process.cpu_times(), process.memory_info()
                    kind = self.kind(process)
                except psutil.Error:
                    continue
                self.cpu[process.pid] = (kind, times.user + times.system)
                rss += memory.rss
            self.peak_rss = max(self.peak_rss, rss)

    def kind(self, process: psutil.Process) -> str:
        """Which part of the product a process is."""
        if process.pid == self.process.pid:
            return "owner"
        return "jvm" if "java" in process.name() else "tasks"

    def by_kind(self) -> dict[str, float]:
        total: dict[str, float] = defaultdict(float)
        for kind, seconds in self.cpu.values():
            total[kind] += seconds
        return dict(total)


def resource(pd: str, start_ts: str, target_ts: str, folder: Path) -> dict[str, Any]:
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
            "sink": {
                "storage": {
                    "uri": (folder / "lake").as_uri(),
                    "protocol": "csv",
                    "csv": {"includeCommitTs": True},
                }
            },
        },
    }


def bench(rows: int, tables: int, regions: int, folder: Path) -> dict[str, Any]:
    """One run; the measured interval begins with the run's first segment and ends with the last commit record."""
    cluster = subprocess.Popen(
        [
            BIN / "changefeed-devcluster",
            "start",
            *("--workload", "sysbench", "--tables", str(tables), "--regions", str(regions)),
            *("--rows", str(rows), "--rate", "0"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert cluster.stdout is not None
        ready = json.loads(cluster.stdout.readline())
        loaded = json.loads(cluster.stdout.readline())
        spec = folder / "bench.json"
        spec.write_text(json.dumps(resource(ready["pd"], ready["startTs"], loaded["ts"], folder)))
        run = subprocess.Popen([BIN / "changefeed", "run", "-f", spec, "--master", "local[4,8]", "--json"])
        meter = Meter(psutil.Process(run.pid))
        sampler = threading.Thread(target=meter.run)
        sampler.start()
        began = time.monotonic()
        code = run.wait()
        total_s = time.monotonic() - began
        meter.done.set()
        sampler.join()
        if code != 0:
            raise SystemExit(f"changefeed run ended with {code}")
        verified = subprocess.run(
            [BIN / "changefeed", "verify", "-f", spec, "--json"], check=False, capture_output=True, text=True
        )
    finally:
        cluster.terminate()
        cluster.wait()
    return figures(folder, total_s, meter, json.loads(verified.stdout))


def figures(folder: Path, total_s: float, meter: Meter, verified: dict[str, Any]) -> dict[str, Any]:
    rows = int(verified["rows"])
    files = list((folder / "lake").rglob("CDC*.csv"))
    log = sorted((folder / "state").rglob("log/*.json"))
    runs = list((folder / "state").rglob("events/*"))
    began = min(path.stat().st_ctime for path in log if json.loads(path.read_text())["kind"] == "epoch")
    first = min((p.stat().st_mtime for r in runs for p in r.rglob("*.arrow")), default=began)
    wall_s = log[-1].stat().st_mtime - min(first, log[-1].stat().st_mtime)
    written = sum(path.stat().st_size for path in files)
    cpu = meter.by_kind()
    millions = rows / 1e6
    return {
        "name": NAME,
        "rows": rows,
        "bytes_out": written,
        "wall_s": round(wall_s, 3),
        "total_s": round(total_s, 3),
        "rows_per_s": round(rows / wall_s),
        "mb_per_s": round(written / wall_s / 1e6, 1),
        "cpu_s_per_mrow": round(sum(cpu.values()) / millions, 2),
        "stages": {kind: round(seconds / millions, 2) for kind, seconds in sorted(cpu.items())},
        "files": len(files),
        "peak_rss_bytes": meter.peak_rss,
        "verified": verified["ok"],
    }


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
    arguments.add_argument("--rows", type=int, default=500_000, help="rows a table")
    arguments.add_argument("--tables", type=int, default=2)
    arguments.add_argument("--regions", type=int, default=4)
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "bench.json")
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="changefeed-bench-"))
    try:
        run = bench(given.rows, given.tables, given.regions, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"schema": 1, "commit": commit, "machine": machine(), "runs": [run]}
    given.out.write_text(json.dumps(report, indent=2) + "\n")
    sys.stdout.write(json.dumps(run, indent=2) + f"\nwritten to {given.out}\n")


if __name__ == "__main__":
    main()
