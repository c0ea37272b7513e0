"""A picture over time, as SVG: panels below one another, in each some lines and a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _HEIGHT = 860, 130  # of a panel's field
_LEFT, _TOP, _GAP = 90, 40, 62
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")


@dataclass(frozen=True)
class Panel:
    """A panel of a picture.

    `lines`: values by name, one for each of the picture's times; `limit`: what none of them may pass.
    """

    title: str
    lines: dict[str, Sequence[float]]
    limit: float | None = None
    unit: str = ""
    events: Sequence[float] = field(default_factory=tuple)  # times that are marked


def svg(title: str, seconds: Sequence[float], panels: Sequence[Panel]) -> str:
    """Draw panels below one another.

    `seconds`: when each value was taken; at least one.
    """
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 30} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20" font-size="15">{escape(title)}</text>',
    ]
    end = max(seconds[-1], 1e-9)
    for number, panel in enumerate(panels):
        parts += _panel(panel, [second / end for second in seconds], end, _TOP + number * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, shares: Sequence[float], end: float, top: int) -> list[str]:
    highest = max([*(value for line in panel.lines.values() for value in line), panel.limit or 0.0, 1e-9])
    bottom = top + 20 + _HEIGHT

    def x(share: float) -> str:
        return f"{_LEFT + share * _WIDTH:.1f}"

    def y(value: float) -> str:
        return f"{bottom - value / highest * _HEIGHT:.1f}"

    names = list(panel.lines)
    legend = "  ".join(
        f'<tspan fill="{_COLOURS[number % len(_COLOURS)]}">{escape(name)}</tspan>' for number, name in enumerate(names)
    )
    parts = [
        f'<text x="{_LEFT}" y="{top + 12}"><tspan font-weight="bold">{escape(panel.title)}</tspan>  {legend}</text>',
        f'<rect x="{_LEFT}" y="{top + 20}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#d0d7de"/>',
        f'<text x="{_LEFT - 6}" y="{top + 30}" text-anchor="end">{highest:,.4g} {escape(panel.unit)}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{_LEFT + _WIDTH}" y="{bottom + 14}" text-anchor="end">{end / 60:.1f} min</text>',
    ]
    if panel.limit is not None:
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(panel.limit)}" y2="{y(panel.limit)}" stroke="#d1242f" '
            f'stroke-dasharray="6 4"/><text x="{_LEFT + 4}" y="{float(y(panel.limit)) + 13:.1f}" fill="#d1242f">'
            f"limit {panel.limit:,.4g} {escape(panel.unit)}</text>"
        )
    for moment in panel.events:
        at = x(min(moment / end, 1.0))
        parts.append(f'<line x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom - 6}" stroke="#57606a"/>')
    for number, name in enumerate(names):
        points = " ".join(f"{x(share)},{y(value)}" for share, value in zip(shares, panel.lines[name], strict=True))
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return parts
