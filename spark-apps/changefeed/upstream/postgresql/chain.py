"""The ts of commits, and what of a slot's history may be let go. Pure.

PostgreSQL numbers commits by where they are in the WAL, and says at which time each was; that time can go back. A ts
is made of both: `max(first ts of the commit's millisecond, the ts before it + 1)`, in the order in which the WAL has
commits. So it is a function of the WAL from a recorded anchor on, whoever reads it, and however often. An anchor is a
ts and a position: no commit above that ts is before that position, none at or below it is behind.

1. *The clock goes back, or two commits have one millisecond.* The later one in the WAL has the next ts.
2. *A process dies and another reads again.* The server may send what is before the anchor; that is skipped, as it has
   ts already, and all behind the anchor gets the same ts as before.
3. *Nobody writes to the database.* Messages that we put into the WAL have a ts as commits do.
4. *Others write to the server, not to this database.* The server says how far it has read, and keeps the WAL until we
   confirm that. The anchor's position moves on behind the last commit, with the same ts, and must be recorded as any
   other: only what is recorded is confirmed.
5. *The server has confirmed more than the anchor.* Somebody else has read from the slot, or it is another one of that
   name. What is between is lost.
6. *The server has lost the last confirmation in a crash.* It sends again what is recorded, which is skipped.
7. *The server is another one, or was put back to an earlier time and goes on from there.* Positions mean nothing
   between the two, so it is refused.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from changefeed.errors import NeedsHuman, SnapshotLostByGC
from changefeed.model.tso import compose
from changefeed.upstream.postgresql.failures import broken_stream

#: Of the messages that we put into the WAL. What others put there is no business of ours.
PREFIX = "changefeed"
#: Puts one there: it has the server's time, in us since 1970.
EMIT = (
    f"SELECT pg_logical_emit_message(false, '{PREFIX}', "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text)"
)
_MARK_TS = compose(100)  # between two anchors that are remembered
_END_OF_TIME_US = 253_402_300_800_000_000  # year 10000


@dataclass(frozen=True, order=True)
class Anchor:
    """Commits at or below `ts` end at or before the position `lsn`, all others behind it."""

    ts: int
    lsn: int

    def __str__(self) -> str:
        return f"ts {self.ts} at {lsn_text(self.lsn)}"


@dataclass(frozen=True)
class Origin:
    """Which history a position belongs to: the server's own number, and the branch of its WAL."""

    system_id: str
    timeline: int


class Chain:
    """What is read of one stream, which began at or before `anchor`."""

    def __init__(self, anchor: Anchor) -> None:
        self._start = anchor
        self._last = anchor
        self._recorded = anchor
        self._marks: deque[Anchor] = deque()  # behind what is recorded, up to the last

    @property
    def resolved_ts(self) -> int:
        """Every commit at or below it has been read."""
        return self._last.ts

    def commit(self, end_lsn: int, time_us: int) -> int | None:
        """The ts of the next commit in the stream, which ends at `end_lsn`; None: it is before the anchor."""
        if end_lsn <= self._start.lsn:
            return None
        if end_lsn <= self._last.lsn:
            raise broken_stream(
                f"The server sends a commit that ends at {lsn_text(end_lsn)}, behind {lsn_text(self._last.lsn)}."
            )
        self._move(Anchor(max(compose(time_us // 1000), self._last.ts + 1), end_lsn))
        return self._last.ts

    def message(self, end_lsn: int, prefix: str, content: bytes) -> int | None:
        """The ts of a message in the WAL that is in no transaction; None: it has none."""
        if prefix != PREFIX or not content.isdigit() or int(content) >= _END_OF_TIME_US:
            return None
        return self.commit(end_lsn, int(content))

    def keep_alive(self, end_lsn: int) -> None:
        """The server has sent all commits that end at or before `end_lsn`."""
        if end_lsn > self._last.lsn:
            self._move(Anchor(self._last.ts, end_lsn))

    def anchor(self, durable_ts: int) -> Anchor:
        """What may be recorded once nothing at or below `durable_ts` need ever be read again."""
        found = self._recorded
        for mark in self._marks:
            if mark.ts > durable_ts:
                break
            found = mark
        return found

    def recorded(self, anchor: Anchor) -> int:
        """The anchor is durable: the position that may be confirmed to the server."""
        self._recorded = max(self._recorded, anchor)
        while self._marks and self._marks[0] <= self._recorded:
            self._marks.popleft()
        return self._recorded.lsn

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        marks = [self._recorded, *self._marks]
        assert marks == sorted(set(marks)), "anchors are in order"
        assert [mark.lsn for mark in marks] == sorted({mark.lsn for mark in marks}), "positions rise with ts"
        assert marks[-1] == self._last or self._last <= self._recorded, "the last one may be recorded"

    def _move(self, anchor: Anchor) -> None:
        """The newest mark gives way to one that is near: but for the last they are a while apart."""
        self._last = anchor
        before = self._marks[-2] if len(self._marks) > 1 else self._recorded
        if self._marks and (self._marks[-1].ts == anchor.ts or self._marks[-1].ts < before.ts + _MARK_TS):
            self._marks.pop()
        self._marks.append(anchor)


def check_start(slot: str, anchor: Anchor, origin: Origin, confirmed_lsn: int, found: Origin) -> None:
    """Whether a stream from the slot goes on where `anchor`, of `origin`, was recorded.

    `confirmed_lsn`: before which the slot has nothing more; `found`: of the server that has it. Raises NeedsHuman,
    SnapshotLostByGC.
    """
    if found.system_id != origin.system_id:
        raise NeedsHuman(
            f"The server has the system identifier {found.system_id}; the changefeed has read from {origin.system_id}.",
            "Point the changefeed to the server that it has read from, or start a new one.",
        )
    if found.timeline != origin.timeline:
        raise NeedsHuman(
            f"The server's timeline is {found.timeline}; the changefeed has read from timeline {origin.timeline}: it "
            "was put back to an earlier time, or a standby has taken over.",
            "Changes may be missing, or undone. Start a new changefeed.",
        )
    if confirmed_lsn > anchor.lsn:
        raise SnapshotLostByGC(
            f"Slot {slot} has let go all before {lsn_text(confirmed_lsn)}, and the changefeed has recorded {anchor}: "
            "somebody else has read from it, or has made it anew.",
            "Start a new changefeed, and leave its slot to it.",
        )


def lsn_text(lsn: int) -> str:
    """Give a position as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """Read a position as PostgreSQL writes it."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)
