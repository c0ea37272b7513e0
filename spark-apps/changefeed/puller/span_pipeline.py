"""When a resolved-ts may be reported: the state machine of source design 1, with its byte quota and its seven metrics.

The only promise: a subscription's resolved-ts is advanced when every data batch that entered before it is persisted, in
whatever order the persists are called back. "Before" is the order in which the puller received them.
No order between subscriptions. Pure: events in, actions out. One object holds all subscriptions of a task: the
workers of the source design keep goroutines apart, and there is one event loop here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: The pending queue is compacted when this many barriers at its head are flushed and they are half of it.
COMPACT_AT = 64
#: Upper bounds of the histogram of quota waits, seconds.
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


@dataclass(frozen=True)
class Admitted:
    """The batch has entered the pipeline as `seq`: persist it, then call `persisted`."""

    sub_id: int
    seq: int
    ticket: int


@dataclass(frozen=True)
class Refused:
    """The subscription is gone: drop the batch."""

    sub_id: int
    ticket: int


@dataclass(frozen=True)
class Advance:
    """All data that arrived before this resolved-ts is persisted."""

    sub_id: int
    ts: int


Action = Admitted | Refused | Advance


@dataclass
class PipelineMetrics:
    inflight_bytes: int = 0
    inflight_batches: int = 0
    pending_resolved_barriers: int = 0
    active_subscriptions: int = 0
    quota_acquire_duration_seconds: float = 0.0  # sum
    quota_acquire_buckets: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BUCKETS) + 1))
    resolved_barrier_dropped_total: int = 0
    resolved_barrier_compaction_total: int = 0


@dataclass
class _Span:
    next_data_seq: int = 1
    acked_seq: int = 0
    done_set: set[int] = field(default_factory=set)
    weights: dict[int, int] = field(default_factory=dict)  # of batches in flight
    pending_resolved: list[tuple[int, int]] = field(default_factory=list)  # (wait_seq, ts), both rising
    flushed: int = 0  # barriers at the head of pending_resolved that were sent
    newest_ts: int = 0  # of any barrier
    released: bool = False

    @property
    def barriers(self) -> int:
        return len(self.pending_resolved) - self.flushed


@dataclass(frozen=True)
class _Waiting:
    sub_id: int
    ticket: int
    weight: int
    since: float


class SpanPipeline:
    def __init__(self, quota_bytes: int) -> None:
        self._quota = quota_bytes
        self._spans: dict[int, _Span] = {}
        self._waiting: deque[_Waiting] = deque()
        self._next_ticket = 1
        self.metrics = PipelineMetrics()

    def register(self, sub_id: int) -> None:
        if sub_id in self._spans:
            raise ValueError(f"subscription {sub_id} is registered already")
        self._spans[sub_id] = _Span()
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
        refused: list[Action] = [Refused(sub_id, w.ticket) for w in self._waiting if w.sub_id == sub_id]
        self._waiting = deque(w for w in self._waiting if w.sub_id != sub_id)
        self._forget_if_over(sub_id, span)
        return refused + self._admit(now)

    def data(self, sub_id: int, weight: int, now: float) -> tuple[int, list[Action]]:
        """A batch asks for `weight` bytes of quota. Gives its ticket; Admitted comes with this event or a later one."""
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        if not self._is_active(sub_id):
            return ticket, [Refused(sub_id, ticket)]
        self._waiting.append(_Waiting(sub_id, ticket, min(weight, self._quota), now))
        return ticket, self._admit(now)

    def resolved(self, sub_id: int, ts: int) -> list[Action]:
        """The span's resolved-ts went up; it waits for the data that entered before."""
        if not self._is_active(sub_id):
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
        return advanced + self._admit(now)

    def _is_active(self, sub_id: int) -> bool:
        span = self._spans.get(sub_id)
        return span is not None and not span.released

    def _admit(self, now: float) -> list[Action]:
        """First come, first served: a small batch does not overtake a large one."""
        admitted: list[Action] = []
        while self._waiting and self.metrics.inflight_bytes + self._waiting[0].weight <= self._quota:
            batch = self._waiting.popleft()
            span = self._spans[batch.sub_id]
            seq, span.next_data_seq = span.next_data_seq, span.next_data_seq + 1
            span.weights[seq] = batch.weight
            self.metrics.inflight_bytes += batch.weight
            self.metrics.inflight_batches += 1
            self._observe_wait(now - batch.since)
            admitted.append(Admitted(batch.sub_id, seq, batch.ticket))
        return admitted

    def _flush_resolved_if_ready(self, sub_id: int, span: _Span) -> list[Action]:
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

    def _forget_if_over(self, sub_id: int, span: _Span) -> None:
        if span.released and not span.weights:
            del self._spans[sub_id]

    def _observe_wait(self, seconds: float) -> None:
        self.metrics.quota_acquire_duration_seconds += seconds
        bucket = sum(seconds > bound for bound in WAIT_BUCKETS)
        self.metrics.quota_acquire_buckets[bucket] += 1
