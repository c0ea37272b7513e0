"""Assignments: which puller pulls which part of a span just now, by the streams that are open. Pure.

An assignment is a sub_id, used once in a run. It begins where its span stands and ends with its puller's stream or with
those of the span's other parts; what is said about it afterwards is nobody's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from changefeed.owner.pulling.segments import Numbers
from changefeed.owner.pulling.span import Span, SpanPart
from changefeed.wire import owner_pb2 as pb


@dataclass
class Stream:
    """A puller's open stream: of its reports, which segments are known and which parts wait for one."""

    first_sub_id: int  # the lowest that can be its own
    segments: Numbers = field(default_factory=Numbers)
    waiting: dict[int, SpanPart] = field(default_factory=dict)  # those with a resolved-ts that waits, by sub_id

    def take(self, meta: pb.SegmentMeta) -> bool:
        """Whether the segment is this stream's, and new."""
        is_its_own = meta.spans and all(share.sub_id >= self.first_sub_id for share in meta.spans)
        return bool(is_its_own) and self.segments.know(meta.seq)


class Assignments:
    """The streams that are open, and what is pulled over them."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self._parts: dict[int, SpanPart] = {}  # by sub_id
        self._last_sub_id = 0
        self._reached_ts = 0  # by all spans

    def __len__(self) -> int:
        """How many parts are pulled."""
        return len(self._parts)

    @property
    def pullers(self) -> Collection[int]:
        """Those that are here."""
        return self._streams.keys()

    def stream(self, puller: int) -> Stream | None:
        return self._streams.get(puller)

    def open(self, puller: int) -> None:
        """Its stream is open; it pulls nothing yet."""
        self._streams[puller] = Stream(self._last_sub_id + 1)

    def close(self, puller: int) -> bool:
        """Whether its stream was open. What it pulled `end` is to be told next."""
        return self._streams.pop(puller, None) is not None

    def part(self, sub_id: int, puller: int) -> SpanPart | None:
        """What the puller pulls by this sub_id; None if that is not, or no more, its own."""
        part = self._parts.get(sub_id)
        return part if part is not None and part.puller == puller else None

    def begin(self, span: Span) -> list[tuple[int, pb.Command]]:
        """Have each part that nobody pulls pulled from where the span stands, if its puller is here."""
        self._reached_ts = max(self._reached_ts, span.read_ts)
        idle = [part for part in span.parts if not part.sub_id and part.puller in self._streams]
        return [(part.puller, pb.Command(subscribe=self._subscribe(span, part))) for part in idle if not span.held]

    def end(self, span: Span) -> list[tuple[int, pb.Command]]:
        """End all of the span; what they have said of it and what counts of that stays."""
        self._reached_ts = max(self._reached_ts, span.read_ts)
        commands = []
        for part in [part for part in span.parts if part.sub_id]:
            if stream := self._streams.get(part.puller):
                commands.append((part.puller, pb.Command(release=pb.Release(sub_id=part.sub_id))))
                stream.waiting.pop(part.sub_id, None)
            del self._parts[part.sub_id]
            part.sub_id = 0
            part.waiting.clear()
        return commands

    def resolve(self, puller: int, told: Iterable[pb.Resolved]) -> dict[int, int]:
        """Take in resolved-ts of a puller that is here, and those that waited for a segment that is known by now.

        Returns the spans that have risen (span_id -> ts). Every part of a puller may be told of: most wait for nothing.
        """
        stream = self._streams[puller]
        contiguous = stream.segments.contiguous
        risen: dict[int, int] = {}
        for resolved in told:
            if (part := self.part(resolved.sub_id, puller)) is None:
                continue
            ts, last_segment = resolved.ts, resolved.last_segment
            if last_segment > contiguous:
                part.wait(last_segment, ts)
                stream.waiting[part.sub_id] = part
            elif part.rise(ts):
                risen[part.span.span_id] = part.span.resolved_ts
        for part in list(stream.waiting.values()):
            if part.count(contiguous):
                risen[part.span.span_id] = part.span.resolved_ts
            if not part.waiting:
                del stream.waiting[part.sub_id]
        return risen

    def heard(self) -> list[tuple[int, pb.Command]]:
        """For each puller that does not know it yet: how many of its segments are counted."""
        new = {puller: stream.segments.newly_contiguous() for puller, stream in self._streams.items()}
        return [(puller, pb.Command(heard=pb.Heard(segment=to))) for puller, to in new.items() if to]

    def check(self, parts: Collection[SpanPart]) -> None:
        """What holds between two calls, for tests. `parts`: of all spans. Raises AssertionError."""
        pulled = {part.sub_id: part for part in parts if part.sub_id}
        assert pulled == self._parts, "an assignment is known that no part has"
        for part in parts:
            is_pulled = not part.span.held and part.puller in self._streams
            assert bool(part.sub_id) == is_pulled, f"{part.key} is pulled by nobody, or by one who is not there"

    def _subscribe(self, span: Span, part: SpanPart) -> pb.Subscribe:
        self._last_sub_id += 1
        part.sub_id, span.start_ts = self._last_sub_id, span.resolved_ts
        self._parts[part.sub_id] = part
        subscribe = pb.Subscribe(
            sub_id=part.sub_id,
            span_id=span.span_id,
            start_key=part.start_key,
            end_key=part.end_key,
            start_ts=span.start_ts,
            reached_ts=self._reached_ts,
        )
        if span.copy is not None and span.is_being_copied:
            subscribe.copy.CopyFrom(pb.Copy(from_ts=span.copy.from_ts, bounds=span.copy.bounds))
        return subscribe
