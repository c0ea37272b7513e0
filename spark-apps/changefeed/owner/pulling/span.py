"""One span: who pulls it, how far it is known to be complete, and what it has produced. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from changefeed.model.table_copy import TableCopy
from changefeed.owner.pulling.segments import Segment

_WEIGHT = 1 << 20  # raw bytes that an idle span counts for


@dataclass(eq=False, slots=True)
class Span:
    """`[start_key, end_key)`, flushed to `flushed_ts`."""

    span_id: int
    start_key: bytes
    end_key: bytes
    flushed_ts: int
    puller: int
    copy: TableCopy | None = None  # its rows, which come before its changes
    sub_id: int = 0  # 0: nobody pulls it
    start_ts: int = 0  # of the newest assignment
    resolved_ts: int = 0
    held: bool = False
    recent: int = 0  # raw bytes that it brought lately
    segments: list[Segment] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)  # (last_segment, ts): not yet to be counted

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
        """All segments up to this one are known; whether the resolved-ts has risen by that."""
        before = self.resolved_ts
        while self.waiting and self.waiting[0][0] <= contiguous:
            self.resolved_ts = max(self.resolved_ts, self.waiting.pop(0)[1])
        return self.resolved_ts > before
