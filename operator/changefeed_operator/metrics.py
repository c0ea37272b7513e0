"""Every metric of the operator, declared once. prometheus_client's global registry is not used.

Occurrences are counted as they happen; current values (queue, watches, states) are read at scrape time. The state and
lag of a changefeed come from its last observed status: exporting them takes no writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from changefeed.spec.field.quantity import parse_duration
from changefeed.spec.field.section import Section
from changefeed.spec.model import Spec
from changefeed.spec.reasons import Reason
from changefeed.spec.upstream import UpstreamSpec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.loop.queue import Key

#: Buckets of the pass duration histogram, seconds.
PASS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_FEED = ("namespace", "changefeed")


@dataclass(frozen=True)
class Standing:
    """The values at scrape time; ages in seconds. `changefeeds`: as last seen."""

    queue_keys: int
    queue_oldest: float
    running_passes: int
    works: bool
    watch_ages: Mapping[str, float]
    changefeeds: Mapping[Key, Json]
    refused_namespaces: Collection[str] = ()
    failed_passes: Mapping[Key, int] = field(default_factory=dict)


class Metrics:
    """The metrics of one operator process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._standing: Callable[[], Standing] | None = None
        self.reconcile_seconds = Histogram(
            "changefeed_operator_reconcile_seconds",
            "Duration of one pass over a changefeed: observe, decide, act.",
            buckets=PASS_BUCKETS,
            registry=self._registry,
        )
        self.reconciles = self._counter("changefeed_operator_reconciles_total", "Passes, by outcome.", "state")
        self.retries = self._counter("changefeed_operator_retries_total", "Failed passes, by error.", "reason")
        self.unexpected = self._counter(
            "changefeed_operator_unexpected_errors_total", "Unexpected errors; each is a bug.", "reason"
        )
        self.requests = self._counter(
            "changefeed_operator_requests_total", "Requests to the API server, by method.", "type"
        )
        self.request_errors = self._counter(
            "changefeed_operator_request_errors_total", "Failed requests, by status; 0 for no response.", "reason"
        )
        self.events = self._counter("changefeed_operator_events_total", "Events posted, by reason.", "reason")
        for reason in Reason:
            if reason.sent:  # a counter that is born with its first event never increases for Prometheus
                self.events.labels(str(reason))
        self._registry.register(self)

    def show(self, standing: Callable[[], Standing]) -> None:
        """Set the source of the current values."""
        self._standing = standing

    def count_request(self, method: str, status: int) -> None:
        """The API server responded, or did not (status 0). 404 is not a failure: there is just no such object."""
        self.requests.labels(method).inc()
        if status == 0 or (status >= 400 and status != 404):
            self.request_errors.labels(str(status)).inc()

    def text(self) -> bytes:
        """Render them in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Give prometheus_client the current values."""
        if self._standing is None:
            return
        now = self._standing()
        yield _gauge("changefeed_operator_queue_keys_count", "Changefeeds waiting for a pass.", now.queue_keys)
        yield _gauge(
            "changefeed_operator_queue_oldest_seconds", "How long the first in the queue has waited.", now.queue_oldest
        )
        yield _gauge("changefeed_operator_running_passes_count", "Passes in progress.", now.running_passes)
        yield _gauge(
            "changefeed_operator_leader_info",
            "1 for the active leader, 0 for a standby or a leader that can't work.",
            float(now.works),
        )
        refused = GaugeMetricFamily(
            "changefeed_operator_refused_namespace_info",
            "1 for each of watchNamespaces that can't be served, because it or its Role is gone.",
            labels=["watched"],
        )
        for namespace in now.refused_namespaces:
            refused.add_metric([namespace or "all"], 1)
        yield refused
        failed = GaugeMetricFamily(
            "changefeed_operator_failed_passes_count", "Consecutive failed passes of a changefeed.", labels=_FEED
        )
        for key, count in now.failed_passes.items():
            failed.add_metric(key, count)
        yield failed
        ages = GaugeMetricFamily(
            "changefeed_operator_watch_age_seconds",
            "Seconds since the last event, bookmark or response of a watch.",
            labels=["type"],
        )
        for kind, age in now.watch_ages.items():
            ages.add_metric([kind], age)
        yield ages
        yield from changefeed_families(now.changefeeds, time.time())

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, [label], registry=self._registry)


def changefeed_families(changefeeds: Mapping[Key, Json], now: float) -> Iterator[Metric]:
    """State, readiness, lag and restarts of each changefeed, from its status; missing values are left out.

    `now`: Unix seconds.
    """
    state = GaugeMetricFamily(
        "changefeed_operator_changefeed_state_info", "1 for the changefeed's current state.", labels=[*_FEED, "state"]
    )
    ready = GaugeMetricFamily(
        "changefeed_operator_changefeed_ready_info", "1 if the changefeed is Ready.", labels=_FEED
    )
    lag = GaugeMetricFamily("changefeed_operator_checkpoint_lag_seconds", "How far the checkpoint lags.", labels=_FEED)
    threshold = GaugeMetricFamily(
        "changefeed_operator_lag_threshold_seconds", "spec.lagThreshold: a lag above it is too high.", labels=_FEED
    )
    held = GaugeMetricFamily(
        "changefeed_operator_history_held_seconds",
        "Until the hold on the upstream's history expires; 0 or less: nothing is held.",
        labels=_FEED,
    )
    kept = GaugeMetricFamily(
        "changefeed_operator_history_kept_bytes",
        "WAL that PostgreSQL keeps for the changefeed's slot, as seen last.",
        labels=_FEED,
    )
    most = GaugeMetricFamily(
        "changefeed_operator_history_most_bytes",
        "How much it would keep before it lets the history go; none: without a bound.",
        labels=_FEED,
    )
    ttl = GaugeMetricFamily(
        "changefeed_operator_safepoint_ttl_seconds",
        "spec.upstream.safepointTtl: how long a hold lasts without renewal.",
        labels=_FEED,
    )
    restarts = CounterMetricFamily("changefeed_operator_restarts_total", "Failed attempts.", labels=_FEED)
    paused = GaugeMetricFamily(
        "changefeed_operator_reconcile_paused_info", "1 if reconciliation is paused by annotation.", labels=_FEED
    )
    for key, changefeed in changefeeds.items():
        if api.is_hands_off(changefeed):
            paused.add_metric(key, 1)
        status = api.mapping_at(changefeed, "status")
        if word := api.text_at(status, "state"):
            state.add_metric([*key, word], 1)
            restarts.add_metric(key, api.whole_at(status, "restarts", "total"))
        for condition in api.list_at(status, "conditions"):
            if api.text_at(condition, "type") == "Ready":
                ready.add_metric(key, float(api.text_at(condition, "status") == "True"))
        checkpoint = api.time_at(status, "checkpointTime")
        if checkpoint is not None:
            threshold.add_metric(key, _lag_threshold(changefeed))
            lag.add_metric(key, max(0.0, now - checkpoint))
        if (seconds := _held_seconds(status, now)) is not None:
            held.add_metric(key, seconds)
            ttl.add_metric(key, _safepoint_ttl(changefeed))
            for family, name in ((kept, "keptBytes"), (most, "mostBytes")):
                if api.whole_at(status, "hold", name) > 0:
                    family.add_metric(key, api.whole_at(status, "hold", name))
    yield from (state, ready, lag, threshold, held, kept, most, ttl, restarts, paused)


def _held_seconds(status: Json, now: float) -> float | None:
    """None if there is nothing to hold, or it is not known yet."""
    reasons = (api.text_at(each, "reason") for each in api.list_at(status, "conditions") if _is_history(each))
    reason = next(reasons, "")
    until = api.time_at(status, "hold", "until")
    if reason in ("Finished", "NothingToHold") or (until is None and reason != "NotHeld"):
        return None
    return 0.0 if until is None or reason == "SnapshotLostByGC" else until - now


def _is_history(condition: object) -> bool:
    return api.text_at(condition, "type") == "HistoryHeld"


def _lag_threshold(changefeed: Json) -> float:
    return _seconds(api.text_at(changefeed, "spec", "lagThreshold"), Spec, "lag_threshold")


def _safepoint_ttl(changefeed: Json) -> float:
    return _seconds(api.text_at(changefeed, "spec", "upstream", "safepointTtl"), UpstreamSpec, "safepoint_ttl")


def _seconds(text: str, section: type[Section], field: str) -> float:
    """Falls back to the default if the value is missing or invalid."""
    try:
        return parse_duration(text)
    except ValueError:
        default: float = section.model_fields[field].default
        return default


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
