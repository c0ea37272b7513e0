"""Reading a plan's manifest: exactly the segments it names, whole, or a failure (docs/design/rules.md, Rule 3).

It must never list a folder, and never take a file of another run, size or number for the one that was meant.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from changefeed.errors import NotFound, Transient
from changefeed.eventstore.arena import SlotGone, mapped
from changefeed.eventstore.flight import RemoteArenas
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.segment import METADATA_KEY, VERSION
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.rows import RAW_SCHEMA

KEPT = 64
SMALL = 1 << 20  # bytes: one that is kept stays on the disk, or in this process, after its deletion


class MemoryGone(Transient):
    """A segment can't be read in memory (any more): give the file back to the owner, which knows what becomes of it."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"Segment {uri} can't be read in memory: {why}.", "It is archived, or pulled again.")
        self.uri = uri
        self._why = why

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.uri, self._why))


def read_slice(
    run_folder: RunFolder, piece: SegmentSlice, remote: RemoteArenas | None = None, kept: KeptSegments | None = None
) -> pa.Table:
    """The record batches `[first_batch, end_batch)` of a segment, as a table of RAW_SCHEMA; no other batch is read.

    Of one in memory of this machine they are views, see `check_slice`; `remote` fetches those of others. Raises
    MemoryGone; Transient, naming the segment, when it is not the one that the manifest means: its rows must be pulled
    again. `kept`: for who reads other slices of it as well.
    """
    check_slice(piece, remote)
    try:
        if remote is not None and remote.has(piece):
            with _named(piece):
                batches = remote.fetch(piece)
        else:
            batches = _batches(run_folder, piece, KeptSegments() if kept is None else kept)
    except (FileNotFoundError, NotFound) as error:
        raise _lost(piece, "is missing") from error
    except (OSError, ValueError) as error:
        raise _lost(piece, f"cannot be read ({error})") from error
    rows = pa.Table.from_batches(batches, RAW_SCHEMA)
    if rows.num_rows != piece.rows:
        raise _lost(piece, f"has {rows.num_rows} rows there, not {piece.rows}")
    return rows


def check_slice(piece: SegmentSlice, remote: RemoteArenas | None = None) -> None:
    """Check that the slot held the slice until it was read; call this before any of it gets out. Raises MemoryGone."""
    if piece.slot is not None and not (remote is not None and remote.has(piece)):  # a copy stays what it was
        with _named(piece):
            mapped(piece.slot).check(piece.slot)


@contextmanager
def _named(piece: SegmentSlice) -> Iterator[None]:
    try:
        yield
    except SlotGone as gone:
        raise MemoryGone(piece.uri, str(gone)) from gone


@dataclass(frozen=True)
class _MappedSegment:
    file: pa.ipc.RecordBatchFileReader
    head: Mapping[str, Any]  # of the footer: what it says of the segment as a whole

    @classmethod
    def of(cls, source: pa.NativeFile | pa.Buffer) -> _MappedSegment:
        file = pa.ipc.open_file(source)
        return cls(file, _footer_head((file.schema.metadata or {}).get(METADATA_KEY, b"{}")))

    def batches(self, piece: SegmentSlice) -> list[pa.RecordBatch]:
        head, count = self.head, self.file.num_record_batches
        if head.get("v") != VERSION:
            raise _lost(piece, f"has version {head.get('v')}, not {VERSION}")
        run = f"{head['epoch']}-{head['nonce']}"
        if (run, head["seq"]) != (piece.run, piece.seq):
            raise _lost(piece, f"is number {head['seq']} of run {run}")
        if piece.end_batch > count:
            raise _lost(piece, f"has {count} record batches")
        return [self.file.get_batch(number) for number in range(piece.first_batch, piece.end_batch)]


_Name = tuple[str, int, int | None]


class KeptSegments:
    """The newest segments that are in memory, or small, open: files of many tables are made of the same ones.

    Thread-safe. A URI is never given to another segment; the slot's generation tells it in memory from its file.
    """

    def __init__(self) -> None:
        self._segments: dict[_Name, _MappedSegment] = {}
        self._lock = threading.Lock()

    def is_at_hand(self, piece: SegmentSlice) -> bool:
        """Tell whether it is open: nothing has to be waited for."""
        return self.find(piece) is not None

    def find(self, piece: SegmentSlice) -> _MappedSegment | None:
        return self._segments.get(_name(piece))

    def keep(self, piece: SegmentSlice, segment: _MappedSegment) -> None:
        with self._lock:
            self._segments[_name(piece)] = segment
            if len(self._segments) > KEPT:
                del self._segments[next(iter(self._segments))]


def _name(piece: SegmentSlice) -> _Name:
    return piece.uri, piece.size, None if piece.slot is None else piece.slot.generation


def _batches(run_folder: RunFolder, piece: SegmentSlice, kept: KeptSegments) -> list[pa.RecordBatch]:
    segment = kept.find(piece)
    if segment is not None:
        return segment.batches(piece)
    if piece.slot is None and piece.size > SMALL:
        with run_folder.open_segment(piece.uri, piece.size) as source:
            return _MappedSegment.of(source).batches(piece)
    segment = _MappedSegment.of(_content(run_folder, piece))
    batches = segment.batches(piece)
    kept.keep(piece, segment)
    return batches


def _content(run_folder: RunFolder, piece: SegmentSlice) -> pa.Buffer:
    if piece.slot is None:
        with run_folder.open_segment(piece.uri, piece.size) as source:
            return source.read_buffer()
    with _named(piece):
        return mapped(piece.slot).read(piece.slot)


def _footer_head(footer: bytes) -> Any:
    """Read the head without the spans, which may be thousands: the manifest says enough of them."""
    head, _, _ = footer.partition(b',"spans":')
    return json.loads(head.removesuffix(b"}") + b"}")


def _lost(piece: SegmentSlice, what: str) -> Transient:
    return Transient(
        f"Segment {piece.uri} (number {piece.seq} of run {piece.run}, batches {piece.first_batch}..{piece.end_batch}) "
        f"{what}.",
        "Its span must be pulled again from what is flushed.",
    )
