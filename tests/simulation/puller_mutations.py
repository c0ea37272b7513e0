"""Bugs in what runs in the pullers' tasks, and between segments and files."""

from __future__ import annotations

from changefeed.eventstore.buffer import EventBuffer
from changefeed.pipeline import sorter
from changefeed.puller.reports import Reports
from changefeed.puller.span_pipeline import SpanPipeline
from changefeed.puller.task import PullerTask
from changefeed.sink.storage import grow
from changefeed.upstream.tikv.feed.held_history import HeldHistory
from changefeed.upstream.tikv.feed.range_lock import RangeLock
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from mutation import Mutation

RANGE_LOCK = (
    Mutation(
        "range lock",
        "resolved is the maximum of the pieces",
        RangeLock,
        "resolved_ts",
        "min(piece.resolved_ts for piece in self._pieces)",
        "max(piece.resolved_ts for piece in self._pieces)",
    ),
    Mutation(
        "range lock",
        "holes don't count",
        RangeLock,
        "resolved_ts",
        "min(piece.resolved_ts for piece in self._pieces)",
        "min([p.resolved_ts for p in self._pieces if p.locked] or [self._minimum])",
    ),
    Mutation(
        "range lock",
        "merged holes go on from the highest ts",
        RangeLock,
        "lock",
        "last.resolved_ts = min(last.resolved_ts, piece.resolved_ts)",
        "last.resolved_ts = max(last.resolved_ts, piece.resolved_ts)",
        story="Two regions have got to 100 and 200; what a transaction committed at 150 is still locked in the first. "
        "All streams break, and when both are looked for again they are one: it is pulled from 200.",
    ),
    Mutation(
        "range lock",
        "a hole that is cut goes on from the highest ts",
        RangeLock,
        "_cut",
        "LockPart(key, piece.end, piece.resolved_ts, failures=piece.failures, due=piece.due)",
        "LockPart(key, piece.end, max(p.resolved_ts for p in self._pieces), failures=piece.failures, due=piece.due)",
    ),
    Mutation(
        "range lock",
        "the minimum is not looked for again",
        RangeLock,
        "advance",
        "self._stale = self._stale or piece.resolved_ts == self._minimum",
        "pass",
    ),
    Mutation(
        "range lock",
        "what is locked takes the hole before it along",
        RangeLock,
        "lock",
        "piece.locked or piece.start < start or piece.end > end",
        "piece.locked or piece.end > end",
    ),
    Mutation(
        "range lock",
        "a piece that was not the lowest makes it forget to look for the minimum",
        RangeLock,
        "advance",
        "self._stale or piece.resolved_ts == self._minimum",
        "piece.resolved_ts == self._minimum",
    ),
    Mutation(
        "range lock",
        "a hole that has failed twice doesn't count",
        RangeLock,
        "resolved_ts",
        "min(piece.resolved_ts for piece in self._pieces)",
        "min([p.resolved_ts for p in self._pieces if p.locked or p.failures < 2] or [self._minimum])",
        story="A region can't be registered again for a while; meanwhile the others' resolved-ts is told for all.",
    ),
    Mutation(
        "range lock",
        "what is cut off a hole that has failed twice goes on from the highest ts",
        RangeLock,
        "_cut",
        "LockPart(key, piece.end, piece.resolved_ts, failures=piece.failures, due=piece.due)",
        "LockPart(key, piece.end, max(p.resolved_ts for p in self._pieces if p is piece or piece.failures > 1), "
        "failures=piece.failures, due=piece.due)",
        story="A region splits while it can't be registered, twice in a row.",
    ),
    Mutation(
        "range lock",
        "a piece that fails again and again goes on from where the farthest one is",
        RangeLock,
        "unlock",
        "piece.locked = False",
        "piece.locked = False\n"
        "if piece.failures > 1:\n"
        "    piece.resolved_ts = max(other.resolved_ts for other in self._pieces)",
        story="A region is refused thrice before a store takes it; what was written in it meanwhile is passed by.",
    ),
    Mutation(
        "range lock",
        "who is released stays locked",
        RangeLock,
        "release",
        "self._pieces = [LockPart(piece.start, piece.end, piece.resolved_ts) for piece in self._pieces]",
        "pass",
    ),
)

SPAN_PIPELINE = (
    Mutation(
        "span pipeline",
        "a resolved-ts waits for nothing",
        SpanPipeline,
        "resolved",
        "wait_seq = span.next_data_seq - 1",
        "wait_seq = span.acked_seq",
    ),
    Mutation(
        "span pipeline",
        "after it was resumed, a resolved-ts waits for nothing",
        SpanPipeline,
        "resolved",
        "wait_seq = span.next_data_seq - 1",
        "wait_seq = span.next_data_seq - 1 if span.resumed_ts is None else span.acked_seq",
        story="A subscription was held, for the memory was full, and resumed; its next segment is long in the writing.",
    ),
    Mutation(
        "span pipeline",
        "after it was resumed, a resolved-ts is told one segment too early",
        SpanPipeline,
        "_flush_resolved_if_ready",
        "span.pending_resolved[span.flushed][0] <= span.acked_seq",
        "span.pending_resolved[span.flushed][0] <= span.acked_seq + (span.resumed_ts is not None)",
    ),
    Mutation(
        "span pipeline",
        "what is gone takes its share of the quota along",
        SpanPipeline,
        "persisted",
        "self.metrics.inflight_bytes -= span.weights.pop(seq)",
        "self.metrics.inflight_bytes -= span.weights.pop(seq) * (not span.released)",
    ),
    Mutation(
        "span pipeline",
        "a later resolved-ts takes the place of one that waits for less",
        SpanPipeline,
        "resolved",
        "if span.barriers and span.pending_resolved[-1][0] == wait_seq:\n"
        "    span.pending_resolved[-1] = wait_seq, ts\n"
        "else:\n"
        "    span.pending_resolved.append((wait_seq, ts))\n"
        "    self.metrics.pending_resolved_barriers += 1",
        "if span.barriers and span.pending_resolved[-1]:\n"
        "    span.pending_resolved[-1] = span.pending_resolved[-1][0], ts\n"
        "else:\n"
        "    span.pending_resolved.append((wait_seq, ts))\n"
        "    self.metrics.pending_resolved_barriers += 1",
        story="A segment is long in the writing; rows at 150, and a resolved-ts of 200 for them, come meanwhile. "
        "With the first segment 200 is told, and a checkpoint passes 150 before the second is written.",
    ),
    Mutation(
        "span pipeline",
        "a segment that nobody wants any more frees nothing",
        PullerTask,
        "_write",
        "self._writing -= 1",
        "self._writing -= 1\nif not spans:\n    return",
    ),
    Mutation(
        "span pipeline",
        "nobody who is held is resumed",
        SpanPipeline,
        "_balance",
        "return [*map(HoldBack, hold), *map(Resume, resume)]",
        "return [*map(HoldBack, hold)]",
    ),
)

AROUND_THEM = (
    Mutation(
        "reports",
        "a resolved-ts names no segment",
        Reports,
        "written",
        "subscription.last_segment = max(subscription.last_segment, meta.seq)",
        "pass",
        story="Segment 2 is written before segment 1, and not told before it; the resolved-ts that it allows is.",
    ),
    Mutation(
        "event buffer",
        "of several spans one is written",
        EventBuffer,
        "_close",
        "Roll(self._last_seq, spans, self._tokens, self._bytes, self._first_at)",
        "Roll(self._last_seq, spans[:1], self._tokens, self._bytes, self._first_at)",
    ),
    Mutation("feed", "a region that failed is left alone", SpanFeed, "_unlock", "subscription.changed.set()", "pass"),
    Mutation(
        "feed",
        "what is held goes on from where its newest region stood",
        SpanFeed,
        "hold",
        "subscription.ranges.release()",
        "top = max(p.resolved_ts for p in subscription.ranges.pieces)\n"
        "subscription.ranges.release()\n"
        "for piece in subscription.ranges.pieces:\n"
        "    piece.resolved_ts = top",
    ),
    Mutation(
        "held history",
        "a scan's history counts unasked",
        HeldHistory,
        "counts",
        "if ask not in self._waiting:",
        "if True:",
        rule=14,
    ),
    Mutation(
        "held history",
        "a second resolved-ts counts unasked",
        HeldHistory,
        "counts",
        "if ask not in self._waiting:",
        "if self._waiting.get(ask, 1):",
        rule=14,
    ),
    Mutation(
        "sorter",
        "rows that come in order are not searched for repeats",
        sorter,
        "_unique",
        "repeated = same_as_next(names, by_identity)",
        "repeated = same_as_next(names, by_identity)[: 0 if order is None else None]",
        rule=4,
    ),
    Mutation(
        "sorter",
        "rows that come twice are written twice",
        sorter,
        "_unique",
        "if len(repeated):",
        "if False:",
        rule=4,
    ),
    Mutation(
        "sink",
        "the etag is read after the value",
        grow,
        "grow",
        "store.swap(path, body, etag)",
        "store.swap(path, body, etag and store.get(path).etag)",
        rule=8,
        story="Two drivers read the same `metadata`; the newer one writes between the older one's two looks.",
    ),
    Mutation(
        "sink",
        "metadata may go back",
        grow,
        "grow",
        "said < value",
        "said != value",
        rule=8,
        story="A driver sleeps before it publishes; its successor has published a later checkpoint when it wakes.",
    ),
)

PULLER_MUTATIONS = (*RANGE_LOCK, *SPAN_PIPELINE, *AROUND_THEM)
