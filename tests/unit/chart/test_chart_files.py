"""What can be said of the chart, its alerts, dashboards and examples without rendering it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from changefeed.metrics import Registry
from changefeed.spec.parse import parse
from changefeed_operator.metrics import Metrics, Standing
from prometheus_client import generate_latest

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "changefeed-operator"
GITOPS = ROOT / "examples" / "gitops"
RUNBOOKS = ROOT / "docs" / "runbooks"

_METRIC = re.compile(r"\bchangefeed_[a-z0-9_]+")
_SELECTOR = re.compile(r"\b(changefeed_[a-z0-9_]+)\{([^}]*)\}")

#: Labels that Prometheus gives every series of a pod.
_TARGET_LABELS = {"namespace", "pod", "job", "instance"}


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _alerts() -> list[dict[str, Any]]:
    return [rule for group in _load(CHART / "files" / "alerts.yaml")["groups"] for rule in group["rules"]]


def _dashboards() -> list[tuple[str, dict[str, Any]]]:
    return [(path.name, json.loads(path.read_text())) for path in sorted((CHART / "dashboards").glob("*.json"))]


def _expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every alert, panel and dashboard variable."""
    for alert in _alerts():
        yield alert["alert"], alert["expr"]
    for name, board in _dashboards():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{name}: variable {variable['name']}", variable["definition"]


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """Every series that the code serves, with its own labels: of the driver and of the operator."""
    driver = Registry("shop", "orders")
    operator = Metrics()
    changefeed = {
        "metadata": {"namespace": "shop", "name": "orders"},
        "spec": {"lagThreshold": "1m"},
        "status": {
            "state": "Normal",
            "attempt": 2,
            "checkpointTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    standing = Standing(1, 1.0, 1, True, {"Changefeed": 1.0}, {("shop", "orders"): changefeed})
    operator.show(lambda: standing)
    operator.retries.labels("Transient").inc()
    operator.events.labels("CloseGivenUp").inc()
    operator.reconciles.labels("done").inc()
    operator.count_request("GET", 500)
    names: dict[str, set[str]] = {}
    for text in (generate_latest(driver.registry).decode(), operator.text().decode()):
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
            for series in [f"{name}_bucket", f"{name}_sum", f"{name}_count"] if kind == "histogram" else [name]:
                names.setdefault(series, set())
        for series, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
            names[series] = set(re.findall(r'(\w+)="', labels or ""))
    return names


def test_every_metric_of_alerts_and_dashboards_is_one_of_the_code(served: dict[str, set[str]]) -> None:
    for where, expression in _expressions():
        for name in _METRIC.findall(expression):
            assert name in served, f"{where} asks for {name}, which nothing serves"


def test_every_label_that_is_selected_by_exists(served: dict[str, set[str]]) -> None:
    from changefeed.metrics import METRICS

    own = {metric.name: {metric.label} - {""} for metric in METRICS}
    for where, expression in _expressions():
        for name, selector in _SELECTOR.findall(expression):
            for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector):
                known = served[name] | own.get(name, set()) | _TARGET_LABELS | {"changefeed"}
                assert label in known, f"{where}: {name} has no label {label}"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    alerts = _alerts()
    names = {alert["alert"] for alert in alerts}
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks/{alert['alert']}.md"
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert {"summary", "description"} < set(alert["annotations"])
    written = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert written == names
    for name in names:
        assert (RUNBOOKS / f"{name}.md").read_text().startswith(f"# {name}\n")


@pytest.mark.parametrize(("name", "board"), _dashboards())
def test_a_dashboard_is_complete(name: str, board: dict[str, Any]) -> None:
    assert board["uid"]
    assert board["title"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in board["templating"]["list"]}
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{name}: {panel['title']} lies over another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["description"], f"{name}: {panel['title']} says nothing about itself"
        assert panel["targets"]
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables, f"{name}: {panel['title']} uses {used - variables}"


def test_the_schema_of_the_values_is_closed_and_covers_the_defaults() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = _load(CHART / "values.yaml")
    assert set(schema["properties"]) - {"global"} == set(values)

    def check(path: str, node: dict[str, Any], value: Any) -> None:
        if "properties" in node:
            assert node["additionalProperties"] is False, path
            for key in node["properties"].keys() - {"global"}:
                assert key in value, f"{path}.{key} has no default in values.yaml"
                check(f"{path}.{key}", node["properties"][key], value[key])

    check("values", schema, values)


def test_the_crd_of_the_chart_is_the_crd() -> None:
    assert (CHART / "files" / "changefeeds.yaml").read_bytes() == (ROOT / "crds" / "changefeeds.yaml").read_bytes(), (
        "run make generate"
    )


@pytest.mark.parametrize("path", sorted(GITOPS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(GITOPS)))
def test_examples_are_yaml_and_their_changefeeds_are_valid(path: Path) -> None:
    text = path.read_text()
    for document in yaml.safe_load_all(text):
        if document.get("kind") == "Changefeed":
            parse(text)
