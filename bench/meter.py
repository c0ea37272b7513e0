"""What a run uses, sampled from outside: CPU seconds and memory of its processes, and its metrics."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

_LOOK_S = 0.1
_LABELS = ("type", "state", "puller")
_SAMPLE_EVERY, _SCRAPE_EVERY, _PSS_EVERY = 5, 10, 20  # looks


class Cpu(NamedTuple):
    """Seconds."""

    user: float = 0.0
    kernel: float = 0.0


class Memory(NamedTuple):
    """Bytes of several processes; a page that they share is counted once."""

    own: int = 0
    shared: int = 0
    mapped: int = 0  # of files: the kernel can drop it

    @property
    def kept(self) -> int:
        return self.own + self.shared


@dataclass
class Meter:
    """CPU seconds and memory of a run's processes; its metrics; when its first segment was counted."""

    process: psutil.Process
    port: int
    cpu: dict[int, tuple[str, Cpu]] = field(default_factory=dict)
    peak_rss: int = 0
    peak_memory: Memory = field(default_factory=lambda: Memory())
    peak_anonymous: dict[str, int] = field(default_factory=dict)  # by kind: of the process that has most
    first_segment: float | None = None
    metrics: dict[tuple[str, str], float] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Look for the first segment often, at the rest seldom: looking costs what is measured, too."""
        looks = 0
        while not self.done.wait(_LOOK_S):
            if self.first_segment is None:
                self._look_for_segment()
            if looks % _SAMPLE_EVERY == 0:
                with self._lock:
                    self._sample_processes()
            if looks % _SCRAPE_EVERY == 0:
                with self._lock:
                    self._sample_metrics()
            if looks % _PSS_EVERY == 0:
                self.peak_memory = max(self.peak_memory, _memory(self._processes()), key=lambda used: used.kept)
            looks += 1

    def _look_for_segment(self) -> None:
        with self._lock:
            self._sample_metrics()
        if self.metric("changefeed_event_store_segments_total"):
            self.first_segment = time.time()

    def sample(self) -> None:
        """Bring CPU, memory and metrics up to now."""
        with self._lock:
            self._sample_processes()
            self._sample_metrics()

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []  # it has just ended

    def _sample_processes(self) -> None:
        rss = 0
        for process in self._processes():
            try:
                times, memory = process.cpu_times(), process.memory_info()
                kind = self._kind(process)
            except psutil.Error:
                continue
            self.cpu[process.pid] = (kind, Cpu(times.user, times.system))
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
                label = next((sample.labels[name] for name in _LABELS if sample.labels.get(name)), "")
                self.metrics[sample.name, label] = sample.value

    def _kind(self, process: psutil.Process) -> str:
        """Which part of the product a process is."""
        if process.pid == self.process.pid:
            return "owner"
        return "jvm" if "java" in process.name() else "tasks"

    def metric(self, name: str, label: str = "") -> float:
        """Return it as last sampled; 0 before. `label`: of its `type`, `state` or `puller`."""
        return self.metrics.get((name, label), 0.0)

    def total(self) -> Cpu:
        """Return the CPU of all processes so far, those that have ended too."""
        used = [cpu for _, cpu in list(self.cpu.values())]
        return Cpu(sum(cpu.user for cpu in used), sum(cpu.kernel for cpu in used))

    def stages(self) -> dict[str, float]:
        """CPU seconds: the pullers, the pipeline's stages, the owner, the JVM, and the rest of Spark's Python."""
        total: dict[str, float] = defaultdict(float)
        for kind, cpu in list(self.cpu.values()):
            total[kind] += sum(cpu)
        found = {"puller": self.metric("changefeed_puller_cpu_seconds_total")}
        for (name, stage), seconds in list(self.metrics.items()):
            if name == "changefeed_pipeline_cpu_seconds_total" and stage:
                found[stage] = seconds
        found["python start"] = max(0.0, total.pop("tasks", 0.0) - sum(found.values()))
        return {**found, **total}


def _memory(processes: Iterable[psutil.Process]) -> Memory:
    """Nothing of those that have ended."""
    found = dict.fromkeys(("Pss_Anon:", "Pss_Shmem:", "Pss_File:"), 0)
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for name, number, *_ in map(str.split, lines[1:]):
            if name in found:
                found[name] += int(number) << 10
    return Memory(*found.values())
