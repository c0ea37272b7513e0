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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changefeed.model.position import OP_DELETE, OP_INSERT
from changefeed.sink.mysql.rows.changes import Changes, Mask, Rows
from changefeed.sink.mysql.rows.keys import TableKeys, handle_numbers
from changefeed.sink.mysql.rows.literals import identifier, joined, literals
from changefeed.sink.mysql.rows.pieces import between, conditions, offsets, parts, text


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
    order = np.argsort(handles[rows], kind="stable")
    number = handles[rows][order]
    starts = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
    last = np.r_[starts[1:], len(number)] - 1
    broken = np.logical_or.reduceat(((op == OP_DELETE) | moved)[rows][order], starts)
    existed = op[rows[order[starts]]] != OP_INSERT
    exists = op[rows[order[last]]] != OP_DELETE

    def chosen(mask: Mask) -> Rows:
        chosen_rows: Rows = rows[np.sort(order[last[mask]])]
        return chosen_rows

    if is_safe:
        nothing = np.zeros(0, np.int64)
        return Folded(chosen(broken), nothing, nothing, chosen(exists))
    kept = exists & ~broken
    return Folded(chosen(existed & broken), chosen(kept & existed), chosen(kept & ~existed), chosen(exists & broken))


class ChunkStatements:
    """The SQL text of a chunk's rows, made once."""

    def __init__(self, keys: TableKeys, changes: Changes, moved: Mask, is_safe: bool) -> None:
        self.keys = keys
        self._op, self._moved, self._is_safe = changes.op, moved, is_safe
        self._handles = handle_numbers(keys, changes)
        self._table = identifier(keys.table.schema_name) + b"." + identifier(keys.table.name)
        values = {
            column.name: literals(column, array) for column, array in zip(changes.columns, changes.shown, strict=True)
        }
        written = [column for column in changes.columns if not column.is_generated]
        self._columns = b"(" + b",".join(identifier(column.name) for column in written) + b")"
        self._on_duplicate = b" ON DUPLICATE KEY UPDATE " + b",".join(
            identifier(column.name) + b"=VALUES(" + identifier(column.name) + b")" for column in written
        )
        self._rows = joined([b"(", *between(b",", [values[column.name] for column in written]), b"),"])
        self._where, self._separator, self._end, self._conditions = conditions(
            [column.name for column in keys.handle], values
        )
        #: Literals of the columns of all unique keys, by name.
        self.key_values = {column.name: values[column.name] for key in keys.unique for column, _ in key}
        self.offsets: Rows = offsets(self._rows)  # bytes of all rows before each, and of all

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

    def _delete(self, rows: Rows) -> Iterator[bytes]:
        for some in parts(rows, offsets(self._conditions)):
            rows_of_it = text(self._conditions, some, self._separator)
            yield b"DELETE FROM " + self._table + b" WHERE " + self._where + rows_of_it + self._end

    def _put(self, verb: bytes, rows: Rows, end: bytes = b"") -> Iterator[bytes]:
        for some in parts(rows, self.offsets):
            values = text(self._rows, some, b",")
            yield verb + b" INTO " + self._table + b" " + self._columns + b" VALUES " + values + end
