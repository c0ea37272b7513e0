"""Executor side of the sink: a spooled file becomes one object, once (rules 3, 10, 13, 16)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from changefeed.errors import ProtocolViolation, Transient
from changefeed.model.record import FileCommitted
from changefeed.objectstore import FileRange, ObjectStore
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.once import create_once
from changefeed.objectstore.patience import Patience

_READ_BYTES = 1 << 20

#: A row of pipeline.spool.DESCRIPTOR_SCHEMA.
Piece = Mapping[str, Any]


def whole_files(descriptors: Iterable[pa.RecordBatch]) -> Iterator[list[Piece]]:
    """The descriptors of one file after the other, each complete: chunks 0, 1, 2 ... and one last row (rule 3).

    Raises ProtocolViolation when a row is missing, out of order or of another file, with the file's path.
    """
    pieces: list[Piece] = []
    for batch in descriptors:
        for piece in _pieces(batch):
            pieces.append(piece)
            _check_next(pieces)
            if piece["last"]:
                _check_sums(pieces)
                yield pieces
                pieces = []
    if pieces:
        raise _broken(pieces[-1], f"ends after chunk {pieces[-1]['chunk']}, without its last row")


def publish(store: ObjectStore, pieces: Sequence[Piece], patience: Patience | None = None) -> FileCommitted:
    """Put one file of `whole_files` and delete its spool file, also when it fails.

    An object that stands there with the same bytes is success. Raises OutputConflict when it has others, Transient when
    the spooled bytes are not those that were hashed, Unavailable when `patience` ends.
    """
    end = pieces[-1]
    spool = Path(end["spool"])
    ranges = tuple(FileRange(spool, piece["offset"], piece["length"]) for piece in pieces if piece["length"])
    try:
        _check_spooled(ranges, end)
        create_once(store, end["path"], ranges, end["hash"], patience)
    finally:
        spool.unlink(missing_ok=True)
    return FileCommitted(
        entry=end["entry"],
        rows=end["rows"],
        raw_rows=end["raw_rows"],
        filtered_rows=end["filtered_rows"],
        bytes=end["offset"],
        hash=end["hash"],
    )


def _pieces(batch: pa.RecordBatch) -> Iterator[Piece]:
    """A row a chunk of 100,000 rows, never a row of data."""
    columns = [column.to_numpy(zero_copy_only=False).tolist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _check_next(pieces: list[Piece]) -> None:
    piece = pieces[-1]
    if piece["chunk"] != len(pieces) - 1:
        raise _broken(piece, f"has chunk {piece['chunk']} where {len(pieces) - 1} should be")
    if piece["offset"] != sum(before["length"] for before in pieces[:-1]):
        raise _broken(piece, f"has chunk {piece['chunk']} at offset {piece['offset']}, not behind the one before")
    if any(piece[name] != pieces[0][name] for name in ("record", "entry", "path", "spool")):
        raise _broken(piece, f"begins while {pieces[0]['path']} has no last row")


def _check_sums(pieces: list[Piece]) -> None:
    *chunks, end = pieces
    rows = sum(chunk["rows"] for chunk in chunks)
    if end["length"] or end["rows"] != rows:
        raise _broken(end, f"has {rows} rows, its last row says {end['rows']} rows and {end['length']} bytes")


def _broken(piece: Piece, what: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"The spooled file of entry {piece['entry']} of plan {piece['record']} ({piece['path']}) {what}.",
        "Nothing was put: the task must run again.",
    )


def _check_spooled(ranges: tuple[FileRange, ...], end: Piece) -> None:
    """The spool still has the bytes that were hashed while they were written (rule 3)."""
    found = Digest()
    block = memoryview(bytearray(_READ_BYTES))
    try:
        for piece in ranges:
            with piece.path.open("rb", buffering=0) as file:
                file.seek(piece.offset)
                left = piece.length
                while left and (count := file.readinto(block[:left])):
                    found.update(block[:count])
                    left -= count
    except OSError as error:
        raise Transient(f"The spool file of {end['path']} can't be read: {error}; its task must run again.") from error
    if found.hexdigest() != end["hash"]:
        raise Transient(f"The spool file of {end['path']} has changed since it was written; its task must run again.")
