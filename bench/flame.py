"""A picture of where samples were taken, as SVG: processes, below each its libraries, below those their functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

Frame = tuple[str, str, bool, str]  # process, library, whether in the kernel, function
_WIDTH, _LINE, _TOP = 900, 20, 56
_USER, _KERNEL, _FRAME = "#f0a35e", "#d1242f", "#c9d1d9"
_LETTER = 6.2  # px
_LEAST = 1.5


def svg(title: str, counts: Sequence[tuple[Frame, int]]) -> str:
    """Draw each frame as wide as its samples; kernel time is red. Each has its name and share as a tooltip."""
    total = sum(count for _, count in counts)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_TOP + 3 * _LINE + 8}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="100%" height="100%" fill="white"/><text x="4" y="18" font-size="15">{escape(title)}</text>',
        f'<text x="4" y="40"><tspan fill="{_USER}">■ user</tspan>  <tspan fill="{_KERNEL}">■ kernel</tspan></text>',
    ]
    for depth in (1, 2, 4):
        merged: Counter[tuple[object, ...]] = Counter()
        for frame, count in sorted(counts, key=lambda each: each[0][:3]):
            merged[frame[:depth]] += count
        x = 0.0
        for name, count in merged.items():
            width = count / total * _WIDTH
            if width >= _LEAST:
                drawn.append(_box(x, min(depth - 1, 2), width, str(name[-1]), name[2:3], 100 * count / total))
            x += width
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _box(x: float, row: int, width: float, name: str, in_kernel: tuple[object, ...], percent: float) -> str:
    colour = (_KERNEL if in_kernel[0] else _USER) if in_kernel else _FRAME
    letters = int(width / _LETTER) - 1
    y = _TOP + row * _LINE
    text = f'<text x="{x + 3:.1f}" y="{y + 14}">{escape(name[:letters])}</text>' if letters > 2 else ""
    return (
        f'<g><title>{escape(name)} {percent:.1f} %</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{_LINE - 1}" fill="{colour}" stroke="white" stroke-width="0.5"/>{text}</g>'
    )
