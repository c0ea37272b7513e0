"""How far a changefeed of many tables and regions is behind a steady workload: its resolved-ts and its checkpoint.

Resolved-ts lag: what the run's `/metrics` says of the owner's. Checkpoint lag: the present less the checkpoint in
`metadata`, as a reader of the sink meets it. Both by the one clock of this machine. Prints a table and writes
bench/out/lag.json (INTERFACES.md, bench.json; `lag_ms` is the checkpoint's).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measured import ROOT, Cluster, Run, changefeed_run, cluster, write_report

_SAMPLE_S = 0.1
_CATCH_UP_S = 300.0
_COUNTED = {
    "rows": "changefeed_sink_rows_total",
    "files": "changefeed_sink_files_total",
    "segments": "changefeed_event_store_segments_total",
    "plans": "changefeed_owner_plans_total",
}


@dataclass
class Watch:
    """Lags in ms, sampled; what was counted and used in between."""

    run: Run
    upstream: Cluster
    resolved_ms: list[float] = field(default_factory=list)
    checkpoint_ms: list[float] = field(default_factory=list)

    def until_caught_up(self) -> None:
        """What was there when the pullers were complete is published, and what came while that was being written."""
        deadline = time.monotonic() + _CATCH_UP_S
        while not self.run.meter.metric("changefeed_owner_state_info", "Normal"):
            self._wait(deadline)
        for _ in range(2):
            now_ms = time.time() * 1000
            while self._checkpoint_physical_ms() < now_ms:
                self._wait(deadline)

    def sample(self, seconds: float) -> dict[str, Any]:
        """Watch for so long; what was used and made a second, by name."""
        before, began = self._counts(), time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(_SAMPLE_S)
            self.resolved_ms.append(1000 * self.run.meter.metric("changefeed_owner_resolved_ts_lag_seconds"))
            self.checkpoint_ms.append(time.time() * 1000 - self._checkpoint_physical_ms())
        took = time.monotonic() - began
        return {name: (count - before.get(name, 0.0)) / took for name, count in self._counts().items()}

    def _counts(self) -> dict[str, float]:
        meter = self.run.meter
        meter.sample()
        counted = {name: meter.metric(metric) for name, metric in _COUNTED.items()}
        counted["log_records"] = float(self.run.log_records()[-1].stem)
        counted["cluster_cpu"] = self.upstream.cpu_s()
        return counted | {f"cpu {stage}": seconds for stage, seconds in meter.stages().items()}

    def _checkpoint_physical_ms(self) -> int:
        try:
            metadata = (self.run.folder / "lake" / "metadata").read_text()
        except FileNotFoundError:
            return 0
        return int(json.loads(metadata)["checkpoint-ts"]) >> 18

    def _wait(self, deadline: float) -> None:
        if self.run.process.poll() is not None:
            raise SystemExit(f"changefeed run ended with {self.run.process.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"The changefeed has not caught up within {_CATCH_UP_S:g} s.")
        time.sleep(_SAMPLE_S)


def measure(given: argparse.Namespace, interval: str, folder: Path) -> dict[str, Any]:
    """One run, from its start to its drain, with the figures of the time in which it was watched."""
    with cluster(
        *("--workload", "sysbench", "--tables", str(given.tables), "--regions", str(given.regions)),
        *("--rows", str(given.rows), "--rate", str(given.rate)),
    ) as upstream:
        storage = {"protocol": "csv", "csv": {"includeCommitTs": True}, "flushInterval": interval}
        with changefeed_run(upstream, folder, storage) as run:
            watch = Watch(run, upstream)
            watch.until_caught_up()
            rates = watch.sample(given.seconds)
            run.drain()
        verified = None if given.no_verify else run.verify()
    stages = {name.removeprefix("cpu "): rate for name, rate in rates.items() if name.startswith("cpu ")}
    return {
        "name": f"lag-{given.tables}x{given.regions}-{interval}",
        "rows": round(rates["rows"] * given.seconds),
        "wall_s": given.seconds,
        "rows_per_s": round(rates["rows"], 1),
        "files_per_s": round(rates["files"], 2),
        "log_records_per_s": round(rates["log_records"], 2),
        "plans_per_s": round(rates["plans"], 2),
        "segments_per_s": round(rates["segments"], 2),
        "lag_ms": percentiles(watch.checkpoint_ms),
        "resolved_lag_ms": percentiles(watch.resolved_ms),
        "cpu_cores": round(sum(stages.values()), 3),
        "stages_cpu_cores": {stage: round(cores, 3) for stage, cores in stages.items()},
        "cluster_cpu_cores": round(rates["cluster_cpu"], 3),
        "peak_rss_bytes": run.meter.peak_rss,
        "verified": verified,
    }


def percentiles(samples: list[float]) -> dict[str, int]:
    p50, p99, p999 = np.percentile(samples, (50, 99, 99.9))
    return {"p50": round(p50), "p99": round(p99), "p999": round(p999), "max": round(max(samples))}


def table(run: dict[str, Any]) -> str:
    """What one run came to, and where the CPU went."""
    lines = [
        f"{run['name']}: {run['rows_per_s']} rows/s for {run['wall_s']:g} s, verified: {run['verified']}",
        f"  {'lag, s':<14}{'p50':>8}{'p99':>8}{'max':>8}",
    ]
    for name, lag in (("resolved-ts", run["resolved_lag_ms"]), ("checkpoint", run["lag_ms"])):
        lines.append(f"  {name:<14}" + "".join(f"{lag[which] / 1000:8.2f}" for which in ("p50", "p99", "max")))
    lines.append(
        f"  a second: {run['files_per_s']} files, {run['plans_per_s']} plans, {run['log_records_per_s']} log records, "
        f"{run['segments_per_s']} segments"
    )
    cores = ", ".join(f"{stage} {used:.2f}" for stage, used in run["stages_cpu_cores"].items())
    lines.append(f"  cores used: {run['cpu_cores']:.2f} ({cores}); dev cluster: {run['cluster_cpu_cores']:.2f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tables", type=int, default=64)
    arguments.add_argument("--regions", type=int, default=4, help="of each table")
    arguments.add_argument("--rows", type=int, default=1000, help="rows a table before the workload")
    arguments.add_argument("--rate", type=float, default=500.0, help="rows a second over all tables")
    arguments.add_argument("--seconds", type=float, default=60.0, help="how long to watch, once caught up")
    arguments.add_argument("--flush-interval", action="append", metavar="5s", help="default: 5s, then 1s")
    arguments.add_argument("--no-verify", action="store_true")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "lag.json")
    given = arguments.parse_args()
    runs = []
    for interval in given.flush_interval or ["5s", "1s"]:
        folder = Path(tempfile.mkdtemp(prefix="changefeed-lag-"))
        try:
            runs.append(measure(given, interval, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.write(table(runs[-1]))
    write_report(given.out, runs)


if __name__ == "__main__":
    main()
