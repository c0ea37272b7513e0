"""A file's bytes as they come of its records: what it begins with, its rows, and its end."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from changefeed.sink.records import Records

#: A compressor gets blocks of this size, so that its output is a function of the file's bytes alone (rule 10).
BLOCK = 1 << 20
_GZIP = zlib.MAX_WBITS | 16
_GZIP_LEVEL = 6


class FileEncoder(Protocol):
    """Encodes one file."""

    def add(self, records: Records) -> Iterator[pa.Buffer]:
        """The next bytes; those of `records` may come later. Raises NeedsHuman for a value that the format lacks."""
        ...

    def end(self) -> Iterator[pa.Buffer]:
        """The rest; nothing is added after it."""
        ...


class Lines:
    """Text: a first line, even of a file without rows, and rows that stand for themselves. Implements FileEncoder."""

    def __init__(self, head: bytes, encode: Callable[[Records], Iterator[pa.Buffer]]) -> None:
        self._head = head
        self._encode = encode

    def add(self, records: Records) -> Iterator[pa.Buffer]:
        yield from self.end()
        yield from self._encode(records)

    def end(self) -> Iterator[pa.Buffer]:
        head, self._head = self._head, b""
        if head:
            yield pa.py_buffer(head)


class Compressed:
    """Another encoder's bytes as one gzip member without a time, or one zstd frame. Implements FileEncoder."""

    def __init__(self, inner: FileEncoder, compression: str) -> None:
        self._inner = inner
        self._drain = Drain()
        self._stream = _Gzip(self._drain) if compression == "gzip" else pa.CompressedOutputStream(self._drain, "zstd")
        self._waiting = bytearray()

    def add(self, records: Records) -> Iterator[pa.Buffer]:
        for piece in self._inner.add(records):
            yield from self._compressed(piece)

    def end(self) -> Iterator[pa.Buffer]:
        for piece in self._inner.end():
            yield from self._compressed(piece)
        self._stream.write(bytes(self._waiting))
        self._stream.close()
        yield from self._drain.taken()

    def _compressed(self, piece: pa.Buffer) -> Iterator[pa.Buffer]:
        rest = memoryview(piece)
        while len(self._waiting) + len(rest) >= BLOCK:
            count = BLOCK - len(self._waiting)
            self._stream.write(bytes(self._waiting) + bytes(rest[:count]))
            self._waiting.clear()
            rest = rest[count:]
            yield from self._drain.taken()
        self._waiting += rest


class _Gzip:
    """Arrow's own gzip has the slowest level."""

    def __init__(self, out: Drain) -> None:
        self._out = out
        self._deflate = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)

    def write(self, block: bytes) -> None:
        self._out.write(self._deflate.compress(block))

    def close(self) -> None:
        self._out.write(self._deflate.flush())


class Drain(io.RawIOBase):
    """A file to write that keeps only what was not taken yet."""

    def __init__(self) -> None:
        self._pieces: list[pa.Buffer] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: object) -> int:
        piece = pa.py_buffer(bytes(memoryview(data)))  # type: ignore[arg-type]
        self._pieces.append(piece)
        self._position += piece.size
        return int(piece.size)

    def taken(self) -> list[pa.Buffer]:
        """What has come since."""
        pieces, self._pieces = self._pieces, []
        return pieces
