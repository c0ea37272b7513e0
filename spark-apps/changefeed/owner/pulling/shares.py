"""Which spans each puller has, and which span is the lowest of all.

A puller's lowest span is cached until one of its spans changes; most change together, with one report. So finding the
lowest of all costs as much as the pullers that have reported since, plus the number of pullers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Pulled(Protocol):
    """What of a span is looked at here."""

    span_id: int
    puller: int
    resolved_ts: int
    held: bool


SpanT = TypeVar("SpanT", bound=Pulled)
_RESOLVED_TS = attrgetter("resolved_ts")


class Shares(Generic[SpanT]):
    """Of pullers `0 .. pullers - 1`."""

    def __init__(self, pullers: int) -> None:
        self._spans: dict[int, dict[int, SpanT]] = {puller: {} for puller in range(pullers)}
        self._lowest: dict[int, tuple[int, int]] = {}  # of those that are not held; where it is missing, look for it

    @property
    def pullers(self) -> Collection[int]:
        return self._spans.keys()

    def of(self, puller: int) -> list[SpanT]:
        return list(self._spans[puller].values())

    def idlest(self, pullers: Iterable[int]) -> int:
        """Which of these has the fewest."""
        return min(pullers, key=lambda puller: (len(self._spans[puller]), puller))

    def give(self, span: SpanT, puller: int) -> None:
        """To a puller; it is nobody's now."""
        span.puller = puller
        self._spans[puller][span.span_id] = span
        self.changed(puller)

    def take(self, span: SpanT) -> None:
        """From its puller."""
        del self._spans[span.puller][span.span_id]
        self.changed(span.puller)

    def changed(self, puller: int) -> None:
        """One of its spans has another resolved-ts, or is held, or is no more."""
        self._lowest.pop(puller, None)

    def lowest(self) -> tuple[int, int] | None:
        """(resolved-ts, span_id) of the lowest that is not held; None when there are none."""
        for puller, spans in self._spans.items():
            if puller not in self._lowest:
                running = [span for span in spans.values() if not span.held]
                if running:
                    span = min(running, key=_RESOLVED_TS)
                    self._lowest[puller] = span.resolved_ts, span.span_id
        return min(self._lowest.values(), default=None)
