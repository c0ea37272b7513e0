"""A changefeed as its users run it, measured from outside: the development cluster, `changefeed run` and `changefeed
verify` are processes of their own.

It has no way into the product but the commands that a user has, the metrics and what is left on disk.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parent.parent
_BIN = Path(sys.executable).parent
_POLL_S = 0.1  # a run tells of itself by metrics and files, which are there or not


@dataclass(frozen=True)
class Cluster:
    """A development cluster; `ready` is what it has printed."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]

    def next_line(self) -> dict[str, Any]:
        """What it prints when its workload has ended."""
        return _next_line(self.process)

    def end_workload(self) -> None:
        """Nothing is written any more when this returns."""
        self.process.send_signal(signal.SIGUSR1)
        self.next_line()

    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def cluster(*options: str) -> Iterator[Cluster]:
    """Options as of `changefeed-devcluster start`."""
    command = [str(_BIN / "changefeed-devcluster"), "start", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Cluster(process, _next_line(process))
        finally:
            process.terminate()


def _next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of a development cluster. Ends this program when there is none; why has been printed by then."""
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        command = shlex.join(map(str, process.args)) if isinstance(process.args, list) else process.args
        raise SystemExit(f"the development cluster ended with {process.wait()} before its next line: {command}")
    line: dict[str, Any] = json.loads(text)
    return line


@contextmanager
def memory_in_use(size: int) -> Iterator[None]:
    """As on a server that has run for a while: so much of the machine's memory holds a file, and is there to be taken.

    At most what is free. Where the machine is a virtual one whose host takes idle memory back, the first touch of a
    page costs 4 CPU-s a GB (measured; the second 0.3), be it of a process or of a file. That would say more of the host
    than of what is measured.
    """
    with tempfile.TemporaryFile(buffering=0) as hole:
        hole.truncate(min(size, psutil.virtual_memory().free))
        while hole.read(1 << 20):
            pass
        yield


@dataclass
class Meter:
    """CPU seconds and memory of a run's processes, sampled; its metrics; when its first segment appeared."""

    process: psutil.Process
    port: int
    cpu: dict[int, tuple[str, float]] = field(default_factory=dict)
    peak_rss: int = 0
    peak_anonymous: dict[str, int] = field(default_factory=dict)  # by kind: of the process that has most
    first_segment: float | None = None
    metrics: dict[tuple[str, str], float] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Look for the first segment often, at the rest seldom: looking costs what is measured, too."""
        looks = 0
        while not self.done.wait(0.1):
            if self.first_segment is None:
                self._look_for_segment()
            if looks % 5 == 0:
                self.sample()
            looks += 1

    def _look_for_segment(self) -> None:
        with self._lock:
            self._sample_metrics()
        if self.metric("changefeed_event_store_segments_total"):
            self.first_segment = time.time()

    def sample(self) -> None:
        """Bring everything up to now."""
        with self._lock:
            self._sample_processes()
            self._sample_metrics()

    def _sample_processes(self) -> None:
        try:
            processes = [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return  # it has just ended
        rss = 0
        for process in processes:
            try:
                times, memory = process.cpu_times(), process.memory_info()
                kind = self._kind(process)
            except psutil.Error:
                continue
            self.cpu[process.pid] = (kind, times.user + times.system)
            rss += memory.rss
            own = memory.rss - memory.shared  # mapped segments are the page cache's
            self.peak_anonymous[kind] = max(self.peak_anonymous.get(kind, 0), own)
        self.peak_rss = max(self.peak_rss, rss)

    def _sample_metrics(self) -> None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=1) as answer:
                text = answer.read().decode()
        except (OSError, urllib.error.URLError):
            return  # not yet, or not any more
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                label = sample.labels.get("type") or sample.labels.get("state") or ""
                self.metrics[sample.name, label] = sample.value

    def _kind(self, process: psutil.Process) -> str:
        """Which part of the product a process is."""
        if process.pid == self.process.pid:
            return "owner"
        return "jvm" if "java" in process.name() else "tasks"

    def metric(self, name: str, label: str = "") -> float:
        """As last sampled; 0 before. `label`: of its `type` or `state`."""
        return self.metrics.get((name, label), 0.0)

    def stages(self) -> dict[str, float]:
        """CPU seconds: the pullers, the pipeline's stages, the owner, the JVM, and the rest of Spark's Python."""
        total: dict[str, float] = defaultdict(float)
        for kind, seconds in list(self.cpu.values()):
            total[kind] += seconds
        found = {"puller": self.metric("changefeed_puller_cpu_seconds_total")}
        for (name, stage), seconds in list(self.metrics.items()):
            if name == "changefeed_pipeline_cpu_seconds_total" and stage:
                found[stage] = seconds
        found["python start"] = max(0.0, total.pop("tasks", 0.0) - sum(found.values()))
        return {**found, **total}


@dataclass
class Run:
    """One `changefeed run` of the resource in `folder`, with its `lake` and `state` beside it."""

    folder: Path
    process: subprocess.Popen[bytes]
    meter: Meter

    def wait(self) -> None:
        """Until it ends by itself."""
        code = self.process.wait()
        if code != 0:
            raise SystemExit(f"changefeed run ended with {code}")

    def until(self, condition: Callable[[], object], what: str, seconds: float) -> None:
        """Ends this program when the run ends first, or it takes longer."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                raise SystemExit(f"changefeed run ended with {self.process.returncode} before {what}")
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {seconds:g} s: {what}")
            time.sleep(_POLL_S)

    def drain(self) -> None:
        """As Ctrl-C does."""
        self.process.send_signal(signal.SIGTERM)
        self.wait()

    def data_files(self) -> list[Path]:
        return [path for path in (self.folder / "lake").rglob("CDC*") if path.suffix != ".index"]

    def log_records(self) -> list[Path]:
        """Those that are not folded yet, in order."""
        return sorted((self.folder / "state").rglob("log/[0-9]*.json"))

    def verify(self) -> bool:
        """Whether `changefeed verify` agrees with the sink; what it says when it does not, or can't tell, is shown."""
        command = [str(_BIN / "changefeed"), "verify", "-f", str(self.folder / _SPEC), "--json"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode != 0:
            sys.stderr.write(f"changefeed verify ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.returncode == 0


_SPEC = "bench.json"


@contextmanager
def changefeed_run(
    upstream: Cluster,
    folder: Path,
    storage: dict[str, Any],
    name: str = "bench",
    namespace: str = "default",
    **spec: Any,
) -> Iterator[Run]:
    """A changefeed of all of sysbench's tables, measured until it has ended.

    `storage`: the sink's options beside its uri; `spec`: of the resource, what is not the same for all.
    """
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "upstream": {"pdAddresses": [f"http://{upstream.ready['pd']}"]},
            "startTs": upstream.ready["startTs"],
            "filter": {"rules": ["sbtest.*"]},
            "state": {"uri": (folder / "state").as_uri()},
            "sink": {"storage": {"uri": (folder / "lake").as_uri(), **storage}},
            **spec,
        },
    }
    (folder / _SPEC).write_text(json.dumps(resource))
    port = _free_port()
    options = ("--master", "local[4,8]", "--metrics-port", str(port), "--json")
    command = [str(_BIN / "changefeed"), "run", "-f", str(folder / _SPEC), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    meter = Meter(psutil.Process(process.pid), port)
    sampler = threading.Thread(target=meter.run)
    sampler.start()
    try:
        yield Run(folder, process, meter)
    finally:
        meter.done.set()
        sampler.join()
        if process.poll() is None:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_report(out: Path, runs: list[dict[str, Any]]) -> None:
    """INTERFACES.md, bench.json. Ends the process with an error when a run was verified and does not hold."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()
    out.parent.mkdir(parents=True, exist_ok=True)
    report = {"schema": 1, "commit": commit, "machine": _machine(), "runs": runs}
    out.write_text(json.dumps(report, indent=2) + "\n")
    sys.stdout.write(f"written to {out}\n")
    if any(run["verified"] is False for run in runs):
        raise SystemExit("verify does not hold")


def _machine() -> dict[str, Any]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "mem_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "java": java,
        "spark": version("pyspark"),
    }
