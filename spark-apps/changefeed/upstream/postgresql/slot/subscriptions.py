"""Which rows of the slot's stream go to whom, and when it must begin anew. Pure.

There is one stream for all subscriptions, and it only goes on. A subscription has a *sent_ts*: all its rows at or below
that have been handed on. It is *joined* while all its rows above that are still to come in the stream that is read.

1. *The stream begins.* All subscriptions that are not held join, also those that come before its first commit.
2. *One comes whose start is at the stream's position.* It joins.
3. *One comes from below that, or was held and resumes.* The stream must begin anew, once for all that wait then. Others
   go on: what they have by their sent_ts is not for them.
4. *One is held.* It leaves at once, in the middle of what has arrived, too. If it resumes before the stream has gone
   on, it joins again (2).
5. *All are held.* The stream rests where it is, so that they can resume there.
6. *The stream's first anchor is above the sent_ts of one.* Its history is gone.
7. *One joins while some bytes are looked at.* It must wait until that is over: nobody has looked for its rows in them.
8. *Another server takes over.* Whether it has all that was read is asked of all tables: of those that are not
   subscribed now, too, as their owner holds them back, or has yet to subscribe them with a puller that is new.
9. *One's table is copied.* It joins as one that wants what is above the ts of the copy, and nothing is handed on of its
   rows: they are looked at (feed). When all its chunks are there, it must begin in the stream anew, and does that with
   all others that are copied meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.errors import ProtocolViolation
from changefeed.model.table_copy import TableCopy


@dataclass
class _Taker:
    """`copy`: its rows come first. `turn`: how often what it looks at has begun anew."""

    table: int
    sent_ts: int
    copy: TableCopy | None = None
    is_held: bool = False
    is_joined: bool = False
    is_copied: bool = False  # and has not joined since
    turn: int = 0

    @property
    def from_ts(self) -> int:
        """What it wants of the stream is above it."""
        return self.sent_ts if self.copy is None else self.copy.ts

    def leave(self) -> None:
        self.is_joined = False
        self.turn += 1


@dataclass(frozen=True)
class Copying:
    """A subscription whose table is to be read. It is until its `turn` is over."""

    sub_id: int
    table: int
    sent_ts: int
    copy: TableCopy
    turn: int


class SlotSubscriptions:
    """By sub_id. `position`: every commit at or below it has been handed on; None: the stream has no ts yet."""

    def __init__(self) -> None:
        self._all: dict[int, _Taker] = {}
        self._reached_ts = 0  # by those that are no more, or that others pulled
        self.position: int | None = None

    def subscribe(
        self, sub_id: int, table: int, start_ts: int, copy: TableCopy | None = None, reached_ts: int = 0
    ) -> None:
        """It wants rows above start_ts; `copy`: which is inside of it. `reached_ts`: as of Feed.subscribe."""
        if sub_id in self._all:
            raise ProtocolViolation(f"Subscription {sub_id} exists already.", "Give each assignment a fresh sub_id.")
        self._all[sub_id] = _Taker(table, start_ts, copy)
        self._reached_ts = max(self._reached_ts, reached_ts)

    def release(self, sub_id: int) -> None:
        """Nothing is for it any more. Unknown: nothing happens."""
        if (subscription := self._all.pop(sub_id, None)) is not None:
            self._reached_ts = max(self._reached_ts, subscription.from_ts)

    def hold(self, sub_id: int) -> None:
        """Nothing is for it until it resumes. Unknown: nothing happens."""
        if (subscription := self._all.get(sub_id)) is not None:
            subscription.is_held = True
            subscription.leave()

    def resume(self, sub_id: int) -> None:
        """It wants rows above its sent_ts again. Unknown: nothing happens."""
        if (subscription := self._all.get(sub_id)) is not None:
            subscription.is_held = False

    def begin(self) -> None:
        """A stream does."""
        self.position = None
        for subscription in self._all.values():
            subscription.leave()
        self.settle()

    def settle(self) -> bool:
        """Whoever can joins, between what arrives. Tells whether the stream must begin anew for the others."""
        wait = [each for each in self._all.values() if not (each.is_held or each.is_joined)]
        for subscription in wait:
            subscription.is_joined = self.position is None or subscription.from_ts >= self.position
            subscription.is_copied = subscription.is_copied and not subscription.is_joined
        is_copying = any(each.copy is not None and each.is_joined for each in self._all.values())
        return not all(each.is_joined or (each.is_copied and is_copying) for each in wait)

    @property
    def all_rest(self) -> bool:
        """There are some, and all are held."""
        return bool(self._all) and all(subscription.is_held for subscription in self._all.values())

    def ids(self) -> list[int]:
        """Held ones, too."""
        return list(self._all)

    def needed_ts(self, *, is_crossed: bool) -> int | None:
        """What is above it is needed by somebody, who may be held; None: nobody needs anything.

        `is_crossed`: no server has taken over of which it is not known whether it has all that was read. Else all is
        needed: who finds the slot confirmed behind the point where one took over believes that it has.
        """
        if not is_crossed:
            return 0
        return min((subscription.sent_ts for subscription in self._all.values()), default=None)

    def below(self, first_ts: int) -> list[int]:
        """Those that want what is before the stream's first ts."""
        return [n for n, each in self._all.items() if each.is_joined and each.from_ts < first_ts]

    def handing_on(self, ts: int) -> None:
        """Rows at or below it are, to whoever is joined. They count as read, though nobody hears before all are."""
        if self.tables():
            self._reached_ts = max(self._reached_ts, ts)

    @property
    def reached_ts(self) -> int | None:
        """Nobody has had anything of what is above it: of a copy, its rows are as of its ts. None: there is nobody."""
        if not self._all:
            return None
        return max(self._reached_ts, *(subscription.from_ts for subscription in self._all.values()))

    def tables(self) -> frozenset[int]:
        """Whose rows are wanted in what arrives next."""
        return frozenset(subscription.table for subscription in self._all.values() if subscription.is_joined)

    def takers(self, table: int) -> list[int]:
        """Who is handed rows of the table."""
        return [n for n, each in self._all.items() if each.is_joined and each.table == table and each.copy is None]

    def copiers(self, table: int) -> list[Copying]:
        """Who looks at rows of the table."""
        found = [each for sub_id in self._all if (each := self._copying(sub_id)) is not None]
        return [each for each in found if each.table == table]

    def sent_ts(self, sub_id: int) -> int | None:
        """Rows of the stream above it are for the subscription; None: none are."""
        subscription = self._all.get(sub_id)
        return subscription.from_ts if subscription is not None and subscription.is_joined else None

    def behind(self, ts: int) -> list[int]:
        """Those that are to hear that all up to `ts` has been handed on."""
        return [n for n, each in self._all.items() if each.is_joined and each.copy is None and each.sent_ts < ts]

    def sent(self, sub_id: int, ts: int) -> bool:
        """The subscription is about to hear that; False: it is not for it any more."""
        subscription = self._all.get(sub_id)
        if subscription is None or not subscription.is_joined:
            return False
        subscription.sent_ts = max(subscription.sent_ts, ts)
        return True

    def next_copy(self) -> Copying | None:
        """Whose table is to be read now; None: nobody's, or all up to the ts of their copies has not been read."""
        for sub_id in self._all:
            found = self._copying(sub_id)
            if found is not None and self.position is not None and self.position >= found.copy.ts:
                return found
        return None

    def is_copying(self, copying: Copying) -> bool:
        """Tell whether it is still its turn."""
        subscription = self._all.get(copying.sub_id)
        return subscription is not None and subscription.is_joined and subscription.turn == copying.turn

    def copied(self, sub_id: int) -> None:
        """All up to the ts of its copy has been handed on."""
        subscription = self._all[sub_id]
        subscription.copy, subscription.is_copied = None, True
        subscription.leave()

    def _copying(self, sub_id: int) -> Copying | None:
        each = self._all[sub_id]
        if each.copy is None or not each.is_joined:
            return None
        return Copying(sub_id, each.table, each.sent_ts, each.copy, each.turn)

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        for subscription in self._all.values():
            assert not (subscription.is_held and subscription.is_joined), "who is held is out"
