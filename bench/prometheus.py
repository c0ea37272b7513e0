"""A real Prometheus server for a while: it scrapes what it is told to, and answers a dashboard's queries."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from drawing import Series, Window
from measured import ROOT

sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from cluster_chart_tools import from_prometheus
from cluster_processes import Processes, free_ports


@dataclass(frozen=True)
class Target:
    """An endpoint to scrape.

    `labels`: those that a ServiceMonitor or PodMonitor gives each series of it.
    """

    port: int
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Prometheus:
    """A server that runs."""

    port: int
    scrape_s: int

    def range(self, query: str, legend: str, window: Window) -> list[Series]:
        """Return what a panel shows of `query` over time. `legend`: as Grafana takes it, with {{label}}."""
        found = self._ask("query_range", query=query, start=window.start, end=window.end, step=window.step)
        return _series(found, legend, "values")

    def instant(self, query: str, legend: str, at: float) -> list[Series]:
        """The same at one moment."""
        return _series(self._ask("query", query=query, time=at), legend, "value")

    def rate_interval(self, step: float) -> str:
        """Grafana's $__rate_interval."""
        return f"{max(step + self.scrape_s, 4 * self.scrape_s):g}s"

    def _ask(self, what: str, **parameters: Any) -> list[dict[str, Any]]:
        with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{what}?{urlencode(parameters)}", timeout=30.0) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found


def _series(found: list[dict[str, Any]], legend: str, field: str) -> list[Series]:
    """Return those with a number: a quotient or quantile of nothing is NaN, which Grafana does not draw."""
    made = []
    for one in found:
        labels: dict[str, str] = one["metric"]
        name = "".join(labels.get(part, "") if is_label else part for is_label, part in _parts(legend))
        pairs = one["values"] if field == "values" else [one["value"]]
        points = [(float(time), float(value)) for time, value in pairs if math.isfinite(float(value))]
        if points:
            made.append(Series(name, labels, points))
    return made


def _parts(legend: str) -> list[tuple[bool, str]]:
    """Texts and labels by turns; whether it is a label."""
    return [(bool(number % 2), part) for number, part in enumerate(re.split(r"{{\s*(\w+)\s*}}", legend))]


@contextmanager
def prometheus(folder: Path, targets: list[Target], scrape_s: int) -> Iterator[Prometheus]:
    """Run one with data and log in `folder`. Labels that a metric brings along win, as the chart's monitors have it."""
    processes, port = Processes(folder), free_ports(1)[0]
    job = {
        "job_name": "changefeed",
        "honor_labels": True,
        "static_configs": [
            {"targets": [f"127.0.0.1:{target.port}"], "labels": dict(target.labels)} for target in targets
        ],
    }
    timing = {"scrape_interval": f"{scrape_s}s", "scrape_timeout": f"{scrape_s}s"}
    config = folder / "prometheus.yaml"
    config.write_text(json.dumps({"global": timing, "scrape_configs": [job]}))
    command: list[str | Path] = [from_prometheus("prometheus"), f"--config.file={config}", "--log.level=warn"]
    command += [f"--storage.tsdb.path={folder / 'prometheus'}", f"--web.listen-address=127.0.0.1:{port}"]
    processes.start("prometheus", command)
    try:
        processes.wait_until(lambda: _is_ready(port), "Prometheus is ready")
        yield Prometheus(port, scrape_s)
    finally:
        processes.stop_all()


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5.0):
            return True
    except (URLError, ConnectionError):
        return False
