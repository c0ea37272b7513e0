"""The rows of one entry in the one order that files have: repeats dropped, updates of unique keys split.

It must never choose between two copies of a row that differ: they are an error that names both segments (rule 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import ProtocolViolation
from changefeed.eventstore.slices import SegmentSlice
from changefeed.model.order import BY_IDENTITY, BY_POSITION, comparable, order_of, ordered, same_as_next
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE, Position
from changefeed.model.rows import NO_ROWS, RAW_SCHEMA
from changefeed.pipeline.parts import PART_BYTES, OrderedRows, Part, cut
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.time_zones import UTC
from changefeed.upstream.decoders import decoder_of

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_BY_ENTRY = ("span_id",)


@dataclass(frozen=True)
class Sorted:
    rows: pa.RecordBatch  # RAW_SCHEMA, in the order of positions
    raw_rows: int  # read in the entry's commit ts, repeats removed, before splitting


def sort_parts(
    slices: Sequence[tuple[SegmentSlice, pa.Table]],
    table: TableInfo,
    from_: Position,
    to: Position,
    *,
    split: bool,
    size: int = PART_BYTES,
) -> Iterator[Sorted]:
    """What `sort_rows` gives, in parts as of `cut`, one after the other."""
    if sum(rows.get_total_buffer_size() for _, rows in slices) <= size:  # nbytes takes thirty times as long
        yield sort_rows(slices, table, from_, to, split=split)
        return
    standing = [(piece, OrderedRows.of(batch)) for piece, rows in slices for batch in rows.to_batches()]
    for part in cut([rows for _, rows in standing], _first_ts(from_), to.commit_ts, size, split=split):
        found = [(piece, batch) for piece, rows in standing for batch in part.select(rows)]
        yield _sorted(found, table, from_, to, split=split, part=part)


def sort_rows(
    slices: Sequence[tuple[SegmentSlice, pa.Table]],
    table: TableInfo,
    from_: Position,
    to: Position,
    *,
    split: bool,
) -> Sorted:
    """The rows in `(from_, to]` of the slices of one dispatcher, each once, ordered by position.

    `split`: an update that changes a column of a NOT NULL unique key becomes a delete and an insert, as in
    TiCDC (docs/sink-files.md, Reading). Raises ProtocolViolation when two copies of a row differ.
    """
    found = [
        (piece, batch) for piece, rows in slices for batch in _of_ts(rows, _first_ts(from_), to.commit_ts).to_batches()
    ]
    return _sorted(found, table, from_, to, split=split, part=None)


def _sorted(
    found: Sequence[tuple[SegmentSlice, pa.RecordBatch]],
    table: TableInfo,
    from_: Position,
    to: Position,
    *,
    split: bool,
    part: Part | None,
) -> Sorted:
    joined = pa.concat_batches([NO_ROWS, *(batch for _, batch in found)])
    unique = _unique(joined, [(piece, batch.num_rows) for piece, batch in found], table)
    rows = _split_updates(unique, table) if split else unique
    raw_rows = unique.num_rows
    if part is not None and not (owned := part.owns(rows)).all():
        raw_rows = int(part.owns(unique).sum())
        rows = rows.filter(pa.array(owned))
    if rows is not unique:
        rows = ordered(rows, BY_POSITION)
    if not (from_.is_end_of_ts and to.is_end_of_ts):
        rows = rows.filter(pa.array(_after(rows, from_) & ~_after(rows, to)))
    return Sorted(rows, raw_rows)


def _first_ts(from_: Position) -> int:
    return from_.commit_ts + from_.is_end_of_ts


def _of_ts(rows: pa.Table, first_ts: int, last_ts: int) -> pa.Table:
    """The rows with first_ts <= commit ts <= last_ts."""
    commit_ts = rows["commit_ts"].to_numpy()
    wanted = (commit_ts >= first_ts) & (commit_ts <= last_ts)
    found = np.flatnonzero(wanted)
    first = int(found[0]) if len(found) else 0
    # A slice's rows stand by commit ts: those of an entry are neighbours, and copied when they are sorted.
    together = bool(wanted[first : first + len(found)].all())
    return rows.slice(first, len(found)) if together else rows.filter(pa.array(wanted))


def sort_entries(
    rows: pa.RecordBatch, pieces: list[tuple[SegmentSlice, int]], table: TableInfo, *, split: bool
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows of several entries, told apart by `span_id`, of tables that decode as `table` does: each once, by entry and
    position. Before updates were split, and after it.

    `pieces`: the slices that they stand in, and how many rows in each. Raises ProtocolViolation as `sort_rows` does.
    """
    unique = _unique(rows, pieces, table, _BY_ENTRY)
    rows = _split_updates(unique, table) if split else unique
    return unique, rows if rows is unique else ordered(rows, (*_BY_ENTRY, *BY_POSITION))


def _unique(
    rows: pa.RecordBatch, pieces: list[tuple[SegmentSlice, int]], table: TableInfo, first: tuple[str, ...] = ()
) -> pa.RecordBatch:
    """One row per (commit_ts, key) (rule 4), by position. Only what tells rows apart is sorted; they move once.

    `first`: columns by which they are told apart, and stand, before that.
    """
    if rows.num_rows < 2:
        return rows
    by_position, by_identity = (*first, *BY_POSITION), (*first, *BY_IDENTITY)
    names = comparable(rows, by_position)
    order = order_of(names, by_identity)
    names = _at(names, order)
    repeated = same_as_next(names, by_identity)
    if len(repeated):
        order = np.arange(rows.num_rows) if order is None else order
        _check_copies(rows, order[repeated], order[repeated + 1], pieces, table)
        kept = np.delete(np.arange(rows.num_rows), repeated + 1)
        order, names = order[kept], _at(names, kept)
    again = order_of(names, by_position)
    if again is not None:
        order = again if order is None else order[again]
    return _at(rows, order)


def _at(rows: pa.RecordBatch, numbers: Numbers | None) -> pa.RecordBatch:
    """The rows of these numbers; None: all of them, as they stand."""
    return rows if numbers is None else rows.take(pa.array(numbers))


def _check_copies(
    rows: pa.RecordBatch, left: Numbers, right: Numbers, pieces: list[tuple[SegmentSlice, int]], table: TableInfo
) -> None:
    for name in ("start_ts", "op", "value", "old_value"):
        equal = _equal(rows.column(name), left, right)
        if not equal.all():
            number = int(equal.argmin())
            copies = [int(left[number]), int(right[number])]
            raise _differ(rows.take(pa.array(copies)), name, [_origin(pieces, row) for row in copies], table)


def _equal(column: pa.Array, left: Numbers, right: Numbers) -> Mask:
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


def _differ(copies: pa.RecordBatch, member: str, origins: list[str], table: TableInfo) -> ProtocolViolation:
    key = table.said_key(copies.column("key")[0].as_py())
    commit_ts = copies.column("commit_ts")[0].as_py()
    return ProtocolViolation(
        f"The row with {key} at commit ts {commit_ts} stands in segments {origins[0]} and {origins[1]} "
        f"with different {member}.",
        "One of them is wrong: keep both files and report this; a restart pulls the rows again.",
    )


def _split_updates(rows: pa.RecordBatch, table: TableInfo) -> pa.RecordBatch:
    table = table.decoded_by
    columns = _unique_key_columns(table)
    updates = np.flatnonzero(rows.column("op").to_numpy() == OP_UPDATE)
    if not columns or not len(updates):
        return rows
    candidates = rows.take(pa.array(updates))
    keys, before = candidates.column("key"), pc.fill_null(candidates.column("old_value"), b"")
    # In UTC: two points in time can look the same on another clock.
    new = decoder_of(table).rows(table, keys, candidates.column("value"), UTC, columns)
    old = decoder_of(table).rows(table, keys, before, UTC, columns)
    changed = np.zeros(len(updates), np.bool_)
    for after, was in zip(new, old, strict=True):
        # A NOT NULL column without NULLs; a NULL on either side (a row that breaks its definition) counts as changed.
        changed |= ~_to_mask(pc.equal(_comparable(after), _comparable(was)))
    if not changed.any():
        return rows
    whole = np.ones(rows.num_rows, np.bool_)
    whole[updates[changed]] = False
    halves = candidates.filter(pa.array(changed))
    parts = [rows.filter(pa.array(whole)), _with_op(halves, OP_DELETE), _with_op(halves, OP_INSERT)]
    return pa.concat_batches(parts)


def _comparable(values: pa.Array) -> pa.Array:
    """Values are compared byte by byte, as TiCDC does, whatever their collation says."""
    return values.field("number") if pa.types.is_struct(values.type) else values


def _unique_key_columns(table: TableInfo) -> list[ColumnInfo]:
    """The output columns in NOT NULL unique keys, but for an int handle: it is the row's key."""
    nullable = {column.name for column in table.columns if column.nullable}
    handle = table.handle_column.name if table.handle_column else None
    found: set[str] = set()
    for index in table.indexes:
        names = {name for name, _ in index.columns}
        if (index.is_unique or index.is_primary) and not names & nullable:
            found |= names - {handle}
    return [column for column in table.output_columns if column.name in found]


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
