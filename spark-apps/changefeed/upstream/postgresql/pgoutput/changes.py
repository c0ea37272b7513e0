"""Turns the row messages of committed transactions into net changes, for all rows of a relation at once.

- *A key* is the cells of the identity's columns as they came, one behind the other: no cell is the beginning of
  another, so different keys differ. They sort by the length of the first value, then by its bytes. The identity is the
  replica identity; under FULL, the primary key that the caller names, or else the whole row.
- *One change per row and commit*: what the row was before its first change, and what it is after its last one.
- *An update of the key* is a delete and an insert.
- *A value that the server leaves out* because it is large and has not changed is taken from the old row, or from the
  change before it of the same transaction. Where neither has it, its mark (tuples.UNCHANGED) stays.
- *An old row* of which the server sends the key alone, or nothing, has the mark in all other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.errors import NeedsHuman
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.model.rows import RAW_SCHEMA
from changefeed.upstream.binary_view import Ints
from changefeed.upstream.postgresql.pgoutput.held_rows import Part
from changefeed.upstream.postgresql.pgoutput.large import RowHashes, row_by_row
from changefeed.upstream.postgresql.pgoutput.located_rows import NONE, Likeness, LocatedRows, likeness
from changefeed.upstream.postgresql.pgoutput.messages import Relation
from changefeed.upstream.postgresql.pgoutput.netting import Chains, chains, out_of_order, row_hashes
from changefeed.upstream.postgresql.pgoutput.row_messages import RowMessages
from changefeed.upstream.postgresql.pgoutput.tuples import view_of
from changefeed.upstream.scratch import Scratch

Ops = npt.NDArray[np.uint8]
#: A table with no more rows is looked at together with those that are like it: a hundred calls into numpy cost what so
#: many rows do.
FEW_ROWS = 1 << 10
#: The names of the primary key of a relation whose replica identity is FULL, () if it has none. None: nobody wants rows
#: of the relation, whatever its identity is.
PrimaryKey = Callable[[Relation], Sequence[str] | None]


@dataclass(frozen=True)
class NetChanges:
    """Net changes of rows of one version of a table, in no order. `commits`: by number. See RAW_SCHEMA for the rest."""

    relation: Relation
    commits: Ints
    op: Ops
    key: pa.BinaryArray
    value: pa.BinaryArray
    old_value: pa.BinaryArray

    def batch(self, span_id: int, ts: npt.NDArray[np.uint64]) -> pa.RecordBatch:
        """As RAW_SCHEMA. `ts`: of each commit; no transaction has one of its beginning, so start_ts is the same."""
        rows = len(self.op)
        commit_ts = pa.array(ts[self.commits])
        span, no_source = pa.array(np.full(rows, span_id, np.uint64)), pa.array(np.zeros(rows, np.uint64))
        op = pa.array(self.op)
        columns = [span, commit_ts, commit_ts, op, self.key, self.value, self.old_value, no_source]
        return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def changes_of(
    parts: Sequence[Part], relations: Sequence[Relation], primary_key: PrimaryKey, scratch: Scratch | None = None
) -> Iterator[NetChanges]:
    """The net changes of transactions that may go on from part to part, of which one at a time is in memory.

    Raises ProtocolViolation for what is no row, NeedsHuman for a table whose rows look alike, Unavailable.
    """
    if len(parts) > 1:
        parts = row_by_row(parts, lambda part: _hashes(part, relations, primary_key), scratch)
    for part in parts:
        for versions in _by_table(part(), relations, primary_key, few=FEW_ROWS):
            yield from _Net(versions, relations).changes()


def _by_table(
    messages: RowMessages, relations: Sequence[Relation], primary_key: PrimaryKey, few: int = 0
) -> Iterable[list[LocatedRows]]:
    """The rows of each table, by its versions; those of tables that have `few` and are alike, together."""
    view, counts = view_of(messages.data), np.bincount(messages.relations)
    versions: dict[int, list[int]] = {}
    identities: dict[int, list[int]] = {}
    for number in np.flatnonzero(counts).tolist():
        relation = relations[number]
        if (names := primary_key(relation)) is not None:
            identities[number] = _identity(relation, names)
            versions.setdefault(relation.oid, []).append(number)
    alike: dict[Likeness | int, list[int]] = {}
    for oid, numbers in versions.items():
        first = numbers[0]
        is_small = len(numbers) == 1 and counts[first] <= few
        alike.setdefault(likeness(relations[first], identities[first]) if is_small else oid, []).extend(numbers)
    for which, numbers in alike.items():
        together = [numbers] if isinstance(which, tuple) else [[number] for number in numbers]
        yield [LocatedRows(view, relations[of[0]], identities[of[0]], messages, of) for of in together]


def _hashes(messages: RowMessages, relations: Sequence[Relation], primary_key: PrimaryKey) -> RowHashes:
    first, links = np.zeros(len(messages.starts), np.uint64), []
    for versions in _by_table(messages, relations, primary_key):
        for rows in versions:
            hashes = row_hashes(rows.commits, rows.keys, rows.relation.oid) | np.uint64(1)
            second = np.flatnonzero(rows.is_second)
            first[rows.numbers[~rows.is_second]] = hashes[~rows.is_second]
            links.append(np.stack([hashes[second - 1], hashes[second]]))
    return RowHashes(first, np.concatenate([np.zeros((2, 0), np.uint64), *links], axis=1))


def _identity(relation: Relation, primary_key: Sequence[str]) -> list[int]:
    """The positions of the columns by which rows are told apart."""
    names = primary_key if relation.replica_identity == "f" else ()
    columns = relation.columns
    if missing := set(names) - {column.name for column in columns}:
        raise _alike(relation, f"its primary key's {', '.join(sorted(missing))} is not published")
    found = [n for n, column in enumerate(columns) if (column.name in names if names else column.is_identity)]
    if not found:
        raise _alike(relation, "its replica identity is empty")
    return found


def _alike(relation: Relation, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"rows of table {relation.full_name} can't be told apart: {why}.",
        "Give it a primary key whose columns are all published, then start the changefeed again.",
    )


class _Net:
    """All changes of one table in their order: change i is number `local[i]` of those of version `version[i]`.

    Or those of several tables, in one version each.
    """

    def __init__(self, versions: list[LocatedRows], relations: Sequence[Relation]) -> None:
        self._versions, self._relations = versions, relations
        numbers = np.concatenate([rows.numbers for rows in versions])
        self._version = np.repeat(np.arange(len(versions)), [len(rows.numbers) for rows in versions])
        self._local = np.concatenate([np.arange(len(rows.numbers)) for rows in versions])
        self._commits = np.concatenate([rows.commits for rows in versions])
        self._op = np.concatenate([rows.op for rows in versions])
        self._keys = pa.concat_arrays([rows.keys for rows in versions]) if len(versions) > 1 else versions[0].keys
        if len(versions) > 1:
            order = np.argsort(numbers, kind="stable")
            self._version, self._local = self._version[order], self._local[order]
            self._commits, self._op, self._keys = (
                self._commits[order],
                self._op[order],
                self._keys.take(pa.array(order)),
            )

    def changes(self) -> list[NetChanges]:
        found = chains(self._transactions(), self._keys)
        if found is None:
            firsts = lasts = np.arange(len(self._op))
        else:
            self._check(found)
            self._fill(found)
            firsts, lasts = found.firsts, found.lasts
        existed, exists = self._op[firsts] != OP_INSERT, self._op[lasts] != OP_DELETE
        shown = np.where(exists, lasts, firsts)  # of whose version the change is
        op = np.where(exists, np.where(existed, OP_UPDATE, OP_INSERT), OP_DELETE).astype(np.uint8)
        made: list[NetChanges] = []
        for number, rows in enumerate(self._versions):
            chosen = (self._version[shown] == number) & (existed | exists)
            if chosen.all() and found is None:
                made += self._changes(rows, op, firsts, shown, self._keys)
            elif chosen.any():
                keys = self._keys.take(pa.array(shown[chosen]))
                made += self._changes(rows, op[chosen], firsts[chosen], shown[chosen], keys)
        return made

    def _transactions(self) -> Ints:
        """By change, a number for its transaction in its table."""
        rows = self._versions[0]
        return self._commits * len(self._relations) + rows.relations if rows.is_mixed else self._commits

    def _changes(
        self, rows: LocatedRows, op: Ops, firsts: Ints, shown: Ints, keys: pa.BinaryArray
    ) -> Iterator[NetChanges]:
        at = self._local[shown]
        new = np.where(op == OP_DELETE, NONE, rows.new[at])
        # An old row of another version is known by its key alone.
        is_same = self._version[firsts] == self._version[shown]
        old = np.where((op != OP_INSERT) & is_same, rows.old[np.where(is_same, self._local[firsts], 0)], NONE)
        known_by = np.where(op == OP_INSERT, NONE, rows.new[at])
        values, old_values = rows.values(new), rows.old_values(old, known_by)
        commits = self._commits[shown]
        if not rows.is_mixed:
            yield NetChanges(rows.relation, commits, op, keys, values, old_values)
            return
        order = np.argsort(rows.relations[at], kind="stable")
        relations, commits, op = rows.relations[at][order], commits[order], op[order]
        columns = [column.take(pa.array(order)) for column in (keys, values, old_values)]
        edges = np.flatnonzero(np.diff(relations)) + 1
        for first, end in pairwise([0, *edges.tolist(), len(order)]):
            parts = [column.slice(first, end - first) for column in columns]
            yield NetChanges(self._relations[relations[first]], commits[first:end], op[first:end], *parts)

    def _check(self, found: Chains) -> None:
        wrong = out_of_order(found, self._op)
        if len(wrong):
            rows = self._versions[self._version[wrong[0]]]
            relation = self._relations[rows.relations[self._local[wrong[0]]]]
            raise _alike(relation, f"a transaction changes two with the key {self._keys[wrong[0]].as_py()!r}")

    def _fill(self, found: Chains) -> None:
        """Values left out, from the change before in the same transaction."""
        before = found.before
        for number, rows in enumerate(self._versions):
            own = np.flatnonzero(self._version == number)  # their order is also that of `local`
            ahead = before[own]
            # What an update of the key inserts is the row that it deletes.
            ahead = np.where(rows.is_second, np.append(NONE, ahead[:-1]), ahead)
            is_same = (ahead != NONE) & (self._version[ahead] == number)
            rows.fill(np.where(is_same, self._local[ahead], NONE))
