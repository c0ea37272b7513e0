"""The event store's quota: which spans are held back, and whose segments are evicted (docs/design/rules.md, Rule 17).

Pure; `back_pressure` decides who runs. The lowest span must never wait for room that only the lowest itself can make.

Why it never deadlocks:

1. *The store is full of rows that can't be planned because the DDL span has not got there.* If the lowest span has not
   either, whatever the others have above the barrier's limit is evicted, to be pulled again later. If only the DDL span
   has not, all wait: it needs no room, and then everything can be planned.
2. *Open files of the previous driver wait for a span to be pulled again (rule 3).* The checkpoint waits for them: that
   span counts as the lowest, and everything that no open file needs is evicted. Each file is written, and its room
   freed, as soon as its own span has arrived: two spans that don't fit side by side come one after the other.
3. *The lowest alone pulls more than there is room for before it is resolved, or its rows share their files with the
   others'.* It is held as well, which discards everything above its resolved-ts; then it runs alone until that has
   risen. While files are being written this is not needed: committing them makes room. If it was not enough, everything
   held is evicted, and the lowest restarts at its flushed ts in an empty store. If it pulls more than the whole quota,
   it may exceed it: none of it can be planned before it is resolved, and it would be pulled again forever.

Why it is not exceeded by much: a puller keeps writing only while segments that it has not been told are counted hold
less than two segments' bytes. It is told after the orders that result from them, and not while the store is full and
files are being written, whose commit makes room: until then, at most four segments' bytes per puller can be added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Protocol

from changefeed.owner.pulling.scans import Scans
from changefeed.puller.back_pressure import HIGH, LEAD, BackPressure


class Stored(Protocol):
    """What of owner.spans.Spans it goes by."""

    @property
    def held(self) -> Collection[int]: ...
    @property
    def files(self) -> Files: ...
    def reached(self, needed: Collection[int]) -> Mapping[int, int]: ...
    def stored(self) -> Collection[int]: ...


class Files(Protocol):
    bytes: int


_SEGMENT_BYTES = (1 << 20, 32 << 20)
_SEGMENTS = 64  # so many, at least, make a full store


def segment_bytes(quota: int, pullers: int) -> int:
    """Raw bytes of a full segment: four a puller, by which the quota may be passed, must be little beside it."""
    least, most = _SEGMENT_BYTES
    return max(least, min(most, quota // (_SEGMENTS * pullers)))


@dataclass(frozen=True)
class Relief:
    """Spans to hold, to resume, and, of those that are held then, to cut back to a ts (or their flushed one)."""

    hold: list[int]
    resume: list[int]
    evict: Mapping[int, int]


class Quota:
    """`size`: bytes of segment files. `lead`: how far a held span may fall behind the lowest that runs, in ts."""

    def __init__(self, size: int, lead: int = LEAD) -> None:
        self._marks = BackPressure(size, lead)
        self._scans = Scans(HIGH * size)
        self._alone: tuple[int, int] | None = None  # the only span that runs, until it is resolved beyond that ts

    @property
    def alone(self) -> int | None:
        """The only span that runs, for as long as it may exceed the quota."""
        return self._alone[0] if self._alone else None

    def is_short(self, used: int) -> bool:
        return self._marks.is_short(used)

    def lets_write(self, used: int, idle: bool) -> bool:
        """Whether pullers may write on. When nothing can be planned what they bring may be what is waited for."""
        return idle or not self._marks.is_full(used)

    def is_concerned(self, used: int, held: Collection[int]) -> bool:
        """Whether `relieve` could have anything to say."""
        return bool(held) or self._marks.is_short(used)

    def relieve(
        self, now: float, spans: Stored, needed: Collection[int], limit: Callable[[int], int], idle: bool
    ) -> Relief:
        """What to do now, in monotonic seconds.

        `needed`: open files wait for them. `limit(span_id)`: nothing above it can be committed yet. `idle`: nothing is
        being written and no plan can be made.
        """
        resolved = spans.reached([*needed, *self._scans.spans])
        self._scans.look(now, spans.files.bytes, resolved)
        relief = self._relief(spans, needed, limit, idle)
        self._scans.held(relief.hold)
        if not relief.resume:
            return relief
        asked = frozenset(relief.resume)
        order = sorted(resolved, key=lambda span_id: (span_id not in needed, resolved[span_id], span_id))
        resume = [span_id for span_id in order if span_id in asked]
        return replace(relief, resume=self._scans.resumed(now, resume, order[0], resolved))

    def _relief(self, spans: Stored, needed: Collection[int], limit: Callable[[int], int], idle: bool) -> Relief:
        used, resolved, stored, held = spans.files.bytes, spans.reached(needed), spans.stored(), spans.held
        reached = {span_id: 0 if span_id in needed else ts for span_id, ts in resolved.items()}
        lowest = min(reached, key=lambda span_id: (reached[span_id], span_id))
        if self._alone and (self._alone[0] != lowest or resolved[lowest] > self._alone[1]):
            self._alone = None
        waits = idle and reached[lowest] < limit(lowest)
        if waits and (self._marks.is_full(used) or (self._marks.is_short(used) and lowest in held)):
            others = sorted(span_id for span_id in stored if span_id != lowest)
            hold = [span_id for span_id in others if span_id not in held]
            evict = {span_id: limit(span_id) for span_id in others if resolved[span_id] > limit(span_id)}
            if hold or evict:
                return Relief(hold, [], evict)
            if lowest in held:
                if self._alone is None and not self._marks.is_full(used):
                    return Relief([], [lowest], {})
                return Relief([], [], dict.fromkeys(stored, 0))
        hold, resume = self._marks.decide(used, reached, stored, held)
        if waits and lowest in hold:
            if self._alone:
                return Relief([], [], {span_id: 0 for span_id in sorted(stored) if span_id != lowest})
            self._alone = lowest, resolved[lowest]
        if self._alone:
            resume = [span_id for span_id in resume if span_id == lowest]
        return Relief(hold, resume, {})

    def check(self, held: Set[int]) -> None:
        """What holds between two calls, for tests, once `held` are those that the last relief left so.

        Raises AssertionError.
        """
        self._scans.check(held)
