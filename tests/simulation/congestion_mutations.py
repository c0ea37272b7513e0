"""Bugs in how a store is treated that turns registrations away."""

from __future__ import annotations

from changefeed.upstream.tikv.feed.congestion import Congestion
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.upstream.tikv.feed.store_stream import StoreStream
from mutation import Edit, Mutation

CONGESTION_MUTATIONS = (
    Mutation(
        "congestion",
        "who is turned away comes again at once",
        Congestion,
        "may_go",
        "now < self._due",
        "False",
        story="Another client does not read, so a store has no room; each try costs it a scan.",
    ),
    Mutation(
        "congestion",
        "all go when the wait is over",
        Congestion,
        "turned_away",
        "self._window = 1",
        "self._window = self._most",
    ),
    Mutation("congestion", "the wait does not grow", Congestion, "turned_away", "self._turns += 1", "pass"),
    Mutation(
        "congestion",
        "what waits is not looked at again",
        StoreStream,
        "_next_look",
        "None if at is None else at - now",
        "None",
    ),
    Mutation(
        "congestion",
        "what was tried and is over is still waited for",
        Congestion,
        "ended",
        "self._tried.discard(reg)",
        "pass",
        also=(
            Edit(Congestion, "may_go", "now >= self._widens", "False"),
            Edit(Congestion, "next_look", "return self._widens if self._tried else None", "return None"),
        ),
    ),
    Mutation(
        "congestion",
        "what a store turned away is given up",
        SpanFeed,
        "failed",
        "self._register(replace(ask, checkpoint_ts=ask.piece.resolved_ts))",
        "pass",
    ),
)
