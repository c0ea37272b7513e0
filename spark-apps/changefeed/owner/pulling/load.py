"""Balances spans across pullers: which to move so that all have about the same load. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_UNEVEN = 0.1  # of the mean load: less is not worth a move, which costs a scan in TiKV


def even_out(spans: Mapping[int, Mapping[int, int]]) -> list[tuple[int, int]]:
    """(span_id, puller) for each span to be moved, the fewest that make the loads even.

    `spans`: of each puller that may take part, the weight of each of its spans. The most loaded one gives the least
    loaded one the heaviest span that does not turn the two around.
    """
    moves: list[tuple[int, int]] = []
    if not spans:
        return moves
    left = {puller: dict(weights) for puller, weights in spans.items()}
    loads = {puller: sum(weights.values()) for puller, weights in left.items()}
    tolerated = _UNEVEN * sum(loads.values()) / len(loads)
    while True:
        heavy = max(loads, key=lambda puller: (loads[puller], -puller))
        light = min(loads, key=lambda puller: (loads[puller], puller))
        gap = loads[heavy] - loads[light]
        fitting = [(weight, -span) for span, weight in left[heavy].items() if weight * 2 <= gap]
        if gap <= tolerated or not fitting:
            return moves
        weight, negative = max(fitting)
        span = -negative
        left[light][span] = left[heavy].pop(span)
        loads[heavy] -= weight
        loads[light] += weight
        moves.append((span, light))
