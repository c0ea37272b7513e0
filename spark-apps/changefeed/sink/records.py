"""Rows as a sink takes them: one table's, in columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.schema.table_info import ColumnInfo, TableInfo


@dataclass(frozen=True)
class Records:
    """What a codec writes, in order; one array per output column, all of one length.

    A column's Arrow type follows from its SQL type (`row.cells.arrow_type`): integers and YEAR int64 or uint64,
    BIT uint64, FLOAT float32, DOUBLE float64, text, DECIMAL and times string, binary strings and blobs binary, ENUM and
    SET struct<number: uint64, text: string>, whose members are null where the struct is. Text in which some bytes are
    not UTF-8 is binary, too (`row.cells.is_broken`).
    """

    table: TableInfo
    op: npt.NDArray[np.uint8]  # model.position
    is_update: npt.NDArray[np.bool_]  # the record is one half of an update
    commit_ts: pa.Array  # uint64
    columns: list[pa.Array]  # what the record shows: a delete's row before, any other's row after the change
    old_columns: list[pa.Array] | None = None  # the row before an update, null for the other ops; if asked for
    written: tuple[ColumnInfo, ...] | None = None  # what `columns` are; None: all output columns of the table
    start_ts: pa.Array | None = None  # uint64

    @property
    def shown(self) -> tuple[ColumnInfo, ...]:
        return self.table.output_columns if self.written is None else self.written


def taken(records: Records, indexes: npt.NDArray[np.intp]) -> Records:
    chosen = pa.array(indexes)
    return _picked(records, indexes, lambda values: values.take(chosen))


def sliced(records: Records, start: int, rows: int) -> Records:
    return _picked(records, slice(start, start + rows), lambda values: values.slice(start, rows))


def _picked(records: Records, indexes: Any, pick: Callable[[pa.Array], pa.Array]) -> Records:
    return Records(
        records.table,
        records.op[indexes],
        records.is_update[indexes],
        pick(records.commit_ts),
        [pick(values) for values in records.columns],
        [pick(values) for values in records.old_columns] if records.old_columns is not None else None,
        records.written,
        pick(records.start_ts) if records.start_ts is not None else None,
    )


def narrowed(records: Records, names: frozenset[str]) -> Records:
    """With these columns alone."""
    indexes = [index for index, column in enumerate(records.shown) if column.name in names]
    old = records.old_columns
    return Records(
        records.table,
        records.op,
        records.is_update,
        records.commit_ts,
        [records.columns[index] for index in indexes],
        [old[index] for index in indexes] if old is not None else None,
        tuple(records.shown[index] for index in indexes),
    )


@dataclass(frozen=True)
class Mounting:
    """How a sink wants rows. `split`: updates of unique keys come as a delete and an insert.

    `time_zone`, `halve_updates`, `with_old`: see `pipeline.mounter.mount`.
    """

    time_zone: str
    halve_updates: bool = False
    with_old: bool = False
    split: bool = True
