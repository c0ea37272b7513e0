"""One segment: the rows of several spans, sorted, as one Arrow IPC file (INTERFACES.md, Segment; DESIGN.md 3.2).

A cache: it is created if-absent and never synced, because whatever is lost is pulled again. Rows are handled as columns
only; a position is read from a column's buffers, one a MiB.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.eventstore.buffer import SpanRows
from changefeed.eventstore.house import House
from changefeed.model.order import BY_POSITION, ordered
from changefeed.model.position import Position
from changefeed.model.rows import RAW_SCHEMA, ROW_OVERHEAD, raw_bytes
from changefeed.wire import owner_pb2

VERSION = 1
METADATA_KEY = b"changefeed.segment"
MAX_BATCH_ROWS = 1 << 16
CURVE_STEP = 256 << 10

_POSITION = tuple(map(RAW_SCHEMA.get_field_index, Position._fields))


@dataclass(frozen=True)
class _SortedSpan:
    span_id: int
    sub_id: int
    rows: pa.RecordBatch
    first_batch: int
    min: Position
    curve: list[tuple[Position, int]]  # (position, raw bytes up to and including it); the last one is the last row

    @property
    def end_batch(self) -> int:
        rows: int = self.rows.num_rows
        return self.first_batch + -(-rows // MAX_BATCH_ROWS)

    @property
    def bytes(self) -> int:
        return self.curve[-1][1]

    @property
    def max(self) -> Position:
        return self.curve[-1][0]


@dataclass(frozen=True)
class SortedSegment:
    """Segment `seq` of a task, ready to be written."""

    seq: int
    spans: list[_SortedSpan]
    schema: pa.Schema
    compression: str | None

    def size(self) -> int:
        """Bytes that `write` writes."""
        counted = pa.MockOutputStream()
        self.write(counted)
        size: int = counted.size()
        return size

    def write(self, file: object) -> None:
        """Into a binary file."""
        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        with pa.ipc.new_file(file, self.schema, options=options) as writer:
            for span in self.spans:
                for start in range(0, span.rows.num_rows, MAX_BATCH_ROWS):
                    writer.write_batch(span.rows.slice(start, MAX_BATCH_ROWS))

    def meta(self, uri: str, size: int) -> owner_pb2.SegmentMeta:
        """What it holds, for the owner. `uri`: where it stands, or will when it is archived."""
        return owner_pb2.SegmentMeta(uri=uri, seq=self.seq, bytes=size, spans=[_span_meta(span) for span in self.spans])


def sort_segment(house: House, task: str, seq: int, spans: Sequence[SpanRows]) -> SortedSegment:
    """Segment `seq` of `task`, from rows in any order. Blocking; the heavy parts release the GIL.

    `spans`: each has rows, and at most 2 GiB of a column. Rows that occur twice stay twice (rule 4 is the sorter's).
    """
    sorted_spans: list[_SortedSpan] = []
    for span in spans:
        first_batch = sorted_spans[-1].end_batch if sorted_spans else 0
        sorted_spans.append(_sort(span, first_batch))
    footer = json.dumps(_footer(house, task, seq, sorted_spans), separators=(",", ":")).encode()
    return SortedSegment(seq, sorted_spans, RAW_SCHEMA.with_metadata({METADATA_KEY: footer}), house.compression)


def write_segment(house: House, task: str, seq: int, spans: Sequence[SpanRows]) -> owner_pb2.SegmentMeta:
    """Into the archive, see `sort_segment`; what it holds. Raises AlreadyExists, Unavailable; nothing is left then."""
    segment = sort_segment(house, task, seq, spans)
    return segment.meta(*house.create_segment(task, seq, segment.write))


def _sort(span: SpanRows, first_batch: int) -> _SortedSpan:
    rows = pa.concat_batches(span.batches)
    if rows.num_rows == 0:
        raise ValueError(f"span {span.span_id} has no rows to write")
    batch = ordered(rows, BY_POSITION)
    curve = _curve(batch)
    first = curve[-1][0] if batch.num_rows == 1 else _position(batch, 0)
    return _SortedSpan(span.span_id, span.sub_id, batch, first_batch, first, curve)


def _curve(batch: pa.RecordBatch) -> list[tuple[Position, int]]:
    """The first row at which each further CURVE_STEP of raw bytes is reached, and the last row."""
    whole = raw_bytes(batch)
    if whole <= CURVE_STEP:  # as nearly all are of a quiet upstream
        return [(_position(batch, batch.num_rows - 1), whole)]
    total = np.cumsum(_row_bytes(batch))
    marks = np.arange(CURVE_STEP, total[-1], CURVE_STEP, dtype=np.int64)
    points = np.unique(np.append(np.searchsorted(total, marks), batch.num_rows - 1))
    return [(_position(batch, int(row)), int(total[row])) for row in points]


def _row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """What each row counts for, as model.rows.raw_bytes does."""
    size = np.full(batch.num_rows, ROW_OVERHEAD, np.int64)
    for name in ("key", "value", "old_value"):
        size += np.diff(_offsets(batch.column(name)))
    return size


def _offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]


def _position(batch: pa.RecordBatch, row: int) -> Position:
    *numbers, key = map(batch.column, _POSITION)
    start, end = _offsets(key)[row : row + 2]
    content = memoryview(key.buffers()[2])[start:end].tobytes() if end > start else b""
    commit_ts, start_ts, op = (int(column.to_numpy()[row]) for column in numbers)
    return Position(commit_ts, start_ts, op, content)


def _footer(house: House, task: str, seq: int, spans: list[_SortedSpan]) -> dict[str, object]:
    return {
        "v": VERSION,
        "epoch": house.epoch,
        "nonce": house.nonce,
        "task": task,
        "seq": seq,
        "spans": [
            {
                "id": span.span_id,
                "sub_id": span.sub_id,
                "rows": span.rows.num_rows,
                "bytes": span.bytes,
                "min": span.min.to_json(),
                "max": span.max.to_json(),
                "batches": [span.first_batch, span.end_batch],
                "curve": [[position.to_json(), size] for position, size in span.curve],
            }
            for span in spans
        ],
    }


def _span_meta(span: _SortedSpan) -> owner_pb2.SegmentSpan:
    return owner_pb2.SegmentSpan(
        span_id=span.span_id,
        sub_id=span.sub_id,
        rows=span.rows.num_rows,
        bytes=span.bytes,
        min=_wire(span.min),
        max=_wire(span.max),
        first_batch=span.first_batch,
        end_batch=span.end_batch,
        curve=[owner_pb2.CurvePoint(position=_wire(position), bytes=size) for position, size in span.curve[:-1]],
    )


def _wire(position: Position) -> owner_pb2.Position:
    return owner_pb2.Position(**position._asdict())
