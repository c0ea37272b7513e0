"""Draws the checkpoint lag over time as inline SVG: stages stacked, with the maximum of each interval. Pure.

Colours come from the style sheet (`band-…`); without it, the order in the legend identifies the bands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from markupsafe import Markup

from changefeed.spec.driver_status import LagSample
from changefeed.ui.text import duration, moment

#: (field of LagSample, display name), bottom to top.
BANDS = (("pull", "upstream and pullers"), ("plan", "planner"), ("write", "pipeline and sink"))

_WIDTH, _HEIGHT = 960, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 952, 10, 210
_COLUMNS = 240
_STEPS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400)
_LINES = 4
_SHORTEST_MS = 60_000  # minimum length of the time axis

Scale = Callable[[float], float]  # seconds of lag -> y
TimeScale = Callable[[int], float]  # milliseconds since 1970 -> x


def lag_chart(samples: Sequence[LagSample]) -> Markup:
    """Draw the lag over time as SVG.

    `samples`: oldest first. "" if there are none.
    """
    if not samples:
        return Markup("")
    end_ms = samples[-1].at_ms
    begin_ms = min(samples[0].at_ms, end_ms - _SHORTEST_MS)
    columns = list(_columns(samples, begin_ms, end_ms))
    step = _step(max(column.total for column in columns))
    highest = step * _LINES

    def x(at_ms: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (at_ms - begin_ms) / (end_ms - begin_ms)

    def y(seconds: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * seconds / highest

    now, peak = columns[-1].total, max(column.total for column in columns)
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="lag-title lag-desc">',
        '<title id="lag-title">Checkpoint lag by stage</title>',
        f'<desc id="lag-desc">Now {duration(now)}; peak {duration(peak)} since {moment(begin_ms)}.</desc>',
        *_grid(step, y),
        *_bands(columns, x, y),
        *_hits(columns, x),
        _label(_LEFT, _HEIGHT - 10, moment(begin_ms)[11:], "start"),
        _label(_RIGHT, _HEIGHT - 10, moment(end_ms)[11:], "end"),
        "</svg>",
    ]
    return Markup("".join(parts))  # contains only numbers and our own text


def _columns(samples: Iterable[LagSample], begin_ms: int, end_ms: int) -> Iterator[LagSample]:
    """At most _COLUMNS + 1 samples: the one with the highest lag in each interval."""
    width = max(1, (end_ms - begin_ms) // _COLUMNS)
    for _, together in groupby(samples, key=lambda sample: (sample.at_ms - begin_ms) // width):
        yield max(together, key=attrgetter("total"))


def _step(highest: float) -> float:
    """The distance between grid lines."""
    fitting = (step for step in _STEPS if step * _LINES >= highest)
    return next(fitting, _STEPS[-1] * -(-highest // (_STEPS[-1] * _LINES)))


def _grid(step: float, y: Scale) -> Iterator[str]:
    for line in range(_LINES + 1):
        at = y(step * line)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield _label(_LEFT - 8, at + 4, duration(step * line) if line else "0", "end")


def _bands(columns: Sequence[LagSample], x: TimeScale, y: Scale) -> Iterator[str]:
    below = [0.0] * len(columns)
    for band, _ in BANDS:
        above = [low + getattr(column, band) for low, column in zip(below, columns, strict=True)]
        there = [f"{x(column.at_ms):.1f},{y(high):.1f}" for column, high in zip(columns, above, strict=True)]
        back = [f"{x(column.at_ms):.1f},{y(low):.1f}" for column, low in zip(columns, below, strict=True)]
        yield f'<polygon class="band-{band}" points="{" ".join([*there, *reversed(back)])}"/>'
        below = above


def _hits(columns: Sequence[LagSample], x: TimeScale) -> Iterator[str]:
    """Hover targets that show each column's numbers."""
    edges = [x(column.at_ms) for column in columns]
    ends = [*edges[1:], float(_RIGHT)]
    for column, begin, end in zip(columns, edges, ends, strict=True):
        stages = ", ".join(f"{name} {duration(getattr(column, band))}" for band, name in BANDS)
        said = f"{moment(column.at_ms)[11:]}: {duration(column.total)} ({stages})"
        yield (
            f'<rect class="hit" x="{begin:.1f}" y="{_TOP}" width="{max(end - begin, 1):.1f}" '
            f'height="{_BOTTOM - _TOP}"><title>{said}</title></rect>'
        )


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
