"""One segment: the rows of several spans, sorted, as one Arrow IPC file (docs/design/layouts.md, Segments).

A cache: it is created if-absent and never synced, because whatever is lost is pulled again. Rows are handled as columns
only; a position is read from a column's buffers, one a MiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.eventstore.buffer import SpanRows
from changefeed.eventstore.run_folder import RunFolder
from changefeed.model.order import BY_POSITION, order_of, ordered
from changefeed.model.position import Position
from changefeed.model.rows import RAW_SCHEMA, ROW_OVERHEAD
from changefeed.wire import owner_pb2

VERSION = 1
METADATA_KEY = b"changefeed.segment"
MAX_BATCH_ROWS = 1 << 16
CURVE_STEP = 256 << 10

_SPAN = RAW_SCHEMA.get_field_index("span_id")
_NUMBER = pa.field("number", pa.int64())
_POSITION = tuple(map(RAW_SCHEMA.get_field_index, Position._fields))


class _SortedRows(NamedTuple):
    """A span's rows, the first one's position, and their curve."""

    rows: pa.RecordBatch
    min: Position
    curve: list[tuple[Position, int]]


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

    @property
    def bytes(self) -> int:
        """Raw ones of its rows."""
        return sum(span.bytes for span in self.spans)

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
        """Return what it holds, for the owner. `uri`: where it stands, or will when it is archived."""
        return owner_pb2.SegmentMeta(uri=uri, seq=self.seq, bytes=size, spans=[_span_meta(span) for span in self.spans])


def sort_segment(run_folder: RunFolder, task: str, seq: int, spans: Sequence[SpanRows]) -> SortedSegment:
    """Segment `seq` of `task`, from rows in any order. Blocking; the heavy parts release the GIL.

    `spans`: each has rows, and at most 2 GiB of a column. Rows that occur twice stay twice (rule 4 is the sorter's).
    """
    sorted_spans: list[_SortedSpan] = []
    for span, (rows, first, curve) in zip(spans, _sort(spans), strict=True):
        first_batch = sorted_spans[-1].end_batch if sorted_spans else 0
        sorted_spans.append(_SortedSpan(span.span_id, span.sub_id, rows, first_batch, first, curve))
    footer = json.dumps(_footer(run_folder, task, seq, sorted_spans), separators=(",", ":")).encode()
    return SortedSegment(seq, sorted_spans, RAW_SCHEMA.with_metadata({METADATA_KEY: footer}), run_folder.compression)


def write_segment(run_folder: RunFolder, task: str, seq: int, spans: Sequence[SpanRows]) -> owner_pb2.SegmentMeta:
    """Into the archive, see `sort_segment`; what it holds. Raises AlreadyExists, Unavailable; nothing is left then."""
    segment = sort_segment(run_folder, task, seq, spans)
    return segment.meta(*run_folder.create_segment(task, seq, segment.write))


def _sort(spans: Sequence[SpanRows]) -> Iterator[_SortedRows]:
    """Yield each span's rows in order.

    Small ones are sorted at once: a step costs a row of each of hundreds what it costs one.
    """
    for span in spans:
        if not any(batch.num_rows for batch in span.batches):
            raise ValueError(f"span {span.span_id} has no rows to write")
    small = _sort_together([span for span in spans if span.bytes <= CURVE_STEP])
    for span in spans:
        yield next(small) if span.bytes <= CURVE_STEP else _sort_one(span)


def _sort_one(span: SpanRows) -> _SortedRows:
    # What is copied comes in order, but several chunks at a time: it is enough to put their batches in order.
    batches = sorted((batch for batch in span.batches if batch.num_rows), key=_first_position)
    batch = ordered(pa.concat_batches(batches), BY_POSITION)
    return _SortedRows(batch, _first_position(batch), _curve(batch))


def _first_position(batch: pa.RecordBatch) -> Position:
    (first,) = _positions(batch, np.zeros(1, np.int64))
    return first


def _sort_together(spans: Sequence[SpanRows]) -> Iterator[_SortedRows]:
    """Each with a curve of its last row alone."""
    rows = pa.concat_batches([batch for span in spans for batch in span.batches])
    counts = [sum(batch.num_rows for batch in span.batches) for span in spans]
    numbered = rows.set_column(_SPAN, _NUMBER, pa.array(np.repeat(np.arange(len(spans)), counts)))
    order = order_of(numbered, (_NUMBER.name, *BY_POSITION))
    batch = rows if order is None else rows.take(pa.array(order))
    ends = np.cumsum(counts)
    first = _positions(batch, ends - counts)
    last = _positions(batch, ends - 1)
    for span, end, count, low, high in zip(spans, ends.tolist(), counts, first, last, strict=True):
        yield _SortedRows(batch.slice(end - count, count), low, [(high, span.bytes)])


def _curve(batch: pa.RecordBatch) -> list[tuple[Position, int]]:
    """The first row at which each further CURVE_STEP of raw bytes is reached, and the last row."""
    total = np.cumsum(_row_bytes(batch))
    marks = np.arange(CURVE_STEP, total[-1], CURVE_STEP, dtype=np.int64)
    points = np.unique(np.append(np.searchsorted(total, marks), batch.num_rows - 1))
    return list(zip(_positions(batch, points), total[points].tolist(), strict=True))


def _row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return what each row counts for, as model.rows.raw_bytes does."""
    size = np.full(batch.num_rows, ROW_OVERHEAD, np.int64)
    for name in ("key", "value", "old_value"):
        size += np.diff(_offsets(batch.column(name)))
    return size


def _offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]


def _positions(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> list[Position]:
    """Say where these rows stand."""
    *numbers, key = map(batch.column, _POSITION)
    offsets, content = _offsets(key), memoryview(key.buffers()[2] or b"")
    starts, ends = offsets[rows].tolist(), offsets[rows + 1].tolist()
    keys = [content[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
    return list(map(Position, *(column.to_numpy()[rows].tolist() for column in numbers), keys))


def _footer(run_folder: RunFolder, task: str, seq: int, spans: list[_SortedSpan]) -> dict[str, object]:
    return {
        "v": VERSION,
        "epoch": run_folder.epoch,
        "nonce": run_folder.nonce,
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
