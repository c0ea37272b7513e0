"""What the newest version of a table contains, file by file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import PyFileSystem

from changefeed.reading.failures import NotVerifiable

_ROWS = 1 << 16


@dataclass(frozen=True)
class DeltaRows:
    """Rows of a file; of each column that was asked for its values, None: the file has none of it."""

    rows: int
    columns: list[pa.Array | None]


def parts(table: DeltaTable, files: PyFileSystem, names: Sequence[str]) -> Iterator[DeltaRows]:
    """`files`: of the table's folder. Raises NotVerifiable for rows that are deleted beside their file."""
    if any(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())):
        raise NotVerifiable(
            f"{table.table_uri} has deletion vectors, which this changefeed did not write.",
            "Run REORG TABLE ... APPLY (PURGE), then verify again.",
        )
    for path in pa.table(table.get_add_actions()).column("path").to_pylist():
        with files.open_input_file(path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(_ROWS):
                present = set(batch.schema.names)
                yield DeltaRows(batch.num_rows, [batch.column(name) if name in present else None for name in names])
