"""Whether a server that has taken over has all that was read of the one before it. Pure.

A standby that is promoted begins a *timeline* of its own at a position in the WAL; what is before that, it has in
common with the server that it replaces. A commit's ts is the same on both if it is in what they have in common, as a ts
is made of the WAL before it (chain). So who has read all up to a ts has read nothing that the new server lacks if a
commit that they have in common is at or above that ts.

1. *The standby has all that was read.* The reader says so in the WAL, and tells of no commit of the new timeline before
   that has come back: that timeline is *crossed*.
2. *It lacks something.* Nothing says that it is crossed, and somebody has read on: that must not go on, as the sink has
   rows that the database has lost.
3. *A reader begins anew behind the crossing, with a slot that is not confirmed so far.* It has read on, too, but what
   is said in the WAL tells that this is the new timeline's.
4. *Two standbys are promoted, one after the other, while nobody reads.* What is in common with the first server counts.
5. *The slot is confirmed behind the point.* A reader has crossed it, as it confirms nothing before. Who reads for
   nobody crosses nothing: it does not know what others have read.
6. *A standby of the new server takes over at once.* If it has what says that the new server is crossed, it is asked
   for what was read. If it lacks that, it may have what was read, and nobody can tell: that must not go on either.
7. *The new server's clock is behind.* What it commits has ts that go on from those of the one before it, so how far
   is looked is a position in the WAL, not a ts.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.upstream.postgresql.slot.anchors import Said


@dataclass(frozen=True)
class Switch:
    """`timeline` begins at the position `lsn`."""

    timeline: int
    lsn: int


def switches(history: str, timeline: int) -> list[Switch]:
    """Read a timeline's history file: of each earlier one its number and its end, one a line."""
    ends: list[tuple[int, int]] = []
    for line in history.splitlines():
        words = line.split("#")[0].split()
        if len(words) >= 2:
            high, _, low = words[1].partition("/")
            ends.append((int(words[0]), (int(high, 16) << 32) + int(low, 16)))
    numbers = [number for number, _ in ends[1:]] + [timeline]
    return [Switch(number, lsn) for number, (_, lsn) in zip(numbers, ends, strict=True)]


class Crossing:
    """What a stream of `slot` says of the points at which servers have taken over."""

    def __init__(self, slot: str, points: list[Switch]) -> None:
        """`points`: those behind what is confirmed, in their order."""
        self._slot = slot
        self._common = dict.fromkeys(points, 0)  # the ts of the last commit before each

    @property
    def common_ts(self) -> int | None:
        """The new server has all commits up to it; None: all is crossed."""
        return min(self._common.values(), default=None)

    def commit(self, lsn: int, ts: int | None, said: Said | None) -> None:
        """The next one in the stream. `said`: the anchor in it."""
        if said is not None and said.slot == self._slot:
            self._common = {point: ts for point, ts in self._common.items() if point.timeline > said.crossed}
        for point in self._common:
            if lsn < point.lsn and ts is not None:
                self._common[point] = ts
