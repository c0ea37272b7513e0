"""A body as the single buffer that a PUT takes: adjacent ranges of the spool are mapped, not read."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator

from changefeed.errors import NotFound
from changefeed.objectstore import FileRange


@contextlib.contextmanager
def whole(body: bytes | tuple[FileRange, ...]) -> Iterator[bytes | memoryview]:
    """The body as one buffer."""
    if isinstance(body, bytes):
        yield body
        return
    ranges = _joined(body)
    if len(ranges) != 1:
        yield b"".join(_read(piece) for piece in ranges)
        return
    (piece,) = ranges
    yield _mapped(piece)  # unmapped when the client has let go of it, which may be after an error


def _joined(ranges: tuple[FileRange, ...]) -> list[FileRange]:
    """Ranges that follow one another in a file are one; empty ones are none."""
    joined: list[FileRange] = []
    for piece in ranges:
        if joined and joined[-1].path == piece.path and joined[-1].offset + joined[-1].length == piece.offset:
            joined[-1] = FileRange(piece.path, joined[-1].offset, joined[-1].length + piece.length)
        elif piece.length:
            joined.append(piece)
    return joined


def _mapped(piece: FileRange) -> memoryview:
    try:
        with piece.path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise NotFound(f"The spool file {piece.path} can't be read: {error}; its task must run again.") from None
    if len(content) < piece.offset + piece.length:
        raise NotFound(f"The spool file {piece.path} is short: its task must run again.")
    return memoryview(content)[piece.offset : piece.offset + piece.length]


def _read(piece: FileRange) -> bytes:
    return bytes(_mapped(piece))
