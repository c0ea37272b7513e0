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
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.errors import ProtocolViolation


@dataclass
class _Taker:
    table: int
    sent_ts: int
    is_held: bool = False
    is_joined: bool = False


class SlotSubscriptions:
    """By sub_id. `position`: every commit at or below it has been handed on; None: the stream has no ts yet."""

    def __init__(self) -> None:
        self._all: dict[int, _Taker] = {}
        self.position: int | None = None

    def subscribe(self, sub_id: int, table: int, start_ts: int) -> None:
        """It wants rows above start_ts."""
        if sub_id in self._all:
            raise ProtocolViolation(f"Subscription {sub_id} exists already.", "Give each assignment a fresh sub_id.")
        self._all[sub_id] = _Taker(table, start_ts)

    def release(self, sub_id: int) -> None:
        """Nothing is for it any more. Unknown: nothing happens."""
        self._all.pop(sub_id, None)

    def hold(self, sub_id: int) -> None:
        """Nothing is for it until it resumes. Unknown: nothing happens."""
        if (subscription := self._all.get(sub_id)) is not None:
            subscription.is_held, subscription.is_joined = True, False

    def resume(self, sub_id: int) -> None:
        """It wants rows above its sent_ts again. Unknown: nothing happens."""
        if (subscription := self._all.get(sub_id)) is not None:
            subscription.is_held = False

    def begin(self) -> None:
        """A stream does."""
        self.position = None
        for subscription in self._all.values():
            subscription.is_joined = False
        self.settle()

    def settle(self) -> bool:
        """Whoever can joins, between what arrives. Tells whether the stream must begin anew for the others."""
        wait = [each for each in self._all.values() if not (each.is_held or each.is_joined)]
        for subscription in wait:
            subscription.is_joined = self.position is None or subscription.sent_ts >= self.position
        return not all(subscription.is_joined for subscription in wait)

    @property
    def all_rest(self) -> bool:
        """There are some, and all are held."""
        return bool(self._all) and all(subscription.is_held for subscription in self._all.values())

    def ids(self) -> list[int]:
        """Held ones, too."""
        return list(self._all)

    @property
    def needed_ts(self) -> int | None:
        """What is above it is needed by somebody, who may be held; None: nobody needs anything."""
        return min((subscription.sent_ts for subscription in self._all.values()), default=None)

    def below(self, first_ts: int) -> list[int]:
        """Those that want what is before the stream's first ts."""
        return [n for n, each in self._all.items() if each.is_joined and each.sent_ts < first_ts]

    def tables(self) -> frozenset[int]:
        """Whose rows are wanted in what arrives next."""
        return frozenset(subscription.table for subscription in self._all.values() if subscription.is_joined)

    def takers(self, table: int) -> list[int]:
        """Who wants rows of the table."""
        return [n for n, each in self._all.items() if each.is_joined and each.table == table]

    def sent_ts(self, sub_id: int) -> int | None:
        """Rows above it are for the subscription; None: none are."""
        subscription = self._all.get(sub_id)
        return subscription.sent_ts if subscription is not None and subscription.is_joined else None

    def behind(self, ts: int) -> list[int]:
        """Those that are to hear that all up to `ts` has been handed on."""
        return [n for n, each in self._all.items() if each.is_joined and each.sent_ts < ts]

    def sent(self, sub_id: int, ts: int) -> bool:
        """The subscription is about to hear that; False: it is not for it any more."""
        subscription = self._all.get(sub_id)
        if subscription is None or not subscription.is_joined:
            return False
        subscription.sent_ts = max(subscription.sent_ts, ts)
        return True

    def check(self) -> None:
        """What holds between two calls, for tests. Raises AssertionError."""
        for subscription in self._all.values():
            assert not (subscription.is_held and subscription.is_joined), "who is held is out"
