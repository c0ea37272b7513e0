"""Which rows must be written in order: hashes of all their primary and unique keys, before and after.

Pure, on whole columns. Values that a server considers equal never hash differently; a collision only costs some
waiting. This assumes that the downstream's columns have the upstream's collations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.filter import collation
from changefeed.model.position import OP_UPDATE
from changefeed.schema.table_info import BLOBS, STRINGS, ColumnInfo, TableInfo
from changefeed.schema.values import as_bytes, is_broken
from changefeed.sink.mysql.order.conflicts import Hashes
from changefeed.sink.mysql.rows.changes import Changes, Mask, Rows

WHOLE = -1

KeyColumns = tuple[tuple[ColumnInfo, int], ...]  # with the characters or bytes of each that are indexed, or WHOLE


@dataclass(frozen=True)
class TableKeys:
    """`handle`: the columns by which a row is found downstream. `unique`: all keys, the handle's too.

    `has_unseen`: a unique key has a column that no row shows, a virtual generated one.
    """

    table: TableInfo
    handle: tuple[ColumnInfo, ...]
    unique: tuple[KeyColumns, ...]
    has_unseen: bool

    @classmethod
    def of(cls, table: TableInfo) -> TableKeys:
        """Raises NeedsHuman for a table whose rows can't be told apart."""
        by_name = {column.name: column for column in table.output_columns}
        indexes = [index for index in table.indexes if index.is_primary or index.is_unique]
        seen = [index for index in indexes if all(name in by_name for name, _ in index.columns)]
        keys = [(index.is_primary, _key(by_name, index.columns)) for index in seen]
        if table.handle_column is not None:
            keys.insert(0, (True, ((table.handle_column, WHOLE),)))
        handles = [key for _, key in sorted(keys, key=lambda each: not each[0]) if _finds_rows(key)]
        if not handles:
            raise NeedsHuman(
                f"{table.full_name} has no primary key, and no unique key of whole NOT NULL columns: its rows can't be "
                "told apart downstream.",
                "Exclude it by a filter rule. Once it has such a key upstream, a new changefeed can write it.",
            )
        handle = tuple(column for column, _ in handles[0])
        return cls(table, handle, tuple(key for _, key in keys), len(seen) < len(indexes))

    def moved(self, changes: Changes) -> Mask:
        """Which updates change a unique key, or may do so."""
        updates: Mask = changes.op == OP_UPDATE
        if self.has_unseen or not updates.any():
            return updates
        moved = np.zeros(len(changes), np.bool_)
        indexes = {column.name: index for index, column in enumerate(changes.columns)}
        for name in {column.name for key in self.unique for column, _ in key}:
            shown, before = (_comparable(values[indexes[name]]) for values in (changes.shown, changes.before))
            moved |= ~shown.eq_missing(before).to_numpy()
        moved &= updates
        return moved

    def hashes(self, changes: Changes, moved: Mask) -> tuple[Rows, Hashes]:
        """(row, hash of a key that it has), in no order. `moved` is what the method of that name says."""
        if self.has_unseen:
            everything = np.full(len(changes), _salt(self.table, -1), np.uint64)
            return np.arange(len(changes)), everything
        rows, hashes = self._of(changes.columns, changes.shown)
        if not moved.any():
            return rows, hashes
        chosen = np.flatnonzero(moved)
        was, old = self._of(changes.columns, [values.take(pa.array(chosen)) for values in changes.before])
        return np.concatenate([rows, chosen[was]]), np.concatenate([hashes, old])

    def _of(self, columns: tuple[ColumnInfo, ...], arrays: list[pa.Array]) -> tuple[Rows, Hashes]:
        values = {column.name: array for column, array in zip(columns, arrays, strict=True)}
        found = [self._of_key(number, key, values) for number, key in enumerate(self.unique)]
        return np.concatenate([rows for rows, _ in found]), np.concatenate([hashes for _, hashes in found])

    def _of_key(self, number: int, key: KeyColumns, values: dict[str, pa.Array]) -> tuple[Rows, Hashes]:
        frame = pl.DataFrame(
            [_equal_form(column, values[column.name], length).alias(column.name) for column, length in key]
        )
        hashes: npt.NDArray[np.uint64] = frame.hash_rows(seed=_salt(self.table, number)).to_numpy()
        has_key = ~frame.select(pl.any_horizontal(pl.all().is_null())).to_series().to_numpy()
        return np.flatnonzero(has_key), hashes[has_key]


def handle_numbers(keys: TableKeys, changes: Changes) -> npt.NDArray[np.int64]:
    """Equal for rows of byte for byte the same handle, and for no others."""
    values = {column.name: array for column, array in zip(changes.columns, changes.shown, strict=True)}
    arrays = [_comparable(values[column.name]) for column in keys.handle]
    if len(arrays) == 1 and arrays[0].dtype.is_integer():
        numbers: npt.NDArray[np.int64] = arrays[0].to_numpy().view(np.int64)
        return numbers
    frame = pl.DataFrame([series.alias(str(index)) for index, series in enumerate(arrays)])
    first = pl.col("row").first().over(frame.columns).cast(pl.Int64)
    return frame.with_row_index("row").select(first).to_series().to_numpy()


def _key(by_name: dict[str, ColumnInfo], columns: tuple[tuple[str, int], ...]) -> KeyColumns:
    members = ((by_name[name], length) for name, length in columns)
    return tuple((column, WHOLE if length >= column.flen > 0 else length) for column, length in members)


def _finds_rows(key: KeyColumns) -> bool:
    return all(length == WHOLE and not column.nullable for column, length in key)


def _salt(table: TableInfo, key: int) -> int:
    """Keys of different tables, and different keys of one, are not compared."""
    return (table.id << 8) + key + 1


def _comparable(values: pa.Array) -> pl.Series:
    if pa.types.is_struct(values.type):
        values = values.field("number")
    return pl.Series(values=as_bytes(values))


def _equal_form(column: ColumnInfo, values: pa.Array, length: int) -> pl.Series:
    """The same for values that are equal by the column's collation."""
    if is_broken(column, values):
        values = _mended(values)
    series = pl.Series(values=values.field("number") if pa.types.is_struct(values.type) else values)
    if series.dtype.is_float():
        return series + 0.0  # -0 equals 0
    if series.dtype == pl.Binary:
        return series if length == WHOLE else series.bin.slice(0, length)
    if column.type not in STRINGS | BLOBS:
        return series.cast(pl.Binary) if series.dtype == pl.String else series
    if not collation.is_known(column.collate):  # nobody knows what it takes for equal
        return pl.select(pl.when(series.is_not_null()).then(True)).to_series()
    text = pl.col("text") if length == WHOLE else pl.col("text").str.slice(0, length)
    folded = collation.folded(text.str.strip_chars_end(" "), column.collate)
    return series.alias("text").to_frame().select(folded.cast(pl.Binary)).to_series()


def _mended(values: pa.BinaryArray) -> pa.StringArray:
    """What is not UTF-8 is replaced: no collation says what it equals. One by one, as such columns are rare."""
    return pa.array([None if raw is None else raw.decode(errors="replace") for raw in values.to_pylist()], pa.string())
