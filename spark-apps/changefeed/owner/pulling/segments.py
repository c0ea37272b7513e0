"""Segments as the owner knows them: what they contain, and for which spans. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from changefeed.model.position import Position
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
    curve: tuple[tuple[Position, int], ...]  # raw bytes up to and including a position, the last one `max`
    host: str = ""  # the one machine that can read it; "": all can

    @classmethod
    def from_proto(cls, meta: pb.SegmentMeta, span: pb.SegmentSpan) -> Segment:
        last = _position(span.max)
        return cls(
            span_id=span.span_id,
            sub_id=span.sub_id,
            uri=meta.uri,
            size=meta.bytes,
            seq=meta.seq,
            rows=span.rows,
            bytes=span.bytes,
            min=_position(span.min),
            max=last,
            first_batch=span.first_batch,
            end_batch=span.end_batch,
            curve=(*((_position(point.position), point.bytes) for point in span.curve), (last, span.bytes)),
            host=meta.host,
        )


@dataclass
class Numbers:
    """Which segments of a stream are known; they are numbered 1, 2, 3 ..."""

    contiguous: int = 0  # 1..contiguous are
    _beyond: set[int] = field(default_factory=set)
    _told: int = 0  # how many of them the puller knows to be

    def know(self, seq: int) -> bool:
        """False when it was known already."""
        if seq in self:
            return False
        self._beyond.add(seq)
        while self.contiguous + 1 in self._beyond:
            self.contiguous += 1
            self._beyond.remove(self.contiguous)
        return True

    def __contains__(self, seq: int) -> bool:
        return seq <= self.contiguous or seq in self._beyond

    def newly_contiguous(self) -> int:
        """Up to which the puller is to be told that they are; 0: it was."""
        if self._told == self.contiguous:
            return 0
        self._told = self.contiguous
        return self._told


def _position(position: pb.Position) -> Position:
    return Position(position.commit_ts, position.start_ts, position.op, position.key)
