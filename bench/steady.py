"""How far a changefeed is behind a steady workload, and what it uses meanwhile.

A row's file lag: from its commit to its file, as the file system dates the file. Checkpoint lag: the present less the
checkpoint in `metadata`, as a reader of the sink meets it. Resolved-ts lag: what `/metrics` says of the owner's. All by
the one clock of this machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from cases import Case
from measured import ROOT, Cluster, Location, Run, bench_cluster, changefeed_run, disk
from results import Result

sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))
from integration_s3_servers import BUCKET, KEY, KEY_ID, running

_SAMPLE_S = 0.1
_CATCH_UP_S = 300.0
_WARM_UP_S = 5.0
_COMMIT_TS = 3  # of csv
_COUNTED = {
    "rows": "changefeed_sink_rows_total",
    "files": "changefeed_sink_files_total",
    "segments": "changefeed_event_store_segments_total",
    "plans": "changefeed_owner_plans_total",
}


Lags = dict[str, npt.NDArray[np.float64]]
"""Table -> ms from commit to file, a row each."""


@dataclass
class Watch:
    """Lags in ms, sampled; what was counted and used in between."""

    run: Run
    upstream: Cluster
    resolved_ms: list[float] = field(default_factory=list)
    checkpoint_ms: list[float] = field(default_factory=list)

    def until_caught_up(self) -> None:
        """What was there when the pullers were complete is published, and what came while that was being written."""
        normal = "changefeed_owner_state_info"
        self.run.until(lambda: self.run.meter.metric(normal, "Normal"), "it is Normal", _CATCH_UP_S)
        for _ in range(2):
            self.run.until_published(time.time() * 1000, "it has caught up", _CATCH_UP_S)

    def sample(self, seconds: float) -> dict[str, float]:
        """Watch for so long; what was used and made a second, by name."""
        before, began = self._counts(), time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(_SAMPLE_S)
            self.resolved_ms.append(1000 * self.run.meter.metric("changefeed_owner_resolved_ts_lag_seconds"))
            self.checkpoint_ms.append(time.time() * 1000 - self.run.checkpoint_ms())
        after, took = self._counts(), time.monotonic() - began
        return {name: (count - before.get(name, 0.0)) / took for name, count in after.items()}

    def _counts(self) -> dict[str, float]:
        meter = self.run.meter
        meter.sample()
        counted = {name: meter.metric(metric) for name, metric in _COUNTED.items()}
        counted["log_records"] = float(self.run.log_records()[-1].stem)
        counted["cluster_cpu"] = self.upstream.cpu_s()
        counted["user"], counted["kernel"] = meter.total()
        return counted | {f"cpu {stage}": seconds for stage, seconds in meter.stages().items()}


@contextmanager
def location_of(case: Case, folder: Path) -> Iterator[Location]:
    """Give a location below `folder`, or a bucket of a server of its own."""
    if case.store == "disk":
        yield disk(folder)
        return
    os.environ.update(AWS_ACCESS_KEY_ID=KEY_ID, AWS_SECRET_ACCESS_KEY=KEY)
    with running("versitygw", folder / "server" / "data") as server:
        yield Location(server.folder / BUCKET, server.uri)


def steady(case: Case, verify: bool) -> Result:
    """One run, from its start to its drain, with the figures of the time in which it was watched."""
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        location_of(case, Path(name)) as location,
        bench_cluster([*case.upstream(case.rows), f"--rate={case.rate}"]) as upstream,
    ):
        with changefeed_run(upstream, Path(name), case.storage, location=location, mode=case.mode) as run:
            watch = Watch(run, upstream)
            watch.until_caught_up()
            if case.rate:
                upstream.begin_workload()
                time.sleep(_WARM_UP_S)
                watch.until_caught_up()
            window = [time.time() * 1000]
            rates = watch.sample(case.seconds)
            window.append(time.time() * 1000)
            if case.rate:
                upstream.end_workload()
            run.drain()
        verified = run.verify() if verify else None
        lags = file_lags(run, *window)
    return _result(case, run, watch, rates, verified, np.concatenate([*lags.values(), np.empty(0)]))


def _result(
    case: Case,
    run: Run,
    watch: Watch,
    rates: dict[str, float],
    verified: bool | None,
    file_lags: npt.NDArray[np.float64],
) -> Result:
    stages = {name.removeprefix("cpu "): rate for name, rate in rates.items() if name.startswith("cpu ")}
    made = ("files", "segments", "plans", "log_records")
    return Result(
        name=case.name,
        kind=case.kind,
        verified=verified,
        rows=round(rates["rows"] * case.seconds),
        wall_s=case.seconds,
        rows_per_s=round(rates["rows"], 1),
        cpu_cores=round(rates["user"] + rates["kernel"], 3),
        kernel_cpu_cores=round(rates["kernel"], 3),
        stages_cpu_cores={stage: round(cores, 3) for stage, cores in stages.items()},
        cluster_cpu_cores=round(rates["cluster_cpu"], 3),
        made_per_s={name: round(rates[name], 2) for name in made},
        lag_ms=percentiles(watch.checkpoint_ms),
        resolved_lag_ms=percentiles(watch.resolved_ms),
        file_lag_ms=percentiles(file_lags) if len(file_lags) else None,
        peak_rss_bytes=run.meter.peak_rss,
        peak_memory_bytes=run.meter.peak_memory._asdict(),
    )


def file_lags(run: Run, after_ms: float, until_ms: float) -> Lags:
    """Return the lags of the rows committed in between, Unix ms. The files are csv's."""
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    for path in run.data_files():
        if not path.stat().st_size:
            continue  # it has no rows
        column = pl.read_csv(path, has_header=False, columns=[_COMMIT_TS], infer_schema=False).to_series()
        committed = (column.cast(pl.UInt64).to_numpy() >> 18).astype(np.float64)
        inside = committed[(committed >= after_ms) & (committed < until_ms)]
        table = path.relative_to(run.location.folder / "lake").parts[1]
        found.setdefault(table, []).append(path.stat().st_ctime * 1000 - inside)  # when it got its name
    return {table: np.concatenate(lags) for table, lags in found.items()}


def percentiles(samples: Any) -> dict[str, int]:
    p50, p99, p999 = np.percentile(samples, (50, 99, 99.9))
    return {"p50": round(p50), "p99": round(p99), "p999": round(p999), "max": round(max(samples))}
