"""An entry's Parquet files, spooled. Their bytes depend only on the rows, not on how those are split into chunks."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Entry
from changefeed.sink.spool import Spool

#: What the bytes depend on beyond rows and config (rule 10).
LIBRARY = f"parquet-{pa.__version__}"

GROUP_ROWS = 1 << 17


class ParquetFiles:
    """An entry's files by path, spooled below `folder`. Raises Unavailable (no room to spool)."""

    def __init__(self, entry: Entry, folder: Path, patience: Patience | None) -> None:
        self._entry, self._folder, self._patience = entry, folder, patience
        self.made: dict[str, Spool] = {}

    def write(self, path: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        """A file of tables that have the schema, however the rows are split among them."""
        name = f"{self._entry.id.plan}-{self._entry.id.entry}-{secrets.token_hex(8)}"
        spool = self.made[path] = Spool(self._folder / name, self._patience)
        # Iceberg's specification has decimals of up to 18 digits as integers; readers of Delta take both.
        spooled = pa.PythonFile(_Spooled(spool), "w")
        with pq.ParquetWriter(spooled, schema, compression="zstd", store_decimal_as_integer=True) as writer:
            for table in _groups(tables):
                writer.write_table(table, row_group_size=GROUP_ROWS)


@contextmanager
def parquet_files(entry: Entry, folder: Path, patience: Patience | None) -> Iterator[ParquetFiles]:
    """Files that are discarded if the block fails; otherwise they are the caller's."""
    files = ParquetFiles(entry, folder, patience)
    try:
        yield files
    except BaseException:
        for spool in files.made.values():
            spool.discard()
        raise


def with_rows(tables: Iterator[pa.Table]) -> Iterator[pa.Table] | None:
    """The same tables from the first one with rows on; None: there is none."""
    first = next((table for table in tables if table.num_rows), None)
    return None if first is None else _behind(first, tables)


def _behind(first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from others


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """All rows in tables of one chunk and GROUP_ROWS rows, but for the last, which may be empty if it is the only
    one.
    """
    waiting: pa.Table | None = None
    for table in tables:
        waiting = table if waiting is None else pa.concat_tables([waiting, table])
        while waiting.num_rows > GROUP_ROWS:
            yield waiting.slice(0, GROUP_ROWS).combine_chunks()
            waiting = waiting.slice(GROUP_ROWS)
    if waiting is not None:
        yield waiting.combine_chunks()


class _Spooled(io.RawIOBase):
    """A spool as a file to write to."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._spool.length

    def write(self, piece: bytes) -> int:  # type: ignore[override]
        copy = bytes(piece)  # the writer uses its own again
        self._spool.append(pa.py_buffer(copy))
        return len(copy)
