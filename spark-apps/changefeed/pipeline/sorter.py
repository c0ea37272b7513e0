"""The rows of one entry in the one order that files have: repeats dropped, updates of unique keys split.

It must never choose between two copies of a row that differ: they are an error that names both segments (rule 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import ProtocolViolation
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.model.record import SegmentSlice
from changefeed.model.rows import RAW_SCHEMA
from changefeed.schema.rowv2 import decode_rows
from changefeed.schema.table_info import TableInfo

Mask = npt.NDArray[np.bool_]

#: Of entries and files (model.position), of the search for repeats (rule 4).
_ORDER = [(name, "ascending") for name in ("commit_ts", "start_ts", "op", "key")]
_IDENTITY = [(name, "ascending") for name in ("commit_ts", "key")]

_NO_ROWS = pa.RecordBatch.from_pylist([], RAW_SCHEMA)


@dataclass(frozen=True)
class Sorted:
    rows: pa.RecordBatch  # RAW_SCHEMA, in the order of positions
    raw_rows: int  # read in the entry's commit ts, repeats removed, before splitting


def sort_rows(
    slices: Sequence[tuple[SegmentSlice, pa.Table]], table: TableInfo, from_: Position, to: Position, *, split: bool
) -> Sorted:
    """The rows in `(from_, to]` of the slices of one dispatcher, each once, ordered by position.

    `split`: an update that changes a column of a NOT NULL unique key becomes a delete and an insert (facts,
    ticdc-compatibility 2.10). Raises ProtocolViolation when two copies of a row differ.
    """
    pieces = [(piece, _commits_between(rows, from_, to)) for piece, rows in slices]
    found = pa.concat_batches([_NO_ROWS, *(batch for _, rows in pieces for batch in rows.to_batches())])
    unique = _drop_repeats(found, [(piece, rows.num_rows) for piece, rows in pieces])
    rows = _split_updates(unique, table) if split else unique
    if rows is not unique or not _is_ordered(rows):
        rows = rows.take(pc.sort_indices(rows, sort_keys=_ORDER))
    if not (from_.is_end_of_ts and to.is_end_of_ts):
        rows = rows.filter(pa.array(_after(rows, from_) & ~_after(rows, to)))
    return Sorted(rows, unique.num_rows)


def _commits_between(rows: pa.Table, from_: Position, to: Position) -> pa.Table:
    """The transactions of which a part may lie in `(from_, to]`: positions are known only after splitting."""
    commit_ts = rows["commit_ts"].to_numpy()
    after = commit_ts > from_.commit_ts if from_.is_end_of_ts else commit_ts >= from_.commit_ts
    inside = after & (commit_ts <= to.commit_ts)
    return rows if inside.all() else rows.filter(pa.array(inside))


def _drop_repeats(rows: pa.RecordBatch, pieces: list[tuple[SegmentSlice, int]]) -> pa.RecordBatch:
    """One row per (commit_ts, key), ordered by them (rule 4)."""
    order = pc.sort_indices(rows, sort_keys=_IDENTITY)
    rows = rows.take(order)
    if rows.num_rows < 2:
        return rows
    commit_ts = rows.column("commit_ts").to_numpy()
    same = np.flatnonzero(commit_ts[1:] == commit_ts[:-1])
    repeated = same[_equal(rows.column("key"), same, same + 1)]
    if not len(repeated):
        return rows
    for name in ("start_ts", "op", "value", "old_value"):
        equal = _equal(rows.column(name), repeated, repeated + 1)
        if not equal.all():
            row = int(repeated[int(equal.argmin())])
            raise _differ(rows.slice(row, 2), name, [_origin(pieces, order[row + i].as_py()) for i in (0, 1)])
    keep = np.ones(rows.num_rows, np.bool_)
    keep[repeated + 1] = False
    return rows.filter(pa.array(keep))


def _equal(column: pa.Array, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> Mask:
    """Element-wise; NULL equals NULL."""
    a, b = column.take(pa.array(left)), column.take(pa.array(right))
    same: Mask = _to_mask(pc.equal(a, b))
    if column.null_count:
        same |= _to_mask(a.is_null()) & _to_mask(b.is_null())
    return same


def _to_mask(values: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask


def _origin(pieces: list[tuple[SegmentSlice, int]], row: int) -> str:
    ends = np.cumsum([rows for _, rows in pieces])
    piece, _ = pieces[int(np.searchsorted(ends, row, side="right"))]
    return f"{piece.uri} (number {piece.seq} of run {piece.run})"


def _differ(copies: pa.RecordBatch, member: str, origins: list[str]) -> ProtocolViolation:
    key = copies.column("key")[0].as_py().hex()
    commit_ts = copies.column("commit_ts")[0].as_py()
    return ProtocolViolation(
        f"The row with key {key} at commit ts {commit_ts} stands in segments {origins[0]} and {origins[1]} "
        f"with different {member}.",
        "One of them is wrong: keep both files and report this; a restart pulls the rows again.",
    )


def _split_updates(rows: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    columns = _unique_key_columns(table)
    updates = np.flatnonzero(rows.column("op").to_numpy() == OP_UPDATE)
    if not columns or not len(updates):
        return rows
    candidates = rows.take(pa.array(updates))
    new = decode_rows(table, candidates.column("key"), candidates.column("value"))
    old = decode_rows(table, candidates.column("key"), pc.fill_null(candidates.column("old_value"), b""))
    changed = np.zeros(len(updates), np.bool_)
    for column in columns:
        # A NOT NULL column without NULLs; a NULL on either side (a row that breaks its definition) counts as changed.
        changed |= ~_to_mask(pc.equal(new[column], old[column]))
    if not changed.any():
        return rows
    whole = np.ones(rows.num_rows, np.bool_)
    whole[updates[changed]] = False
    halves = candidates.filter(pa.array(changed))
    parts = [rows.filter(pa.array(whole)), _with_op(halves, OP_DELETE), _with_op(halves, OP_INSERT)]
    return pa.concat_batches(parts)


def _unique_key_columns(table: TableInfo) -> list[int]:
    """Numbers of the output columns in NOT NULL unique keys, but for the handle: it is the row's key."""
    numbers = {column.name: number for number, column in enumerate(table.output_columns)}
    nullable = {column.name for column in table.columns if column.nullable}
    handle = table.handle_column.name if table.handle_column else None
    found: set[int] = set()
    for index in table.indexes:
        names = {name for name, _ in index.columns}
        if (index.is_unique or index.is_primary) and not names & nullable:
            found |= {numbers[name] for name in names - {handle} if name in numbers}
    return sorted(found)


def _with_op(rows: pa.RecordBatch, op: int) -> pa.RecordBatch:
    number = RAW_SCHEMA.get_field_index("op")
    return rows.set_column(number, RAW_SCHEMA.field(number), pa.array(np.full(rows.num_rows, op, np.uint8)))


def _after(rows: pa.RecordBatch, bound: Position) -> Mask:
    """Which rows come after a position."""
    after: Mask = _to_mask(pc.greater(rows.column("key"), pa.scalar(bound.key, pa.binary())))
    for name, value in (("op", bound.op), ("start_ts", bound.start_ts), ("commit_ts", bound.commit_ts)):
        column = rows.column(name).to_numpy()
        after = (column > value) | ((column == value) & after)
    return after


def _is_ordered(rows: pa.RecordBatch) -> bool:
    """Whether rows that are ordered by commit ts and key stand in the order of positions, as they often do."""
    commit_ts, start_ts, op = (rows.column(name).to_numpy() for name in ("commit_ts", "start_ts", "op"))
    follows = (start_ts[1:] > start_ts[:-1]) | ((start_ts[1:] == start_ts[:-1]) & (op[1:] >= op[:-1]))
    return bool(((commit_ts[1:] > commit_ts[:-1]) | follows).all())
