"""Every metric, declared once; and what a person watches while a changefeed runs.

The driver holds the numbers of all its executors, which send what has changed, and serves them as one `/metrics`
(docs/design/layouts.md, Metric names). Nothing is kept in prometheus_client's global registry.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from changefeed.errors import NeedsHuman, ProtocolViolation, Unavailable

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

#: Upper bounds of the histograms of how long a stage of a file and a wait for the quota took, seconds; "+Inf" follows.
STAGE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


@dataclass(frozen=True)
class Declared:
    """`label`: the metric's own one, beside namespace and changefeed; `bounds`: of a histogram's buckets."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label: str = ""
    bounds: tuple[float, ...] = ()


_PIPELINE = "changefeed_puller_span_pipeline"

METRICS = (
    # The seven that the design of span pipelines names.
    Declared(f"{_PIPELINE}_inflight_bytes", "gauge", "Bytes counted against the pipeline quota."),
    Declared(f"{_PIPELINE}_inflight_batches", "gauge", "Data batches waiting for their persist callback."),
    Declared(f"{_PIPELINE}_pending_resolved_barriers", "gauge", "Resolved barriers waiting for earlier data."),
    Declared(f"{_PIPELINE}_active_subscriptions", "gauge", "Active subscriptions in the pipeline."),
    Declared(
        f"{_PIPELINE}_quota_acquire_duration_seconds",
        "histogram",
        "Time subscriptions waited for the byte quota.",
        bounds=WAIT_BUCKETS,
    ),
    Declared(f"{_PIPELINE}_resolved_barrier_dropped_total", "counter", "Redundant resolved barriers dropped."),
    Declared(f"{_PIPELINE}_resolved_barrier_compaction_total", "counter", "Compactions of the barrier queue."),
    Declared("changefeed_puller_held_subscriptions_count", "gauge", "Subscriptions held back for lack of memory."),
    Declared("changefeed_puller_events_total", "counter", "Committed row events emitted by the matcher.", "type"),
    Declared("changefeed_puller_bytes_total", "counter", "Bytes of those events, as quotas and plans count them."),
    Declared("changefeed_puller_matcher_pending_rows", "gauge", "Prewritten rows waiting for their commit."),
    Declared("changefeed_puller_region_registrations_total", "counter", "Region registrations sent to TiKV."),
    Declared("changefeed_puller_finished_locks_total", "counter", "Locks of dead transactions that were resolved."),
    Declared("changefeed_puller_blocking_transactions", "gauge", "Open transactions that hold back a resolved-ts."),
    Declared("changefeed_puller_blocking_seconds", "gauge", "Age of the oldest such transaction, 0 if none.", "puller"),
    Declared("changefeed_puller_congested_stores", "gauge", "Stores that take no registrations, for each puller."),
    Declared("changefeed_puller_errors_total", "counter", "Errors the puller recovered from.", "reason"),
    Declared("changefeed_puller_cpu_seconds_total", "counter", "CPU time used by puller tasks."),
    Declared("changefeed_puller_capture_lag_seconds", "gauge", "Time from a row's commit to its capture.", "puller"),
    Declared("changefeed_puller_last_commit_ts", "gauge", "Commit ts of the last captured row.", "puller"),
    Declared("changefeed_event_store_segments_total", "counter", "Segments captured."),
    Declared("changefeed_event_store_events_total", "counter", "Row events in captured segments."),
    Declared("changefeed_event_store_bytes_total", "counter", "Bytes of captured segments."),
    Declared("changefeed_event_store_used_bytes", "gauge", "Bytes of stored segments, counted against the quota."),
    Declared("changefeed_event_store_mode", "gauge", "Pullers by where their segments are read from.", "mode"),
    Declared("changefeed_event_store_mode_switches_total", "counter", "Switches between buffer and archive."),
    Declared("changefeed_event_store_buffer_used_bytes", "gauge", "Bytes of segments in the pullers' memory."),
    Declared("changefeed_event_store_buffer_lag_segments", "gauge", "Buffered segments not yet in the archive."),
    Declared("changefeed_event_store_buffer_overflows_total", "counter", "Segments that did not fit into the buffer."),
    Declared("changefeed_owner_held_spans_count", "gauge", "Spans held back because the event store is full."),
    Declared("changefeed_owner_moves_total", "counter", "Spans moved to another puller."),
    Declared("changefeed_owner_resolved_ts_lag_seconds", "gauge", "PD's time minus the lowest resolved-ts."),
    Declared("changefeed_owner_checkpoint_ts_lag_seconds", "gauge", "PD's time minus the checkpoint-ts."),
    Declared("changefeed_owner_plans_total", "counter", "Plans recorded."),
    Declared("changefeed_owner_entries_total", "counter", "Plan entries by flush reason.", "reason"),
    Declared("changefeed_owner_dispatchers_count", "gauge", "Dispatchers by state: dirty or idle.", "state"),
    Declared("changefeed_owner_task_errors_total", "counter", "Errors reported by Spark tasks.", "reason"),
    Declared("changefeed_owner_status_errors_total", "counter", "Failed writes of the resource's status.", "reason"),
    Declared("changefeed_owner_state_info", "gauge", "1 for the changefeed's current state.", "state"),
    Declared(
        "changefeed_sink_requests_total",
        "counter",
        "Requests to the sink and the state's store by outcome: ok; away (no answer); refused (an error); failed (it "
        "is unknown which of the two). All but ok are retried.",
        "type",
    ),
    Declared(
        "changefeed_sink_late_writes_total",
        "counter",
        "Writes with an unknown outcome that turned out to have succeeded.",
    ),
    Declared("changefeed_sink_expired_files_total", "counter", "Files deleted because they had expired."),
    Declared("changefeed_pipeline_rows_total", "counter", "Rows sorted, filtered and encoded."),
    Declared("changefeed_pipeline_filtered_rows_total", "counter", "Rows dropped by filters."),
    Declared("changefeed_pipeline_bytes_total", "counter", "Encoded bytes."),
    Declared("changefeed_pipeline_cpu_seconds_total", "counter", "CPU time by stage, up to the uploaded file.", "type"),
    Declared(
        "changefeed_owner_plan_duration_seconds",
        "histogram",
        "Time from a file's resolved ts until its plan is recorded.",
        bounds=STAGE_BUCKETS,
    ),
    Declared(
        "changefeed_sink_write_duration_seconds",
        "histogram",
        "Time from the recorded plan until the file is in the sink.",
        bounds=STAGE_BUCKETS,
    ),
    Declared(
        "changefeed_sink_publish_duration_seconds",
        "histogram",
        "Time from then until the commit is recorded and readers may see the file.",
        bounds=STAGE_BUCKETS,
    ),
    Declared("changefeed_sink_files_total", "counter", "Files with a recorded commit."),
    Declared("changefeed_sink_rows_total", "counter", "Rows in committed files."),
    Declared("changefeed_sink_bytes_total", "counter", "Bytes in committed files."),
)


class Registry:
    """The numbers of one changefeed; thread-safe.

    A histogram `h` takes the deltas `h_bucket`, with the bucket's upper bound as label ("0.05", "+Inf") and cumulative
    as Prometheus has them, `h_sum`, and `h_count`, which equals the bucket "+Inf".
    """

    def __init__(self, namespace: str, changefeed: str) -> None:
        self._labels = (namespace, changefeed)
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, dict[str, float]]] = {name: {} for name in _KINDS}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._close: Callable[[], None] | None = None

    def apply_delta(self, name: str, label: str, value: float, gauge: bool, source: str = "") -> None:
        """Add to a counter, or set a gauge, as a puller or the owner reports it.

        `source`: who reports; a gauge shows the sum over all sources. Raises ProtocolViolation for a metric that is
        not declared, or is declared as another kind.
        """
        if name not in _KINDS or (_KINDS[name] == "gauge") != gauge:
            what = "gauge" if gauge else "counter"
            raise ProtocolViolation(f"{name!r} is not a declared {what}.", "Declare it in changefeed/metrics.py.")
        with self._lock:
            by_source = self._values[name].setdefault(label, defaultdict(float))
            by_source[source] = value if gauge else by_source[source] + value

    def observe(self, name: str, value: float) -> None:
        """Count a value in a histogram."""
        bounds = [bound for bound in _BOUNDS[name] if value <= bound]
        for bound in (*map(str, bounds), "+Inf"):
            self.apply_delta(f"{name}_bucket", bound, 1, gauge=False)
        self.apply_delta(f"{name}_sum", "", value, gauge=False)
        self.apply_delta(f"{name}_count", "", 1, gauge=False)

    def forget(self, source: str) -> None:
        """Drop the gauges of a source that has ended."""
        with self._lock:
            for name, by_label in self._values.items():
                for by_source in by_label.values() if _KINDS[name] == "gauge" else ():
                    by_source.pop(source, None)

    def snapshot(self) -> dict[tuple[str, str], float]:
        """(name, value of its own label or "") -> number, of everything reported so far."""
        with self._lock:
            return {
                (name, label): sum(by_source.values())
                for name, by_label in self._values.items()
                for label, by_source in by_label.items()
            }

    def total(self, name: str) -> float:
        """A metric's number over all values of its label."""
        with self._lock:
            return sum(sum(by_source.values()) for by_source in self._values[name].values())

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client: every declared metric, those without a label of their own from 0."""
        numbers: dict[str, dict[str, float]] = defaultdict(dict)
        for (name, label), value in self.snapshot().items():
            numbers[name][label] = value
        for metric in METRICS:
            yield self._family(metric, numbers)

    def serve(
        self,
        port: int,
        address: str = "127.0.0.1",
        ill: Callable[[], str | None] = lambda: None,
        status: Callable[[], bytes] = lambda: b"{}",
    ) -> int:
        """Answer `/metrics`, `/healthz`, `/status` in threads until `close`; port 0 takes a free one. Gives the port.

        `ill`: why this process should be killed, asked in one of these threads; None: it works. `status`: JSON, asked
        there too; it may raise Unavailable. Raises NeedsHuman when the port is taken.
        """
        try:
            server, thread = start_http_server(port, address, self.registry)
        except OSError as e:
            raise NeedsHuman(
                f"Can't serve metrics on {address}:{port}: {e.strerror}.",
                "Choose another port with --metrics-port; 0 takes a free one.",
            ) from e

        server.set_app(_beside_metrics(make_wsgi_app(self.registry), ill, status))

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._close = close
        return server.server_port

    def close(self) -> None:
        """Stop serving."""
        if self._close:
            self._close()
            self._close = None

    def _family(self, metric: Declared, numbers: Mapping[str, Mapping[str, float]]) -> Metric:
        names = ["namespace", "changefeed", *([metric.label] if metric.label else [])]
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
            bounds = [*map(str, metric.bounds), "+Inf"]
            counts = [numbers.get(f"{metric.name}_bucket", {}).get(bound, 0.0) for bound in bounds]
            total = numbers.get(f"{metric.name}_sum", {}).get("", 0.0)
            histogram.add_metric(self._labels, list(zip(bounds, counts, strict=True)), total)
            return histogram
        shape = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family: CounterMetricFamily | GaugeMetricFamily = shape(metric.name, metric.help, labels=names)
        if metric.label:
            for label, value in sorted(numbers.get(metric.name, {}).items()):
                family.add_metric((*self._labels, label), value)
        else:
            family.add_metric(self._labels, numbers.get(metric.name, {}).get("", 0.0))
        return family


def _beside_metrics(
    metrics: WSGIApplication, ill: Callable[[], str | None], status: Callable[[], bytes]
) -> WSGIApplication:
    """Adds `/healthz`, 200 while the process works, else 503 and why it does not; and `/status`, JSON."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/healthz":
            why = ill()
            start_response("503 Service Unavailable" if why else "200 OK", [_TEXT])
            return [f"{why or 'ok'}\n".encode()]
        if environ["PATH_INFO"] == "/status":
            try:
                body = status()
            except Unavailable as error:
                start_response("503 Service Unavailable", [_TEXT])
                return [f"{error}\n".encode()]
            start_response("200 OK", [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
            return [body]
        return metrics(environ, start_response)

    return answer


_TEXT = ("Content-Type", "text/plain; charset=utf-8")


def _kinds() -> Iterator[tuple[str, str]]:
    for metric in METRICS:
        if metric.kind == "histogram":
            yield f"{metric.name}_bucket", "counter"
            yield f"{metric.name}_sum", "counter"
            yield f"{metric.name}_count", "counter"
        else:
            yield metric.name, metric.kind


#: Every name that a delta may have, and whether it is a counter or a gauge.
_KINDS = dict(_kinds())
_BOUNDS = {metric.name: metric.bounds for metric in METRICS if metric.kind == "histogram"}


@dataclass(frozen=True)
class StageProgress:
    """What went through one stage since this driver started, and how fast lately."""

    rows: int = 0
    bytes: int = 0
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Progress:
    """How far a changefeed is; a ts is 0 while it is unknown."""

    state: str  # one sentence
    checkpoint_ts: int = 0
    resolved_ts: int = 0
    checkpoint_lag: float = 0.0  # seconds
    resolved_lag: float = 0.0  # seconds
    puller: StageProgress = StageProgress()
    event_store: StageProgress = StageProgress()
    pipeline: StageProgress = StageProgress()
    sink: StageProgress = StageProgress()
    files: int = 0  # committed
    tables: int = 0
    dirty: int = 0  # dispatchers with unplanned events


class View(Protocol):
    """Somebody who watches."""

    def update(self, progress: Progress) -> None:
        """Show it; called from one thread, a few times a second at most."""
        ...

    def close(self) -> None:
        """Give the terminal back: the process ends now. No error when it is done already."""
        ...
