"""Which puller pulls which span, and how far that is known to be whole (CORRECTNESS.md, rule 2).

Pure: commands and reports in, facts out. It never lets a resolved-ts count before every segment that may hold rows at
or below it is known, and never credits a report to an assignment that it was not made for.

Why a resolved-ts is never early:

1. *A progress message is lost with its stream, the next one says "resolved 150".* A stream's segments are numbered
   1, 2, 3 ...; a resolved-ts waits until every number up to its `last_segment` is known. With the stream all its
   assignments end: what a new one says is about fresh sub_ids, and its numbers start at 1.
2. *A late report of a puller that lost the span arrives.* Its sub_id is no longer anybody's: dropped. A sub_id is never
   used again in a run, and another run's pullers are refused by their epoch. A segment of an earlier stream, known by
   its older sub_ids, does not pass for this stream's segment of that number.
3. *A span is assigned anew at its flushed ts.* Its resolved-ts goes back to that ts inside the owner, its segments are
   forgotten and will be pulled again. What was published is the log's and the checkpoint's business.
4. *A recovered plan ends at 150, the re-pull stands at 120.* `is_whole` is false: the plan waits (rule 3).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from changefeed.errors import NeedsHuman
from changefeed.model.position import Position
from changefeed.model.record import PlanEntry, SegmentSlice
from changefeed.wire import owner_pb2 as pb


@dataclass(frozen=True)
class Segment:
    """One span's share of a segment file."""

    span_id: int
    sub_id: int
    uri: str
    size: int  # of the file, bytes
    seq: int
    rows: int
    bytes: int  # raw
    min: Position  # of its first row
    max: Position  # of its last row
    first_batch: int
    end_batch: int
    curve: tuple[tuple[Position, int], ...]  # raw bytes up to and including a position

    @classmethod
    def from_proto(cls, meta: pb.SegmentMeta, span: pb.SegmentSpan) -> Segment:
        return cls(
            span_id=span.span_id,
            sub_id=span.sub_id,
            uri=meta.uri,
            size=meta.bytes,
            seq=meta.seq,
            rows=span.rows,
            bytes=span.bytes,
            min=_position(span.min),
            max=_position(span.max),
            first_batch=span.first_batch,
            end_batch=span.end_batch,
            curve=tuple((_position(point.position), point.bytes) for point in span.curve),
        )


@dataclass(frozen=True)
class Changes:
    """What a report has brought: segments to plan by, and spans whose resolved-ts has risen."""

    segments: tuple[Segment, ...] = ()
    resolved: dict[int, int] = field(default_factory=dict)  # span_id -> ts


@dataclass
class _Span:
    span_id: int
    start_key: bytes
    end_key: bytes
    flushed_ts: int
    puller: int
    sub_id: int = 0  # 0: nobody pulls it
    resolved_ts: int = 0
    segments: list[Segment] = field(default_factory=list)
    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # (last_segment, ts): not yet to be counted


@dataclass
class _Stream:
    first_sub_id: int  # the lowest that can be its own
    contiguous: int = 0  # segments 1..contiguous are known
    beyond: set[int] = field(default_factory=set)

    def know(self, seq: int) -> bool:
        """False when it was known already."""
        if seq <= self.contiguous or seq in self.beyond:
            return False
        self.beyond.add(seq)
        while self.contiguous + 1 in self.beyond:
            self.contiguous += 1
            self.beyond.remove(self.contiguous)
        return True


class Spans:
    """All spans of a changefeed, the DDL span among them, over pullers `0 .. pullers - 1`.

    A span's puller is fixed when it is added, the one with the fewest: a task that takes a lost one's place has its
    number and takes its spans over, and the others go on undisturbed.
    """

    def __init__(self, pullers: int) -> None:
        self._load = Counter(dict.fromkeys(range(pullers), 0))
        self._streams: dict[int, _Stream] = {}
        self._spans: dict[int, _Span] = {}
        self._subs: dict[int, _Span] = {}
        self._last_sub_id = 0
        self._uses: Counter[str] = Counter()  # of a segment file by spans
        self._unneeded: list[str] = []

    @property
    def complete(self) -> bool:
        """Whether every puller is there."""
        return len(self._streams) == len(self._load)

    def add_span(
        self, span_id: int, start_key: bytes, end_key: bytes, start_ts: int
    ) -> tuple[int, pb.Subscribe | None]:
        """Pull `[start_key, end_key)` after start_ts. The puller, and what to tell it now (None: once it joins)."""
        if span_id in self._spans:
            raise NeedsHuman(f"Span {span_id} was added twice.", "Report this as a bug, with the log.")
        puller = min(self._load, key=lambda p: (self._load[p], p))
        self._load[puller] += 1
        span = _Span(span_id, start_key, end_key, start_ts, puller, resolved_ts=start_ts)
        self._spans[span_id] = span
        return puller, self._assign(span) if puller in self._streams else None

    def puller_joined(self, puller_id: int) -> list[pb.Subscribe]:
        """A puller's stream is open: what to tell it. One that was still thought open has ended."""
        if puller_id not in self._load:
            raise NeedsHuman(
                f"Puller {puller_id} reports, but this changefeed has {len(self._load)} pullers, counted from 0.",
                "Report this as a bug, with the log.",
            )
        self.puller_left(puller_id)
        self._streams[puller_id] = _Stream(self._last_sub_id + 1)
        return [self._assign(span) for span in self._spans.values() if span.puller == puller_id]

    def puller_left(self, puller_id: int) -> list[int]:
        """A puller's stream is gone, and its assignments with it. The spans that have gone back to their flushed ts."""
        if self._streams.pop(puller_id, None) is None:
            return []
        lost = [span for span in self._spans.values() if span.sub_id and span.puller == puller_id]
        for span in lost:
            del self._subs[span.sub_id]
            self._forget(span.segments)
            span.sub_id, span.resolved_ts, span.segments = 0, span.flushed_ts, []
            span.waiting.clear()
        return [span.span_id for span in lost]

    def on_report(self, puller_id: int, report: pb.Report) -> Changes:
        """Take in a report of the puller's open stream; what is not of a current assignment is dropped."""
        stream = self._streams.get(puller_id)
        if stream is None:
            return Changes()
        segments: list[Segment] = []
        for meta in report.segments:
            if all(share.sub_id >= stream.first_sub_id for share in meta.spans) and stream.know(meta.seq):
                segments += self._take(puller_id, meta)
        for resolved in report.resolved:
            span = self._current(puller_id, resolved.sub_id)
            if span is not None:
                _wait(span.waiting, resolved.last_segment, resolved.ts)
        risen: dict[int, int] = {}
        for span in self._subs.values() if report.segments else self._reported(puller_id, report):
            if span.puller == puller_id and self._count(span, stream.contiguous):
                risen[span.span_id] = span.resolved_ts
        return Changes(tuple(segments), risen)

    def gap(self, puller_id: int) -> tuple[int, int] | None:
        """Segment numbers `[first, end)` missing before the next known one: end the stream if they don't come soon."""
        stream = self._streams.get(puller_id)
        return (stream.contiguous + 1, min(stream.beyond)) if stream and stream.beyond else None

    def resolved_ts(self, span_id: int) -> int:
        """Every row of the span in (flushed ts, it] stands in `segments`."""
        return self._spans[span_id].resolved_ts

    def segments(self, span_id: int) -> tuple[Segment, ...]:
        """What the current assignment has brought and was not released."""
        return tuple(self._spans[span_id].segments)

    def is_whole(self, entries: Iterable[PlanEntry]) -> bool:
        """Whether every row of the entries has arrived in this run: only then may they be executed (rule 3)."""
        return all(
            entry.dispatcher in self._spans and self.resolved_ts(entry.dispatcher) >= entry.to.commit_ts
            for entry in entries
        )

    def manifest(self, entry: PlanEntry, run: str) -> tuple[SegmentSlice, ...]:
        """Where the entry's rows stand now; ask `is_whole` first. `run` is "<epoch>-<nonce>"."""
        return tuple(
            SegmentSlice(
                uri=segment.uri,
                size=segment.size,
                run=run,
                seq=segment.seq,
                first_batch=segment.first_batch,
                end_batch=segment.end_batch,
                rows=segment.rows,
            )
            for segment in self._spans[entry.dispatcher].segments
            if segment.max > entry.from_ and segment.min <= entry.to
        )

    def release_below(self, span_id: int, ts: int) -> list[Segment]:
        """The span is flushed to `ts`: it resumes there, and its segments wholly <= ts are forgotten and returned."""
        span = self._spans[span_id]
        span.flushed_ts = max(span.flushed_ts, ts)
        if not span.sub_id:
            span.resolved_ts = span.flushed_ts
        released = [segment for segment in span.segments if segment.max.commit_ts <= ts]
        span.segments = [segment for segment in span.segments if segment.max.commit_ts > ts]
        self._forget(released)
        return released

    def take_unneeded(self) -> list[str]:
        """URIs of segment files that no span needs any more, each once.

        Ask while no plan is being executed: one may still read segments of an assignment that has ended.
        """
        unneeded, self._unneeded = self._unneeded, []
        return unneeded

    def _assign(self, span: _Span) -> pb.Subscribe:
        self._last_sub_id += 1
        span.sub_id = self._last_sub_id
        self._subs[span.sub_id] = span
        return pb.Subscribe(
            sub_id=span.sub_id,
            span_id=span.span_id,
            start_key=span.start_key,
            end_key=span.end_key,
            start_ts=span.flushed_ts,
        )

    def _current(self, puller_id: int, sub_id: int) -> _Span | None:
        span = self._subs.get(sub_id)
        return span if span is not None and span.puller == puller_id else None

    def _reported(self, puller_id: int, report: pb.Report) -> list[_Span]:
        found = {resolved.sub_id: self._current(puller_id, resolved.sub_id) for resolved in report.resolved}
        return [span for span in found.values() if span is not None]

    def _take(self, puller_id: int, meta: pb.SegmentMeta) -> list[Segment]:
        taken = []
        for share in meta.spans:
            span = self._current(puller_id, share.sub_id)
            if span is not None and share.rows:
                segment = Segment.from_proto(meta, share)
                if segment.max.commit_ts > span.flushed_ts:
                    span.segments.append(segment)
                    taken.append(segment)
        self._uses[meta.uri] += len(taken)
        if not taken:
            self._drop_file(meta.uri)
        return taken

    def _count(self, span: _Span, contiguous: int) -> bool:
        before = span.resolved_ts
        while span.waiting and span.waiting[0][0] <= contiguous:
            span.resolved_ts = max(span.resolved_ts, span.waiting.popleft()[1])
        return span.resolved_ts > before

    def _forget(self, segments: list[Segment]) -> None:
        for segment in segments:
            self._uses[segment.uri] -= 1
            if self._uses[segment.uri] == 0:
                self._drop_file(segment.uri)

    def _drop_file(self, uri: str) -> None:
        del self._uses[uri]
        self._unneeded.append(uri)


def _wait(waiting: deque[tuple[int, int]], last_segment: int, ts: int) -> None:
    """Queue a resolved-ts, in order of segments. What a later one with no more segments says as well is left out."""
    later: list[tuple[int, int]] = []
    while waiting and waiting[-1][0] >= last_segment:
        later.append(waiting.pop())
    if later and later[-1][0] == last_segment:
        ts = max(ts, later.pop()[1])
    waiting.append((last_segment, ts))
    waiting.extend(reversed(later))


def _position(position: pb.Position) -> Position:
    return Position(position.commit_ts, position.start_ts, position.op, position.key)
