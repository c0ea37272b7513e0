"""A puller's metrics as increments for the owner, including the seven of the span pipeline."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from changefeed.eventstore.realtime_buffer import RealtimeBuffer
from changefeed.model.tso import physical_ms
from changefeed.puller.span_pipeline import PipelineMetrics
from changefeed.upstream.contract import FeedMetrics
from changefeed.wire import owner_pb2

PREFIX = "changefeed_puller_span_pipeline_"
GAUGES = ("inflight_bytes", "inflight_batches", "pending_resolved_barriers", "active_subscriptions")
COUNTERS = ("resolved_barrier_dropped_total", "resolved_barrier_compaction_total")
WAITS = "quota_acquire_duration_seconds"


@dataclass
class CaptureMetrics:
    """What a puller has put into the event store."""

    buffer: RealtimeBuffer
    last_commit_ts: int = 0
    lag_s: float = 0.0  # of the newest row, by this machine's clock

    def captured(self, meta: owner_pb2.SegmentMeta, now_ms: float) -> None:
        """A segment can be read."""
        self.last_commit_ts = max((span.max.commit_ts for span in meta.spans), default=self.last_commit_ts)
        self.lag_s = max(0.0, (now_ms - physical_ms(self.last_commit_ts)) / 1000)


class MetricDeltas:
    def __init__(self, metrics: PipelineMetrics, feed: FeedMetrics, capture: CaptureMetrics, puller: int) -> None:
        self._metrics = metrics
        self._feed = feed
        self._capture = capture
        self._puller = str(puller)
        self._told: dict[tuple[str, str], float] = {}

    def take(self) -> list[owner_pb2.MetricDelta]:
        """Gauges as they are, counters by their growth, and each wait for the quota since the last call."""
        values = asdict(self._metrics)
        now = {PREFIX + name: values[name] for name in GAUGES}
        now["changefeed_puller_held_subscriptions_count"] = self._metrics.held_subscriptions
        now["changefeed_puller_matcher_pending_rows"] = self._feed.pending_rows
        now["changefeed_puller_blocking_transactions"] = self._feed.blocking_transactions
        now["changefeed_puller_congested_stores"] = self._feed.congested_stores
        now["changefeed_event_store_buffer_used_bytes"] = self._capture.buffer.used
        now["changefeed_event_store_buffer_lag_segments"] = self._capture.buffer.only_here
        own = {
            "changefeed_puller_capture_lag_seconds": self._capture.lag_s,
            "changefeed_puller_blocking_seconds": self._feed.blocking_s,
            "changefeed_puller_last_commit_ts": self._capture.last_commit_ts,
        }
        gauges = [owner_pb2.MetricDelta(name=name, value=value, gauge=True) for name, value in now.items()]
        gauges += [
            owner_pb2.MetricDelta(name=name, label=self._puller, value=value, gauge=True) for name, value in own.items()
        ]
        totals = self._totals(values)
        deltas = []
        for (name, label), total in totals.items():
            grown = total - self._told.get((name, label), 0.0)
            if grown:
                deltas.append(owner_pb2.MetricDelta(name=name, label=label, value=grown))
        self._told = totals
        waits = self._metrics.quota_acquire_durations
        deltas += [owner_pb2.MetricDelta(name=PREFIX + WAITS, value=seconds) for seconds in waits]
        waits.clear()
        return gauges + deltas

    def _totals(self, values: dict[str, float]) -> dict[tuple[str, str], float]:
        totals = {(PREFIX + name, ""): float(values[name]) for name in COUNTERS}
        feed = self._feed
        totals["changefeed_event_store_buffer_overflows_total", ""] = self._capture.buffer.overflows
        totals["changefeed_puller_cpu_seconds_total", ""] = feed.cpu_seconds
        totals["changefeed_puller_bytes_total", ""] = feed.bytes
        totals["changefeed_puller_region_registrations_total", ""] = feed.registrations
        totals["changefeed_puller_finished_locks_total", ""] = feed.finished_locks
        totals |= {("changefeed_puller_events_total", op): rows for op, rows in feed.events.items()}
        totals |= {("changefeed_puller_errors_total", reason): times for reason, times in feed.errors.items()}
        return totals
