"""How far a changefeed is behind a steady workload, and what it uses meanwhile.

Lags of rows and of the checkpoint are as bench/readers.py meets them. Checkpoint lag: the present less the checkpoint.
Resolved-ts lag: what `/metrics` says of the owner's.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from cases import Case
from measured import ROOT, Location, Run, bench_cluster, changefeed_run, disk
from readers import FileReader, Reader, Times, TopicReader, own_lags, own_row_lags
from results import Result

sys.path.insert(0, str(ROOT / "tests" / "integration" / "support"))
import integration_kafka_broker as kafka
from integration_s3_servers import BUCKET, KEY, KEY_ID, running

_SAMPLE_S = 0.1
_CATCH_UP_S = 300.0
_WARM_UP_S = 5.0
_TOPIC, _PARTITIONS = "bench", 3
_COUNTED = {
    "rows": "changefeed_sink_rows_total",
    "files": "changefeed_sink_files_total",
    "segments": "changefeed_event_store_segments_total",
    "plans": "changefeed_owner_plans_total",
}


class Source(Protocol):
    """What is written to while it is watched. `cpu_s`: of its server, so far; else as of Cluster."""

    def cpu_s(self) -> float: ...

    def begin_workload(self) -> None: ...

    def end_workload(self) -> dict[str, Any]: ...


@dataclass
class Watch:
    """Lags in ms, sampled; what was counted and used in between."""

    run: Run
    upstream: Source
    reader: Reader
    resolved_ms: list[float] = field(default_factory=list)
    checkpoint_ms: list[float] = field(default_factory=list)

    def until_caught_up(self) -> None:
        """What was there when the pullers were complete is published, and what came while that was being written."""
        normal = "changefeed_owner_state_info"
        self.run.until(lambda: self.run.meter.metric(normal, "Normal"), "it is Normal", _CATCH_UP_S)
        for _ in range(2):
            now_ms = time.time() * 1000
            self.run.until(lambda: self.reader.checkpoint_ms() >= now_ms, "it has caught up", _CATCH_UP_S)  # noqa: B023

    def sample(self, seconds: float) -> dict[str, float]:
        """Watch for so long; what was used and made a second, by name."""
        before, began = self._counts(), time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(_SAMPLE_S)
            self.resolved_ms.append(1000 * self.run.meter.metric("changefeed_owner_resolved_ts_lag_seconds"))
            self.checkpoint_ms.append(time.time() * 1000 - self.reader.checkpoint_ms())
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


@dataclass(frozen=True)
class Sink:
    """Where a case's rows go. `spec`: of the resource, beside what all cases have; `topic`: None, it is a storage."""

    location: Location
    spec: dict[str, Any] = field(default_factory=dict)
    topic: TopicReader | None = None

    def reader(self, run: Run) -> Reader:
        return self.topic or FileReader(run)


@contextmanager
def sink_of(case: Case, folder: Path) -> Iterator[Sink]:
    """Give a folder, a bucket or a topic; the latter two of a server of its own."""
    if case.store == "disk":
        yield Sink(disk(folder))
    elif case.store == "s3":
        os.environ.update(AWS_ACCESS_KEY_ID=KEY_ID, AWS_SECRET_ACCESS_KEY=KEY)
        with running("versitygw", folder / "server" / "data") as server:
            yield Sink(Location(server.folder / BUCKET, server.uri))
    else:
        (folder / "broker").mkdir()
        with kafka.running(folder / "broker") as broker:
            kafka.made_topic(broker.cluster, _TOPIC, _PARTITIONS)
            options = {"protocol": "canal-json", "canalJson": {"enableTidbExtension": True}}
            section = {"uri": f"kafka://{broker.cluster.brokers}/{_TOPIC}", "partitionNum": _PARTITIONS, **options}
            with TopicReader(broker.cluster.brokers, _TOPIC, _PARTITIONS).reading() as topic:
                yield Sink(disk(folder), {"sink": {"kafka": section}}, topic)


def steady(case: Case, verify: bool) -> Result:
    """One run, from its start to its drain, with the figures of the time in which it was watched."""
    with (
        tempfile.TemporaryDirectory(prefix="changefeed-bench-") as name,
        sink_of(case, Path(name)) as sink,
        bench_cluster(
            [*case.upstream(case.rows), f"--rate={case.rate}", f"--min-ts-interval={case.resolved_s}"]
        ) as upstream,
    ):
        with changefeed_run(
            upstream, Path(name), case.storage, location=sink.location, mode=case.mode, **sink.spec
        ) as run:
            seen = watched(case, run, upstream, sink.reader(run))
            run.drain()
        verified = run.verify() if verify else None
        return result(case, run, seen, verified)


@dataclass(frozen=True)
class Watched:
    """`rates`: as of Watch.sample; it was watched from `after_ms` to `until_ms`, Unix ms."""

    watch: Watch
    rates: dict[str, float]
    after_ms: float
    until_ms: float


def watched(case: Case, run: Run, upstream: Source, reader: Reader) -> Watched:
    """Watch it, from when it has caught up; nothing is written any more afterwards."""
    watch = Watch(run, upstream, reader)
    watch.until_caught_up()
    if case.rate:
        upstream.begin_workload()
        time.sleep(_WARM_UP_S)
        watch.until_caught_up()
    after_ms = time.time() * 1000
    rates = watch.sample(case.seconds)
    until_ms = time.time() * 1000
    if case.rate:
        upstream.end_workload()
    return Watched(watch, rates, after_ms, until_ms)


def _row_lags(case: Case, seen: Watched) -> dict[str, dict[str, int]]:
    """What `Result` has of rows, and of the changefeed's own share."""
    reader, after_ms, until_ms = seen.watch.reader, seen.after_ms, seen.until_ms
    arrivals = reader.arrivals(after_ms, until_ms).values()
    which = "consumer_lag_ms" if case.store == "kafka" else "file_lag_ms"
    found = {which: _joined(each.lags for each in arrivals)}
    if (
        case.mode == "LowLatency" and case.resolved_s is not None and case.resolved_s >= 1.0
    ):  # so each resolved-ts becomes a checkpoint
        found["own_row_lag_ms"] = _joined(own_row_lags(each, reader.published) for each in arrivals)
        found["own_lag_ms"] = own_lags(reader.published, after_ms, until_ms)
    return {name: percentiles(lags) for name, lags in found.items() if len(lags)}


def _joined(lags: Iterable[Times]) -> Times:
    return np.concatenate([*lags, np.empty(0)])


def result(case: Case, run: Run, seen: Watched, verified: bool | None) -> Result:
    """When the run is over, while its sink is there."""
    watch, rates = seen.watch, seen.rates
    stages = {name.removeprefix("cpu "): rate for name, rate in rates.items() if name.startswith("cpu ")}
    made = ("files", "segments", "plans", "log_records")
    return Result(
        name=case.name,
        kind="steady",
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
        resolved_every_s=case.resolved_s,
        peak_rss_bytes=run.meter.peak_rss,
        peak_memory_bytes=run.meter.peak_memory._asdict(),
        **_row_lags(case, seen),
    )


def percentiles(samples: Any) -> dict[str, int]:
    p50, p99, p999 = np.percentile(samples, (50, 99, 99.9))
    return {"p50": round(p50), "p99": round(p99), "p999": round(p999), "max": round(max(samples))}
