"""The pictures of dashboards: that a line is where its numbers are."""

from __future__ import annotations

from typing import Any

from drawing import Series, Window, picture

PANEL: dict[str, Any] = {
    "id": 7,
    "type": "timeseries",
    "title": "Behind",
    "description": "How far.",
    "gridPos": {"x": 0, "y": 0, "w": 12, "h": 8},
    "fieldConfig": {
        "defaults": {
            "unit": "s",
            "color": {"mode": "palette-classic"},
            "custom": {"drawStyle": "line", "fillOpacity": 8, "stacking": {"mode": "none"}},
        },
        "overrides": [],
    },
    "options": {"legend": {"displayMode": "list", "placement": "bottom", "calcs": []}},
}


def test_a_line_is_where_its_numbers_are_and_broken_where_there_are_none() -> None:
    lag = Series("lag", {}, [(100.0, 0.0), (110.0, 2.0), (130.0, 1.0), (140.0, 1.0)])
    drawn = picture({"title": "One", "panels": [PANEL]}, {7: [lag]}, Window(100.0, 140.0, 10.0), "", "")
    x = {100: "72", 110: "199.5", 130: "454.5", 140: "582"}  # from the axis to the right end
    y = {0: "275", 1: "183.5", 2: "92"}  # from the bottom up
    line = f"M{x[100]} {y[0]}L{x[110]} {y[2]}M{x[130]} {y[1]}L{x[140]} {y[1]}"
    assert f'<path d="{line}" fill="none"' in drawn
