"""What a puller reports to the owner, in which order (rule 2), and how much of it the owner has processed (rule 17).

Segments are written concurrently and finish in any order; they are reported in the order of their numbers, without a
gap, and a resolved-ts is never reported before all segments with rows below it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.errors import ChangefeedError
from changefeed.wire import owner_pb2


@dataclass
class _ReportedSubscription:
    first_segment: int = 0
    last_segment: int = 0  # of those that are written
    ts: int = 0


class Reports:
    def __init__(self, puller: int, attempt: int | None = None) -> None:
        """`attempt`: Spark's id of the task, by which the owner has it killed when it says nothing any more."""
        self._puller = puller
        self._attempt = attempt
        self._subscriptions: dict[int, _ReportedSubscription] = {}
        self._risen: dict[int, _ReportedSubscription] = {}  # those of them that have got on since they were told
        self._written: dict[int, owner_pb2.SegmentMeta] = {}
        self._told_segment = 0
        self._archived: dict[int, str] = {}
        self._unheard: dict[int, int] = {}  # bytes of segments that the owner may not count yet
        self._failures: list[owner_pb2.Failure] = []
        self._news: list[owner_pb2.SchemaNews] = []
        self._metrics: list[owner_pb2.MetricDelta] = []
        self._trouble = ""
        self._answered: bool | None = None
        self._told_trouble = ""
        self._blocked: owner_pb2.Blocked | None = None
        self._told_blocked: owner_pb2.Blocked | None = None
        self._stopped: owner_pb2.Stopped | None = None
        self._told_stopped: owner_pb2.Stopped | None = None

    def subscribed(self, sub_id: int) -> None:
        self._subscriptions[sub_id] = _ReportedSubscription()

    def released(self, sub_id: int) -> None:
        self._subscriptions.pop(sub_id, None)
        self._risen.pop(sub_id, None)

    @property
    def unheard_bytes(self) -> int:
        """The bytes of segments that are being written, or unknown to the owner: it may think that there is room."""
        return sum(self._unheard.values())

    def begun(self, seq: int, size: int) -> None:
        """A segment of about that many bytes will be written."""
        self._unheard[seq] = size

    def heard(self, segment: int) -> None:
        """The owner counts every segment up to this one."""
        self._unheard = {seq: size for seq, size in self._unheard.items() if seq > segment}

    def written(self, meta: owner_pb2.SegmentMeta) -> None:
        """A segment can be read. Call it before what its persist lets advance."""
        self._written[meta.seq] = meta
        self._unheard[meta.seq] = meta.bytes
        for span in meta.spans:
            subscription = self._subscriptions.get(span.sub_id)
            if subscription is not None:
                subscription.first_segment = min(subscription.first_segment or meta.seq, meta.seq)
                subscription.last_segment = max(subscription.last_segment, meta.seq)

    def archived(self, seq: int, uri: str) -> None:
        """What stands in memory is in a file as well."""
        self._archived[seq] = uri

    def advanced(self, sub_id: int, ts: int) -> None:
        """Every row of the subscription with commit_ts <= ts is in a written segment."""
        subscription = self._subscriptions.get(sub_id)
        if subscription is not None and ts > subscription.ts:
            subscription.ts = ts
            self._risen[sub_id] = subscription

    def failed(self, sub_id: int, error: ChangefeedError) -> None:
        """The subscription is over, and nobody else will pull it."""
        self._failures.append(
            owner_pb2.Failure(
                sub_id=sub_id, reason=type(error).__name__, message=error.message, next_step=error.next_step
            )
        )

    def news(self, ts: int, content: bytes) -> None:
        """A SchemaNews. Of several that say nothing the last one says it all."""
        if not content and self._news and not self._news[-1].content:
            self._news.pop()
        self._news.append(owner_pb2.SchemaNews(ts=ts, content=content))

    def measured(self, metrics: list[owner_pb2.MetricDelta]) -> None:
        self._metrics += metrics

    def troubled(self, why: str, answered: bool | None = None) -> None:
        """No segment can be written, and each report says so; "": it can be again. `answered`: see ChangefeedError."""
        self._trouble, self._answered = why, answered

    def blocked(self, blocked: owner_pb2.Blocked | None) -> None:
        """A living transaction holds a resolved-ts back, and each report says so; None: no more."""
        self._blocked = blocked

    def stopped(self, stopped: owner_pb2.Stopped | None) -> None:
        """A store sends no change data, and each report says so; None: no more."""
        self._stopped = stopped

    def first(self) -> owner_pb2.Report:
        """What opens the stream."""
        return owner_pb2.Report(puller=self._puller, task=self._attempt)

    def take(self) -> owner_pb2.Report | None:
        """What can be told now; None: nothing."""
        segments = []
        while (meta := self._written.pop(self._told_segment + 1, None)) is not None:
            segments.append(meta)
            self._told_segment += 1
        resolved = []
        for sub_id, subscription in list(self._risen.items()):
            if subscription.last_segment > self._told_segment:
                continue
            del self._risen[sub_id]
            first, last = subscription.first_segment, subscription.last_segment
            resolved.append(
                owner_pb2.Resolved(sub_id=sub_id, ts=subscription.ts, first_segment=first, last_segment=last)
            )
        archived = [(seq, uri) for seq, uri in self._archived.items() if seq <= self._told_segment]
        for seq, _ in archived:
            del self._archived[seq]
        failures, self._failures = self._failures, []
        news, self._news = self._news, []
        metrics, self._metrics = self._metrics, []
        state = (self._trouble, self._blocked, self._stopped)
        same = state == (self._told_trouble, self._told_blocked, self._told_stopped)
        if not (segments or archived or resolved or failures or news or metrics) and same:
            return None
        self._told_trouble, self._told_blocked, self._told_stopped = state
        return owner_pb2.Report(
            puller=self._puller,
            task=self._attempt,
            resolved=resolved,
            segments=segments,
            archived=[owner_pb2.Archived(segment=seq, uri=uri) for seq, uri in archived],
            failures=failures,
            news=news,
            metrics=metrics,
            trouble=self._trouble,
            answered=self._answered,
            blocked=self._blocked,
            stopped=self._stopped,
        )
