from __future__ import annotations

import re
import socket
import urllib.request

import pytest
from changefeed.errors import NeedsHuman, ProtocolViolation
from changefeed.metrics import METRICS, Registry
from changefeed.owner.serving.http_server import served
from prometheus_client import generate_latest

PIPELINE = "changefeed_puller_span_pipeline"


def _exposed(registry: Registry) -> list[str]:
    return generate_latest(registry.registry).decode().splitlines()


def test_every_metric_is_declared_once_and_named_by_the_rule() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert re.match(r"changefeed_(puller|event_store|owner|pipeline|sink)_[a-z]", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.label in ("", "reason", "type", "mode", "state", "puller")


def test_the_seven_of_the_span_pipeline_keep_their_suffixes() -> None:
    assert [m.name.removeprefix(PIPELINE) for m in METRICS if m.name.startswith(PIPELINE)] == [
        "_inflight_bytes",
        "_inflight_batches",
        "_pending_resolved_barriers",
        "_active_subscriptions",
        "_quota_acquire_duration_seconds",
        "_resolved_barrier_dropped_total",
        "_resolved_barrier_compaction_total",
    ]


def test_counters_add_up_and_gauges_are_summed_over_their_sources() -> None:
    registry = Registry("shop", "orders")
    for source in ("0", "1"):
        registry.apply_delta("changefeed_puller_events_total", "insert", 10, gauge=False, source=source)
        registry.apply_delta(f"{PIPELINE}_inflight_bytes", "", 5, gauge=True, source=source)
    registry.apply_delta("changefeed_puller_events_total", "delete", 1, gauge=False, source="0")
    registry.apply_delta(f"{PIPELINE}_inflight_bytes", "", 7, gauge=True, source="0")
    assert {key: number for key, number in registry.snapshot().items() if number} == {
        ("changefeed_puller_events_total", "insert"): 20,
        ("changefeed_puller_events_total", "delete"): 1,
        (f"{PIPELINE}_inflight_bytes", ""): 12,
    }
    assert registry.total("changefeed_puller_events_total") == 21
    registry.forget("0")
    assert registry.total(f"{PIPELINE}_inflight_bytes") == 5
    assert registry.total("changefeed_puller_events_total") == 21


def test_what_prometheus_reads() -> None:
    registry = Registry("shop", "orders")
    registry.apply_delta("changefeed_owner_entries_total", "size", 3, gauge=False)
    lines = _exposed(registry)
    assert 'changefeed_owner_entries_total{changefeed="orders",namespace="shop",reason="size"} 3.0' in lines
    assert 'changefeed_sink_rows_total{changefeed="orders",namespace="shop"} 0.0' in lines


def test_a_histogram_is_made_of_its_buckets() -> None:
    registry = Registry("shop", "orders")
    name = f"{PIPELINE}_quota_acquire_duration_seconds"
    for seconds in (0.02, 0.03, 20.0):
        registry.apply_delta(name, "", seconds, gauge=False)
    lines = _exposed(registry)
    for bound, count in (("0.01", 0), ("0.05", 2), ("0.1", 2), ("+Inf", 3)):
        assert f'{name}_bucket{{changefeed="orders",le="{bound}",namespace="shop"}} {count}.0' in lines
    assert f'{name}_count{{changefeed="orders",namespace="shop"}} 3.0' in lines
    assert f'{name}_sum{{changefeed="orders",namespace="shop"}} 20.05' in lines


def test_a_value_is_counted_in_its_bucket_and_those_above() -> None:
    registry = Registry("shop", "orders")
    name = "changefeed_sink_write_duration_seconds"
    for seconds in (0.1, 0.3, 1_000.0):
        registry.apply_delta(name, "", seconds, gauge=False)
    shown = registry.snapshot()
    assert [shown.get((f"{name}_bucket", bound), 0) for bound in ("0.05", "0.1", "0.5", "300.0", "+Inf")] == [
        0,
        1,
        2,
        2,
        3,
    ]
    assert (shown[f"{name}_count", ""], shown[f"{name}_sum", ""]) == (3, 1_000.4)


def test_the_pullers_deltas_are_all_declared() -> None:
    from changefeed.eventstore.realtime_buffer import RealtimeBuffer
    from changefeed.puller.pipeline_metrics import CaptureMetrics, FeedMetrics, MetricDeltas
    from changefeed.puller.span_pipeline import PipelineMetrics

    registry = Registry("a", "b")
    metrics = PipelineMetrics(inflight_bytes=5, quota_acquire_durations=[0.005])
    feed = FeedMetrics(bytes=7, registrations=1, pending_rows=3)
    feed.events["insert"] = feed.errors["not_leader"] = 2
    deltas = MetricDeltas(metrics, feed, CaptureMetrics(RealtimeBuffer(1, 1.0)), 0)
    for delta in deltas.take():
        registry.apply_delta(delta.name, delta.label, delta.value, delta.gauge)
    assert registry.snapshot()["changefeed_puller_events_total", "insert"] == 2
    assert all(delta.gauge for delta in deltas.take())
    bucket = f'{PIPELINE}_quota_acquire_duration_seconds_bucket{{changefeed="b",le="0.005",namespace="a"}} 1.0'
    assert bucket in _exposed(registry)


@pytest.mark.parametrize(
    ("name", "gauge"),
    [
        ("changefeed_sink_row_total", False),
        ("changefeed_sink_rows_total", True),
        ("changefeed_puller_matcher_pending_rows", False),
        (f"{PIPELINE}_quota_acquire_duration_seconds", True),
    ],
)
def test_a_metric_that_is_not_declared_so_is_refused(name: str, gauge: bool) -> None:
    with pytest.raises(ProtocolViolation, match=name):
        Registry("a", "b").apply_delta(name, "", 1, gauge)


def test_served_until_closed() -> None:
    page = "http://127.0.0.1:{}/metrics"
    with served(Registry("shop", "orders"), 0) as port, urllib.request.urlopen(page.format(port)) as answer:
        assert b'changefeed_sink_files_total{changefeed="orders",namespace="shop"}' in answer.read()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_taken_port_says_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(NeedsHuman, match=rf"127\.0\.0\.1:{port}.*--metrics-port"),
            served(Registry("a", "b"), port),
        ):
            pass
