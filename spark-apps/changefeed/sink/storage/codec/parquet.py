"""Parquet: typed columns in row groups of bounded size, in the records' order, with statistics.

A pure function of the records, however they come in chunks (rule 10): where a row group ends its rows alone decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.records import Records
from changefeed.sink.storage.codec.encoder import Drain
from changefeed.sink.typed import schema_of, typed

VERSION = 2

#: A row group ends at so many rows, or at the row that reaches so many bytes of text and numbers.
GROUP_ROWS = 128 << 10
GROUP_BYTES = 32 << 20
_CELL_BYTES = 8  # of a value of fixed width, at most about


@dataclass(frozen=True)
class ParquetFormat:
    old_values: bool = False
    compression: str = "zstd"  # or "snappy", "none"

    @classmethod
    def from_config(cls, storage: Mapping[str, Any]) -> ParquetFormat:
        """From `sink.storage` of the effective spec (its JSON, every member there)."""
        return cls(storage["parquet"]["oldValues"], storage["parquet"]["compression"])


def fingerprint() -> str:
    """What bytes depend on beyond plan and config: this codec and the library that writes the files (rule 10)."""
    return f"parquet-{VERSION} pyarrow-{pa.__version__}"


class ParquetFile:
    """Implements FileEncoder. A file without rows has its schema."""

    def __init__(self, table: TableInfo, columns: Sequence[ColumnInfo], fmt: ParquetFormat) -> None:
        """Raises NeedsHuman for columns that can't stand in such a file."""
        self._with_old = fmt.old_values
        self._drain = Drain()
        schema = schema_of(table, columns, with_old=fmt.old_values)
        self._writer = pq.ParquetWriter(self._drain, schema, compression=fmt.compression, store_decimal_as_integer=True)
        self._waiting: list[pa.RecordBatch] = []  # of a row group that has not ended
        self._rows = self._bytes = 0  # of them

    def add(self, records: Records) -> Iterator[pa.Buffer]:
        batch = typed(records, with_old=self._with_old)
        total = np.cumsum(_sizes(batch))  # bytes up to the end of each row
        start = 0
        while start < batch.num_rows:
            before = int(total[start - 1]) if start else 0
            full = int(np.searchsorted(total, before + GROUP_BYTES - self._bytes)) + 1
            end = min(start + GROUP_ROWS - self._rows, full, batch.num_rows)
            self._waiting.append(batch.slice(start, end - start))
            self._rows += end - start
            self._bytes += int(total[end - 1]) - before
            if self._rows == GROUP_ROWS or self._bytes >= GROUP_BYTES:
                self._write_group()
                yield from self._drain.taken()
            start = end

    def end(self) -> Iterator[pa.Buffer]:
        if self._waiting:
            self._write_group()
        self._writer.close()
        yield from self._drain.taken()

    def _write_group(self) -> None:
        group = pa.Table.from_batches([pa.concat_batches(self._waiting)])
        self._writer.write_table(group, row_group_size=GROUP_ROWS)
        self._waiting = []
        self._rows = self._bytes = 0


def _sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """About how many bytes each row has, whatever rows are beside it."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        cells = column.flatten() if pa.types.is_struct(column.type) else [column]
        for cell in cells:
            sizes += _CELL_BYTES
            if pa.types.is_string(cell.type) or pa.types.is_binary(cell.type):
                sizes += pc.fill_null(pc.binary_length(cell), 0).to_numpy()
    return sizes
