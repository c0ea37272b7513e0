"""Does a changefeed stay within its limits? Half an hour of load and harm to its upstream, and what it holds meanwhile.

Every 5 s: bytes of the event store against its quota, memory of each process, CPU of the driver, which has the planner,
open descriptors, threads, files of the state, lags. Writes bench/results/soak.json and a picture of it, soak.svg.
`--tables 1010 --hot 10`: ten busy tables beside a thousand quiet ones. It fails when

- a limit is passed: the event store its quota, a puller its memory quota (twice, for what is being sorted and written,
  beside the 256 MiB of a Python that has everything loaded), all processes what the resource gives driver and
  executors;
- a count goes on growing: by thirds of the time, the median of the last one is above that of the middle one by more
  than a tenth and an allowance (the first third is for warming up);
- `verify` does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from measured import ROOT, Cluster, Run, changefeed_run, cluster, write_report
from picture import Panel, svg

_CATCH_UP_S = 300.0
_MIB = 1 << 20
_PYTHON = 256 * _MIB  # what a puller has before it has pulled anything
_EVENT_QUOTA, _PULLER_QUOTA = 256 * _MIB, 128 * _MIB
_DRIVER, _EXECUTORS = 2048 * _MIB, 4096 * _MIB  # of the resource: `memory` of both
_HARMS = {
    ("split",): 4,
    ("merge",): 4,
    ("transfer",): 5,
    ("cut",): 3,
    ("stall", "--seconds", "1"): 2,
    ("stall-region", "--seconds", "2"): 2,
    ("lock", "--seconds", "2"): 2,
    ("abandon", "--ttl-ms", "1000"): 2,
    ("delay", "--by", "0.5", "--seconds", "2"): 2,
    ("repeat", "--seconds", "2"): 2,
    ("reorder", "--seconds", "2"): 2,
}
#: What may not go on growing, with the growth from third to third that means nothing.
_ALLOWANCE = {
    "driver_rss": 32 * _MIB,
    "jvm_rss": 128 * _MIB,
    "puller_rss": 64 * _MIB,
    "descriptors": 32,
    "threads": 24,
    "state_files": 200,
    "processes": 4,
    "checkpoint_lag_s": 10.0,
    "resolved_lag_s": 5.0,
}


@dataclass(frozen=True)
class Sample:
    """What was measured at one moment; `puller_rss` is the largest one's."""

    second: float
    event_store_bytes: float
    held_spans: float
    driver_rss: int
    jvm_rss: int
    puller_rss: int
    total_rss: int
    descriptors: int
    threads: int
    processes: int
    state_files: int
    resolved_lag_s: float
    checkpoint_lag_s: float
    driver_cpu_s: float  # since its start
    rows: float


@dataclass
class Soak:
    """Takes samples of one run."""

    run: Run
    upstream: Cluster
    pd_port: int
    samples: list[Sample] = field(default_factory=list)

    def watch(self, seconds: float, every: float) -> None:
        began = time.monotonic()
        while (second := time.monotonic() - began) < seconds:
            if self.run.process.poll() is not None:
                raise SystemExit(f"changefeed run ended with {self.run.process.returncode}")
            self.samples.append(self._sample(second))
            time.sleep(max(0.0, every - (time.monotonic() - began - second)))

    def _sample(self, second: float) -> Sample:
        driver = psutil.Process(self.run.process.pid)
        counts: Counter[str] = Counter()
        pullers, driver_cpu = [0], driver.cpu_times()
        for process in [driver, *driver.children(recursive=True)]:
            try:
                with process.oneshot():
                    rss = process.memory_info().rss
                    counts["descriptors"] += process.num_fds()
                    counts["threads"] += process.num_threads()
                    name = process.name()
                counts["processes"] += 1
                counts["total_rss"] += rss
                if process.pid == driver.pid:
                    counts["driver_rss"] += rss
                elif "java" in name:
                    counts["jvm_rss"] += rss
                elif self._is_puller(process):
                    pullers.append(rss)
            except psutil.Error:
                continue  # it has just ended
        metric = self.run.meter.metric
        return Sample(
            second=round(second, 2),
            event_store_bytes=metric("changefeed_event_store_used_bytes"),
            held_spans=metric("changefeed_owner_held_spans_count"),
            driver_rss=counts["driver_rss"],
            jvm_rss=counts["jvm_rss"],
            puller_rss=max(pullers),
            total_rss=counts["total_rss"],
            descriptors=counts["descriptors"],
            threads=counts["threads"],
            processes=counts["processes"],
            state_files=sum(path.is_file() for path in (self.run.folder / "state").rglob("*")),
            resolved_lag_s=metric("changefeed_owner_resolved_ts_lag_seconds"),
            checkpoint_lag_s=metric("changefeed_owner_checkpoint_ts_lag_seconds"),
            driver_cpu_s=driver_cpu.user + driver_cpu.system,
            rows=metric("changefeed_sink_rows_total"),
        )

    def _is_puller(self, process: psutil.Process) -> bool:
        """Tasks that talk to PD: nobody else does, but the driver."""
        return any(each.raddr and each.raddr.port == self.pd_port for each in process.net_connections("tcp"))


class Nemesis(threading.Thread):
    """One harm after another by the command that a person has, drawn from a seed."""

    def __init__(self, pd: str, seed: int) -> None:
        super().__init__(name="nemesis")
        self._pd = pd
        self._random = random.Random(seed)
        self._stop_it = threading.Event()
        self._began = time.monotonic()
        self.done: Counter[str] = Counter()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._stop_it.wait(self._random.uniform(1.0, 5.0)):
            (harm,) = self._random.choices(list(_HARMS), list(_HARMS.values()))
            command = [str(Path(sys.executable).parent / "changefeed-devcluster"), "harm", *harm, "--pd", self._pd]
            ended = subprocess.run(command, check=False, capture_output=True)
            self.done[harm[0] if ended.returncode == 0 else "refused"] += 1
            self.seconds.append(time.monotonic() - self._began)

    def end(self) -> None:
        self._stop_it.set()
        if self.ident is not None:
            self.join()


def judged(samples: Sequence[Sample]) -> list[str]:
    """Return what is wrong, a sentence each; see the module's docstring."""
    limits = {
        "event_store_bytes": _EVENT_QUOTA,
        "puller_rss": _PYTHON + 2 * _PULLER_QUOTA,
        "total_rss": _DRIVER + _EXECUTORS,
    }
    wrong = []
    for name, limit in limits.items():
        if (highest := max(getattr(sample, name) for sample in samples)) > limit:
            wrong.append(f"{name} was {highest:,.0f}, above its limit of {limit:,.0f}")
    third = len(samples) // 3
    for name, allowance in _ALLOWANCE.items():
        values = [getattr(sample, name) for sample in samples]
        if third == 0:
            continue
        middle, last = statistics.median(values[third : 2 * third]), statistics.median(values[2 * third :])
        if last > middle * 1.1 + allowance:
            wrong.append(f"{name} grows: {middle:,.1f} in the middle third, {last:,.1f} in the last")
    return wrong


def picture(samples: Sequence[Sample], harms: Sequence[float], title: str) -> str:
    """The samples as SVG; each harm is a mark below the lags."""

    def values(name: str, unit: float = 1.0) -> list[float]:
        return [getattr(sample, name) / unit for sample in samples]

    megabytes = {
        name: values(f"{key}_rss", _MIB)
        for name, key in (("driver", "driver"), ("JVM", "jvm"), ("largest puller", "puller"), ("all", "total"))
    }
    return svg(
        title,
        [sample.second for sample in samples],
        [
            Panel("event store", {"bytes": values("event_store_bytes", _MIB)}, _EVENT_QUOTA / _MIB, "MiB"),
            Panel("memory", megabytes, (_DRIVER + _EXECUTORS) / _MIB, "MiB"),
            Panel("largest puller", {"RSS": megabytes["largest puller"]}, (_PYTHON + 2 * _PULLER_QUOTA) / _MIB, "MiB"),
            Panel("driver, the planner in it", {"CPU": _cores(samples)}, unit="cores"),
            Panel("descriptors and threads", {"descriptors": values("descriptors"), "threads": values("threads")}),
            Panel("files of the state, processes", {"files": values("state_files"), "processes": values("processes")}),
            Panel(
                "lag",
                {"checkpoint": values("checkpoint_lag_s"), "resolved-ts": values("resolved_lag_s")},
                unit="s",
                events=harms,
            ),
        ],
    )


def _cores(samples: Sequence[Sample]) -> list[float]:
    """Return what the driver used since the sample before."""
    used = [
        (after.driver_cpu_s - before.driver_cpu_s) / max(after.second - before.second, 1e-9)
        for before, after in pairwise(samples)
    ]
    return [*used[:1], *used]


def measure(given: argparse.Namespace, folder: Path, drawn: Path) -> dict[str, Any]:
    """One run, from its start to its drain and `verify`."""
    options = ("--workload", "sysbench", "--tables", str(given.tables), "--regions", str(given.regions))
    with cluster(*options, "--rows", str(given.rows), "--rate", str(given.rate), "--hot", str(given.hot)) as upstream:
        pd = str(upstream.ready["pd"])
        storage = {"protocol": "csv", "csv": {"includeCommitTs": True}, "flushInterval": given.flush}
        spec: dict[str, Any] = {
            "eventStore": {"quota": str(_EVENT_QUOTA)},
            "spark": {
                "pullers": {"count": 2, "memoryQuota": str(_PULLER_QUOTA)},
                "driver": {"memory": str(_DRIVER)},
                "executor": {"instances": 1, "cores": 4, "memory": str(_EXECUTORS)},
            },
        }
        with changefeed_run(upstream, folder, storage, **spec) as run:
            soak = Soak(run, upstream, int(pd.rpartition(":")[2]))
            run.until(lambda: _goes_on(run), "files are written", _CATCH_UP_S)
            nemesis = Nemesis(pd, given.seed)
            if not given.unharmed:
                nemesis.start()
            try:
                soak.watch(given.seconds, given.every)
            finally:
                nemesis.end()
            upstream.end_workload()  # verify has all of its history to read
            run.drain()
        verified = run.verify()
    drawn.parent.mkdir(parents=True, exist_ok=True)
    harms = sum(nemesis.done.values())
    title = f"{given.seconds / 60:.1f} min of {given.rate:g} rows/s in {given.tables} tables with {harms} harms"
    drawn.write_text(picture(soak.samples, nemesis.seconds, title))
    first, last = soak.samples[0], soak.samples[-1]
    return {
        "name": given.out.stem,
        "wall_s": given.seconds,
        "rows": round(last.rows),
        "rows_per_s": round((last.rows - first.rows) / max(last.second - first.second, 1e-9), 1),
        "event_store_quota_bytes": _EVENT_QUOTA,
        "peak_event_store_bytes": max(sample.event_store_bytes for sample in soak.samples),
        "puller_memory_quota_bytes": _PULLER_QUOTA,
        "peak_puller_rss_bytes": max(sample.puller_rss for sample in soak.samples),
        "peak_rss_bytes": max(sample.total_rss for sample in soak.samples),
        "peak_descriptors": max(sample.descriptors for sample in soak.samples),
        "peak_threads": max(sample.threads for sample in soak.samples),
        "median_checkpoint_lag_s": statistics.median(sample.checkpoint_lag_s for sample in soak.samples),
        "peak_checkpoint_lag_s": max(sample.checkpoint_lag_s for sample in soak.samples),
        "median_driver_cores": round(statistics.median(_cores(soak.samples)), 3),
        "harms": dict(sorted(nemesis.done.items())),
        "wrong": judged(soak.samples),
        "verified": verified,
        "samples": [asdict(sample) for sample in soak.samples],
    }


def _goes_on(run: Run) -> bool:
    """Files are written, so all processes have started; and nothing holds it up."""
    metric = run.meter.metric
    return metric("changefeed_sink_rows_total") > 0 and bool(metric("changefeed_owner_state_info", "Normal"))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=1800.0)
    arguments.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    arguments.add_argument("--rate", type=float, default=5000.0, help="rows a second over all tables")
    arguments.add_argument("--tables", type=int, default=8)
    arguments.add_argument("--hot", type=int, default=0, help="tables that have half of the rows")
    arguments.add_argument("--rows", type=int, default=1000, help="of each table, before the load")
    arguments.add_argument("--flush", default="1s", help="flushInterval")
    arguments.add_argument("--unharmed", action="store_true", help="nothing is done to the upstream")
    arguments.add_argument("--regions", type=int, default=4, help="of each table, at the beginning")
    arguments.add_argument("--seed", type=int, default=1, help="of the harms")
    arguments.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "soak.json")
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="changefeed-soak-"))
    try:
        measured = measure(given, folder, given.out.with_suffix(".svg"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    shown = {name: value for name, value in measured.items() if name != "samples"}
    sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    write_report(given.out, [measured])
    if measured["wrong"]:
        raise SystemExit("; ".join(measured["wrong"]))


if __name__ == "__main__":
    main()
