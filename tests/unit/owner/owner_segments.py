"""Segments and reports in few words: a row is its commit_ts, all rows of a segment weigh the same."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.owner.pulling.segments import Segment
from changefeed.wire import owner_pb2 as pb
from hypothesis import HealthCheck, settings

#: The same examples on every run, however slow the machine.
STEADY = settings(deadline=None, derandomize=True, max_examples=200, suppress_health_check=[HealthCheck.too_slow])


def position(ts: int) -> pb.Position:
    return pb.Position(commit_ts=ts, start_ts=ts - 1, op=1, key=b"k")


def share(span_id: int, sub_id: int, rows: Sequence[int], row_bytes: int = 10, point_every: int = 2) -> pb.SegmentSpan:
    """A span's rows in a segment; a curve point every `point_every` rows but for the last."""
    ordered = sorted(rows)
    points = range(point_every, len(ordered), point_every)
    return pb.SegmentSpan(
        span_id=span_id,
        sub_id=sub_id,
        rows=len(ordered),
        bytes=row_bytes * len(ordered),
        min=position(ordered[0]),
        max=position(ordered[-1]),
        first_batch=0,
        end_batch=1,
        curve=[pb.CurvePoint(position=position(ordered[i - 1]), bytes=row_bytes * i) for i in points],
    )


def meta(seq: int, *shares: pb.SegmentSpan, attempt: str = "a") -> pb.SegmentMeta:
    return pb.SegmentMeta(uri=f"{attempt}/{seq}.arrow", seq=seq, bytes=1000, spans=shares)


def unwanted(seq: int, sub_id: int) -> pb.SegmentMeta:
    """A number without a file: its rows were a subscription's that had ended."""
    return pb.SegmentMeta(seq=seq, spans=[pb.SegmentSpan(sub_id=sub_id)])


def segment(span_id: int, rows: Sequence[int], row_bytes: int = 10, point_every: int = 2) -> Segment:
    only = share(span_id, 1, rows, row_bytes, point_every)
    return Segment.from_proto(meta(1, only), only)


def resolved(sub_id: int, ts: int, last: int, first: int = 1) -> pb.Resolved:
    return pb.Resolved(sub_id=sub_id, ts=ts, first_segment=first if last else 0, last_segment=last)


def report(*items: pb.SegmentMeta | pb.Resolved) -> pb.Report:
    return pb.Report(
        segments=[item for item in items if isinstance(item, pb.SegmentMeta)],
        resolved=[item for item in items if isinstance(item, pb.Resolved)],
    )
