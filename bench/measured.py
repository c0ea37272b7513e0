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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from meter import Meter

ROOT = Path(__file__).resolve().parent.parent
_BIN = Path(sys.executable).parent
_MOST_IN_USE = 64 << 30
_POLL_S = 0.1  # a run tells of itself by metrics and files, which are there or not


@dataclass(frozen=True)
class Cluster:
    """A development cluster; `ready` is what it has printed."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]

    def next_line(self) -> dict[str, Any]:
        """Return what it prints when its workload has ended."""
        return _next_line(self.process)

    def begin_workload(self) -> None:
        """Begin the workload of bench/upstream.py; `changefeed-devcluster` begins by itself."""
        self.process.send_signal(signal.SIGUSR2)

    def end_workload(self) -> dict[str, Any]:
        """End the workload; return what it printed. Nothing is written any more then."""
        self.process.send_signal(signal.SIGUSR1)
        return self.next_line()

    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def cluster(*options: str) -> Iterator[Cluster]:
    """Options as of `changefeed-devcluster start`."""
    with _upstream([str(_BIN / "changefeed-devcluster"), "start", *options]) as started:
        yield started


@contextmanager
def bench_cluster(options: Sequence[str], core: int | None = None) -> Iterator[Cluster]:
    """Options as of bench/upstream.py; `core`: the only one that it may use."""
    with _upstream([*_pinned(core), sys.executable, str(Path(__file__).with_name("upstream.py")), *options]) as started:
        yield started


def _pinned(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "--cpu-list", str(core)]


@contextmanager
def _upstream(command: list[str]) -> Iterator[Cluster]:
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
def memory_in_use() -> Iterator[None]:
    """Fill memory as a server has it that has run for a while: what nobody uses holds a file, and can be taken.

    Where the machine is a virtual one whose host takes idle memory back, the first touch of a page costs 4 CPU-s a GB
    (measured; the second 0.3), be it of a process or of a file. That would say more of the host than of what is
    measured.
    """
    with tempfile.TemporaryFile(buffering=0) as hole:
        hole.truncate(min(psutil.virtual_memory().free, _MOST_IN_USE))
        while hole.read(1 << 20):
            pass
        yield


@dataclass(frozen=True)
class Location:
    """Where `state` and `lake` of a changefeed are: as a folder of this machine, and as URIs."""

    folder: Path
    uri: Callable[[str], str]


def disk(folder: Path) -> Location:
    return Location(folder, lambda name: (folder / name).as_uri())


@dataclass
class Run:
    """One `changefeed run` of the resource in `folder`, with its `lake` and `state` in `location`."""

    folder: Path
    location: Location
    process: subprocess.Popen[bytes]
    meter: Meter

    def wait(self) -> None:
        """Wait until it ends by itself."""
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
        """Drain it as Ctrl-C does."""
        self.process.send_signal(signal.SIGTERM)
        self.wait()

    def data_files(self) -> list[Path]:
        """Return those of a storage, or of tables."""
        lake = self.location.folder / "lake"
        return [path for path in (*lake.rglob("CDC*"), *lake.rglob("[0-9]*.parquet")) if path.suffix != ".index"]

    def checkpoint_ms(self) -> int:
        """Return it as a reader of the sink meets it; 0 before there is one."""
        try:
            metadata = (self.location.folder / "lake" / "metadata").read_text()
        except FileNotFoundError:
            return 0
        return int(json.loads(metadata)["checkpoint-ts"]) >> 18

    def until_published(self, ms: float, what: str, seconds: float) -> None:
        """A reader of the sink may read up to that time, Unix ms; else as `until`."""
        self.until(lambda: self.checkpoint_ms() >= ms, what, seconds)

    def log_records(self) -> list[Path]:
        """Return those that are not folded yet, in order."""
        return sorted((self.location.folder / "state").rglob("log/[0-9]*.json"))

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
    upstream: Cluster | None,
    folder: Path,
    storage: dict[str, Any],
    /,
    name: str = "bench",
    namespace: str = "default",
    location: Location | None = None,
    core: int | None = None,
    **spec: Any,
) -> Iterator[Run]:
    """A changefeed of all of sysbench's tables, measured until it has ended.

    `upstream`: None: `spec` has it, with Secrets in the folder's `secrets`. `storage`: the sink's options beside its
    uri; `location`: by default `folder`; `core`: the only one that it may use; `spec`: of the resource, what is not the
    same for all.
    """
    location = location or disk(folder)
    if upstream is not None:
        pd = {"pdAddresses": [f"http://{upstream.ready['pd']}"]}
        spec = {"upstream": pd, "startTs": upstream.ready["startTs"], "filter": {"rules": ["sbtest.*"]}} | spec
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "state": {"uri": location.uri("state")},
            "sink": {"storage": {"uri": location.uri("lake"), **storage}},
            **spec,
        },
    }
    (folder / _SPEC).write_text(json.dumps(resource))
    port = _free_port()
    options = ["--master", "local[4,8]", "--metrics-port", str(port), "--json"]
    if upstream is None:
        options += ["--secrets-dir", str(folder / "secrets")]
    command = [*_pinned(core), str(_BIN / "changefeed"), "run", "-f", str(folder / _SPEC), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    meter = Meter(psutil.Process(process.pid), port)
    sampler = threading.Thread(target=meter.run)
    sampler.start()
    try:
        yield Run(folder, location, process, meter)
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


def runs_of(report: Path) -> list[dict[str, Any]]:
    """Return what an earlier report has, each with the commit and the CPU that were measured; none if there is none."""
    if not report.exists():
        return []
    earlier = json.loads(report.read_text())
    return [{"commit": earlier["commit"], "cpu": earlier["machine"]["cpu"], **run} for run in earlier["runs"]]


def write_report(out: Path, runs: list[dict[str, Any]]) -> None:
    """Ends the process with an error when a run was verified and does not hold.

    See docs/design/layouts.md, Benchmark results.
    """
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = _machine()
    runs = [{"commit": commit, "cpu": machine["cpu"], **run} for run in runs]
    report = {"schema": 1, "commit": commit, "machine": machine, "runs": runs}
    out.write_text(json.dumps(report, indent=2) + "\n")
    sys.stdout.write(f"written to {out}\n")
    if any(run["verified"] is False for run in runs):
        raise SystemExit("verify does not hold")


def _machine() -> dict[str, Any]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "mem_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "java": java,
        "spark": version("pyspark"),
    }


def _cpu() -> str:
    """The model where Linux tells it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
