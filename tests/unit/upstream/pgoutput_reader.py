"""A slow and obvious reader of a replication stream, and a writer of such streams: the oracles of pgoutput's tests.

A row is a list of its columns' texts; None is NULL, UNCHANGED a large value that the server leaves out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from changefeed.upstream.postgresql.pgoutput.messages import Commit
from changefeed.upstream.postgresql.pgoutput.transactions import TransactionStream
from changefeed.upstream.scratch import Scratch


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = _Unchanged()
Cell = str | None | _Unchanged
Row = list[Cell]
#: What a commit makes of a row: its op, what it is and what it was.
Net = tuple[str, Row | None, Row | None]
#: By table and key.
Nets = dict[tuple[str, tuple[Cell, ...]], Net]
PrimaryKey = Callable[[Any], tuple[str, ...]]


@dataclass
class Table:
    """As a Relation message describes it. `columns`: (name, type OID, typmod, whether it is in the identity)."""

    oid: int
    name: str
    identity: str
    columns: list[tuple[str, int, int, bool]]


@dataclass
class Transaction:
    """`steps`: of one row each, (table, kind of old row, old row, new row), or a Truncate's OIDs."""

    xid: int
    steps: list[Any] = field(default_factory=list)
    lsn: int = 0


@dataclass
class _Step:
    kind: str
    table: Table
    old_kind: str
    old: Row | None
    new: Row | None


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> Any:
        found = struct.unpack_from(">" + layout, self.data, self.at)
        self.at += struct.calcsize(">" + layout)
        return found[0] if len(found) == 1 else found

    def text(self) -> str:
        end = self.data.index(0, self.at)
        found = self.data[self.at : end].decode()
        self.at = end + 1
        return found

    def row(self) -> Row:
        return [self._cell() for _ in range(self.take("H"))]

    def _cell(self) -> Cell:
        kind = self.take("c")
        if kind == b"n":
            return None
        if kind == b"u":
            return UNCHANGED
        assert kind == b"t"
        size = self.take("I")
        self.at += size
        return self.data[self.at - size : self.at].decode()


def row_of(data: bytes) -> Row:
    """TupleData."""
    cursor = _Cursor(data)
    row = cursor.row()
    assert cursor.at == len(data)
    return row


def cells_of(key: bytes) -> tuple[Cell, ...]:
    """The texts of a key."""
    cursor = _Cursor(key)
    cells = []
    while cursor.at < len(key):
        cells.append(cursor._cell())
    return tuple(cells)


def payloads(stream: bytes) -> Iterator[bytes]:
    """What is in the stream's XLogData."""
    at = 0
    while at < len(stream):
        size = int.from_bytes(stream[at + 1 : at + 5])
        body = stream[at + 5 : at + 1 + size]
        at += 1 + size
        if body[:1] == b"w":
            yield body[25:]


class _Reader:
    """Takes one message after the other; `commits` has what is committed, in that order."""

    def __init__(self) -> None:
        self.commits: list[Transaction] = []
        self._tables: dict[int, Table] = {}
        self._open = Transaction(0)

    def message(self, message: bytes) -> None:
        cursor = _Cursor(message)
        kind = cursor.take("c").decode()
        if kind == "R":
            table = _table(cursor)
            self._tables[table.oid] = table
        elif kind in "IUD":
            self._open.steps.append(_step(kind, self._tables[cursor.take("I")], cursor))
            assert cursor.at == len(message)
        elif kind == "T":
            count, _ = cursor.take("IB")
            self._open.steps.append([cursor.take("I") for _ in range(count)])
        elif kind == "B":
            self._open = Transaction(cursor.take("QqI")[2])
        elif kind == "C":
            self._open.lsn = cursor.take("BQQq")[1]
            self.commits.append(self._open)


def _table(cursor: _Cursor) -> Table:
    oid, schema, name = cursor.take("I"), cursor.text(), cursor.text()
    identity, count = cursor.take("cH")
    columns = []
    for _ in range(count):
        is_key, column = cursor.take("B"), cursor.text()
        columns.append((column, *cursor.take("Ii"), bool(is_key)))
    return Table(oid, f"{schema}.{name}", identity.decode(), columns)


def _step(kind: str, table: Table, cursor: _Cursor) -> _Step:
    step = _Step(kind, table, "", None, None)
    tag = cursor.take("c").decode()
    if tag in "KO":
        step.old_kind, step.old = tag, cursor.row()
        tag = cursor.take("c").decode() if kind == "U" else ""
    if tag == "N":
        step.new = cursor.row()
    return step


def transactions(stream: bytes) -> list[Transaction]:
    """Those that are committed, in that order."""
    reader = _Reader()
    for message in payloads(stream):
        reader.message(message)
    return reader.commits


@dataclass
class _State:
    """A row in a transaction: what it was, and is, with the table's version then."""

    was: Row | None
    was_table: Table
    now: Row | None
    now_table: Table


def _identity(table: Table, primary_key: PrimaryKey) -> list[bool]:
    """Which columns are in the key."""
    names = primary_key(table) if table.identity == "f" else ()
    return [name in names if names else is_identity for name, _, _, is_identity in table.columns]


def _only(row: Row, kept: list[bool]) -> Row:
    return [cell if keep else UNCHANGED for cell, keep in zip(row, kept, strict=True)]


def _filled(row: Row, by: Row | None) -> Row:
    """Without marks where `by` has the value."""
    if by is None:
        return row
    return [other if cell is UNCHANGED and other is not None else cell for cell, other in zip(row, by, strict=True)]


def net(transaction: Transaction, primary_key: PrimaryKey = lambda table: ()) -> Nets:
    """What a transaction makes of each row, step by step."""
    states: dict[Any, _State] = {}
    for step in transaction.steps:
        if isinstance(step, list):
            states = {key: state for key, state in states.items() if state.now_table.oid not in step}
        else:
            _apply(states, step, _identity(step.table, primary_key))
    found: Nets = {}
    for key, state in states.items():
        was, now = state.was, state.now
        if was is not None and now is not None and state.was_table != state.now_table:
            was = _only(now, _identity(state.now_table, primary_key))  # it is known by its key
        if was is not None or now is not None:
            found[key] = ("delete" if now is None else "insert" if was is None else "update"), now, was
    return found


def _apply(states: dict[Any, _State], step: _Step, is_key: list[bool]) -> None:
    table, old, new = step.table, step.old, step.new

    def key_of(row: Row) -> Any:
        return table.name, tuple(cell for cell, keep in zip(row, is_key, strict=True) if keep)

    if step.old_kind == "K":
        assert old is not None
        old = _only(old, [column[3] for column in table.columns])
    if new is not None and old is not None:
        new = _filled(new, [None if cell is UNCHANGED else cell for cell in old])
    if step.kind == "U" and old is None:
        assert new is not None
        old = _only(new, is_key)
    if old is not None and new is not None:
        state = states.get(key_of(old))
        new = _filled(new, state.now) if state and state.now_table == table else new
    both = old is not None and new is not None
    if both and key_of(old) == key_of(new):
        _set(states, key_of(new), old, new, table)
        return
    if old is not None:
        _set(states, key_of(old), old, None, table)
    if new is not None:
        _set(states, key_of(new), None, new, table)


def _set(states: dict[Any, _State], key: Any, old: Row | None, new: Row | None, table: Table) -> None:
    if key in states:
        state = states[key]
        assert (state.now is None) == (old is None), "a row is inserted that is there, or changed that is not"
        state.now, state.now_table = new, table
    else:
        states[key] = _State(old, table, new, table)


def read(
    stream: bytes,
    cuts: list[int],
    primary_key: PrimaryKey = lambda table: (),
    scratch: Scratch | None = None,
) -> list[tuple[int, Nets]]:
    """The same by the product, that gets the stream in pieces: LSN and changes of each commit."""
    machine = TransactionStream(primary_key, scratch)
    found: list[tuple[int, Nets]] = []
    bounds = [0, *sorted(cuts), len(stream)]
    for start, end in pairwise(bounds):
        got = machine.take(stream[start:end])
        nets: list[Nets] = [{} for event in got.events if isinstance(event, Commit)]
        for changes in got.changes:
            columns = (changes.commits.tolist(), changes.op.tolist())
            rows = (changes.key.to_pylist(), changes.value.to_pylist(), changes.old_value.to_pylist())
            for commit, op, key, value, old in zip(*columns, *rows, strict=True):
                name = ("delete", "update", "insert")[op]
                where = changes.relation.full_name, cells_of(key)
                assert where not in nets[commit], "two changes of one row"
                nets[commit][where] = name, (row_of(value) if value else None), (None if old is None else row_of(old))
        lsns = [event.lsn for event in got.events if isinstance(event, Commit)]
        found += zip(lsns, nets, strict=True)
    return found
