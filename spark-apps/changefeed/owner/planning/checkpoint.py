"""The checkpoint: every row at or below it is in committed files (promise 4; rules 1, 9 and 11).

Pure. It never goes back, and never passes a row that could still be written, the DDL span, a pending DDL or the target.

Why no row appears at or below it later:

1. *A dispatcher has rows that are not in a committed file.* It holds the checkpoint below the first of them: by its
   flushed ts while a plan with its rows is uncommitted, otherwise by the ts before its first unplanned row.
2. *A dispatcher is idle.* All its rows <= its span's resolved-ts are known, and there are none: it counts as flushed up
   to there.
3. *A span is reassigned.* Its resolved-ts goes back, and the minimum with it; the recorded checkpoint stays.
4. *Idle for a day.* The checkpoint is published only from the log, so that a restart pulls from there: a commit record
   without files is due whenever it has moved, at most every two seconds (rule 11).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from changefeed.owner.planning.barrier import Barrier

RECORD_INTERVAL_S = 2.0


@dataclass(frozen=True)
class DispatcherProgress:
    """How far one dispatcher is."""

    flushed_ts: int  # State.flushed_ts, with the files that are about to be committed
    resolved_ts: int  # of its span
    is_open: bool  # has files that are planned and not committed
    first_unplanned_ts: int | None  # no unplanned row is below it; None: there are none


def flushed_ts(progress: Iterable[DispatcherProgress], limit: int) -> int:
    """Every dispatcher is flushed to it; `limit` (Barrier.ceiling) when there are none, and at most."""
    return min((flushed_to(one, limit) for one in progress), default=limit)


def flushed_to(one: DispatcherProgress, limit: int) -> int:
    """`limit`: nothing above it counts."""
    if one.is_open:
        return min(one.flushed_ts, limit)
    idle_to = one.resolved_ts
    if one.first_unplanned_ts is not None:
        idle_to = min(idle_to, one.first_unplanned_ts - 1)
    return min(max(one.flushed_ts, idle_to), limit)


class Checkpoint:
    """The recorded checkpoint and the one that could be recorded next."""

    def __init__(self, recorded_ts: int) -> None:
        self.recorded_ts = recorded_ts
        self._recorded_at: float | None = None

    def next(self, progress: Iterable[DispatcherProgress], barrier: Barrier) -> int:
        """What a commit record written now may say: at least what is recorded."""
        reached, limit = barrier.checkpoint_limit(), barrier.ceiling()
        for one in progress:
            reached = min(reached, flushed_to(one, limit))
            if reached <= self.recorded_ts:
                break
        return max(self.recorded_ts, reached)

    def may_be_due(self, now: float) -> bool:
        """Whether the last commit record is old enough for one without files."""
        return self._recorded_at is None or now - self._recorded_at >= RECORD_INTERVAL_S

    def is_due(self, now: float, ts: int) -> bool:
        """Whether `ts` is worth a commit record without files."""
        return ts > self.recorded_ts and self.may_be_due(now)

    def recorded(self, now: float, ts: int) -> None:
        """A commit record, with or without files, that says `ts` is in the log."""
        self.recorded_ts = max(self.recorded_ts, ts)
        self._recorded_at = now
