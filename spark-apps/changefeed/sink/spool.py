"""One file's encoded bytes until they are put: in memory while they are few, then on local disk."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import pyarrow as pa

from changefeed.errors import Transient, Unavailable, by_disk
from changefeed.objectstore import FileRange
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.patience import Patience

#: Up to so many bytes are kept in memory: a small file costs no other one.
IN_MEMORY_BYTES = 1 << 20
READ_BYTES = 1 << 20


class Spool:
    """`file` must not exist; it does once the bytes are many.

    Raises Unavailable when the disk does not take them in `patience`.
    """

    def __init__(self, file: Path, patience: Patience | None = None) -> None:
        self._file = file
        self._patience = patience or Patience()
        self._hash = Digest()
        self._in_memory: list[pa.Buffer] = []
        self._out: FileIO | None = None
        self.length = 0

    @property
    def hash(self) -> str:
        """The hash of everything appended so far."""
        return self._hash.hexdigest()

    def append(self, chunk: pa.Buffer) -> None:
        self._hash.update(chunk)
        self.length += chunk.size
        if self._out is not None:
            self._write(self._out, chunk)
            return
        self._in_memory.append(chunk)
        if self.length > IN_MEMORY_BYTES:
            self._out = self._patience.call(self._where, self._open)
            for each in self._in_memory:
                self._write(self._out, each)
            self._in_memory = []

    def body(self) -> bytes | tuple[FileRange, ...]:
        """What is to be put; nothing is appended after it.

        Raises Transient when the disk has not the bytes that were hashed while they were written (rule 3).
        """
        if self._out is None:
            return b"".join(self._in_memory)
        self._out.close()
        self._check()
        return (FileRange(self._file, 0, self.length),)

    def discard(self) -> None:
        """Nothing is left."""
        self._in_memory = []
        if self._out is not None:
            self._out.close()
            self._file.unlink(missing_ok=True)

    def _write(self, out: FileIO, chunk: pa.Buffer) -> None:
        left = memoryview(chunk)

        def write() -> None:
            nonlocal left
            try:
                while left:
                    left = left[out.write(left) :]
            except OSError as error:
                raise self._unavailable(error) from error

        self._patience.call(self._where, write)

    def _check(self) -> None:
        found = Digest()
        block = memoryview(bytearray(READ_BYTES))
        try:
            with self._file.open("rb", buffering=0) as file:
                while count := file.readinto(block):
                    found.update(block[:count])
        except OSError as error:
            raise Transient(f"{self._where} can't be read: {error}; its task must run again.") from error
        if found.hexdigest() != self.hash:
            raise Transient(f"{self._where} has changed since it was written; its task must run again.")

    @property
    def _where(self) -> str:
        return f"The spool file {self._file}"

    def _open(self) -> FileIO:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            return self._file.open("xb", buffering=0)
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> Unavailable:
        return by_disk(
            Unavailable(
                f"Cannot write the spool file {self._file}: {error.strerror}.",
                "Free space there or let this user write, then start again.",
            )
        )
