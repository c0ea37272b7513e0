"""Where the rows of planned files are stored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from changefeed.eventstore.slices import SegmentSlice
from changefeed.log.records import PlanEntry
from changefeed.model.position import Position
from changefeed.owner.pulling.segments import Segment
from changefeed.owner.pulling.spans import Spans


class StoredRows:
    """Tells which rows of entries are stored; the entries' dispatchers are spans, or were."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def is_whole(self, entries: Iterable[PlanEntry]) -> bool:
        """Whether every row of the entries has arrived in this run: only then may they be executed (rule 3)."""
        spans = self._spans
        return all(
            entry.dispatcher in spans and spans.resolved_ts(entry.dispatcher) >= entry.to.commit_ts for entry in entries
        )

    def is_readable(self, entry: PlanEntry) -> bool:
        """Whether tasks can read all its rows where they stand now."""
        return all(
            self._spans.files.is_readable(segment.uri)
            for segment in self._needed(entry.dispatcher, entry.from_, entry.to)
        )

    def manifest(self, entry: PlanEntry, run: str) -> tuple[SegmentSlice, ...]:
        """Where the entry's rows stand now; ask `is_whole` first. `run` is "<epoch>-<nonce>"."""
        return self.slices(entry.dispatcher, entry.from_, entry.to, run)

    def slices(self, span_id: int, from_: Position, to: Position, run: str) -> tuple[SegmentSlice, ...]:
        """Where a span's rows in `(from_, to]` stand now."""
        return tuple(self.slice_of(segment, run) for segment in self._needed(span_id, from_, to))

    def slice_of(self, segment: Segment, run: str) -> SegmentSlice:
        """Where a span's share of a segment stands now."""
        return SegmentSlice(
            uri=segment.uri,
            size=segment.size,
            slot=self._spans.files.address(segment.uri),
            run=run,
            seq=segment.seq,
            first_batch=segment.first_batch,
            end_batch=segment.end_batch,
            rows=segment.rows,
        )

    def _needed(self, span_id: int, from_: Position, to: Position) -> Iterator[Segment]:
        for segment in self._spans.segments(span_id):
            if segment.max > from_ and segment.min <= to:
                yield segment
