"""Bugs in how a slot of a PostgreSQL is read, to be found in simulated_slot."""

from __future__ import annotations

from changefeed.upstream.postgresql.slot import timelines
from changefeed.upstream.postgresql.slot.chain import Chain
from changefeed.upstream.postgresql.slot.subscriptions import SlotSubscriptions
from changefeed.upstream.postgresql.slot.timelines import Crossing
from mutation import Edit, Mutation

SLOT_CORE = "slot"
_HELD_IS_OUT = "assert not (subscription.is_held and subscription.is_joined), 'who is held is out'"

SLOT_MUTATIONS = (
    Mutation(
        SLOT_CORE,
        "commits of one millisecond have one ts",
        Chain,
        "commit",
        "self.last_ts + TICKS",
        "self.last_ts",
    ),
    Mutation(
        SLOT_CORE,
        "commits before the first anchor have a ts",
        Chain,
        "commit",
        "return None",
        "self.last_ts = compose(time_ms)\nreturn self.last_ts",
    ),
    Mutation(
        SLOT_CORE,
        "an anchor from the future is believed",
        Chain,
        "commit",
        "said is not None and said.ts > compose(time_ms + _BELIEVED_MS)",
        "False",
    ),
    Mutation(
        SLOT_CORE,
        "an anchor that others have overtaken is good",
        Chain,
        "commit",
        "if said.ts == ts:",
        "if True:",
        story="A message's ts is made, others commit with higher ones, then the message is committed; the slot is "
        "confirmed there, and who reads again gives all that follows other ts.",
    ),
    Mutation(
        SLOT_CORE,
        "what is held by another slot is let go",
        Chain,
        "commit",
        "if said.slot == self._slot:",
        "if said.held:",
    ),
    Mutation(
        SLOT_CORE,
        "what has been read is let go",
        Chain,
        "confirmable",
        "self._held if needed_ts is None else min(self._held, needed_ts)",
        "self.last_ts or 0",
    ),
    Mutation(
        SLOT_CORE,
        "what is held is let go though somebody pulls it again",
        Chain,
        "confirmable",
        "self._held if needed_ts is None else min(self._held, needed_ts)",
        "self._held",
        story="A puller's rows have arrived and are written while the next one pulls them again; the stream breaks and "
        "begins above what that one needs.",
    ),
    Mutation(
        SLOT_CORE,
        "who comes from below the stream's position joins it",
        SlotSubscriptions,
        "settle",
        "self.position is None or subscription.from_ts >= self.position",
        "True",
    ),
    Mutation(
        SLOT_CORE,
        "a stream that begins anew is where the last one was",
        SlotSubscriptions,
        "begin",
        "self.position = None",
        "",
    ),
    Mutation(
        SLOT_CORE,
        "who is held is told how far the stream is",
        SlotSubscriptions,
        "hold",
        "subscription.leave()",
        "None",
        also=(
            Edit(SlotSubscriptions, "takers", "each.copy is None", "not each.is_held"),
            Edit(SlotSubscriptions, "check", _HELD_IS_OUT, "pass"),
        ),
    ),
    Mutation(
        SLOT_CORE,
        "who is held needs nothing",
        SlotSubscriptions,
        "needed_ts",
        "(subscription.sent_ts for subscription in self._all.values())",
        "(subscription.sent_ts for subscription in self._all.values() if not subscription.is_held)",
    ),
    Mutation(
        SLOT_CORE,
        "who wants what is before the stream's first anchor is not told",
        SlotSubscriptions,
        "below",
        "each.is_joined and each.from_ts < first_ts",
        "False",
        story="A puller that was replaced confirms what is durable, while the one in its place still pulls it again.",
    ),
    Mutation(
        SLOT_CORE,
        "a clock that goes back takes the ts with it",
        Chain,
        "commit",
        "max(compose(time_ms) if said is None else said.ts, self.last_ts + TICKS)",
        "compose(time_ms) if said is None else said.ts",
    ),
    Mutation(
        SLOT_CORE,
        "the slot is confirmed behind the anchor, not ahead of it",
        Chain,
        "confirmable",
        "return self._anchors[0].lsn",
        "return self._anchors[0].lsn + 1",
    ),
    Mutation(
        SLOT_CORE,
        "what a driver holds is not heard, and nothing is let go",
        Chain,
        "commit",
        "if said.slot == self._slot:",
        "if False:",
    ),
    Mutation(
        SLOT_CORE,
        "who comes in the middle of what has arrived joins at once",
        SlotSubscriptions,
        "subscribe",
        "_Taker(table, start_ts, copy)",
        "_Taker(table, start_ts, copy, is_joined=self.position is None or start_ts >= self.position)",
    ),
    Mutation(
        SLOT_CORE,
        "who resumes joins at once",
        SlotSubscriptions,
        "resume",
        "subscription.is_held = False",
        "subscription.is_held, subscription.is_joined = False, True",
    ),
    Mutation(
        SLOT_CORE,
        "the stream does not begin anew for those that need what has passed",
        SlotSubscriptions,
        "settle",
        "return not all(each.is_joined or (each.is_copied and is_copying) for each in wait)",
        "return False",
    ),
    Mutation(
        SLOT_CORE,
        "what a server has written that has taken over was the other one's, too",
        Crossing,
        "commit",
        "lsn < point.lsn and ts is not None",
        "ts is not None",
        story="A standby lacks what was read, is promoted and writes more; the changefeed goes on.",
    ),
    Mutation(
        SLOT_CORE,
        "nobody believes that a timeline is crossed",
        Crossing,
        "commit",
        "point.timeline > said.crossed",
        "True",
        story="A standby that has all takes over and is read; the next reader begins before that point once more, and "
        "takes what was read since for lost.",
    ),
    Mutation(
        SLOT_CORE,
        "another slot's reader has crossed for us",
        Crossing,
        "commit",
        "said is not None and said.slot == self._slot",
        "said is not None",
    ),
    Mutation(
        SLOT_CORE,
        "who has crossed one timeline has crossed those that come",
        Crossing,
        "commit",
        "point.timeline > said.crossed",
        "not said.crossed",
    ),
    Mutation(
        SLOT_CORE,
        "timelines are taken for the ones before them",
        timelines,
        "switches",
        "[number for number, _ in ends[1:]] + [timeline]",
        "[number for number, _ in ends]",
        story="A server takes over, is read, and is replaced by one that lacks what it had written; the slot is "
        "confirmed to before both.",
    ),
    Mutation(
        SLOT_CORE,
        "of several servers that took over the last one counts",
        Crossing,
        "common_ts",
        "min(self._common.values(), default=None)",
        "max(self._common.values(), default=None)",
    ),
    Mutation(
        SLOT_CORE,
        "who has read the least says what was read",
        SlotSubscriptions,
        "reached_ts",
        "max((subscription.from_ts for subscription in self._all.values()), default=None)",
        "min((subscription.from_ts for subscription in self._all.values()), default=None)",
    ),
)
