"""When a resolved-ts may be reported: design 1 of docs/design/README.md, with its byte quota and metrics.

Its only guarantee: a subscription's resolved-ts is advanced once every data batch that entered before it is persisted,
in whatever order the persists complete. "Before" is the order in which the puller received them. There is no order
between subscriptions. Pure: events in, actions out. One object holds all subscriptions of a task: that design has
workers to separate goroutines, but here there is one event loop.

It differs from the design in one respect: data never waits for quota, because it would block the stream that all
others share (rule 17). What has arrived is accepted, and subscriptions are held until there is room again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from changefeed.puller.back_pressure import BackPressure

#: The pending queue is compacted when this many barriers at its head are flushed and they are half of it.
COMPACT_AT = 64


@dataclass(frozen=True)
class Advance:
    """All data that arrived before this resolved-ts is persisted."""

    sub_id: int
    ts: int


@dataclass(frozen=True)
class HoldBack:
    """Pull the subscription no more until Resume. What of it is on its way is taken in."""

    sub_id: int


@dataclass(frozen=True)
class Resume:
    """Pull it again, from where it stands."""

    sub_id: int


Action = Advance | HoldBack | Resume


@dataclass
class PipelineMetrics:
    inflight_bytes: int = 0
    inflight_batches: int = 0
    pending_resolved_barriers: int = 0
    active_subscriptions: int = 0
    held_subscriptions: int = 0
    quota_acquire_durations: list[float] = field(default_factory=list)  # seconds that subscriptions were held
    resolved_barrier_dropped_total: int = 0
    resolved_barrier_compaction_total: int = 0


@dataclass
class _PulledSpan:
    next_data_seq: int = 1
    acked_seq: int = 0
    done_set: set[int] = field(default_factory=set)
    weights: dict[int, int] = field(default_factory=dict)  # of batches in flight
    pending_resolved: list[tuple[int, int]] = field(default_factory=list)  # (wait_seq, ts), both rising
    flushed: int = 0  # barriers at the head of pending_resolved that were sent
    newest_ts: int = 0  # of any barrier; before there is one, where it began
    released: bool = False
    held_since: float | None = None
    resumed_ts: int | None = None  # where it stood when it was resumed

    @property
    def barriers(self) -> int:
        return len(self.pending_resolved) - self.flushed


class SpanPipeline:
    def __init__(self, quota_bytes: int) -> None:
        self._marks = BackPressure(quota_bytes)
        self._spans: dict[int, _PulledSpan] = {}
        self._held: set[int] = set()
        self._step = quota_bytes // 256  # what has changed by less needs no new look
        self._looked_at = 0  # bytes in flight
        self.metrics = PipelineMetrics()

    def register(self, sub_id: int, start_ts: int) -> None:
        if sub_id in self._spans:
            raise ValueError(f"subscription {sub_id} is registered already")
        self._spans[sub_id] = _PulledSpan(newest_ts=start_ts)
        self.metrics.active_subscriptions += 1

    def unregister(self, sub_id: int, now: float) -> list[Action]:
        """Nothing of the subscription is reported any more. What is in flight frees its quota when it is persisted."""
        span = self._spans.get(sub_id)
        if span is None or span.released:
            return []
        span.released = True
        self.metrics.active_subscriptions -= 1
        self.metrics.pending_resolved_barriers -= span.barriers
        span.pending_resolved.clear()
        span.flushed = 0
        self._held.discard(sub_id)
        self.metrics.held_subscriptions = len(self._held)
        self._forget_if_over(sub_id, span)
        return self._balance(now)

    def data(self, sub_id: int, weight: int, now: float) -> tuple[int, list[Action]]:
        """A batch of `weight` bytes has come: persist it as the number that is given, then call `persisted`.

        0: the subscription is gone, drop the batch.
        """
        if not self.is_active(sub_id):
            return 0, []
        span = self._spans[sub_id]
        seq, span.next_data_seq = span.next_data_seq, span.next_data_seq + 1
        span.weights[seq] = weight
        self.metrics.inflight_bytes += weight
        self.metrics.inflight_batches += 1
        return seq, self._balance(now)

    def resolved(self, sub_id: int, ts: int) -> list[Action]:
        """The span's resolved-ts went up; it waits for the data that entered before."""
        if not self.is_active(sub_id):
            return []
        span = self._spans[sub_id]
        if ts <= span.newest_ts:
            self.metrics.resolved_barrier_dropped_total += 1
            return []
        span.newest_ts = ts
        wait_seq = span.next_data_seq - 1
        if span.barriers and span.pending_resolved[-1][0] == wait_seq:
            span.pending_resolved[-1] = (wait_seq, ts)
        else:
            span.pending_resolved.append((wait_seq, ts))
            self.metrics.pending_resolved_barriers += 1
        return self._flush_resolved_if_ready(sub_id, span)

    def persisted(self, sub_id: int, seq: int, now: float) -> list[Action]:
        """A batch is durable; callbacks come in any order."""
        span = self._spans[sub_id]
        self.metrics.inflight_bytes -= span.weights.pop(seq)
        self.metrics.inflight_batches -= 1
        span.done_set.add(seq)
        while span.acked_seq + 1 in span.done_set:
            span.acked_seq += 1
            span.done_set.remove(span.acked_seq)
        advanced = self._flush_resolved_if_ready(sub_id, span)
        self._forget_if_over(sub_id, span)
        return advanced + self._balance(now)

    def is_active(self, sub_id: int) -> bool:
        """Whether it is registered, and not gone."""
        span = self._spans.get(sub_id)
        return span is not None and not span.released

    def _balance(self, now: float) -> list[Action]:
        """Hold the farthest ahead while the quota is short, and resume them when it is not (rule 17).

        The lowest is not held again where it stood before: what a region sends until it is resolved may be more than
        the quota, and would be sent again and again. What is in flight always gets less, however full it is.
        """
        used = self.metrics.inflight_bytes
        if not self._held and not self._marks.is_short(used):
            return []
        if abs(used - self._looked_at) < self._step and not self._marks.is_at_ease(used):
            return []
        self._looked_at = used
        active = {sub_id: span for sub_id, span in self._spans.items() if not span.released}
        reached = {sub_id: span.newest_ts for sub_id, span in active.items()}
        stored = [sub_id for sub_id, span in active.items() if span.weights]
        hold, resume = self._marks.decide(used, reached, stored, self._held)
        lowest = min(reached, key=lambda sub_id: (reached[sub_id], sub_id), default=None)
        hold = [sub_id for sub_id in hold if sub_id != lowest or active[sub_id].resumed_ts != reached[sub_id]]
        for sub_id in hold:
            active[sub_id].held_since = now
        for sub_id in resume:
            active[sub_id].resumed_ts = reached[sub_id]
            self.metrics.quota_acquire_durations.append(now - (active[sub_id].held_since or now))
        self._held = (self._held | set(hold)) - set(resume)
        self.metrics.held_subscriptions = len(self._held)
        return [*map(HoldBack, hold), *map(Resume, resume)]

    def _flush_resolved_if_ready(self, sub_id: int, span: _PulledSpan) -> list[Action]:
        sent: list[Action] = []
        while span.barriers and span.pending_resolved[span.flushed][0] <= span.acked_seq:
            sent.append(Advance(sub_id, span.pending_resolved[span.flushed][1]))
            span.flushed += 1
        self.metrics.pending_resolved_barriers -= len(sent)
        if span.flushed >= COMPACT_AT and 2 * span.flushed >= len(span.pending_resolved):
            del span.pending_resolved[: span.flushed]
            span.flushed = 0
            self.metrics.resolved_barrier_compaction_total += 1
        return sent

    def _forget_if_over(self, sub_id: int, span: _PulledSpan) -> None:
        if span.released and not span.weights:
            del self._spans[sub_id]
