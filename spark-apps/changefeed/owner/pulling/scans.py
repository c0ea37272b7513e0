"""How many of the spans that did not fit in the event store are resumed at a time.

Pure. A span that is pulled again *scans*: what it missed arrives in key order, and none of it can be planned before all
of it has arrived. Why not all at once:

1. *Four tables are held for five minutes, and each has missed half a store.* All four scan, the store is full before
   any of them is done, three are held again, and what they pulled is discarded; and so on, until only one with much to
   pull is left. So each scan that is lost halves how many may run at a time.
2. *A thousand are held, and one has missed much.* It halved their number down to one, and is done: the others need
   little room. So each scan that completes with room for as much again lets one more run beside the others.
3. *The lowest is held.* The checkpoint waits for it: it is resumed whatever else is scanning.
4. *A scan produces nothing because TiKV can't resolve its region.* It counts only for a while, or all others would wait
   as long as it does.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

_COUNTS_S = 30.0  # for so long at most


class _Scan(NamedTuple):
    from_ts: int  # over when the span is resolved beyond it
    began: float


class Scans:
    """Those that run, and how many may. `room`: bytes of a store that is not short."""

    def __init__(self, room: float) -> None:
        self._room = room
        self._at_once = sys.maxsize
        self._running: dict[int, _Scan] = {}

    @property
    def spans(self) -> Collection[int]:
        return self._running.keys()

    def look(self, now: float, used: int, resolved: Mapping[int, int]) -> None:
        """`now`: monotonic seconds. `used`: bytes of the store. `resolved`: the ts of each of `spans` that is there."""
        done = [
            span_id for span_id, scan in self._running.items() if resolved.get(span_id, scan.from_ts) > scan.from_ts
        ]
        if 2 * used <= self._room:
            self._at_once += len(done)
        late = [span_id for span_id, scan in self._running.items() if now - scan.began > _COUNTS_S]
        for span_id in {*done, *late, *(self._running.keys() - resolved.keys())}:
            del self._running[span_id]

    def held(self, span_ids: Iterable[int]) -> None:
        """What these have brought above their resolved-ts is forgotten."""
        lost = self._running.keys() & set(span_ids)
        if lost:
            self._at_once = max(1, len(self._running) // 2)
        for span_id in lost:
            del self._running[span_id]

    def resumed(self, now: float, span_ids: Iterable[int], lowest: int, resolved: Mapping[int, int]) -> list[int]:
        """Which of these may run now, the first ones first; `lowest` may in any case."""
        chosen = []
        for span_id in span_ids:
            if span_id == lowest or len(self._running) < self._at_once:
                self._running[span_id] = _Scan(resolved[span_id], now)
                chosen.append(span_id)
        return chosen

    def check(self, held: Set[int]) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        assert self._at_once >= 1, "no scan would ever run"
        assert not self._running.keys() & held, "a span that is held counts as one that scans"
