"""A picture of bars, as SVG: one below the other, each of some parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _BAR, _LINE = 560, 16, 24
_LEFT, _TOP, _RIGHT = 230, 58, 110
_COLOURS = (
    *("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#0598bc"),
    *("#bf3989", "#57606a", "#bc4c00", "#4d2d00", "#6fdd8b", "#c297ff"),
)


def svg(title: str, bars: Sequence[tuple[str, Mapping[str, float]]], unit: str) -> str:
    """Draw bars.

    `bars`: (name, values by part), at least one; a part has one colour in all, a negative value no width.
    """
    parts = list(dict.fromkeys(part for _, values in bars for part in values))
    colours = {part: _COLOURS[number % len(_COLOURS)] for number, part in enumerate(parts)}
    longest = max(max(_length(values) for _, values in bars), 1e-9)
    height = _TOP + _LINE * len(bars) + 12
    legend = "  ".join(f'<tspan fill="{colours[part]}">■ {escape(part)}</tspan>' for part in parts)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20" font-size="15">{escape(title)}</text>',
        f'<text x="10" y="42">{legend}</text>' if len(parts) > 1 else "",
    ]
    for number, (name, values) in enumerate(bars):
        y = _TOP + number * _LINE
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        x = float(_LEFT)
        for part, value in values.items():
            width = max(value, 0.0) / longest * _WIDTH
            drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colours[part]}"/>')
            x += width
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 12}">{_length(values):,.4g} {escape(unit)}</text>')
    return "\n".join([*filter(None, drawn), "</svg>"]) + "\n"


def _length(values: Mapping[str, float]) -> float:
    return sum(max(value, 0.0) for value in values.values())
