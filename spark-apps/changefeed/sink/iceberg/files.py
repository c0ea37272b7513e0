"""The Parquet files of an entry. Their bytes depend only on its rows, not on how those are split into chunks.

append: one file, with a row for each change. upsert: one file with what the entry leaves of its rows, by primary key,
and another with the keys of rows that it changed or deleted, which applies to what was committed before. An entry with
rows always has both, even if one is empty: so a missing file always means loss.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.model.position import OP_DELETE, OP_UPDATE
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Entry
from changefeed.sink.iceberg.layout import deletes_file
from changefeed.sink.iceberg.shape import file_schema, identifier_columns
from changefeed.sink.records import Records
from changefeed.sink.spool import Spool
from changefeed.sink.stages import CpuTime
from changefeed.sink.typed import typed

#: What the bytes depend on beyond rows and config (rule 10).
FINGERPRINT = f"iceberg-2 parquet-{pa.__version__}"

GROUP_ROWS = 1 << 17


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
    made: dict[str, Spool] = {}

    def write(path: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        spool = made[path] = Spool(folder / f"{entry.id.plan}-{entry.id.entry}-{secrets.token_hex(8)}", patience)
        # Iceberg's specification has decimals of up to 18 digits as integers.
        spooled = pa.PythonFile(_Spooled(spool), "w")
        with pq.ParquetWriter(spooled, schema, compression="zstd", store_decimal_as_integer=True) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=GROUP_ROWS)

    upsert = entry.options["mode"] == "upsert"
    schema = file_schema(entry.table, entry.columns, upsert=upsert)
    try:
        if upsert:
            rows, keys = _settled(entry, list(chunks), schema)
            if rows is not None and keys is not None:
                write(entry.output["path"], rows.schema, _groups([rows]))
                write(deletes_file(entry.output["path"]), keys.schema, _groups([keys]))
        else:
            batches = (pa.Table.from_batches([typed(records)]).cast(schema) for records in chunks)
            if (first := next((batch for batch in batches if batch.num_rows), None)) is not None:
                write(entry.output["path"], schema, _groups(_behind(first, batches)))
        cpu.went_to("encode")
    except BaseException:
        for spool in made.values():
            spool.discard()
        raise
    return made


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


def _settled(
    entry: Entry, chunks: Sequence[Records], schema: pa.Schema
) -> tuple[pa.Table, pa.Table] | tuple[None, None]:
    """The rows that the entry leaves, and the keys that it takes from what was there before; in a fixed order."""
    chunks = [records for records in chunks if len(records.op)]
    if not chunks:
        return None, None
    names = [column.name for column in identifier_columns(entry.table)]
    rows = pa.concat_tables([_shown(records, records.columns, schema) for records in chunks])
    op = np.concatenate([records.op for records in chunks])
    updates = np.flatnonzero(op == OP_UPDATE)
    before = pa.concat_tables([_before(records, schema, names) for records in chunks])
    gone = pa.concat_tables([before.select(names), rows.select(names).filter(pa.array(op == OP_DELETE))])
    # An update takes its old key away, then puts its new one: two events, in this order.
    events = pa.concat_tables([before.select(names), rows.select(names)])
    at = np.concatenate([2 * updates, 2 * np.arange(len(op)) + 1])
    last = _grouped(events.append_column("_at", pa.array(at)), names, "max")
    numbers = np.sort(last.column("_at_max").to_numpy())
    kept = numbers[numbers % 2 == 1] // 2
    kept = kept[op[kept] != OP_DELETE]
    keys = _grouped(gone.append_column("_at", pa.array(np.arange(gone.num_rows))), names, "min")
    return rows.take(pa.array(kept)), keys.sort_by("_at_min").select(names).cast(_part(schema, names))


def _grouped(table: pa.Table, names: Sequence[str], function: str) -> pa.Table:
    return table.combine_chunks().group_by(list(names), use_threads=False).aggregate([("_at", function)])


def _part(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _shown(records: Records, columns: list[pa.Array], schema: pa.Schema) -> pa.Table:
    shown = replace(records, columns=columns, old_columns=None)
    return pa.Table.from_batches([typed(shown)]).select(schema.names).cast(schema)


def _before(records: Records, schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    """The keys that updates have found."""
    updates = records.op == OP_UPDATE
    if not updates.any():
        return _part(schema, names).empty_table()
    assert records.old_columns is not None, "the mounter was asked for them"
    mask = pa.array(updates)
    old = Records(
        records.table,
        records.op[updates],
        records.is_update[updates],
        records.commit_ts.filter(mask),
        [values.filter(mask) for values in records.old_columns],
        None,
        records.written,
    )
    return _shown(old, old.columns, schema).select(names)


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
