"""Which regions may be held back by locks of a dead transaction, and when to check them.

See docs/design/tikv.md, Stuck locks.

Pure: range lock pieces and the time in, sweeps to run out. It also remembers which transactions the sweeps found alive,
so that a resolved-ts that is held back can be attributed to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from changefeed.model.tso import physical_ms
from changefeed.upstream.contract import BlockedRegion
from changefeed.upstream.tikv.feed.range_lock import LockPart

LOOK_SECONDS = 2.0
_STILL_SECONDS = 4.0
_LAG_MS = 4_000
_AGAIN_SECONDS = 10.0
_PHYSICAL_SHIFT = 18


@dataclass(frozen=True)
class Sweep:
    """Finish the dead locks in a piece with start_ts <= max_version."""

    sub_id: int
    piece: LockPart
    max_version: int


@dataclass
class _Watched:
    resolved_ts: int
    since: float  # it has stood there, monotonic seconds
    swept: float = float("-inf")
    blocked: list[BlockedRegion] = field(default_factory=list)


class StuckRegions:
    def __init__(self) -> None:
        self._watched: dict[LockPart, _Watched] = {}

    def look(self, pieces: Iterable[tuple[int, LockPart]], now: float, now_ts: int) -> list[Sweep]:
        """The sweeps that are due. `pieces`: (sub_id, locked piece), all of them at each look."""
        before, self._watched = self._watched, {}
        sweeps = []
        for sub_id, piece in pieces:
            watched = before.get(piece)
            if watched is None or piece.resolved_ts != watched.resolved_ts:
                swept = watched.swept if watched else float("-inf")
                watched = _Watched(piece.resolved_ts, now, swept)
            self._watched[piece] = watched
            still = now - watched.since >= _STILL_SECONDS
            lags = physical_ms(now_ts) - physical_ms(piece.resolved_ts) > _LAG_MS
            if still and lags and now - watched.swept >= _AGAIN_SECONDS:
                watched.swept = now
                top = min(now_ts, piece.resolved_ts + (_LAG_MS << _PHYSICAL_SHIFT))
                sweeps.append(Sweep(sub_id, piece, top))
        return sweeps

    def found(self, sweep: Sweep, living: list[BlockedRegion]) -> None:
        """What a sweep left in the way."""
        watched = self._watched.get(sweep.piece)
        if watched is not None:
            watched.blocked = living

    def blocked(self) -> list[BlockedRegion]:
        """What is known to be in the way, the lowest resolved-ts first."""
        found = [blocked for watched in self._watched.values() for blocked in watched.blocked]
        return sorted(found, key=lambda blocked: (blocked.resolved_ts, blocked.start_ts, blocked.sub_id))
