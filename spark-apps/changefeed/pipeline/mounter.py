"""Sorted raw rows to the records that a file has: the right side of each row, decoded with the table's definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.records import Records
from changefeed.upstream.written_rows import NO_KEYS, MaskKeys, written_rows


def drop_unseen(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without the deletes of rows that did not exist: they have nothing to show."""
    others = rows.column("op").to_numpy() != OP_DELETE
    if others.all():
        return rows
    existed = pc.fill_null(pc.greater(pc.binary_length(rows.column("old_value")), 0), False)
    seen = existed.to_numpy(zero_copy_only=False) | others
    return rows if seen.all() else rows.filter(pa.array(seen))


def mount(
    rows: pa.RecordBatch,
    table: TableInfo,
    time_zone: str,
    *,
    written: tuple[ColumnInfo, ...] | None = None,
    halve_updates: bool = False,
    with_old: bool = False,
    mask_keys: MaskKeys = NO_KEYS,
) -> Records:
    """The records of sorted RAW_SCHEMA rows: a delete shows the row that was, an insert or update the new one.

    `time_zone`: in which TIMESTAMP values are written. `written`: the columns that are, by default all output columns.
    `halve_updates`: an update is two records instead, a delete of the old row and an insert of the new one (csv's
    output-old-value). `with_old`: `old_columns` are filled. `mask_keys`: of hashed columns. Raises NeedsHuman for a row
    that cannot be decoded.
    """
    op = rows.column("op").to_numpy()
    is_update = np.zeros(len(op), np.bool_)
    if halve_updates and (op == OP_UPDATE).any():
        rows, op, is_update = _halve(rows, op)
    columns = written_rows(
        table, rows.column("key"), _shown(rows, op), time_zone, written, mask_keys=mask_keys, are_whole=True
    )
    old_columns = _before_updates(rows, op, table, time_zone, written, mask_keys) if with_old else None
    return Records(
        table, op, is_update, rows.column("commit_ts"), columns, old_columns, written, rows.column("start_ts")
    )


def _before_updates(
    rows: pa.RecordBatch,
    op: npt.NDArray[np.uint8],
    table: TableInfo,
    time_zone: str,
    written: tuple[ColumnInfo, ...] | None,
    mask_keys: MaskKeys,
) -> list[pa.Array]:
    updates = op == OP_UPDATE
    before = rows.select(["key", "old_value"])
    if not updates.all():
        before = before.filter(pa.array(updates))
    values = pc.fill_null(before.column("old_value"), b"")
    old = written_rows(table, before.column("key"), values, time_zone, written, mask_keys=mask_keys, are_whole=True)
    if before.num_rows == len(op):
        return old
    indices = pa.array(np.cumsum(updates) - 1, mask=~updates)
    return [values.take(indices) for values in old]


def _halve(
    rows: pa.RecordBatch, op: npt.NDArray[np.uint8]
) -> tuple[pa.RecordBatch, npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    copies = np.where(op == OP_UPDATE, 2, 1)
    source = np.repeat(np.arange(len(op)), copies)
    first = np.ones(len(source), np.bool_)
    first[1:] = source[1:] != source[:-1]
    is_update = op[source] == OP_UPDATE
    halves = np.where(first, OP_DELETE, OP_INSERT).astype(np.uint8)
    return rows.take(pa.array(source)), np.where(is_update, halves, op[source]).astype(np.uint8), is_update


def _shown(rows: pa.RecordBatch, op: npt.NDArray[np.uint8]) -> Any:
    """The values to decode, without nulls: what is absent is empty, which the decoder refuses by the row's key."""
    deletes = op == OP_DELETE
    if not deletes.any():
        return rows.column("value")
    old = pc.fill_null(rows.column("old_value"), b"")
    return old if deletes.all() else pc.if_else(pa.array(deletes), old, rows.column("value"))
