"""What the files should contain: the upstream's history as images of changes.

Splitting and ordering are implemented again here, in a different way from the pipeline. Rows are decoded by the same
decoder as in the pipeline, and dropped by its filter: bugs in those show up in their own tests, not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.filter.rows import RowFilter
from changefeed.filter.selection import Selection
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.reading.rows.formats import Format
from changefeed.reading.rows.lines import LineShape
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.schema.values import as_bytes, is_broken
from changefeed.upstream.written_rows import NO_KEYS, MaskKeys, written_rows

_LONE = re.compile("[\udc80-\udcff]")  # how "surrogateescape" shows bytes that are not UTF-8
_RANKS = {"D": 0, "U": 1, "I": 2}  # inside a transaction (docs/design/layouts.md, Position)
_OPS = {"D": OP_DELETE, "U": OP_UPDATE, "I": OP_INSERT}


def shape_of(info: TableInfo, columns: Sequence[ColumnInfo], choice: str) -> LineShape:
    """Some columns of the table as its rows' decoder gives them. Raises NeedsHuman for one that it can't decode."""
    nothing = pa.array([], pa.binary())
    values = values_of(info, columns, nothing, nothing, "UTC", choice).values()
    fractions = [max(column.decimal, 0) for column in columns]
    return LineShape([column.name for column in columns], [column.type for column in values], fractions)


def key_indexes(info: TableInfo, columns: Sequence[ColumnInfo], split_updates: bool) -> list[int]:
    """Which of the columns tell a row in the files; none: nothing there does.

    The primary key, else a NOT NULL unique one. An update may change that; unsplit it says only what it became, so
    there the key must be the handle itself, an integer.
    """
    index = {column.name: number for number, column in enumerate(columns)}
    if info.handle_column is not None and info.handle_column.name in index:
        return [index[info.handle_column.name]]
    if not split_updates:
        return []
    for names in sorted(_unique_keys(info), key=len):
        if names <= index.keys():
            return sorted(index[name] for name in names)
    return []


def images(
    info: TableInfo,
    versions: pa.Table,
    selection: Selection,
    how: Format,
    met: Callable[[str], object],
    mask_keys: MaskKeys = NO_KEYS,
) -> pl.DataFrame:
    """Versions (history.SCAN_SCHEMA) as the images that the files are to hold, in any order.

    Columns: commit_ts, start_ts, rank (u8) and key: its position, op, and c0..cn, text as bytes. `met`: see
    `written_values`. Raises NeedsHuman for rows that can't be decoded.
    """
    deleted = versions["delete"]
    fresh = pc.is_null(versions["old_value"])
    inserts = versions.filter(pc.and_(pc.invert(deleted), fresh))
    updates = versions.filter(pc.and_(pc.invert(deleted), pc.invert(fresh)))
    deletes = versions.filter(pc.and_(deleted, pc.invert(fresh)))  # that of no row is no change
    parts = [(inserts, "value", "I"), (deletes, "old_value", "D")]
    if updates.num_rows:
        moved = _unique_key_moved(info, updates) if how.split_updates else np.zeros(updates.num_rows, np.bool_)
        halves = updates.filter(pa.array(moved))
        parts += [(halves, "old_value", "D"), (halves, "value", "I"), (updates.filter(pa.array(~moved)), "value", "U")]
    frames = [
        _rows(info, _kept(part, selection.rows, op), image, op, selection, how, met, mask_keys)
        for part, image, op in parts
    ]
    return pl.concat(frames).with_columns(rank=pl.col("op").replace_strict(_RANKS, return_dtype=pl.UInt8))


def values_of(
    info: TableInfo,
    columns: Sequence[ColumnInfo],
    keys: pa.Array,
    values: pa.Array,
    time_zone: str,
    choice: str,
    mask_keys: MaskKeys = NO_KEYS,
) -> dict[str, pa.Array]:
    """c0..cn of rows by their raw keys and values, decoded and masked as the product does. `choice`: see Format."""
    arrays = written_rows(info, keys, values, time_zone, columns, mask_keys=mask_keys)
    return {
        f"c{i}": pc.struct_field(array, choice) if pa.types.is_struct(array.type) else array
        for i, array in enumerate(arrays)
    }


def written_values(
    info: TableInfo,
    columns: Sequence[ColumnInfo],
    keys: pa.Array,
    values: pa.Array,
    how: Format,
    met: Callable[[str], object],
    mask_keys: MaskKeys = NO_KEYS,
) -> dict[str, pa.Array]:
    """As `values_of`, but as they are written, text as bytes: U+FFFD for each that is not UTF-8, if `how` replaces it.

    `met` is told each column by its name in which that was done.
    """
    found = values_of(info, columns, keys, values, how.time_zone, how.choice, mask_keys)
    for (index, array), column in zip(found.items(), columns, strict=True):
        found[index] = as_bytes(array)
        if is_broken(column, array) and how.replaces(column):
            met(index)
            found[index] = _with_replacements(array)
    return found


def _with_replacements(values: pa.BinaryArray) -> pa.BinaryArray:
    """U+FFFD for each byte that is not part of a character."""
    texts = (None if value is None else value.decode(errors="surrogateescape") for value in values.to_pylist())
    replaced = [None if text is None else _LONE.sub("\ufffd", text).encode() for text in texts]
    return pa.array(replaced, pa.binary())


def _kept(versions: pa.Table, rows: RowFilter, op: str) -> pa.Table:
    """Changes of one kind without those that the changefeed drops."""
    if not versions.num_rows or rows.keeps_all:
        return versions
    names = ("commit_ts", "start_ts", "key", "value", "old_value")
    ops = pa.array(np.full(versions.num_rows, _OPS[op], np.uint8))
    batch = pa.RecordBatch.from_arrays([ops, *(_one_array(versions[name]) for name in names)], ["op", *names])
    return pa.Table.from_batches([rows.kept(batch)])


def _rows(
    info: TableInfo,
    versions: pa.Table,
    image: str,
    op: str,
    selection: Selection,
    how: Format,
    met: Callable[[str], object],
    mask_keys: MaskKeys,
) -> pl.DataFrame:
    one = {name: _one_array(versions[name]) for name in ("commit_ts", "start_ts", "key", image)}
    columns = written_values(info, selection.columns, one["key"], one[image], how, met, mask_keys)
    given = {name: one[name] for name in ("commit_ts", "start_ts", "key")}
    frame = pl.from_arrow(pa.table({**given, **columns}))
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(op=pl.lit(op))


def _unique_keys(info: TableInfo) -> list[set[str]]:
    """The columns of each key that tells a row: unique, and NOT NULL in all of them."""
    nullable = {column.name for column in info.columns if column.nullable}
    keys = [{name for name, _ in index.columns} for index in info.indexes if index.is_unique or index.is_primary]
    return [key for key in keys if not key & nullable]


def _unique_key_moved(info: TableInfo, updates: pa.Table) -> npt.NDArray[np.bool_]:
    """Which updates change a NOT NULL unique key: those are written as a delete and an insert (TiCDC, 2.10)."""
    info = info.decoded_by
    names = set().union(*_unique_keys(info))
    columns = [column for column in info.output_columns if column.name in names]
    keys = _one_array(updates["key"])
    before, after = (
        values_of(info, columns, keys, _one_array(updates[image]), "UTC", "number") for image in ("old_value", "value")
    )
    moved = np.zeros(updates.num_rows, np.bool_)
    for index in before:
        old, new = (pl.Series(pl.from_arrow(as_bytes(values[index]))) for values in (before, after))
        moved |= old.ne_missing(new).to_numpy()
    return moved


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """A piece of a history is some MiB, so one array holds it."""
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
