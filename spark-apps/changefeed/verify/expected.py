"""What the files are to hold: the upstream's history as images of changes.

Splitting and ordering are done here once more, in another way than the pipeline does. Rows are decoded by the decoder
that the pipeline uses too: what that gets wrong shows in its own tests, not here.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.schema.rowv2 import decode_rows
from changefeed.schema.table_info import TableInfo
from changefeed.verify.lines import Shape

_RANKS = {"D": 0, "U": 1, "I": 2}  # inside a transaction (INTERFACES.md, Position)


def shape_of(info: TableInfo, choice: str) -> Shape:
    """The table's columns as its rows' decoder gives them. Raises NeedsHuman for a table that it can't decode."""
    nothing = pa.array([], pa.binary())
    columns = values_of(info, nothing, nothing, "UTC", choice).values()
    return Shape([column.name for column in info.output_columns], [column.type for column in columns])


def key_of(info: TableInfo, split_updates: bool) -> list[int]:
    """Which of the columns tell a row in the files; none: nothing there does.

    The primary key, else a NOT NULL unique one. An update may change that; unsplit it says only what it became, so
    there the key must be the handle itself, an integer.
    """
    place = {column.name: number for number, column in enumerate(info.output_columns)}
    if info.handle_column is not None:
        return [place[info.handle_column.name]]
    if not split_updates:
        return []
    for names in sorted(_unique_keys(info), key=len):
        if names <= place.keys():
            return sorted(place[name] for name in names)
    return []


def images(info: TableInfo, versions: pa.Table, split_updates: bool, time_zone: str, choice: str) -> pl.DataFrame:
    """Versions (history.SCAN_SCHEMA) as the images that the files are to hold, in any order.

    Columns: commit_ts, start_ts, rank (u8) and key: its position, op, and c0..cn. Raises NeedsHuman for rows that can't
    be decoded.
    """
    deleted = versions["delete"]
    fresh = pc.is_null(versions["old_value"])
    inserts = versions.filter(pc.and_(pc.invert(deleted), fresh))
    updates = versions.filter(pc.and_(pc.invert(deleted), pc.invert(fresh)))
    deletes = versions.filter(pc.and_(deleted, pc.invert(fresh)))  # that of no row is no change
    parts = [
        _rows(info, inserts, "value", "I", time_zone, choice),
        _rows(info, deletes, "old_value", "D", time_zone, choice),
    ]
    if updates.num_rows:
        before, after = (
            _rows(info, updates, "old_value", "D", time_zone, choice),
            _rows(info, updates, "value", "I", time_zone, choice),
        )
        moved = _unique_key_moved(info, before, after) if split_updates else pl.repeat(False, before.height, eager=True)
        parts += [before.filter(moved), after.filter(moved), after.filter(~moved).with_columns(op=pl.lit("U"))]
    return pl.concat(parts).with_columns(rank=pl.col("op").replace_strict(_RANKS, return_dtype=pl.UInt8))


def values_of(info: TableInfo, keys: pa.Array, values: pa.Array, time_zone: str, choice: str) -> dict[str, pa.Array]:
    """c0..cn of rows by their raw keys and values, decoded by the product's decoder. `choice`: see Format."""
    columns = decode_rows(info, keys, values, time_zone)
    return {
        f"c{i}": pc.struct_field(column, choice) if pa.types.is_struct(column.type) else column
        for i, column in enumerate(columns)
    }


def _rows(info: TableInfo, versions: pa.Table, image: str, op: str, time_zone: str, choice: str) -> pl.DataFrame:
    one = {name: _one_array(versions[name]) for name in ("commit_ts", "start_ts", "key", image)}
    columns = values_of(info, one["key"], one[image], time_zone, choice)
    given = {name: one[name] for name in ("commit_ts", "start_ts", "key")}
    frame = pl.from_arrow(pa.table({**given, **columns}))
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(op=pl.lit(op))


def _unique_keys(info: TableInfo) -> list[set[str]]:
    """The columns of each key that tells a row: unique, and NOT NULL in all of them."""
    nullable = {column.name for column in info.columns if column.nullable}
    keys = [{name for name, _ in index.columns} for index in info.indexes if index.is_unique or index.is_primary]
    return [key for key in keys if not key & nullable]


def _unique_key_moved(info: TableInfo, before: pl.DataFrame, after: pl.DataFrame) -> pl.Series:
    """Which updates change a NOT NULL unique key: those are written as a delete and an insert (TiCDC, 2.10)."""
    position = {column.name: i for i, column in enumerate(info.output_columns)}
    moved = pl.repeat(False, before.height, eager=True)
    for name in sorted(set().union(*_unique_keys(info)) & position.keys()):
        moved = moved | before[f"c{position[name]}"].ne_missing(after[f"c{position[name]}"])
    return moved


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """A piece of a history is some MiB, so one array holds it."""
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
