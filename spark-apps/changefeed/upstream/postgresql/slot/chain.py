"""The ts of commits, and what of a slot's history may be let go. Pure.

PostgreSQL numbers commits by where they are in the WAL, and says at which time each was; that time can go back. A ts
is made of both: `max(first ts of the commit's millisecond, the ts before it + TICKS)`, in the order in which the WAL
has commits. By so much, so that changes of schema that a commit brings have ts of their own before it (news). A
commit with an *anchor* in it (anchors) has `max(the anchor's ts, the ts before it + TICKS)`. An anchor is *good* if it
has its own ts: then what was before it has no part in any ts behind it, and who begins to read there gives all the
same ts. The slot is confirmed only to the beginning of a good anchor's commit record, which is then the first that is
sent again.

1. *The clock goes back, or two commits have one millisecond.* The later one in the WAL has the next ts, TICKS above.
2. *A process dies and another reads again.* The first anchor that is sent is the one to which the slot was confirmed,
   or an earlier good one if the server has lost the confirmation in a crash. It has its own ts, and so all behind it
   get the ts that they had.
3. *The slot is new, and there are commits before the first anchor.* Nobody has given them a ts, so they have none.
4. *Nobody writes to the database.* The reader puts anchors into the WAL, and they have a ts as commits do.
5. *Others commit faster than an anchor does, or the clock has gone back.* The anchor is not good: a reader that began
   with it would give it another ts. It moves the ts on and is nothing to begin with.
6. *Somebody's message is far ahead of the time at which it was committed.* It is not believed, or all that follows
   would be ahead.
7. *A driver says what it holds.* Of the good anchors at or below that, the newest is confirmed. What others hold by
   other slots changes nothing, and a driver that is late says less than what is known.
8. *Nothing is held for days.* Of the good anchors every other one is forgotten when they are many: the first stays.
9. *Somebody still reads what is held.* What was pulled by another before may be durable ahead of the one that pulls it
   again. Of the good anchors at or below what that one needs, the newest is confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.model.tso import compose
from changefeed.upstream.postgresql.failures import broken_stream
from changefeed.upstream.postgresql.schema.news import TICKS
from changefeed.upstream.postgresql.slot.anchors import Said

_BELIEVED_MS = 1000  # an anchor's ts above its commit's time
_MOST_ANCHORS = 4096


@dataclass(frozen=True, order=True)
class Anchor:
    """A good one: its ts, and where its commit record begins."""

    ts: int
    lsn: int


class Chain:
    """What is read of one stream of `slot`, from its beginning on."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self.lsn = 0  # of the last commit
        self._held = 0
        self._anchors: list[Anchor] = []  # good ones, from the one that may be confirmed on
        self.first_ts: int | None = None  # of the first anchor; None: none has come
        self.last_ts: int | None = None  # every commit at or below it has been read

    def commit(self, lsn: int, time_us: int, said: Said | None = None) -> int | None:
        """The ts of the next commit in the stream, whose record begins at `lsn`; None: it has none.

        `said`: the anchor in it. Raises ProtocolViolation for a commit that is behind its successor.
        """
        if lsn <= self.lsn:
            raise broken_stream(f"The server sends a commit at {lsn_text(lsn)} behind one at {lsn_text(self.lsn)}.")
        self.lsn = lsn
        time_ms = time_us // 1000
        if said is not None and said.ts > compose(time_ms + _BELIEVED_MS):
            said = None
        if self.last_ts is None:
            if said is None:
                return None
            self.first_ts = ts = said.ts
        else:
            ts = max(compose(time_ms) if said is None else said.ts, self.last_ts + TICKS)
        self.last_ts = ts
        if said is not None:
            if said.ts == ts:
                self._add(Anchor(ts, lsn))
            if said.slot == self._slot:
                self._held = max(self._held, said.held)
        return ts

    def confirmable(self, needed_ts: int | None = None) -> int:
        """The position that may be confirmed to the server; 0: none yet. Anchors before it are forgotten.

        `needed_ts`: somebody needs all that is above it; None: nobody needs anything.
        """
        ts = self._held if needed_ts is None else min(self._held, needed_ts)
        keep = 0
        while keep + 1 < len(self._anchors) and self._anchors[keep + 1].ts <= ts:
            keep += 1
        del self._anchors[:keep]
        if self._anchors and self._anchors[0].ts <= ts:
            return self._anchors[0].lsn
        return 0

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        assert self._anchors == sorted(set(self._anchors)), "anchors are in order"
        lsns = [anchor.lsn for anchor in self._anchors]
        assert lsns == sorted(set(lsns)), "positions rise with ts"
        assert (self.first_ts is None) == (not self._anchors), "the first anchor is good"
        assert len(self._anchors) <= _MOST_ANCHORS, "they are bounded"
        if self._anchors:
            assert self.last_ts is not None
            assert self._anchors[-1].ts <= self.last_ts, "no anchor is ahead"

    def _add(self, anchor: Anchor) -> None:
        self._anchors.append(anchor)
        if len(self._anchors) > _MOST_ANCHORS:
            self._anchors = self._anchors[::2]


def lsn_text(lsn: int) -> str:
    """Give a position as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """The inverse."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)
