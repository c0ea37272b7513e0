"""Puts the messages of a replication stream together to transactions: bytes in, commits and their net changes out.

A state machine without socket or clock. It begins with the stream, and a new stream wants a new one.

- A plain transaction comes in whole, from its Begin to its Commit, and nothing comes between.
- One that is larger than the server's logical_decoding_work_mem is *streamed*: it comes in blocks, from Stream Start to
  Stream Stop, as it goes on; of others in between. Each of its messages says of which subtransaction it is. Stream
  Abort takes a subtransaction back, or all; Stream Commit makes it count.
- The server describes a table (Relation) before its first row, and again after it may have changed. To a streamed
  transaction it describes tables anew; these versions are the transaction's own until it commits, and from then on
  everybody's, unless there is a later description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from changefeed.errors import ProtocolViolation
from changefeed.upstream.binary_view import BinaryView, Ints, Mask
from changefeed.upstream.postgresql.failures import broken_stream
from changefeed.upstream.postgresql.pgoutput import messages
from changefeed.upstream.postgresql.pgoutput.changes import NetChanges, PrimaryKey, changes_of
from changefeed.upstream.postgresql.pgoutput.frames import KEEP_ALIVE, CopyMessages, CopyStream, Reply
from changefeed.upstream.postgresql.pgoutput.held_rows import Held, StreamedRows
from changefeed.upstream.postgresql.pgoutput.messages import (
    Body,
    Commit,
    KeepAlive,
    LogicalMessage,
    Relation,
    Truncate,
)
from changefeed.upstream.postgresql.pgoutput.row_messages import DELETE, INSERT, UPDATE, RowMessages, gathered
from changefeed.upstream.postgresql.pgoutput.tuples import view_of

Event = Commit | LogicalMessage | Relation | Truncate | KeepAlive

_PART_BYTES = 64 << 20  # of rows that are looked at together
_XID = 4  # bytes, in each message of a streamed transaction
_IS_ROW = np.zeros(256, np.bool_)
_IS_ROW[[INSERT, UPDATE, DELETE]] = True


def no_primary_key(relation: Relation) -> Sequence[str]:
    """The whole row is the key."""
    return ()


@dataclass(frozen=True)
class Arrival:
    """What some bytes have brought.

    `events`, in their order: a Relation when a table is described for the first time or otherwise than before, what a
    transaction brings beside its rows, then its Commit. `changes`, to be read once: their `commits` count the commits
    among the events.
    """

    events: list[Event]
    changes: Iterator[NetChanges]
    replies: list[Reply]


@dataclass(frozen=True)
class _Emptied:
    """Rows of tables with these numbers are gone by a Truncate; `xid`: the subtransaction that it belongs to."""

    numbers: range
    oids: tuple[int, ...]
    xid: int


@dataclass
class _Streamed:
    """What is known of an open streamed transaction beside its rows.

    `versions`: by OID, the numbers of the relation and of its description. `events`: with the subtransaction's xid.
    """

    first: int
    versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    events: list[tuple[int, Event]] = field(default_factory=list)
    emptied: list[_Emptied] = field(default_factory=list)


class TransactionStream:
    """`primary_key` tells rows apart whose table has the replica identity FULL. `streamed` keeps large transactions."""

    def __init__(self, primary_key: PrimaryKey = no_primary_key, streamed: StreamedRows | None = None) -> None:
        self.streamed = StreamedRows() if streamed is None else streamed
        self._primary_key = primary_key
        self._frames = CopyStream()
        self._relations: list[Relation] = []
        self._number_of: dict[Relation, int] = {}
        self._versions: dict[int, tuple[int, int]] = {}  # as _Streamed's, of plain transactions
        self._descriptions = 0
        self._rows = 0  # that have been assigned to their transactions
        self._open: list[Held] = []  # of the plain transaction that is not over, and of those that are
        self._emptied: list[_Emptied] = []  # of these
        self._xid = 0  # of the plain transaction
        self._first = 0  # its first row
        self._block: int | None = None  # the streamed transaction whose block it is
        self._streams: dict[int, _Streamed] = {}
        self._arrived = self._frames.take(b"")
        self._start(self._arrived)
        self._readers: dict[int, Callable[[Body], None]] = {
            ord("B"): self._begin,
            ord("C"): self._commit,
            ord("R"): self._relation,
            ord("T"): self._truncate,
            ord("M"): self._message,
            ord("S"): self._stream_start,
            ord("E"): self._stream_stop,
            ord("c"): self._stream_commit,
            ord("A"): self._stream_abort,
            ord("O"): _ignore,  # where a transaction was first, before it was replicated to this server
            ord("Y"): _ignore,  # what a type is called
            KEEP_ALIVE: self._keep_alive,
        }

    def take(self, data: bytes) -> Arrival:
        """Raises ProtocolViolation when it is no such stream; NeedsHuman for rows that can't be told apart."""
        arrived = self._frames.take(data)
        is_row = self._start(arrived)
        control = np.flatnonzero(~is_row)
        rows_ahead = control - np.arange(len(control))
        columns = (rows_ahead, arrived.kinds[control], arrived.starts[control], arrived.ends[control])
        ahead: int
        for ahead, kind, start, end in zip(*(column.tolist() for column in columns), strict=True):
            if (reader := self._readers.get(kind)) is None:
                raise _violation(f"a message of the unknown kind {chr(kind)!r}")
            self._ahead = ahead
            reader(Body(arrived.data, start, end))
        self._ahead = len(self._row_at)
        self._assign()
        self._end_plain()
        changes = changes_of(gathered(self._ready, _PART_BYTES), self._relations, self._primary_key)
        return Arrival(self._events, changes, arrived.replies)

    def _start(self, arrived: CopyMessages) -> Mask:
        """Begin with new messages; tell which are rows."""
        self._arrived, self._view = arrived, view_of(arrived.data)
        is_row: Mask = _IS_ROW[arrived.kinds]
        self._row_at: Ints = np.flatnonzero(is_row)
        self._ahead = self._assigned = 0  # rows: ahead of the message that is read, and assigned
        self._events: list[Event] = []
        self._commits = 0
        self._cuts: list[tuple[int, int]] = []  # of plain commits: the number behind the last row, and its own
        self._ready: list[RowMessages] = []
        return is_row

    # -- rows

    def _next(self) -> int:
        """The number of the row behind the message that is read."""
        return self._rows + self._ahead - self._assigned

    def _assign(self) -> None:
        """The rows since the last time belong to the block, or to the plain transactions."""
        at = self._row_at[self._assigned : self._ahead]
        if not len(at):
            return
        numbers = np.arange(self._rows, self._rows + len(at))
        self._assigned, self._rows = self._ahead, self._rows + len(at)
        arrived = self._arrived
        starts, ends, kinds = arrived.starts[at], arrived.ends[at], arrived.kinds[at]
        if self._block is None:
            versions = self._versions_of(starts, ends, self._versions)
            self._open.append(Held(arrived.data, starts, ends, kinds, versions, numbers, np.zeros(len(at), np.int64)))
        else:
            if (starts + 1 + _XID > ends).any():
                raise _violation("a row without its transaction")
            xids = _big_endian(self._view, starts + 1)
            starts = starts + _XID
            versions = self._versions_of(starts, ends, self._streams[self._block].versions)
            self.streamed.add(self._block, Held(arrived.data, starts, ends, kinds, versions, numbers, xids))

    def _versions_of(self, starts: Ints, ends: Ints, versions: dict[int, tuple[int, int]]) -> Ints:
        """The number of each row's relation."""
        if (starts + 5 > ends).any():
            raise _violation("a row without its table")
        oids, which = np.unique(_big_endian(self._view, starts + 1), return_inverse=True)
        if unknown := [oid for oid in oids.tolist() if oid not in versions]:
            raise _violation(f"rows of the table with OID {unknown[0]}, which it has not described")
        return np.array([versions[oid][0] for oid in oids.tolist()])[which]

    def _end_plain(self) -> None:
        """Rows of the plain transactions that are over are ready."""
        if not self._cuts:
            return
        behind, commits = np.array(self._cuts).T
        held, self._open = self._open, []
        for rows in held:
            here = int(np.searchsorted(rows.numbers, behind[-1]))
            if here:
                ready = rows.only(slice(0, here)) if here < len(rows.numbers) else rows
                ready = self._left(ready, self._emptied)
                self._ready.append(ready.of_commits(commits[np.searchsorted(behind, ready.numbers, side="right")]))
            if here < len(rows.numbers):
                self._open.append(rows.only(slice(here, None)))
        self._emptied = [emptied for emptied in self._emptied if emptied.numbers.start >= behind[-1]]

    def _left(self, rows: Held, emptied: list[_Emptied]) -> Held:
        """The rows that no Truncate behind them has removed."""
        for each in emptied:
            numbers = [number for number, relation in enumerate(self._relations) if relation.oid in each.oids]
            is_within = (rows.numbers >= each.numbers.start) & (rows.numbers < each.numbers.stop)
            rows = rows.only(~(is_within & np.isin(rows.relations, numbers)))
        return rows

    def _ended(self, commit: Commit) -> None:
        self._events.append(commit)
        self._commits += 1

    # -- messages

    def _begin(self, body: Body) -> None:
        self._xid, self._first = messages.begin_xid(body), self._next()

    def _commit(self, body: Body) -> None:
        self._cuts.append((self._next(), self._commits))
        self._ended(messages.commit(body, self._xid))

    def _relation(self, body: Body) -> None:
        self._assign()
        xid = self._of_block(body)
        relation = messages.relation(body)
        number = self._number_of.setdefault(relation, len(self._relations))
        if number == len(self._relations):
            self._relations.append(relation)
        self._descriptions += 1
        version = number, self._descriptions
        if self._block is None:
            self._describe(relation, version)
        else:
            stream = self._streams[self._block]
            stream.versions[relation.oid] = version
            stream.events.append((xid, relation))

    def _describe(self, relation: Relation, version: tuple[int, int]) -> None:
        """From now on it is everybody's, unless it is older than what everybody has."""
        known, described = self._versions.get(relation.oid, (None, 0))
        if version[1] > described:
            self._versions[relation.oid] = version
            if known != version[0]:
                self._events.append(relation)

    def _truncate(self, body: Body) -> None:
        xid = self._of_block(body)
        found = messages.truncate(body, self._xid if self._block is None else self._block)
        if self._block is None:
            self._emptied.append(_Emptied(range(self._first, self._next()), found.oids, xid))
            self._events.append(found)
        else:
            stream = self._streams[self._block]
            stream.emptied.append(_Emptied(range(stream.first, self._next()), found.oids, xid))
            stream.events.append((xid, found))

    def _message(self, body: Body) -> None:
        xid = self._of_block(body)
        found = messages.logical_message(body, self._xid if self._block is None else self._block)
        if self._block is None or not found.is_transactional:
            self._events.append(found)
        else:
            self._streams[self._block].events.append((xid, found))

    def _keep_alive(self, body: Body) -> None:
        self._events.append(messages.keep_alive(body))

    # -- streamed transactions

    def _of_block(self, body: Body) -> int:
        """The subtransaction that a message of a block belongs to; of others the transaction."""
        return self._xid if self._block is None else body.number(_XID)

    def _stream(self, xid: int) -> _Streamed:
        if xid not in self._streams:
            raise _violation(f"the end of transaction {xid}, of which nothing has been streamed")
        return self._streams[xid]

    def _stream_start(self, body: Body) -> None:
        self._assign()
        self._block = body.number(_XID)
        body.number(1)  # whether it is the transaction's first block
        body.done()
        self._streams.setdefault(self._block, _Streamed(self._rows))

    def _stream_stop(self, body: Body) -> None:
        self._assign()
        self._block = None
        body.done()

    def _stream_commit(self, body: Body) -> None:
        xid = body.number(_XID)
        stream = self._stream(xid)
        commit = messages.commit(body, xid)
        versions = {number: (number, described) for number, described in stream.versions.values()}
        for _, event in stream.events:
            if not isinstance(event, Relation):
                self._events.append(event)
            elif (number := self._number_of[event]) in versions:
                self._describe(event, versions[number])
        for rows in self.streamed.take(xid):
            left = self._left(rows, stream.emptied)
            self._ready.append(left.of_commits(np.full(len(left.numbers), self._commits)))
        del self._streams[xid]
        self._ended(commit)

    def _stream_abort(self, body: Body) -> None:
        xid, aborted = body.number(_XID), body.number(_XID)
        body.done()
        stream = self._stream(xid)
        self.streamed.drop(xid, aborted)
        if aborted == xid:
            del self._streams[xid]
        else:
            stream.events = [(of, event) for of, event in stream.events if of != aborted or isinstance(event, Relation)]
            stream.emptied = [emptied for emptied in stream.emptied if emptied.xid != aborted]


def _ignore(body: Body) -> None:
    """It says nothing about rows."""


def _big_endian(view: BinaryView, at: Ints) -> Ints:
    """The numbers of four bytes that stand there."""
    return (view.read(at, 4).byteswap() >> np.uint64(32)).astype(np.int64)


def _violation(what: str) -> ProtocolViolation:
    return broken_stream(f"The server's stream has {what}.")
