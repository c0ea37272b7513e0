"""Every metric, declared once, and the registry that holds their numbers.

The driver holds the numbers of all its executors, which send what has changed, and serves them as one `/metrics`
(docs/design/layouts.md, Metric names). Nothing is kept in prometheus_client's global registry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from changefeed.errors import ProtocolViolation

#: Upper bounds of the histograms of how long a stage of a file and a wait for the quota took, seconds; "+Inf" follows.
STAGE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


@dataclass(frozen=True)
class Declared:
    """A metric that is declared.

    `label`: the metric's own one, beside namespace and changefeed; `bounds`: of a histogram's buckets.
    """

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
    Declared("changefeed_owner_moves_total", "counter", "Spans, or parts of them, moved to another puller."),
    Declared("changefeed_owner_splits_total", "counter", "Times a span was split, to be pulled in parts."),
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


class Registry(Collector):
    """The numbers of one changefeed; thread-safe."""

    def __init__(self, namespace: str, changefeed: str) -> None:
        self._labels = (namespace, changefeed)
        self._lock = threading.Lock()
        self._metrics = {declared.name: _metric(declared) for declared in METRICS}
        self._counted: dict[tuple[str, str], Callable[[float], None]] = {}  # counters and histograms
        self._gauges: dict[tuple[str, str], dict[str, float]] = {}  # by source
        for declared in METRICS:
            if not declared.label:
                (self._new_gauge if declared.kind == "gauge" else self._new_counted)(declared.name, "")
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def apply_delta(self, name: str, label: str, value: float, gauge: bool, source: str = "") -> None:
        """Add to a counter, observe a value of a histogram, or set a gauge, as a puller or the owner reports it.

        `source`: who reports; a gauge shows the sum over all sources. Raises ProtocolViolation for a metric that is
        not declared, or is declared as another kind.
        """
        if gauge:
            by_source = self._gauges.get((name, label))
            if by_source is None:
                by_source = self._new_gauge(name, label)
            with self._lock:
                by_source[source] = value
        else:
            (self._counted.get((name, label)) or self._new_counted(name, label))(value)

    def forget(self, source: str) -> None:
        """Drop the gauges of a source that has ended."""
        with self._lock:
            for by_source in self._gauges.values():
                by_source.pop(source, None)

    def snapshot(self) -> dict[tuple[str, str], float]:
        """(name of a series, value of its own label or "") -> number."""
        return {
            (
                sample.name,
                next((value for name, value in sample.labels.items() if name not in _COMMON), ""),
            ): sample.value
            for family in self.collect()
            for sample in family.samples
        }

    def total(self, name: str) -> float:
        """A counter's or gauge's number over all values of its label."""
        return sum(sample.value for sample in self._family(name).samples)

    def collect(self) -> Iterator[Metric]:
        """Give prometheus_client every declared metric, those without a label of their own from 0."""
        yield from map(self._family, self._metrics)

    def _new_counted(self, name: str, label: str) -> Callable[[float], None]:
        metric = self._metrics.get(name)
        if metric is None or isinstance(metric, Gauge):
            raise _undeclared(name, "counter or histogram")
        child = metric.labels(*self._label_values(name, label))
        return self._counted.setdefault((name, label), child.inc if isinstance(child, Counter) else child.observe)

    def _new_gauge(self, name: str, label: str) -> dict[str, float]:
        metric = self._metrics.get(name)
        if not isinstance(metric, Gauge):
            raise _undeclared(name, "gauge")
        with self._lock:
            by_source = self._gauges.setdefault((name, label), {})

        def summed() -> float:
            with self._lock:
                return sum(by_source.values())

        metric.labels(*self._label_values(name, label)).set_function(summed)
        return by_source

    def _label_values(self, name: str, label: str) -> list[str]:
        return [*self._labels, *([label] if name in _LABELS else [])]

    def _family(self, name: str) -> Metric:
        """The metric's series in the order of its label's values, without the times at which they were made."""
        (family,) = self._metrics[name].collect()
        of_numbers = (sample for sample in family.samples if not sample.name.endswith("_created"))
        family.samples = sorted(of_numbers, key=lambda sample: sample.labels.get(_LABELS.get(name, ""), ""))
        return family


def _undeclared(name: str, kind: str) -> ProtocolViolation:
    return ProtocolViolation(f"{name!r} is not a declared {kind}.", "Declare it in changefeed/metrics.py.")


def _metric(declared: Declared) -> Counter | Gauge | Histogram:
    names = [*_COMMON, *([declared.label] if declared.label else [])]
    if declared.kind == "histogram":
        return Histogram(declared.name, declared.help, names, registry=None, buckets=declared.bounds)
    return (Counter if declared.kind == "counter" else Gauge)(declared.name, declared.help, names, registry=None)


_COMMON = ("namespace", "changefeed")
_LABELS = {declared.name: declared.label for declared in METRICS if declared.label}
