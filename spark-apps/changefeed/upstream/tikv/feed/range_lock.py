"""Which parts of a subscription's span are being pulled, and how far each has got (docs/design/tikv.md, Coverage).

The pieces of a span cover it without a gap: each is either locked by one registration or a hole. Two rules are enforced
here: a subscription never pulls the same key twice at once, and the span's resolved-ts is the minimum over all pieces
including holes, so a hole holds it back until it is pulled. The resolved-ts never goes back.

Keys are memcomparable, as in regions; `end` is exclusive and never empty.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(eq=False)
class LockPart:
    start: bytes
    end: bytes
    resolved_ts: int
    locked: bool = False
    failures: int = 0  # in a row, since its resolved-ts last moved
    due: float = field(default=0.0)  # a hole is not tried before that moment, monotonic seconds


class RangeLock:
    def __init__(self, start: bytes, end: bytes, resolved_ts: int) -> None:
        if not start < end:
            raise ValueError(f"empty or unbounded span [{start.hex()}, {end.hex()})")
        self._pieces = [LockPart(start, end, resolved_ts)]
        self._reported = resolved_ts
        self._minimum = resolved_ts
        self._stale = False

    @property
    def pieces(self) -> tuple[LockPart, ...]:
        return tuple(self._pieces)

    @property
    def resolved_ts(self) -> int:
        """The minimum over all pieces."""
        if self._stale:
            self._minimum = min(piece.resolved_ts for piece in self._pieces)
            self._stale = False
        return self._minimum

    def take_resolved(self) -> int | None:
        """The span's resolved-ts when it has gone up since the last call."""
        if self.resolved_ts <= self._reported:
            return None
        self._reported = self._minimum
        return self._reported

    def holes(self, now: float) -> list[tuple[bytes, bytes]]:
        """The holes that are due, neighbours joined: a merged region is found as one."""
        found: list[tuple[bytes, bytes]] = []
        for piece in self._pieces:
            if piece.locked or piece.due > now:
                continue
            if found and found[-1][1] == piece.start:
                found[-1] = (found[-1][0], piece.end)
            else:
                found.append((piece.start, piece.end))
        return found

    def next_due(self) -> float | None:
        """The moment when the next hole is due; None: all is locked."""
        return min((piece.due for piece in self._pieces if not piece.locked), default=None)

    def lock(self, start: bytes, end: bytes) -> list[LockPart]:
        """Lock what is free of [start, end); what is locked stays with its holder.

        Each result is one stretch of holes, with the lowest resolved-ts of those it covers.
        """
        self._cut(start)
        self._cut(end)
        kept: list[LockPart] = []
        locked: list[LockPart] = []
        for piece in self._pieces:
            if piece.locked or piece.start < start or piece.end > end:
                kept.append(piece)
            elif locked and kept[-1] is locked[-1] and locked[-1].end == piece.start:
                last = locked[-1]
                last.end = piece.end
                last.resolved_ts = min(last.resolved_ts, piece.resolved_ts)
                last.failures = max(last.failures, piece.failures)
            else:
                piece.locked = True
                locked.append(piece)
                kept.append(piece)
        self._pieces = kept
        self._stale = True
        return locked

    def has(self, piece: LockPart) -> bool:
        """Whether it is one of the pieces still; `release` and `lock` put others in its place."""
        at = bisect_right(self._pieces, piece.start, key=lambda each: each.start) - 1
        return at >= 0 and self._pieces[at] is piece

    def unlock(self, piece: LockPart, due: float) -> None:
        """The piece is a hole that keeps its resolved-ts, not to be tried before `due`."""
        piece.locked = False
        self._failed(piece, due)

    def lose(self, piece: LockPart, due: float) -> None:
        """The piece is a hole as after `unlock`; its stream broke, which is no failure of its region."""
        piece.locked = False
        piece.due = due

    def release(self) -> None:
        """All pieces are holes that keep their resolved-ts, due now; nothing that their holders still say counts."""
        self._pieces = [LockPart(piece.start, piece.end, piece.resolved_ts) for piece in self._pieces]

    def postpone(self, start: bytes, end: bytes, due: float) -> None:
        """What is still a hole in [start, end) could not be locked: not before `due`."""
        for piece in self._pieces:
            if not piece.locked and piece.start < end and start < piece.end:
                self._failed(piece, due)

    def failures(self, start: bytes, end: bytes) -> int:
        """The most failures in a row of any piece that touches [start, end)."""
        return max((p.failures for p in self._pieces if p.start < end and start < p.end), default=0)

    def advance(self, piece: LockPart, ts: int) -> None:
        """A locked piece has got to `ts`; a lower one than before is ignored."""
        if ts <= piece.resolved_ts:
            return
        self._stale = self._stale or piece.resolved_ts == self._minimum
        piece.resolved_ts = ts
        piece.failures = 0

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        assert all(piece.start < piece.end for piece in self._pieces), "a piece is empty"
        assert all(one.end == two.start for one, two in pairwise(self._pieces)), "there is a gap, or a key is in two"
        lowest = min(piece.resolved_ts for piece in self._pieces)
        assert self._reported <= lowest, f"{self._reported} was told, a piece is at {lowest}"
        assert self._stale or self._minimum == lowest, "the minimum is another"

    def _failed(self, piece: LockPart, due: float) -> None:
        piece.failures += 1
        piece.due = due

    def _cut(self, key: bytes) -> None:
        """Make `key` a border of holes; a locked piece is never cut."""
        at = bisect_right(self._pieces, key, key=lambda piece: piece.start) - 1
        if at < 0:
            return
        piece = self._pieces[at]
        if piece.locked or key == piece.start or key >= piece.end:
            return
        rest = LockPart(key, piece.end, piece.resolved_ts, failures=piece.failures, due=piece.due)
        piece.end = key
        self._pieces.insert(at + 1, rest)
