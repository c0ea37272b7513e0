"""The statements of one transaction, given which rows of a chunk it writes. Pure.

Within a transaction only the last state of each row counts. Rows that exist before it, and are deleted or change a
unique key, are deleted first; so no statement collides with a unique value that an earlier change of the same rows has
freed. Rows that moved in this way come last, by REPLACE, in the order of their changes: two updates of one upstream
transaction may hand over a unique value in either order, and the second may be in a later transaction of ours, which
writes the whole row again.

In *safe* mode statements may be repeated, and may encounter any earlier or later state: only REPLACE and DELETE are
used. Otherwise INSERT, and for updates INSERT ... ON DUPLICATE KEY UPDATE, with many rows per statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.model.position import OP_DELETE, OP_INSERT
from changefeed.schema.table_info import ColumnInfo
from changefeed.sink.mysql.rows.changes import Changes, Mask, Rows
from changefeed.sink.mysql.rows.keys import TableKeys, handle_numbers
from changefeed.sink.mysql.rows.literals import identifier, joined, literal_parts, literals
from changefeed.sink.mysql.rows.pieces import CONDITIONS, between, conditions, offsets, parts, text


@dataclass(frozen=True)
class Folded:
    """The rows that a transaction writes, by statement, in this order. `deleted` says which rows go by their handle."""

    deleted: Rows
    updated: Rows
    inserted: Rows
    replaced: Rows


def fold(handles: Rows, op: npt.NDArray[np.uint8], moved: Mask, rows: Rows, is_safe: bool) -> Folded:
    """Fold `rows`, which are in the order in which they count.

    The other arrays are of the whole chunk; `handles` number rows.
    """
    number, begin, end = handles[rows], op[rows], op[rows]
    broken = (end == OP_DELETE) | moved[rows]
    order = np.argsort(number, kind="stable")
    goes_on = np.diff(number[order]) == 0
    if goes_on.any():  # the others are written as they are
        starts = np.flatnonzero(np.r_[True, ~goes_on])
        last = order[np.r_[starts[1:], len(order)] - 1]
        broken = np.logical_or.reduceat(broken[order], starts)
        begin, end = begin[order[starts]], end[last]
        by_row = np.argsort(last)
        rows, broken, begin, end = rows[last[by_row]], broken[by_row], begin[by_row], end[by_row]
    existed, exists, nothing = begin != OP_INSERT, end != OP_DELETE, rows[:0]
    if is_safe:
        return Folded(rows[broken], nothing, nothing, rows[exists])
    kept = exists & ~broken
    return Folded(rows[existed & broken], rows[kept & existed], rows[kept & ~existed], rows[exists & broken])


class ChunkStatements:
    """The SQL text of a chunk's rows, made once. Raises NeedsHuman for a value that no column of MySQL's can have."""

    def __init__(self, keys: TableKeys, changes: Changes, moved: Mask, is_safe: bool) -> None:
        self.keys = keys
        self._op, self._moved, self._is_safe = changes.op, moved, is_safe
        self._handles = handle_numbers(keys, changes)
        self._table = identifier(keys.table.schema_name) + b"." + identifier(keys.table.name)
        shown = dict(zip((column.name for column in changes.columns), changes.shown, strict=True))
        self._shown_keys = {column: shown[column.name] for key in keys.unique for column, _ in key}
        written = [column for column in changes.columns if not column.is_generated]
        self._columns = b"(" + b",".join(identifier(column.name) for column in written) + b")"
        self._on_duplicate = b" ON DUPLICATE KEY UPDATE " + b",".join(
            identifier(column.name) + b"=VALUES(" + identifier(column.name) + b")" for column in written
        )
        for column in written:
            _check_numbers(keys, column, shown)
        values = [literal_parts(column, shown[column.name]) for column in written]
        self._rows = joined([b"(", *between(b",", values), b"),"])
        self.offsets: Rows = offsets(self._rows)  # bytes of all rows before each, and of all

    @cached_property
    def key_values(self) -> dict[str, pa.BinaryArray]:
        """Literals of the columns of all unique keys, by name."""
        return {column.name: literals(column, values) for column, values in self._shown_keys.items()}

    def of(self, rows: Rows) -> list[bytes]:
        """The statements of a transaction that writes these rows of the chunk, in this order."""
        folded = fold(self._handles, self._op, self._moved, rows, self._is_safe)
        return [
            *self._delete(folded.deleted),
            *self._put(b"INSERT", folded.updated, self._on_duplicate),
            *self._put(b"INSERT", folded.inserted),
            *self._put(b"REPLACE", folded.replaced),
        ]

    def inserts(self, rows: Rows) -> tuple[list[bytes], list[tuple[int, bytes]]]:
        """What of `of` comes before the plain INSERTs; and each row of these, with an INSERT of its own."""
        folded = fold(self._handles, self._op, self._moved, rows, self._is_safe)
        before = [*self._delete(folded.deleted), *self._put(b"INSERT", folded.updated, self._on_duplicate)]
        inserted = folded.inserted.tolist()
        return before, [(row, *self._put(b"INSERT", np.array([row]))) for row in inserted]

    @cached_property
    def _conditions(self) -> tuple[bytes, bytes, bytes, pa.BinaryArray]:
        return conditions([column.name for column in self.keys.handle], self.key_values)

    def _delete(self, rows: Rows) -> Iterator[bytes]:
        if not len(rows):
            return
        where, separator, end, each = self._conditions
        for some in parts(rows, offsets(each), CONDITIONS):
            yield b"".join([b"DELETE FROM ", self._table, b" WHERE ", where, text(each, some, separator), end])

    def _put(self, verb: bytes, rows: Rows, end: bytes = b"") -> Iterator[bytes]:
        head = verb + b" INTO " + self._table + b" " + self._columns + b" VALUES "
        for some in parts(rows, self.offsets):
            yield b"".join([head, text(self._rows, some, b","), end])


def _check_numbers(keys: TableKeys, column: ColumnInfo, shown: Mapping[str, pa.Array]) -> None:
    """NaN and infinity are numbers to PostgreSQL alone."""
    values = shown[column.name]
    if not pa.types.is_floating(values.type) or pc.all(pc.is_finite(values)).as_py() is not False:
        return
    row = pc.index(pc.is_finite(values), False).as_py()
    key = ", ".join(f"{each.name} {shown[each.name][row].as_py()}" for each in keys.handle)
    raise NeedsHuman(
        f"{keys.table.full_name}: the row with {key} has {values[row].as_py()} in its column {column.name}, which no "
        "number of MySQL's is.",
        "Change such rows upstream and start a new changefeed, or exclude the table by a filter rule.",
    )
