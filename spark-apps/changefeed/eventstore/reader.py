"""Reading a plan's manifest: exactly the segments it names, whole, or a failure (CORRECTNESS.md, rule 3).

It must never list a folder, and never take a file of another run, size or number for the one that was meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from changefeed.errors import NotFound, Transient
from changefeed.eventstore.arena import SlotGone, mapped
from changefeed.eventstore.flight import RemoteArenas
from changefeed.eventstore.house import House
from changefeed.eventstore.segment import METADATA_KEY, VERSION
from changefeed.model.record import SegmentSlice
from changefeed.model.rows import RAW_SCHEMA


class MemoryGone(Transient):
    """A segment can't be read in memory (any more): give the file back to the owner, which knows what becomes of it."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"Segment {uri} can't be read in memory: {why}.", "It is archived, or pulled again.")
        self.uri = uri
        self._why = why

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.uri, self._why))


def read_slice(house: House, piece: SegmentSlice, remote: RemoteArenas | None = None) -> pa.Table:
    """The record batches `[first_batch, end_batch)` of a segment, as a table of RAW_SCHEMA; no other batch is read.

    Of one in memory of this machine they are views, see `check_slice`; `remote` fetches those of others. Raises
    MemoryGone; Transient, naming the segment, when it is not the one that the manifest means: its rows must be pulled
    again.
    """
    try:
        if remote is not None and remote.has(piece):
            with _named(piece):
                batches = remote.fetch(piece)
        else:
            with _opened(house, piece) as source, pa.ipc.open_file(source) as segment:
                _check(piece, segment)
                batches = [segment.get_batch(number) for number in range(piece.first_batch, piece.end_batch)]
    except (FileNotFoundError, NotFound) as error:
        raise _lost(piece, "is missing") from error
    except (OSError, ValueError) as error:
        raise _lost(piece, f"cannot be read ({error})") from error
    rows = pa.Table.from_batches(batches, RAW_SCHEMA)
    if rows.num_rows != piece.rows:
        raise _lost(piece, f"has {rows.num_rows} rows there, not {piece.rows}")
    return rows


def check_slice(piece: SegmentSlice, remote: RemoteArenas | None = None) -> None:
    """That what was read of it was it to the end; before any of it gets out. Raises MemoryGone."""
    if piece.slot is not None and not (remote is not None and remote.has(piece)):  # a copy stays what it was
        with _named(piece):
            mapped(piece.slot).check(piece.slot)


@contextmanager
def _named(piece: SegmentSlice) -> Iterator[None]:
    try:
        yield
    except SlotGone as gone:
        raise MemoryGone(piece.uri, str(gone)) from gone


@contextmanager
def _opened(house: House, piece: SegmentSlice) -> Iterator[pa.NativeFile]:
    if piece.slot is None:
        with house.open_segment(piece.uri, piece.size) as source:
            yield source
        return
    with _named(piece):
        content = mapped(piece.slot).read(piece.slot)
    yield pa.BufferReader(content)


def _check(piece: SegmentSlice, segment: pa.ipc.RecordBatchFileReader) -> None:
    footer = json.loads((segment.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    if footer.get("v") != VERSION:
        raise _lost(piece, f"has version {footer.get('v')}, not {VERSION}")
    run = f"{footer['epoch']}-{footer['nonce']}"
    if (run, footer["seq"]) != (piece.run, piece.seq):
        raise _lost(piece, f"is number {footer['seq']} of run {run}")
    if piece.end_batch > segment.num_record_batches:
        raise _lost(piece, f"has {segment.num_record_batches} record batches")


def _lost(piece: SegmentSlice, what: str) -> Transient:
    return Transient(
        f"Segment {piece.uri} (number {piece.seq} of run {piece.run}, batches {piece.first_batch}..{piece.end_batch}) "
        f"{what}.",
        "Its span must be pulled again from what is flushed.",
    )
