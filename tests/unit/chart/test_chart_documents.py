"""The documents say what to do for every reason that the operator gives, and name every metric of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from changefeed.spec.reasons import Reason
from changefeed_operator.decision.conditions import Situation
from changefeed_operator.metrics import Metrics

DOCS = Path(__file__).parents[3] / "docs"


def _section(document: str, heading: str) -> str:
    return re.split(r"^##+ ", (DOCS / document).read_text().split(f"# {heading}\n")[1], flags=re.MULTILINE)[0]


def _row(section: str, name: str) -> list[str]:
    line = next((line for line in section.splitlines() if line.startswith(f"| `{name}` |")), None)
    assert line, f"there is no row for {name}"
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.shown])
def test_every_reason_stands_in_the_table_with_its_state(reason: Reason) -> None:
    section = _section("reference/events.md", "Reasons of Ready, Reconciling and Stalled")
    _, ready, _, state, meaning, todo = _row(section, reason)
    situation = Situation(reason, "")
    assert ready.startswith(str(situation.is_ready))
    assert state.startswith(situation.state)
    assert meaning
    assert todo


def test_every_metric_of_the_operator_is_listed() -> None:
    served = set(re.findall(r"^# TYPE (\S+) ", Metrics().text().decode(), re.MULTILINE))
    listed = set(re.findall(r"`(changefeed_operator_\w+)`", (DOCS / "operator" / "monitoring.md").read_text()))
    assert {name for name in served if not name.endswith("_created")} <= listed
