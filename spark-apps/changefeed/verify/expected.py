"""What the files are to hold: the upstream's history as images of changes.

Splitting and ordering are done here once more, in another way than the pipeline does. Rows are decoded by the decoder
that the pipeline uses too: what that gets wrong shows in its own tests, not here.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.schema.keys import table_span
from changefeed.schema.rowv2 import decode_rows
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PdClient

_RANKS = {"D": 0, "U": 1, "I": 2}  # inside a transaction (INTERFACES.md, Position)


def upstream_rows(info: TableInfo, history: pa.Table, split_updates: bool) -> pl.DataFrame:
    """A history (SCAN_SCHEMA) as the images that the files are to hold, in their order.

    Columns: position (u32, from 0), op, commit_ts, c0..cn. Raises NeedsHuman for rows that can't be decoded.
    """
    deleted = history["delete"]
    fresh = pc.is_null(history["old_value"])
    inserts = history.filter(pc.and_(pc.invert(deleted), fresh))
    updates = history.filter(pc.and_(pc.invert(deleted), pc.invert(fresh)))
    deletes = history.filter(pc.and_(deleted, pc.invert(fresh)))  # that of no row is no change
    before, after = _rows(info, updates, "old_value", "D"), _rows(info, updates, "value", "I")
    moved = _unique_key_moved(info, before, after) if split_updates else pl.repeat(False, before.height, eager=True)
    return (
        pl.concat(
            [
                _rows(info, inserts, "value", "I"),
                _rows(info, deletes, "old_value", "D"),
                before.filter(moved),
                after.filter(moved),
                after.filter(~moved).with_columns(pl.lit("U").alias("op")),
            ]
        )
        .sort("commit_ts", "start_ts", pl.col("op").replace_strict(_RANKS, return_dtype=pl.UInt8), "key")
        .drop("start_ts", "key")
        .with_row_index("position")
    )


def _rows(info: TableInfo, history: pa.Table, image: str, op: str) -> pl.DataFrame:
    given = {name: pl.Series(pl.from_arrow(_one_array(history[name]))) for name in ("commit_ts", "start_ts", "key")}
    return pl.DataFrame(
        {
            "op": pl.repeat(op, history.num_rows, dtype=pl.String, eager=True),
            **given,
            **_columns(info, _one_array(history["key"]), _one_array(history[image])),
        }
    )


def _columns(info: TableInfo, keys: pa.Array, values: pa.Array) -> dict[str, pl.Series]:
    """c0..cn as text, decoded by the product's decoder."""
    arrays = decode_rows(info, keys, values)
    return {f"c{i}": pl.Series(pl.from_arrow(array)).cast(pl.String) for i, array in enumerate(arrays)}


def _unique_key_moved(info: TableInfo, before: pl.DataFrame, after: pl.DataFrame) -> pl.Series:
    """Which updates change a NOT NULL unique key: those are written as a delete and an insert (TiCDC, 2.10)."""
    position = {column.name: i for i, column in enumerate(info.output_columns)}
    nullable = {column.name for column in info.columns if column.nullable}
    moved = pl.repeat(False, before.height, eager=True)
    for index in info.indexes:
        names = {name for name, _ in index.columns}
        if (index.is_unique or index.is_primary) and not names & nullable:
            for name in sorted(names & position.keys()):
                moved = moved | before[f"c{position[name]}"].ne_missing(after[f"c{position[name]}"])
    return moved


async def rows_at(pd: PdClient, info: TableInfo, ts: int) -> pl.DataFrame:
    """The table's rows at `ts`: c0..cn."""
    pairs = [pair async for pair in Snapshot(pd, ts).scan(*table_span(info.id))]
    keys = pa.array([key for key, _ in pairs], pa.binary())
    return pl.DataFrame(_columns(info, keys, pa.array([value for _, value in pairs], pa.binary())))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise NeedsHuman(
            "A table's history is over 2 GiB: verify can't hold it in one piece.", "Verify a shorter range."
        )
    return array
