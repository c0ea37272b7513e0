"""Bugs in how a slot of a PostgreSQL is read, to be found in simulated_slot."""

from __future__ import annotations

from changefeed.upstream.postgresql.slot.chain import Chain
from changefeed.upstream.postgresql.slot.subscriptions import SlotSubscriptions
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
)
