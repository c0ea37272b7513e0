"""The Parquet files of an entry. Their bytes depend only on its rows, not on how those are split into chunks.

append: one file, with a row for each change. upsert: one file with what the entry leaves of its rows, by primary key,
and another with the keys of rows that it changed or deleted, which applies to what was committed before. An entry with
rows always has both, even if one is empty: so a missing file always means loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from changefeed.model.position import OP_DELETE
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Entry
from changefeed.sink.iceberg.layout import deletes_file
from changefeed.sink.iceberg.shape import file_schema, identifier_columns
from changefeed.sink.records import Records
from changefeed.sink.spool import Spool
from changefeed.sink.stages import CpuTime
from changefeed.sink.table_format.keyed import changes_of, first_of_each, kept, key_schema
from changefeed.sink.table_format.parquet_file import LIBRARY, parquet_files, with_rows
from changefeed.sink.typed import typed

#: What the bytes depend on beyond rows and config (rule 10).
FINGERPRINT = f"iceberg-2 {LIBRARY}"


def encode_files(
    entry: Entry,
    chunks: Iterable[Records],
    folder: Path,
    patience: Patience | None = None,
    cpu: CpuTime | None = None,
) -> dict[str, Spool]:
    """The entry's files by path, spooled below `folder`: the caller's to put and discard. None without rows.

    No spool file is left when it fails: raises what the chunks do, NeedsHuman, Unavailable (no room to spool).
    """
    cpu = cpu or CpuTime()
    upsert = entry.options["mode"] == "upsert"
    schema = file_schema(entry.table, entry.columns, upsert=upsert)
    with parquet_files(entry, folder, patience) as files:
        if upsert:
            rows, keys = _settled(entry, list(chunks), schema)
            if rows is not None and keys is not None:
                files.write(entry.output["path"], rows.schema, [rows])
                files.write(deletes_file(entry.output["path"]), keys.schema, [keys])
        else:
            batches = (pa.Table.from_batches([typed(records)]).cast(schema) for records in chunks)
            if (tables := with_rows(batches)) is not None:
                files.write(entry.output["path"], schema, tables)
        cpu.went_to("encode")
    return files.made


def _settled(
    entry: Entry, chunks: Sequence[Records], schema: pa.Schema
) -> tuple[pa.Table, pa.Table] | tuple[None, None]:
    """The rows that the entry leaves, and the keys that it takes from what was there before; in a fixed order."""
    names = [column.name for column in identifier_columns(entry.table)]
    changes = changes_of(chunks, schema, names)
    if changes is None:
        return None, None
    op, rows = changes.op, changes.rows
    gone = pa.concat_tables([changes.before.select(names), rows.select(names).filter(pa.array(op == OP_DELETE))])
    return (
        rows.take(pa.array(kept(op, changes.last))),
        first_of_each(gone, names).cast(key_schema(schema, names)),
    )
