"""Segments as the owner knows them: what they hold, for whom, and which of their files are still needed."""

from __future__ import annotations

from collections.abc import Collection
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
    curve: tuple[tuple[Position, int], ...]  # raw bytes up to and including a position
    host: str = ""  # the one machine that can read it; "": all can

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
        if seq <= self.contiguous or seq in self._beyond:
            return False
        self._beyond.add(seq)
        while self.contiguous + 1 in self._beyond:
            self.contiguous += 1
            self._beyond.remove(self.contiguous)
        return True

    def newly_contiguous(self) -> int:
        """Up to which the puller is to be told that they are; 0: it was."""
        if self._told == self.contiguous:
            return 0
        self._told = self.contiguous
        return self._told


class KnownFiles:
    """The files of this run that exist, as far as the owner was told. A file is needed while a span uses it."""

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}  # by how many spans
        self._sizes: dict[str, int] = {}
        self._unneeded: dict[str, None] = {}
        self.bytes = 0  # of all that exist

    def add(self, uri: str, size: int, uses: int) -> None:
        """A file that was not known before; with no use it is unneeded at once."""
        self._sizes[uri] = size
        self.bytes += size
        if uses:
            self._uses[uri] = uses
        else:
            self._unneeded[uri] = None

    def drop(self, segment: Segment) -> None:
        """A span does not need it any more."""
        self._uses[segment.uri] -= 1
        if self._uses[segment.uri] == 0:
            del self._uses[segment.uri]
            self._unneeded[segment.uri] = None

    def take_unneeded(self, in_use: Collection[str] = ()) -> list[str]:
        """URIs of files to be deleted now, each once; those in use stay for a later call."""
        taken = [uri for uri in self._unneeded if uri not in in_use]
        for uri in taken:
            del self._unneeded[uri]
        return taken

    def deleted(self, uri: str) -> None:
        """A file that was taken is gone: one that can't be deleted goes on counting for the quota."""
        self.bytes -= self._sizes.pop(uri)


def _position(position: pb.Position) -> Position:
    return Position(position.commit_ts, position.start_ts, position.op, position.key)
