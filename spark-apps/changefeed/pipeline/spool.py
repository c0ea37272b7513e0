"""Encoded chunks on local disk until they are put, and the descriptors that travel instead of them (DESIGN.md 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from io import FileIO
from pathlib import Path

import pyarrow as pa

from changefeed.errors import Unavailable
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.patience import Patience

#: One row a chunk, then the entry's last row. `path` is the output file's, below the sink's root. `hash`: hex
#: digest of the file's bytes from its beginning to the end of the chunk. The last row has no bytes (`offset` is
#: the file's size); its `rows`, `raw_rows` and `filtered_rows` are the whole file's, `cpu` its
#: seconds of CPU by pipeline.stages.STAGES.
DESCRIPTOR_SCHEMA = pa.schema(
    [
        pa.field("record", pa.int64(), nullable=False),
        pa.field("entry", pa.int32(), nullable=False),
        pa.field("chunk", pa.int32(), nullable=False),
        pa.field("last", pa.bool_(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("spool", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("raw_rows", pa.int64(), nullable=False),
        pa.field("filtered_rows", pa.int64(), nullable=False),
        pa.field("hash", pa.string(), nullable=False),
        pa.field("cpu", pa.list_(pa.float64()), nullable=False),
    ]
)


@dataclass(frozen=True)
class Descriptor:
    """A row of DESCRIPTOR_SCHEMA."""

    record: int
    entry: int
    chunk: int
    last: bool
    path: str
    spool: str
    offset: int
    length: int
    rows: int
    raw_rows: int
    filtered_rows: int
    hash: str
    cpu: tuple[float, ...] = ()


def descriptor_batch(descriptors: Sequence[Descriptor]) -> pa.RecordBatch:
    columns = zip(*(astuple(descriptor) for descriptor in descriptors), strict=True)
    arrays = [pa.array(values, field.type) for field, values in zip(DESCRIPTOR_SCHEMA, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=DESCRIPTOR_SCHEMA)


class Spool:
    """One file's bytes. `file` must not exist. Raises Unavailable when the disk does not take them in `patience`."""

    def __init__(self, file: Path, patience: Patience | None = None) -> None:
        self.file = file
        self._patience = patience or Patience()
        self.length = 0
        self._hash = Digest()
        self._out = self._patience.call(self._where, self._open)

    @property
    def hash(self) -> str:
        """Of everything appended so far."""
        return self._hash.hexdigest()

    def append(self, chunk: pa.Buffer) -> None:
        self._hash.update(chunk)
        left = memoryview(chunk)

        def write() -> None:
            nonlocal left
            try:
                while left:
                    left = left[self._out.write(left) :]
            except OSError as error:
                raise self._unavailable(error) from error

        self._patience.call(self._where, write)
        self.length += chunk.size

    def close(self) -> None:
        self._out.close()

    def discard(self) -> None:
        self._out.close()
        self.file.unlink(missing_ok=True)

    @property
    def _where(self) -> str:
        return f"The spool file {self.file}"

    def _open(self) -> FileIO:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            return self.file.open("xb", buffering=0)
        except OSError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"Cannot write the spool file {self.file}: {error.strerror}.",
            "Free space there or let this user write, then start again.",
        )
