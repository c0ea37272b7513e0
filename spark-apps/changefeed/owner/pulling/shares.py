"""Which parts of spans each puller has, and which span is the lowest of all.

A puller's lowest part is cached until one of its parts changes; most change together, with one report. So finding the
lowest of all costs as much as the pullers that have reported since, plus the number of pullers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import attrgetter

from changefeed.owner.pulling.span import SpanPart

_RESOLVED_TS = attrgetter("resolved_ts")


class Shares:
    """The parts of spans that pullers `0 .. pullers - 1` share."""

    def __init__(self, pullers: int) -> None:
        self._parts: dict[int, dict[tuple[int, int], SpanPart]] = {puller: {} for puller in range(pullers)}
        self._lowest: dict[int, tuple[int, int]] = {}  # of those that are not held; where it is missing, look for it

    @property
    def pullers(self) -> Collection[int]:
        return self._parts.keys()

    def of(self, puller: int) -> list[SpanPart]:
        return list(self._parts[puller].values())

    def idlest(self, pullers: Iterable[int]) -> int:
        """Which of these has the fewest."""
        return min(pullers, key=lambda puller: (len(self._parts[puller]), puller))

    def give(self, part: SpanPart, puller: int) -> None:
        """To a puller; it is nobody's now."""
        part.puller = puller
        self._parts[puller][part.key] = part
        self.changed(puller)

    def take(self, part: SpanPart) -> None:
        """From its puller."""
        del self._parts[part.puller][part.key]
        self.changed(part.puller)

    def changed(self, puller: int) -> None:
        """One of its parts has another resolved-ts, or is held, or is no more."""
        self._lowest.pop(puller, None)

    def lowest(self) -> tuple[int, int] | None:
        """(resolved-ts, span_id) of the lowest that is not held; None when there are none."""
        for puller, parts in self._parts.items():
            if puller not in self._lowest:
                running = [part for part in parts.values() if not part.span.held]
                if running:
                    part = min(running, key=_RESOLVED_TS)
                    self._lowest[puller] = part.resolved_ts, part.span.span_id
        return min(self._lowest.values(), default=None)
