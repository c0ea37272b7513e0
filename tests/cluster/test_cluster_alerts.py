"""Each alert fires from series as the operator and a driver expose them.

Two clusters are in one Prometheus, with the same changefeeds in both and all the trouble in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.metrics import Registry
from changefeed.model.tso import compose, to_datetime
from changefeed.spec.reasons import Reason
from changefeed_operator.metrics import Metrics, Standing, changefeed_families
from cluster_chart_tools import CHART, from_prometheus, run
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

MINUTES = 80
GONE_AT = 60  # the operator of the cluster in trouble
BEGAN = 1_760_000_000  # Unix seconds


@dataclass
class Scrapes:
    """What a Prometheus that asks each minute keeps, in promtool's words.

    A series that a target no longer shows ends with a marker. One of a target that is gone does so where the discovery
    tells, but not where samples come by remote write or the Prometheus was restarted meanwhile.
    """

    _values: dict[str, list[str]] = field(default_factory=dict)
    _shown: dict[str, set[str]] = field(default_factory=dict)  # by target

    def take(self, minute: int, page: bytes, **target: str) -> None:
        found: set[str] = set()
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                series = _series(sample.name, target | sample.labels)
                found.add(series)
                self._set(minute, series, f"{sample.value:g}")
        self._end(minute, str(target), found)

    def leave(self, minute: int, **target: str) -> None:
        self._end(minute, str(target), set())

    def as_input(self) -> list[dict[str, str]]:
        return [{"series": series, "values": " ".join(values)} for series, values in self._values.items()]

    def _end(self, minute: int, target: str, shown: set[str]) -> None:
        for series in self._shown.get(target, set()) - shown:
            self._set(minute, series, "stale")
        self._shown[target] = shown

    def _set(self, minute: int, series: str, value: str) -> None:
        values = self._values.setdefault(series, [])
        values.extend(["_"] * (minute - len(values)))
        values.append(value)


def _series(name: str, labels: Mapping[str, str]) -> str:
    shown = ", ".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{shown}}}"


class Cluster:
    """An operator and the driver of shop/orders, minute by minute."""

    def __init__(self, name: str, is_sick: bool) -> None:
        self.name, self.is_sick = name, is_sick
        self._operator = Metrics()
        self._driver = Registry("shop", "orders")
        self._driver_registry = CollectorRegistry(auto_describe=False)
        self._driver_registry.register(self._driver)

    def go_on(self, minute: int, scrapes: Scrapes, with_markers: bool) -> None:
        operator = {"cluster": self.name, "namespace": "cs", "pod": "a"}
        driver = {"cluster": self.name, "namespace": "shop", "pod": "orders-driver"}
        if self.is_sick and minute >= GONE_AT:
            if with_markers and minute == GONE_AT:
                scrapes.leave(minute, **operator)
        else:
            scrapes.take(minute, self._operator_page(minute), **operator)
        troubles = float(self.is_sick and minute >= 5)
        for gauge in ("changefeed_puller_blocking_transactions", "changefeed_owner_held_spans_count"):
            self._driver.apply_delta(gauge, "", troubles, gauge=True)
        scrapes.take(minute, generate_latest(self._driver_registry), **driver)

    def _operator_page(self, minute: int) -> bytes:
        sick = self.is_sick
        if sick and minute == 6:
            self._operator.events.labels(str(Reason.CLOSE_GIVEN_UP)).inc()
        standing = Standing(
            queue_keys=int(sick),
            queue_oldest=60.0 * minute if sick else 0.0,
            running_passes=0,
            works=True,
            watch_ages={"Pod": 60.0 * minute if sick else 5.0, "Changefeed": 5.0},
            changefeeds={},
            refused_namespaces=["bank"] if sick else [],
            failed_passes={("shop", "refused"): minute} if sick else {},
        )
        self._operator.show(lambda: standing)
        feeds = CollectorRegistry(auto_describe=False)
        feeds.register(_Families(changefeed_families(self._changefeeds(minute), BEGAN + 60 * minute)))  # type: ignore[arg-type]
        return self._operator.text() + generate_latest(feeds)

    def _changefeeds(self, minute: int) -> dict[tuple[str, str], dict[str, Any]]:
        sick = self.is_sick
        restarts = {"restarts": {"total": max(0, min(minute - 10, 5))}} if minute > 10 else {}
        feeds = {
            # Where it is paused it is no trouble, and hides none of the other cluster's.
            "orders": {"state": "Normal" if sick else "Stopped", "lag": 900.0, "ready": sick},
            "failed": {"state": "Failed" if sick else "Normal", "ready": not sick},
            "users": {"state": "Warning" if sick else "Normal", "ready": not sick},
            "stuck": {"state": "Normal", "ready": True, "lag": 60.0 * minute if sick else 2.0},
            "unheld": {"state": "Normal", "ready": True, "held": (43_500.0 if sick else 86_400.0) - 60 * minute * sick},
            "filling": {"state": "Normal", "ready": True, "kept": minute << 20 if sick else 1 << 20},
            "restarting": {"state": "Normal", "ready": True, "more": restarts if sick else {}},
        }
        return {("shop", name): _resource(BEGAN + 60 * minute, **feed) for name, feed in feeds.items()}


class _Families:
    """A collector of what was read already."""

    def __init__(self, families: Iterable[Any]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Any]:
        return self._families


def _resource(
    now: int,
    state: str,
    ready: bool,
    lag: float = 2.0,
    held: float = 86_400.0,
    kept: int = 0,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready or state == "Stopped" else "False", "reason": "Running"}]
    status = {"state": state, "conditions": conditions, "checkpointTime": _time(now - lag)} | dict(more or {})
    hold = {"until": _time(now + held), "keptBytes": kept, "mostBytes": 20 << 20 if kept else 0}
    return {"spec": {"lagThreshold": "60s"}, "status": status | {"hold": hold}}


def _time(seconds: float) -> str:
    return to_datetime(compose(int(seconds * 1000))).strftime("%Y-%m-%dT%H:%M:%SZ")


#: What fires after 45 minutes, beside its severity and cluster.
IN_TROUBLE = [
    ("ChangefeedOperatorQueueStuck", "critical", {"namespace": "cs", "pod": "a"}),
    ("ChangefeedOperatorWatchStale", "warning", {"namespace": "cs", "pod": "a", "type": "Pod"}),
    ("ChangefeedOperatorRetrying", "warning", {"namespace": "shop", "changefeed": "refused"}),
    ("ChangefeedOperatorNamespaceRefused", "critical", {"watched": "bank"}),
    ("ChangefeedFailed", "critical", {"namespace": "shop", "changefeed": "failed"}),
    ("ChangefeedNotReady", "warning", {"namespace": "shop", "changefeed": "users"}),
    ("ChangefeedLagging", "warning", {"namespace": "shop", "changefeed": "orders"}),
    ("ChangefeedLagging", "warning", {"namespace": "shop", "changefeed": "stuck"}),
    ("ChangefeedCheckpointStuck", "critical", {"namespace": "shop", "changefeed": "stuck"}),
    ("ChangefeedHistoryNotHeld", "critical", {"namespace": "shop", "changefeed": "unheld"}),
    ("ChangefeedHistoryRunsOut", "critical", {"namespace": "shop", "changefeed": "filling"}),
    ("ChangefeedNotClosed", "warning", {"namespace": "cs", "pod": "a", "reason": "CloseGivenUp"}),
    ("ChangefeedRestarting", "warning", {"namespace": "shop", "changefeed": "restarting"}),
]
FROM_THE_DRIVER = [
    ("ChangefeedBlockedByTransaction", "warning", {"namespace": "shop", "changefeed": "orders"}),
    ("ChangefeedEventStoreFull", "warning", {"namespace": "shop", "changefeed": "orders"}),
]
OPERATOR_DOWN = [("ChangefeedOperatorDown", "critical", dict[str, str]())]


def _fires(minute: int, alerts: Iterable[tuple[str, str, dict[str, str]]]) -> dict[str, Any]:
    samples = [
        {
            "labels": _series(
                "ALERTS",
                {"alertname": name, "alertstate": "firing", "severity": severity, "cluster": "sick"} | labels,
            ),
            "value": 1,
        }
        for name, severity, labels in alerts
    ]
    return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": samples}


@pytest.mark.parametrize("with_markers", [True, False])
def test_each_alert_fires_for_the_cluster_that_is_in_trouble(with_markers: bool, tmp_path: Path) -> None:
    scrapes = Scrapes()
    clusters = [Cluster("sick", is_sick=True), Cluster("well", is_sick=False)]
    for minute in range(MINUTES):
        for cluster in clusters:
            cluster.go_on(minute, scrapes, with_markers)
    tests = {
        "rule_files": ["alerts.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": scrapes.as_input(),
                "promql_expr_test": [
                    _fires(0, []),
                    _fires(45, [*IN_TROUBLE, *FROM_THE_DRIVER]),
                    _fires(GONE_AT + 14, [*FROM_THE_DRIVER, *OPERATOR_DOWN]),
                ],
            }
        ],
    }
    alerts = (CHART / "files" / "alerts.yaml").read_text()
    (tmp_path / "alerts.yaml").write_text(alerts)
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    done = run([from_prometheus("promtool"), "test", "rules", tmp_path / "tests.yaml"])
    assert done.returncode == 0, done.stdout + done.stderr
    seen = {name for name, _, _ in [*IN_TROUBLE, *FROM_THE_DRIVER, *OPERATOR_DOWN]}
    assert seen == set(re.findall(r"alert: (\w+)", alerts))
