"""The row messages of one version of a table, or of several tables that are alike: where their cells stand, and the
changes that they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.upstream.binary_view import BinaryView, Ints, Mask
from changefeed.upstream.postgresql.failures import broken_stream
from changefeed.upstream.postgresql.pgoutput.messages import Relation
from changefeed.upstream.postgresql.pgoutput.row_messages import DELETE, INSERT, RowMessages
from changefeed.upstream.postgresql.pgoutput.tuples import (
    COUNT,
    NULL,
    TEXT,
    UNCHANGED,
    Piece,
    Tuples,
    joined,
    locate,
    runs,
    view_of,
)

NONE = -1
#: What relations share whose rows are located alike.
Likeness = tuple[str, tuple[int, ...], tuple[bool, ...]]
_NEW, _OLD_KEY, _OLD_ROW = ord("N"), ord("K"), ord("O")
_HEAD = 5  # of a row message: its kind and the table's OID


class LocatedRows:
    """A change for each message, two for one that changes the key.

    `of`: the numbers of the relations that are meant, which are like this one (`likeness`). `relations`: by change;
    `is_mixed`: they are several.
    `numbers`: of their messages. `new`, `old`: by change, the number of the row in each kind's own order, or NONE.
    """

    def __init__(
        self, view: BinaryView, relation: Relation, identity: Sequence[int], messages: RowMessages, of: Sequence[int]
    ) -> None:
        self.relation, self.is_mixed = relation, len(of) > 1
        self._identity = identity
        self._width = len(relation.columns)
        self._view = view
        chosen = np.isin(messages.relations, of) if self.is_mixed else messages.relations == of[0]
        self.numbers: Ints = np.flatnonzero(chosen)
        pick: Ints | slice = slice(None) if chosen.all() else self.numbers
        kinds = messages.kinds[pick]
        self.relations: Ints = messages.relations[pick]
        self._locate(messages.starts[pick] + _HEAD, messages.ends[pick], kinds)
        self._fill_from_old()
        self._split(kinds, messages.commits[pick])

    # -- where everything stands

    def _locate(self, at: Ints, limits: Ints, kinds: npt.NDArray[np.uint8]) -> None:
        """Places of the cells. `_new_of`, `_old_of`: by message, the numbers of its rows."""
        _check(at < limits)
        tags = self._view.data[at]
        has_old, has_new = (tags == _OLD_KEY) | (tags == _OLD_ROW), kinds != DELETE
        _check(np.where(kinds == INSERT, tags == _NEW, has_old | (tags == _NEW) & has_new))
        with_old, with_new = np.flatnonzero(has_old), np.flatnonzero(has_new)
        self._old = locate(self._view, at[with_old] + 1, limits[with_old], self._width)
        if len(with_old):
            at[with_old] = self._old.behind
            both = with_old[has_new[with_old]]
            _check(at[both] < limits[both])
            _check(self._view.data[at[both]] == _NEW)
        self._new = locate(self._view, at[with_new] + 1, limits[with_new], self._width)
        at[with_new] = self._new.behind
        _check(at == limits)
        self._new_of, self._old_of = _numbered(has_new), _numbered(has_old)
        self._is_moved = np.zeros(len(with_new), np.bool_)  # new rows with cells that stand elsewhere
        if (keys_alone := np.flatnonzero(tags[with_old] == _OLD_KEY)).size:
            self._mark(keys_alone)

    def _mark(self, keys_alone: Ints) -> None:
        """What the server says to be NULL because it sends the old row's key alone gets the mark."""
        data = self._view.data.copy()
        for number, column in enumerate(self.relation.columns):
            if not column.is_identity:
                unknown = keys_alone[self._old.kinds[number, keys_alone] == NULL]
                self._old.kinds[number, unknown] = UNCHANGED
                data[self._old.starts[number, unknown]] = UNCHANGED
        self._view = view_of(data)

    def _fill_from_old(self) -> None:
        """Unchanged cells from the old row of the same message."""
        both = (self._new_of != NONE) & (self._old_of != NONE)
        new, old = self._new_of[both], self._old_of[both]
        for column in range(self._width):
            known = (self._new.kinds[column, new] == UNCHANGED) & (self._old.kinds[column, old] == TEXT)
            if known.any():
                self._move(column, self._old, old[known], new[known])

    def _move(self, column: int, source: Tuples, at: Ints, to: Ints) -> None:
        self._new.starts[column, to] = source.starts[column, at]
        self._new.ends[column, to] = source.ends[column, at]
        self._new.kinds[column, to] = source.kinds[column, at]
        self._is_moved[to] = True

    # -- changes

    def _split(self, kinds: npt.NDArray[np.uint8], commits: Ints) -> None:
        new_keys = joined(self._view, self._new.columns(self._identity))
        old_keys = joined(self._view, self._old.columns(self._identity))
        new, old = self._new_of, self._old_of
        self.is_second: Mask = np.zeros(len(kinds), np.bool_)
        both = np.flatnonzero((new != NONE) & (old != NONE))
        differ = pc.not_equal(new_keys.take(pa.array(new[both])), old_keys.take(pa.array(old[both])))
        if (changed := both[differ.to_numpy(zero_copy_only=False)]).size:
            count = np.ones(len(kinds), np.int64)
            count[changed] = 2
            message = np.repeat(np.arange(len(kinds)), count)
            self.is_second = np.append(False, message[1:] == message[:-1])
            is_first = (count[message] == 2) & ~self.is_second
            kinds, commits = kinds[message], commits[message]
            self.numbers, self.relations = self.numbers[message], self.relations[message]
            new, old = np.where(is_first, NONE, new[message]), np.where(self.is_second, NONE, old[message])
        self.new, self.old, self.commits = new, old, commits
        exists = new != NONE
        is_insert = (kinds == INSERT) | self.is_second
        self.op = np.where(exists, np.where(is_insert, OP_INSERT, OP_UPDATE), OP_DELETE).astype(np.uint8)
        self.keys = new_keys
        if not exists.all():
            rows = np.where(exists, new, len(new_keys) + old)
            self.keys = pa.concat_arrays([new_keys, old_keys]).take(pa.array(rows))

    def fill(self, before: Ints) -> None:
        """Unchanged cells from the change before of the same row; `before`: its number by change, or NONE."""
        rows = np.flatnonzero(self.new != NONE)
        for column in range(self._width):
            is_marked = np.zeros(len(self.new), np.bool_)
            is_marked[rows] = self._new.kinds[column, self.new[rows]] == UNCHANGED
            if not is_marked.any():
                continue
            source = np.where(is_marked & (before != NONE), before, np.arange(len(before)))
            while not np.array_equal(further := source[source], source):
                source = further
            known = np.flatnonzero(is_marked & ~is_marked[source])
            self._move(column, self._new, self.new[source[known]], self.new[known])

    # -- what they look like

    def values(self, new: Ints) -> pa.BinaryArray:
        """New rows; empty for NONE."""
        starts, ends, there = _bounds(self._new, new)
        found = self._view.take(starts, ends, None)
        if not self._is_moved.any():
            return found
        rebuilt = there.copy()
        rebuilt[there] = self._is_moved[new[there]]
        rows = new[rebuilt]
        begins = self._new.begins[rows]
        cells = [(self._new.starts[column, rows], self._new.ends[column, rows]) for column in range(self._width)]
        return _replaced(found, rebuilt, joined(self._view, [(begins, begins + COUNT), *cells]))

    def old_values(self, old: Ints, known_by: Ints) -> pa.BinaryArray:
        """Old rows; for NONE, the key of the new row `known_by` and marks; null where that is NONE, too."""
        starts, ends, there = _bounds(self._old, old)
        if not there.any() and (known_by == NONE).all():
            return pa.nulls(len(old), pa.binary())
        found = self._view.take(starts, ends, None if there.all() else there)
        keys_alone = ~there & (known_by != NONE)
        return _replaced(found, keys_alone, self._keys_alone(known_by[keys_alone])) if keys_alone.any() else found

    def _keys_alone(self, new: Ints) -> pa.BinaryArray:
        """Rows of which only the key is known."""
        marks_at = len(self._view.data)
        view = view_of(np.append(self._view.data, np.full(self._width, UNCHANGED, np.uint8)))
        begins = self._new.begins[new]
        pieces: list[Piece] = [(begins, begins + COUNT)]
        at = 0
        for run in [*runs(self._identity), [self._width]]:
            if run[0] > at:
                pieces.append((np.full(len(new), marks_at), np.full(len(new), marks_at + run[0] - at)))
            if run[0] < self._width:
                pieces.append((self._new.starts[run[0], new], self._new.ends[run[-1], new]))
            at = run[-1] + 1
        return joined(view, pieces)


def likeness(relation: Relation, identity: Sequence[int]) -> Likeness:
    """Give what it is that matters here; `identity`: as of LocatedRows."""
    return relation.replica_identity, tuple(identity), tuple(column.is_identity for column in relation.columns)


def _numbered(chosen: Mask) -> Ints:
    """How many were chosen before, NONE for those that are not."""
    return np.where(chosen, np.cumsum(chosen) - 1, NONE)


def _bounds(tuples: Tuples, rows: Ints) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Mask]:
    """Where rows begin and end, which is the same for NONE; and which are not NONE."""
    there = rows != NONE
    if there.all():
        return tuples.begins[rows].astype(np.int32), tuples.behind[rows].astype(np.int32), there
    starts, ends = np.zeros((2, len(rows)), np.int32)
    starts[there], ends[there] = tuples.begins[rows[there]], tuples.behind[rows[there]]
    return starts, ends, there


def _replaced(values: pa.BinaryArray, chosen: Mask, by: pa.BinaryArray) -> pa.BinaryArray:
    return pc.replace_with_mask(values, pa.array(chosen), by)


def _check(good: Mask) -> None:
    if not good.all():
        raise broken_stream("A message of pgoutput is no insert, update or delete of a row.")
