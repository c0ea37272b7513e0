"""Puts the messages of a replication stream together to transactions: bytes in, commits and their net changes out.

A state machine without socket or clock. It begins with the stream, and a new stream wants a new one.

- A transaction comes in whole, from its Begin to its Commit, and nothing comes between: the server is not asked to
  stream what is still open.
- The server describes a table (Relation) before its first row, and again after it may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from changefeed.errors import ProtocolViolation
from changefeed.upstream.binary_view import Ints, Mask
from changefeed.upstream.postgresql.failures import broken_stream
from changefeed.upstream.postgresql.pgoutput import messages
from changefeed.upstream.postgresql.pgoutput.changes import NetChanges, PrimaryKey, changes_of
from changefeed.upstream.postgresql.pgoutput.frames import KEEP_ALIVE, CopyMessages, CopyStream, Reply
from changefeed.upstream.postgresql.pgoutput.held_rows import HeldRows, Part
from changefeed.upstream.postgresql.pgoutput.messages import (
    Body,
    Commit,
    KeepAlive,
    LogicalMessage,
    Relation,
    Truncate,
)
from changefeed.upstream.postgresql.pgoutput.row_messages import DELETE, INSERT, UPDATE, RowMessages
from changefeed.upstream.postgresql.pgoutput.tuples import view_of
from changefeed.upstream.scratch import Scratch

Event = Commit | LogicalMessage | Relation | Truncate | KeepAlive

_IS_ROW = np.zeros(256, np.bool_)
_IS_ROW[[INSERT, UPDATE, DELETE]] = True


def no_primary_key(relation: Relation) -> Sequence[str]:
    """The whole row is the key."""
    return ()


@dataclass(frozen=True)
class Arrival:
    """What some bytes have brought.

    `events`, in their order: a Relation when a table is described for the first time or otherwise than before, or again
    with the replica identity FULL, as it does not say the primary key; what a transaction brings beside its rows, then
    its Commit. `changes`, to be read once: their `commits` count the commits
    among the events.
    """

    events: list[Event]
    changes: Iterator[NetChanges]
    replies: list[Reply]


class TransactionStream:
    """`primary_key` tells rows apart whose table has the replica identity FULL; it is asked for each part of a large
    transaction. `scratch`: for what memory has no room for.
    """

    def __init__(self, primary_key: PrimaryKey = no_primary_key, scratch: Scratch | None = None) -> None:
        self._primary_key, self._scratch = primary_key, scratch
        self._frames = CopyStream()
        self._relations: list[Relation] = []
        self._number_of: dict[Relation, int] = {}
        self._current: dict[int, int] = {}  # by OID: the number of the relation
        self._held = HeldRows(scratch)
        self._xid: int | None = None  # of the transaction that is open
        self._begun = 0  # transactions
        self._over = 0  # transactions
        self._arrived = self._frames.take(b"")
        self._start(self._arrived)
        self._readers: dict[int, Callable[[Body], None]] = {
            ord("B"): self._begin,
            ord("C"): self._commit,
            ord("R"): self._relation,
            ord("T"): self._truncate,
            ord("M"): self._message,
            ord("O"): _ignore,  # where a transaction was first, before it was replicated to this server
            ord("Y"): _ignore,  # what a type is called
            KEEP_ALIVE: self._keep_alive,
        }

    def take(self, data: bytes) -> Arrival:
        """Raises ProtocolViolation when it is no such stream; NeedsHuman for rows that can't be told apart.

        Unavailable: the scratch has failed.
        """
        arrived = self._frames.take(data)
        is_row = self._start(arrived)
        control = np.flatnonzero(~is_row)
        rows_ahead = control - np.arange(len(control))
        columns = (rows_ahead, arrived.kinds[control], arrived.starts[control], arrived.ends[control])
        over = self._over
        ahead: int
        for ahead, kind, start, end in zip(*(column.tolist() for column in columns), strict=True):
            if (reader := self._readers.get(kind)) is None:
                raise _violation(f"a message of the unknown kind {chr(kind)!r}")
            self._ahead = ahead
            reader(Body(arrived.data, start, end))
        self._ahead = len(self._row_at)
        self._no_row_beside()
        self._assign()
        parts = [partial(_counted, part, over) for part in self._held.take(self._over)] if self._over > over else []
        self._held.shrink()
        changes = changes_of(parts, self._relations, self._primary_key, self._scratch)
        return Arrival(self._events, changes, arrived.replies)

    def _start(self, arrived: CopyMessages) -> Mask:
        """Begin with new messages; tell which are rows."""
        self._arrived, self._view = arrived, view_of(arrived.data)
        is_row: Mask = _IS_ROW[arrived.kinds]
        self._row_at: Ints = np.flatnonzero(is_row)
        self._ahead = self._assigned = self._ended = 0  # rows: ahead of what is read, assigned, ahead of the last end
        self._begins: list[int] = []  # how many rows were ahead
        self._events: list[Event] = []
        return is_row

    # -- rows

    def _assign(self) -> None:
        """The rows since the last time belong to transactions, and have the definitions of now."""
        at = self._row_at[self._assigned : self._ahead]
        if len(at):
            arrived = self._arrived
            starts, ends, kinds = arrived.starts[at], arrived.ends[at], arrived.kinds[at]
            numbers = np.arange(self._assigned, self._ahead)
            commits = np.searchsorted(self._begins, numbers, side="right") + (self._begun - len(self._begins) - 1)
            relations = self._relations_of(starts, ends)
            self._held.add(RowMessages(arrived.data, starts, ends, kinds, relations, commits))
        self._assigned = self._ahead

    def _relations_of(self, starts: Ints, ends: Ints) -> Ints:
        """The number of each row's relation."""
        if (starts + 5 > ends).any():
            raise _violation("a row without its table")
        oids = (self._view.read(starts + 1, 4).byteswap() >> np.uint64(32)).astype(np.int64)
        known = np.array(sorted(self._current), np.int64)
        numbers = np.array([self._current[oid] for oid in known.tolist()], np.int64)
        at = np.minimum(np.searchsorted(known, oids), max(len(known) - 1, 0))
        if not len(known) or (known[at] != oids).any():
            unknown = next(oid for oid in oids.tolist() if oid not in self._current)
            raise _violation(f"rows of the table with OID {unknown}, which it has not described")
        found: Ints = numbers[at]
        return found

    def _no_row_beside(self) -> None:
        if self._xid is None and self._ahead > self._ended:
            raise _violation("a row without its transaction")

    # -- messages

    def _begin(self, body: Body) -> None:
        self._no_row_beside()
        if self._xid is not None:
            raise _violation("the beginning of a transaction within another")
        self._xid = messages.begin_xid(body)
        self._begun += 1
        self._begins.append(self._ahead)

    def _commit(self, body: Body) -> None:
        if self._xid is None:
            raise _violation("the end of a transaction that has not begun")
        self._events.append(messages.commit(body, self._xid))
        self._xid, self._ended = None, self._ahead
        self._over += 1

    def _relation(self, body: Body) -> None:
        self._assign()
        relation = messages.relation(body)
        number = self._number_of.setdefault(relation, len(self._relations))
        if number == len(self._relations):
            self._relations.append(relation)
        if self._current.get(relation.oid) != number or relation.replica_identity == "f":
            self._current[relation.oid] = number
            self._events.append(relation)

    def _truncate(self, body: Body) -> None:
        self._assign()
        found = messages.truncate(body, self._xid or 0)
        emptied = [number for number, relation in enumerate(self._relations) if relation.oid in found.oids]
        self._held.empty(self._begun - 1, emptied)
        self._events.append(found)

    def _message(self, body: Body) -> None:
        self._events.append(messages.logical_message(body, self._xid or 0))

    def _keep_alive(self, body: Body) -> None:
        self._events.append(messages.keep_alive(body))


def _ignore(body: Body) -> None:
    """It says nothing about rows."""


def _counted(part: Part, first: int) -> RowMessages:
    return part().counted_from(first)


def _violation(what: str) -> ProtocolViolation:
    return broken_stream(f"The server's stream has {what}.")
