"""What a table's newest snapshot contains: data files and delete files, each with its sequence number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table

from changefeed.reading.failures import NotVerifiable

_ID = b"PARQUET:field_id"
_ROWS = 1 << 16


@dataclass(frozen=True)
class FileRows:
    """Rows of a file; of each field that was asked for its values, None: the file has none of it.

    `deletes`: they are keys of rows with a lower `sequence`.
    """

    sequence: int
    deletes: bool
    rows: int
    columns: list[pa.Array | None]


def parts(table: Table, fields: Sequence[int], key: Sequence[int]) -> Iterator[FileRows]:
    """`fields`, `key`: field ids, of rows and of deletes. Raises NotVerifiable for deletes of another kind."""
    snapshot = table.metadata.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            deletes = file.content != DataFileContent.DATA
            if deletes and sorted(file.equality_ids or ()) != sorted(key):
                raise NotVerifiable(
                    f"{'.'.join(table.name())} has deletes that this changefeed did not write: {file.file_path}.",
                    "Rewrite its data files to remove deletes, then verify again.",
                )
            if file.file_format != FileFormat.PARQUET:
                raise NotVerifiable(
                    f"{'.'.join(table.name())} has a file that is not Parquet: {file.file_path}.",
                    "Set its property write.format.default to parquet, rewrite its data files, then verify again.",
                )
            with table.io.new_input(file.file_path).open() as stream:
                for batch in pq.ParquetFile(stream).iter_batches(_ROWS):
                    found = [_values(batch, each) for each in (key if deletes else fields)]
                    yield FileRows(entry.sequence_number or 0, deletes, batch.num_rows, found)


def _values(batch: pa.RecordBatch, field_id: int) -> pa.Array | None:
    for number, field in enumerate(batch.schema):
        if (field.metadata or {}).get(_ID) == str(field_id).encode():
            return batch.column(number)
    return None
