"""Balances spans across pullers: which parts to move so that all have about the same load, and what to split.

Pure. A span is pulled in parts if one puller, which is one core, may not keep up with it. To split one, its assignments
end, and what they had above its resolved-ts is pulled again; so it happens at most once a minute, and where it helps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TypeVar

from changefeed.owner.pulling.span import Span, SpanPart

_UNEVEN = 0.1  # of the mean load: less is not worth a move, which costs a scan in TiKV
RECENT_S = 60.0  # how long half of what a part has brought counts for its load
#: Raw bytes that a part has brought lately, so that it is split: 20 to 35 MB/s, a third of what a puller can do.
SPLIT_BYTES = 2 << 30
#: How many borders to choose from.
MOST_BORDERS = 64
_Key = TypeVar("_Key", int, tuple[int, int])


def loads_of(parts: Mapping[int, Sequence[SpanPart]]) -> dict[int, int]:
    """Add up what each puller's parts weigh."""
    return {puller: sum(part.weight for part in each) for puller, each in parts.items()}


def even_out(parts: Mapping[int, Mapping[_Key, int]]) -> list[tuple[_Key, int]]:
    """(key, puller) for each part to be moved, the fewest that make the loads even.

    `parts`: of each puller that may take part, the weight of each of its parts, by their keys. The most loaded one
    gives the least loaded one the heaviest part that does not turn the two around.
    """
    moves: list[tuple[_Key, int]] = []
    if not parts:
        return moves
    left = {puller: dict(weights) for puller, weights in parts.items()}
    loads = {puller: sum(weights.values()) for puller, weights in left.items()}
    tolerated = _UNEVEN * sum(loads.values()) / len(loads)
    while True:
        heavy = max(loads, key=lambda puller: (loads[puller], -puller))
        light = min(loads, key=lambda puller: (loads[puller], puller))
        gap = loads[heavy] - loads[light]
        fitting = [(-weight, key) for key, weight in left[heavy].items() if weight * 2 <= gap]
        if gap <= tolerated or not fitting:
            return moves
        _, key = min(fitting)
        weight = left[light][key] = left[heavy].pop(key)
        loads[heavy] -= weight
        loads[light] += weight
        moves.append((key, light))


def too_large(parts: Mapping[int, Sequence[SpanPart]], now: float, split_bytes: int) -> tuple[int, int] | None:
    """(span_id, how many parts) of the span to be split: the one whose part has brought the most lately.

    `parts`: of each puller that is here. Another puller must have so little to do that half of that part would leave it
    with less than the part's own puller has now.
    """
    loads = loads_of(parts)
    least = min(loads.values(), default=0)
    large = [
        part
        for each in parts.values()
        for part in each
        if part.recent >= split_bytes
        and loads[part.puller] - least > part.recent // 2
        and now - part.span.split_at >= RECENT_S
        and not part.span.is_being_copied
    ]
    if not large:
        return None
    span = max(large, key=lambda part: (part.recent, part.key)).span
    return span.span_id, min(len(parts), span.recent // (split_bytes // 2))


def is_small(span: Span, now: float, split_bytes: int) -> bool:
    """Whether one puller will do for a span that was split."""
    return span.recent < split_bytes // 8 and now - span.split_at >= RECENT_S


def borders(bounds: Sequence[bytes], keys: Sequence[bytes], parts: int) -> tuple[bytes, ...]:
    """Which of the inner `bounds` to split at, so that about as many of `keys` stand in each of so many parts.

    Both ascend. Fewer where all keys stand between two bounds; where no keys are known, parts get as many bounds.
    """
    inner = bounds[1:-1]
    keys = keys or inner
    below = {border: bisect_left(keys, border) for border in inner}
    useful = [border for border in inner if 0 < below[border] < len(keys) or keys is inner]
    wanted = (len(keys) * number // parts for number in range(1, parts))
    chosen = {min(useful, key=lambda border: abs(below[border] - count)) for count in wanted if useful}
    return tuple(sorted(chosen))
