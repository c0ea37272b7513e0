"""One span: in which parts it is pulled, how far it is known to be complete, and what it has produced. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from operator import attrgetter

from changefeed.model.table_copy import TableCopy
from changefeed.owner.pulling.segments import Segment

_RESOLVED_TS = attrgetter("resolved_ts")
_WEIGHT = 1 << 20  # raw bytes that an idle part counts for


@dataclass(eq=False, slots=True)
class SpanPart:
    """`[start_key, end_key)` of a span's keys, which one puller pulls."""

    span: Span
    number: int
    start_key: bytes
    end_key: bytes
    puller: int
    resolved_ts: int
    sub_id: int = 0  # 0: nobody pulls it
    recent: int = 0  # raw bytes that it brought lately
    waiting: list[tuple[int, int]] = field(default_factory=list)  # (last_segment, ts): not yet to be counted

    @property
    def key(self) -> tuple[int, int]:
        """Which of all parts it is."""
        return self.span.span_id, self.number

    @property
    def weight(self) -> int:
        return _WEIGHT + self.recent

    def wait(self, last_segment: int, ts: int) -> None:
        """Queue a resolved-ts, in order of segments. What a later one with no more segments says too is left out."""
        later: list[tuple[int, int]] = []
        while self.waiting and self.waiting[-1][0] >= last_segment:
            later.append(self.waiting.pop())
        if later and later[-1][0] == last_segment:
            ts = max(ts, later.pop()[1])
        self.waiting.append((last_segment, ts))
        self.waiting.extend(reversed(later))

    def count(self, contiguous: int) -> bool:
        """All segments up to this one are known; whether the span's resolved-ts has risen by that."""
        counted_ts = 0
        while self.waiting and self.waiting[0][0] <= contiguous:
            counted_ts = max(counted_ts, self.waiting.pop(0)[1])
        return self.rise(counted_ts)

    def rise(self, ts: int) -> bool:
        """The part is complete up to ts; whether the span's resolved-ts has risen by that."""
        if ts <= self.resolved_ts:
            return False
        self.resolved_ts = ts
        span, parts = self.span, self.span.parts
        before_ts, span.resolved_ts = span.resolved_ts, ts if len(parts) == 1 else min(map(_RESOLVED_TS, parts))
        return span.resolved_ts > before_ts


@dataclass(eq=False, slots=True)
class Span:
    """`[start_key, end_key)`, flushed to `flushed_ts`, in one part or in several that have no gap between them.

    Its resolved-ts is the lowest of its parts'. Their assignments begin at it, and all end together.
    """

    span_id: int
    start_key: bytes
    end_key: bytes
    flushed_ts: int
    copy: TableCopy | None = None  # its rows, which come before its changes
    start_ts: int = 0  # of the newest assignments
    resolved_ts: int = 0
    held: bool = False
    split_at: float = -inf  # when it was last split, in monotonic seconds
    parts: list[SpanPart] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    @property
    def recent(self) -> int:
        """Raw bytes that it brought lately."""
        return sum(part.recent for part in self.parts)

    @property
    def is_being_copied(self) -> bool:
        return self.copy is not None and self.copy.is_under_way(self.resolved_ts)

    @property
    def read_ts(self) -> int:
        """No row of it above this has been read: rows that are copied are as of the copy's ts."""
        copied_ts = self.copy.ts if self.copy is not None and self.is_being_copied else 0
        return max([self.resolved_ts, copied_ts, *(segment.max.commit_ts for segment in self.segments)])

    @property
    def is_pulled(self) -> bool:
        """Whether anybody pulls any part of it."""
        return any(part.sub_id for part in self.parts)

    def stand_at(self, ts: int) -> None:
        """Let all parts that are complete stand at a ts, no more and no less."""
        self.resolved_ts = ts
        for part in self.parts:
            part.resolved_ts = ts

    def split(self, borders: Sequence[bytes]) -> Iterator[SpanPart]:
        """New parts between these keys, which ascend, instead of those that it has; nobody pulls them yet."""
        recent, bounds = self.recent, [self.start_key, *borders, self.end_key]
        self.parts = []
        for number, (start_key, end_key) in enumerate(pairwise(bounds)):
            share = recent // (len(bounds) - 1)
            self.parts.append(SpanPart(self, number, start_key, end_key, 0, self.resolved_ts, recent=share))
        return iter(self.parts)

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        where = f"span {self.span_id}"
        assert self.flushed_ts <= self.resolved_ts, f"{where} is flushed above its resolved-ts"
        assert self.resolved_ts == min(map(_RESOLVED_TS, self.parts)), f"{where}: a part is not that far"
        ends = [self.start_key, *(part.end_key for part in self.parts)]
        begins = [*(part.start_key for part in self.parts), self.end_key]
        assert ends == begins, f"{where} has a gap between its parts"
        assert not self.is_pulled or self.start_ts <= self.resolved_ts, f"{where} began above what it has"
        for part in self.parts:
            assert part.sub_id or not part.waiting, f"{where} waits for segments of an assignment that has ended"
