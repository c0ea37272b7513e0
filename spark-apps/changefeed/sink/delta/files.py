"""The Parquet file of an entry. Its bytes depend only on its rows, not on how those are split into chunks.

append: a row for each change; the driver adds the file to the table. upsert: by primary key, what the entry leaves of
each row that it has changed, with `_op` U, or its key alone with D; the driver merges it into the table. There `_op`
stands last, behind the table's columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from changefeed.model.position import OP_DELETE, OP_UPDATE
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Entry
from changefeed.sink.delta.shape import file_schema, identifier_columns
from changefeed.sink.records import Records
from changefeed.sink.spool import Spool
from changefeed.sink.stages import CpuTime
from changefeed.sink.table_format.keyed import changes_of
from changefeed.sink.table_format.parquet_file import LIBRARY, parquet_files, with_rows
from changefeed.sink.typed import OP, typed

#: What the bytes depend on beyond rows and config (rule 10).
FINGERPRINT = f"delta-1 {LIBRARY}"

PUT, DELETED = "U", "D"


def encode_files(
    entry: Entry,
    chunks: Iterable[Records],
    folder: Path,
    patience: Patience | None = None,
    cpu: CpuTime | None = None,
) -> dict[str, Spool]:
    """The entry's file by its path, spooled below `folder`: the caller's to put and discard. None without rows.

    No spool file is left when it fails: raises what the chunks do, NeedsHuman, Unavailable (no room to spool).
    """
    cpu = cpu or CpuTime()
    path = entry.output["path"]
    upsert = entry.options["mode"] == "upsert"
    schema = file_schema(entry.table, entry.columns, upsert=upsert)
    with parquet_files(entry, folder, patience) as files:
        if upsert:
            if (settled := _settled(entry, list(chunks), schema)) is not None:
                files.write(path, schema, [settled])
        else:
            batches = (pa.Table.from_batches([typed(records)]).cast(schema) for records in chunks)
            if (tables := with_rows(batches)) is not None:
                files.write(path, schema, tables)
        cpu.went_to("encode")
    return files.made


def _settled(entry: Entry, chunks: Sequence[Records], schema: pa.Schema) -> pa.Table | None:
    """Each key once: rows that are put, then keys that are deleted, each in the order of their last events."""
    shown = pa.schema([field for field in schema if field.name != OP])
    changes = changes_of(chunks, shown, [column.name for column in identifier_columns(entry.table)])
    if changes is None:
        return None
    last = changes.last
    rows, is_row = last // 2, last % 2 == 1
    gone = ~is_row | (changes.op[rows] == OP_DELETE)
    # An update's old key is a row of `before`, which has one for each update.
    number = np.cumsum(changes.op == OP_UPDATE) - 1
    keys = pa.concat_tables(
        [
            changes.rows.select(changes.names).take(pa.array(rows[gone & is_row])),
            changes.before.select(changes.names).take(pa.array(number[rows[~is_row]])),
        ]
    )
    put = changes.rows.take(pa.array(rows[~gone]))
    return pa.concat_tables([_marked(put, schema, PUT), _marked(keys, schema, DELETED)])


def _marked(rows: pa.Table, schema: pa.Schema, op: str) -> pa.Table:
    """With NULL in what they don't have, and `_op`."""
    count = rows.num_rows
    columns = [
        pa.array([op]).take(pa.array(np.zeros(count, np.int64)))
        if field.name == OP
        else rows.column(field.name)
        if field.name in rows.column_names
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
