"""Scratch files on the puller's machine for what does not fit in memory. They are unnamed and vanish with the process.

What is read back must be what was written, or the task fails: then it pulls again, and no row is lost.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from changefeed.errors import Unavailable
from changefeed.objectstore.digest import Digest

_trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _pad: 0)


class Block(NamedTuple):
    """Where something stands in a file, and the hash of its bytes."""

    offset: int
    size: int
    hash: bytes

    @property
    def end(self) -> int:
        return self.offset + self.size


class ScratchFile(Protocol):
    """Its space is free when nobody knows it any more."""

    def append(self, content: pa.Buffer) -> Block:
        """Raises Unavailable."""
        ...

    def read(self, block: Block) -> pa.Buffer:
        """Raises Unavailable, also when the bytes are others than were written."""
        ...

    def cut(self, size: int) -> None:
        """Forget what stands beyond. Raises Unavailable."""
        ...


#: A new, empty file. Raises Unavailable.
Scratch = Callable[[], ScratchFile]


def scratch_in(folder: Path) -> Scratch:
    """Files there. What is put into one was in memory, which the system gets back before."""

    def file() -> LocalFile:
        give_back_memory()
        return LocalFile(folder)

    return file


def give_back_memory() -> None:
    """To the system, where the C library can: Spark's workers keep what they once had, and a chunk's buffers are large.

    Some ms. What follows gets fresh pages, which costs; it is for a large transaction, not for each chunk.
    """
    _trim(0)


class LocalFile:
    """In a folder, which is made. Nobody else can open it, and the kernel frees it, also when the process is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file, path = tempfile.mkstemp(dir=folder)
            weakref.finalize(self, os.close, self._file)
            os.unlink(path)
        except OSError as error:
            raise self._unavailable("be made", error) from error

    def append(self, content: pa.Buffer) -> Block:
        block = Block(self._size, content.size, Digest(content).digest())
        left = memoryview(content)
        try:
            while left:
                left = left[os.pwrite(self._file, left, block.end - len(left)) :]
        except OSError as error:
            raise self._unavailable("be written", error) from error
        self._size = block.end
        return block

    def read(self, block: Block) -> pa.Buffer:
        content = bytearray(block.size)
        left = memoryview(content)
        try:
            while left and (count := os.preadv(self._file, [left], block.end - len(left))):
                left = left[count:]
        except OSError as error:
            raise self._unavailable("be read", error) from error
        if left or Digest(content).digest() != block.hash:
            raise Unavailable(
                f"A scratch file in {self._folder} has other bytes than were written to it.",
                "The rows are pulled again. If this happens again, check the disk.",
            )
        return pa.py_buffer(content)

    def cut(self, size: int) -> None:
        try:
            os.ftruncate(self._file, size)
        except OSError as error:
            raise self._unavailable("be cut", error) from error
        self._size = min(size, self._size)

    def _unavailable(self, what: str, error: OSError) -> Unavailable:
        return Unavailable(
            f"A scratch file for rows of large transactions can't {what} in {self._folder}: {error.strerror}.",
            "Free space there or let this user write; the rows are pulled again.",
        )
