"""A Grafana dashboard as an SVG picture: its panels where they lie, with what Prometheus answered to their queries.

Pure: a dashboard and answers in, text out. It draws the types and options of panels that our dashboards have, and is
no Grafana: what a dashboard sets beyond them is not shown.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

WIDTH = 1200
_COLUMN = WIDTH / 24
_ROW = 34
_GAP = 8
_HEAD = 58  # of the picture
_FOOT = 26
_TITLE = 28  # of a panel
_LEFT = 58  # of a plot: the numbers of its axis
_BOTTOM = 20
_LINE = 17  # of a legend
_CELL = 72  # of a legend that is a table
_LETTER = 6.6  # about the width of one, 11 px high

_BACKGROUND, _PANEL, _BORDER, _GRID = "#111217", "#181b1f", "#2a2d33", "#2c3036"
_TEXT, _FAINT = "#d8d9da", "#9da3ad"
_NAMED = {"green": "#73bf69", "blue": "#5794f2", "orange": "#ff9830", "red": "#f2495c", "purple": "#b877d9"}
_PALETTE = (
    "#7eb26d",
    "#eab839",
    "#6ed0e0",
    "#ef843c",
    "#e24d42",
    "#1f78c1",
    "#ba43a9",
    "#705da0",
    "#508642",
    "#cca300",
)

Point = tuple[float, float]
Panel = Mapping[str, Any]


@dataclass(frozen=True)
class Series:
    """One line of an answer. `points`: (Unix seconds, a finite value), by time."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[Point]


@dataclass(frozen=True)
class Window:
    """The time that is shown, Unix seconds; `step` between two points."""

    start: float
    end: float
    step: float


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Plot:
    """Where the points of a panel go: `window` from left to right, 0 to `top` from the bottom up."""

    box: Box
    window: Window
    top: float

    def x(self, time: float) -> float:
        share = (time - self.window.start) / (self.window.end - self.window.start)
        return self.box.x + self.box.width * share

    def y(self, value: float) -> float:
        return self.box.y + self.box.height * (1 - min(max(value, 0.0), self.top) / self.top)

    def line(self, points: Sequence[Point]) -> str:
        """The path; it is broken where points are missing."""
        return "".join(f"M{self._through(part)}" + ("h0" if len(part) == 1 else "") for part in self.parts(points))

    def area(self, points: Sequence[Point], below: Mapping[float, float]) -> str:
        """The path around what lies between the points and what is `below` them, by time; nothing is 0."""
        lower = [[(time, below.get(time, 0.0)) for time, _ in reversed(part)] for part in self.parts(points)]
        both = zip(self.parts(points), lower, strict=True)
        return "".join(f"M{self._through(high)}L{self._through(low)}Z" for high, low in both)

    def parts(self, points: Sequence[Point]) -> list[list[Point]]:
        """Return the parts without a gap."""
        parts = [[points[0]]] if points else []
        for before, point in pairwise(points):
            if point[0] - before[0] > 1.5 * self.window.step:
                parts.append([])
            parts[-1].append(point)
        return parts

    def _through(self, points: Iterable[Point]) -> str:
        return "L".join(f"{_px(self.x(time))} {_px(self.y(value))}" for time, value in points)


def picture(
    board: Mapping[str, Any], answers: Mapping[int, Sequence[Series]], window: Window, chosen: str, caption: str
) -> str:
    """The whole SVG. `answers`: by panel id. `chosen`: the variables, in words."""
    panels = board["panels"]
    height = _HEAD + _ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) + _FOOT
    times = f"{_clock(window.start, True)} to {_clock(window.end, True)} UTC"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Inter, Helvetica, Arial, sans-serif" font-size="11">',
        f"<title>{escape(board['title'])}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="{_BACKGROUND}"/>',
        _text(_GAP, 26, board["title"], _TEXT, size=19, weight=600),
        _text(_GAP, 46, chosen, _FAINT, size=12),
        _text(WIDTH - _GAP, 26, times, _FAINT, size=12, anchor="end"),
        *(_panel(panel, answers.get(panel["id"], ()), window) for panel in panels),
        _text(_GAP, height - 9, caption, _FAINT),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, series: Sequence[Series], window: Window) -> str:
    grid = panel["gridPos"]
    box = Box(
        grid["x"] * _COLUMN + _GAP / 2,
        _HEAD + grid["y"] * _ROW,
        grid["w"] * _COLUMN - _GAP,
        grid["h"] * _ROW - _GAP,
    )
    if panel["type"] == "row":
        return _text(box.x + 4, box.y + 19, f"⌄  {panel['title']}", _TEXT, size=14, weight=600)
    draw = {"timeseries": _timeseries, "stat": _stat, "table": _table}[panel["type"]]
    inner = Box(box.x + 10, box.y + _TITLE, box.width - 20, box.height - _TITLE - 6)
    return "\n".join(
        [
            f"<g><title>{escape(panel['description'])}</title>",
            f'<rect x="{_px(box.x)}" y="{_px(box.y)}" width="{_px(box.width)}" height="{_px(box.height)}" rx="2" '
            f'fill="{_PANEL}" stroke="{_BORDER}"/>',
            _text(box.x + 10, box.y + 19, panel["title"], _TEXT, size=13, weight=500),
            *draw(panel, series, window, inner),
            "</g>",
        ]
    )


# --- lines ---


def _timeseries(panel: Panel, series: Sequence[Series], window: Window, box: Box) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    colours = {one.name: _colour(panel, one.name, number) for number, one in enumerate(series)}
    beside = _beside(panel, series, box) if panel["options"]["legend"]["placement"] == "right" else 0.0
    area = Box(box.x + box.width - beside + 12, box.y, beside - 12, box.height) if beside else box
    legend = list(_legend(panel, series, colours, area))
    lines = 0 if beside else 1 + max((row for row, _ in legend), default=-1)
    wide, high = box.width - _LEFT - 4 - beside, box.height - _BOTTOM - lines * _LINE - 10
    area = Box(box.x + _LEFT, box.y + 6, wide, high)
    below = _below(series, custom["stacking"]["mode"] == "normal")
    largest = max((value + low.get(time, 0.0) for one, low in below for time, value in one.points), default=0.0)
    step = tick(largest, defaults["unit"], max(2, int(area.height // 40)))
    plot = Plot(area, window, step * max(1, math.ceil(round(largest / step, 6))))
    yield from _axes(plot, step, defaults)
    for one, low in below:
        points = [(time, value + low.get(time, 0.0)) for time, value in one.points]
        draw = _bars if custom["drawStyle"] == "bars" else _line
        yield from draw(plot, points, low, colours[one.name], custom["fillOpacity"] / 100)
    if not series:
        yield _text(area.x + area.width / 2, area.y + area.height / 2, "No data", _FAINT, size=13, anchor="middle")
    top = box.y + 16 if beside else box.y + box.height - lines * _LINE + 8
    yield from (drawn.replace("{y}", _px(top + row * _LINE)) for row, drawn in legend)


def _below(series: Sequence[Series], stacked: bool) -> list[tuple[Series, dict[float, float]]]:
    """Each series with what it stands on, by time."""
    found: list[tuple[Series, dict[float, float]]] = []
    heights: dict[float, float] = {}
    for one in series:
        found.append((one, dict(heights)))
        if stacked:
            heights |= {time: heights.get(time, 0.0) + value for time, value in one.points}
    return found


def _line(plot: Plot, high: Sequence[Point], low: Mapping[float, float], fill: str, opacity: float) -> Iterator[str]:
    yield f'<path d="{plot.area(high, low)}" fill="{fill}" fill-opacity="{opacity:g}"/>'
    yield f'<path d="{plot.line(high)}" fill="none" stroke="{fill}" stroke-width="1.3" stroke-linecap="round"/>'


def _bars(plot: Plot, high: Sequence[Point], low: Mapping[float, float], fill: str, opacity: float) -> Iterator[str]:
    wide = 0.7 * plot.box.width * plot.window.step / (plot.window.end - plot.window.start)
    rects = [
        f"M{_px(plot.x(time) - wide / 2)} {_px(plot.y(low.get(time, 0.0)))}V{_px(plot.y(value))}h{_px(wide)}"
        f"V{_px(plot.y(low.get(time, 0.0)))}Z"
        for time, value in high
        if value > low.get(time, 0.0)
    ]
    yield f'<path d="{"".join(rects)}" fill="{fill}" fill-opacity="{opacity:g}" stroke="{fill}" stroke-width="0.8"/>'


def _axes(plot: Plot, step: float, defaults: Mapping[str, Any]) -> Iterator[str]:
    box, window = plot.box, plot.window
    for number in range(round(plot.top / step) + 1):
        y = plot.y(number * step)
        yield _rule(box.x, y, box.x + box.width, y)
        yield _text(box.x - 7, y + 4, shown(number * step, defaults), _FAINT, anchor="end")
    every = next(
        s for s in (15, 30, 60, 120, 300, 900, 3600, 86400) if s * box.width / (window.end - window.start) > 75
    )
    for time in range(math.ceil(window.start / every) * every, int(window.end) + 1, every):
        x = plot.x(time)
        yield _rule(x, box.y, x, box.y + box.height)
        anchor = "end" if x > box.x + box.width - 20 else "middle"
        yield _text(x, box.y + box.height + 14, _clock(time, every < 60), _FAINT, anchor=anchor)


def tick(largest: float, unit: str, count: int) -> float:
    """A round distance of so many lines at most, up to `largest`."""
    if largest <= 0:
        return 1.0
    wanted = largest / count
    if unit == "bytes":
        scale = 1024.0 ** max(0, int(math.log(max(wanted, 1), 1024)))
        steps = [scale * (1 << power) for power in range(11)]
    elif unit == "s" and wanted > 10:
        steps = [15.0, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 7 * 86400, 1e9]
    else:
        scale = 10.0 ** math.floor(math.log10(wanted))
        steps = [scale * factor for factor in (1, 2, 5, 10)]
    found = next(step for step in steps if step >= wanted * 0.999)
    return max(found, 1.0) if unit == "none" else found  # of what is counted there are no halves


def _beside(panel: Panel, series: Sequence[Series], box: Box) -> float:
    """The width of a legend on the right, with some room before it."""
    letters = max((len(one.name) for one in series), default=0)
    cells = len(panel["options"]["legend"]["calcs"])
    return min(0.5 * box.width, 36 + _LETTER * letters + _CELL * cells)


def _legend(panel: Panel, series: Sequence[Series], colours: Mapping[str, str], box: Box) -> Iterator[tuple[int, str]]:
    """(line, what is in it), with {y} for the line's height."""
    defaults, legend = panel["fieldConfig"]["defaults"], panel["options"]["legend"]
    if legend["displayMode"] == "table":
        ends = [box.x + box.width - 4 - _CELL * number for number in reversed(range(len(legend["calcs"])))]
        calcs = list(zip(legend["calcs"], ends, strict=True))
        head = [_at(end, _CALCS[calc][0], _FAINT, anchor="end") for calc, end in calcs]
        yield 0, "".join([_at(box.x + 20, "Name", _FAINT), *head])
        for row, one in enumerate(series, 1):
            cells = [
                _at(end, shown(_CALCS[calc][1](_values(one)), defaults), _TEXT, anchor="end") for calc, end in calcs
            ]
            yield row, _key(box.x, colours[one.name]) + _at(box.x + 20, one.name, _TEXT) + "".join(cells)
        return
    row, x = 0, box.x
    for one in series:
        wide = 36 + _LETTER * len(one.name)
        if x > box.x and x + wide - 16 > box.x + box.width:
            row, x = row + 1, box.x
        yield row, _key(x, colours[one.name]) + _at(x + 20, one.name, _TEXT)
        x += wide


def _values(series: Series) -> list[float]:
    return [value for _, value in series.points]


_CALCS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "lastNotNull": ("Last", lambda values: values[-1]),
    "max": ("Max", max),
}


def _key(x: float, colour: str) -> str:
    return f'<path d="M{_px(x + 1)} {{y}}h13" transform="translate(0 -4)" stroke="{colour}" stroke-width="3"/>'


def _at(x: float, text: str, fill: str, anchor: str = "start") -> str:
    return f'<text x="{_px(x)}" y="{{y}}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'


# --- numbers and tables ---


def _stat(panel: Panel, series: Sequence[Series], window: Window, box: Box) -> Iterator[str]:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    if not series:
        yield from _big(defaults.get("noValue", "No data"), _FAINT, box)
        return
    wide = box.width / len(series)
    for number, one in enumerate(series):
        cell, value = Box(box.x + number * wide, box.y, wide, box.height), one.points[-1][1]
        colour = _colour(panel, one.name, number, value)
        if options["graphMode"] == "area":
            low = Box(cell.x - 10, cell.y + cell.height * 0.6, cell.width + 20, cell.height * 0.4 + 6)
            plot = Plot(low, window, max(_values(one)) or 1.0)
            yield f'<path d="{plot.area(one.points, {})}" fill="{colour}" fill-opacity="0.2"/>'
            yield f'<path d="{plot.line(one.points)}" fill="none" stroke="{colour}" stroke-width="1.2"/>'
        text = one.name if options["textMode"] == "name" else shown(value, defaults)
        share = 0.75 if options["graphMode"] == "area" else 1.0
        yield from _big(text, colour, Box(cell.x, cell.y, cell.width, cell.height * share))


def _big(text: str, colour: str, box: Box) -> Iterator[str]:
    size = min(box.height * 0.42, 1.3 * box.width / max(4, len(text)), 48.0)
    yield _text(
        box.x + box.width / 2, box.y + box.height * 0.5 + size * 0.3, text, colour, size, weight=600, anchor="middle"
    )


def _table(panel: Panel, series: Sequence[Series], window: Window, box: Box) -> Iterator[str]:
    """Draw a table of the labels, as the panel's transformation has them."""
    changed: dict[str, Any] = {"excludeByName": {}, "renameByName": {}, "indexByName": {}}
    for transformation in panel.get("transformations", ()):
        changed |= transformation["options"]
    columns = [label for label in (series[0].labels if series else ()) if not changed["excludeByName"].get(label)]
    columns.sort(key=lambda label: changed["indexByName"].get(label, len(columns)))
    wide, fit = box.width / max(1, len(columns)), int(box.height // 24) - 1
    for number, column in enumerate(columns):
        x = box.x + 6 + number * wide
        yield _text(x, box.y + 16, changed["renameByName"].get(column, column), _NAMED["blue"], size=12, weight=500)
        for row, one in enumerate(series[:fit], 1):
            yield _text(x, box.y + 16 + 24 * row, one.labels[column], _TEXT, size=12)
    for row in range(1, len(series[:fit]) + 1):
        yield _rule(box.x, box.y + 24 * row, box.x + box.width, box.y + 24 * row)
    if not series:
        yield from _big(panel["fieldConfig"]["defaults"].get("noValue", "No data"), _FAINT, box)


# --- colours, numbers, text ---


def _colour(panel: Panel, name: str, number: int, value: float = 0.0) -> str:
    config = panel["fieldConfig"]
    for override in config["overrides"]:
        if override["matcher"] == {"id": "byName", "options": name}:
            return _named(override["properties"][0]["value"]["fixedColor"])
    colour = config["defaults"]["color"]
    if colour["mode"] == "fixed":
        return _named(colour["fixedColor"])
    if colour["mode"] == "thresholds":
        steps = config["defaults"]["thresholds"]["steps"]
        return _named([step for step in steps if step["value"] is None or value >= step["value"]][-1]["color"])
    return _PALETTE[number % len(_PALETTE)]


def _named(colour: str) -> str:
    return colour if colour.startswith("#") else _NAMED[colour]


#: (from which value on, divided by, what follows), the largest first, by Grafana's name of the unit.
_UNITS: dict[str, list[tuple[float, float, str]]] = {
    "none": [(0, 1, "")],
    "short": [(1e9, 1e9, " B"), (1e6, 1e6, " M"), (1e3, 1e3, " K"), (0, 1, "")],
    "s": [(86400, 86400, " d"), (3600, 3600, " h"), (60, 60, " min"), (1, 1, " s"), (0, 1e-3, " ms")],
    "bytes": [(2**30, 2**30, " GiB"), (2**20, 2**20, " MiB"), (2**10, 2**10, " KiB"), (0, 1, " B")],
    "Bps": [(1e9, 1e9, " GB/s"), (1e6, 1e6, " MB/s"), (1e3, 1e3, " kB/s"), (0, 1, " B/s")],
}


def shown(value: float, defaults: Mapping[str, Any]) -> str:
    """Format it for an axis or a legend: as many decimals as the panel wants, else three digits; and the unit."""
    unit = defaults["unit"]
    if value == 0:
        return "0" + (" s" if unit == "s" else _UNITS[unit][-1][2])
    _, divisor, suffix = next(scale for scale in _UNITS[unit] if abs(value) >= scale[0])
    number = value / divisor
    digits = defaults.get("decimals", max(0, 2 - math.floor(math.log10(abs(number)))))
    text = f"{number:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


def _clock(time: float, seconds: bool) -> str:
    return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%H:%M:%S" if seconds else "%H:%M")


def _rule(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path d="M{_px(x)} {_px(y)}L{_px(to_x)} {_px(to_y)}" stroke="{_GRID}"/>'


def _text(x: float, y: float, text: str, fill: str, size: float = 11, weight: int = 400, anchor: str = "start") -> str:
    return (
        f'<text x="{_px(x)}" y="{_px(y)}" fill="{fill}" font-size="{_px(size)}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _px(value: float) -> str:
    text = f"{value:.1f}"
    return text.removesuffix(".0")
