"""The seven metrics of source design 1 as what they have grown by: so a puller sends them to the owner."""

from __future__ import annotations

from dataclasses import asdict

from changefeed.puller.span_pipeline import WAIT_BUCKETS, PipelineMetrics
from changefeed.wire import owner_pb2

PREFIX = "changefeed_puller_span_pipeline_"
GAUGES = ("inflight_bytes", "inflight_batches", "pending_resolved_barriers", "active_subscriptions")
COUNTERS = ("resolved_barrier_dropped_total", "resolved_barrier_compaction_total")
WAITS = "quota_acquire_duration_seconds"


class MetricDeltas:
    def __init__(self, metrics: PipelineMetrics) -> None:
        self._metrics = metrics
        self._told: dict[tuple[str, str], float] = {}

    def take(self) -> list[owner_pb2.MetricDelta]:
        """Gauges as they are, counters by their growth; the histogram as metrics.Registry takes it."""
        values = asdict(self._metrics)
        gauges = [owner_pb2.MetricDelta(name=PREFIX + name, value=values[name], gauge=True) for name in GAUGES]
        totals = {(name, ""): float(values[name]) for name in COUNTERS}
        count = 0
        for bound, waits in zip((*WAIT_BUCKETS, "+Inf"), self._metrics.quota_acquire_buckets, strict=True):
            count += waits
            totals[f"{WAITS}_bucket", str(bound)] = count
        totals[f"{WAITS}_sum", ""] = self._metrics.quota_acquire_duration_seconds
        totals[f"{WAITS}_count", ""] = count
        deltas = []
        for (name, label), total in totals.items():
            grown = total - self._told.get((name, label), 0.0)
            if grown:
                deltas.append(owner_pb2.MetricDelta(name=PREFIX + name, label=label, value=grown))
        self._told = totals
        return gauges + deltas
