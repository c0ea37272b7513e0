"""Reads a slot's stream: rows with their ts, changes of schema, and how far it is. Blocks, so it has a thread.

It has two connections. On the second it puts anchors into the WAL while nothing comes, and asks for primary keys.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman, Transient
from changefeed.upstream.binary_view import Ints
from changefeed.upstream.contract import GATHER_SECONDS
from changefeed.upstream.postgresql.pgoutput.changes import NetChanges
from changefeed.upstream.postgresql.pgoutput.messages import Commit, KeepAlive, LogicalMessage, Relation, Truncate
from changefeed.upstream.postgresql.pgoutput.transactions import Event, TransactionStream
from changefeed.upstream.postgresql.schema.catalog import read_published
from changefeed.upstream.postgresql.schema.news import content_of
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession
from changefeed.upstream.postgresql.slot import anchors, slots
from changefeed.upstream.postgresql.slot.chain import Chain, lsn_of
from changefeed.upstream.postgresql.slot.replication import Replication, error_of
from changefeed.upstream.postgresql.slot.timelines import Crossing
from changefeed.upstream.scratch import Scratch

_WAIT_S = 0.1
#: An anchor that has not come back is followed by another after so long: the server decodes something large.
_REPEAT_S = 10.0
#: How long the slot may still be somebody's who has been cut off.
_BUSY_S, _BUSY_PAUSE_S = 5.0, 0.2


@dataclass(frozen=True)
class SlotRows:
    """Rows of one table, each with its ts, as `relation` has them. `error`: why they can't be handed on."""

    table: int
    batch: pa.RecordBatch
    error: NeedsHuman | None = None
    relation: Relation | None = None


@dataclass(frozen=True)
class SlotArrival:
    """What some bytes have brought.

    `position`: every commit at or below it is in this or was in what came before; None: no commit has a ts yet.
    `first_ts`: the lowest that any commit of the stream has. `news`: with the ts before which all is as it was. `rows`
    are looked at as they are read, in the reader's thread. `lsn`: where the record of the last commit begins.
    """

    first_ts: int | None
    position: int | None
    news: list[tuple[int, bytes]]
    rows: Iterator[SlotRows]
    lsn: int = 0


class SlotReader:
    """One stream at a time, from `open` to `close`. One thread at a time.

    `idle_s`: how long nothing is committed before it does so itself. `scratch`: for large transactions, None: they stay
    in memory. Each method raises what `failures` says.
    """

    def __init__(
        self,
        server: PostgresqlServer,
        slot: str,
        publication: str,
        idle_s: float,
        gather_s: float = GATHER_SECONDS,
        scratch: Scratch | None = None,
    ) -> None:
        self._server, self._slot, self._publication = server, slot, publication
        self._idle_s, self._gather_s, self._scratch = idle_s, gather_s, scratch
        self._born: int | None = None
        self._system_id: str | None = None
        self._session: PostgresqlSession | None = None
        self._replication: Replication | None = None
        self._primary_keys: dict[Relation, list[str]] = {}
        self._last_known: dict[int, list[str]] = {}  # by table, of those that are dropped, too
        self._unclear: set[int] = set()  # tables whose primary key nobody knows any more
        self._crossing: Crossing | None = None
        self.common_ts: int | None = None

    def open(self) -> None:
        """Begin where the slot is. Whoever began to read it earlier is cut off."""
        self.close()
        self._session = PostgresqlSession(self._server)
        slots.check_there(self._session, self._slot)
        if self._born is None:
            self._born = slots.born(self._session)
        self._replication = self._connected(self._session, self._born)
        if self._system_id not in (None, self._replication.system_id):
            raise NeedsHuman(
                f"{self._server} has the system identifier {self._replication.system_id}; the changefeed has read from "
                f"{self._system_id}.",
                "Point the changefeed to the server that it has read from, or start a new one.",
            )
        self._system_id = self._replication.system_id
        self._wanted: Set[int] = frozenset()
        self._stream = TransactionStream(self._primary_key, self._scratch)
        self._chain = Chain(self._slot)
        self._altered: list[Relation | Truncate] = []  # by the transaction that is read
        self._said: anchors.Said | None = None
        confirmed = slots.confirmed(self._session, self._slot)
        points = [point for point in self._replication.switches if point.lsn > confirmed]
        self._crossing = Crossing(self._slot, points) if points else None
        self._looked_to: int | None = None
        self.common_ts = None
        self._received = self._confirmed = 0
        self._awaited = 0  # a position: who waits for it does not want more to be gathered
        self._moved, self._emitted = time.monotonic(), float("-inf")

    def look(self) -> bool:
        """Look at what has been committed by now, if another server has taken over: True while there is more of it.

        The stream then begins anew. `common_ts` is that of Crossing, None: there is nothing to be crossed.
        """
        if (crossing := self._crossing) is None:
            return False
        assert self._session is not None, "it is open"
        if self._looked_to is None:  # by position: this server's clock may be behind the ts of the one before it
            self._looked_to = self.anchor()
        for _ in self.read(frozenset(), 0).rows:  # nothing is confirmed
            pass
        if self._chain.lsn < self._looked_to:
            return True
        assert self._replication is not None, "it is open"
        timeline = self._replication.timeline
        self.open()
        if self._replication.timeline != timeline:  # yet another server
            return True
        self._crossing, self.common_ts = None, crossing.common_ts
        return False

    def cross(self) -> None:
        """Say in the WAL that nothing has been read which this server lacks."""
        assert self._session is not None, "it is open"
        assert self._replication is not None, "it is open"
        self._session.rows(anchors.EMIT_CROSSED, crossed=str(self._replication.timeline), slot=self._slot)

    def close(self) -> None:
        """Nothing when it is not open."""
        for connection in (self._replication, self._session):
            if connection is not None:
                connection.close()
        self._replication = self._session = None

    def read(self, wanted: Set[int], needed_ts: int | None) -> SlotArrival:
        """What has come.

        `wanted`: tables, of whose rows alone something is made. `needed_ts`: as of `Chain.confirmable`.
        """
        assert self._replication is not None, "it is open"
        self._wanted = wanted
        self._move_on()
        gather_s = self._gather_s if self._chain.lsn >= self._awaited else 0.0
        arrived = self._stream.take(self._replication.read(_WAIT_S, gather_s))
        for reply in arrived.replies:
            if error := error_of(str(self._server), reply.kind, reply.body):
                raise error
        heard, ts = self._events(arrived.events)
        if (position := self._chain.confirmable(needed_ts)) > self._confirmed:
            self._confirmed = position
            self._replication.confirm(self._received, position)
        rows = self._rows(arrived.changes, np.array(ts, np.uint64))
        return SlotArrival(self._chain.first_ts, self._chain.last_ts, heard, rows, self._chain.lsn)

    def tell(self) -> None:
        """Who does not read for a while calls it, or the server takes us for dead."""
        if self._replication is not None:
            self._replication.tell()

    def anchor(self) -> int:
        """Put an anchor into the WAL; gives a position that is behind all commits so far, and ahead of its own."""
        if self._session is None:
            raise Transient(f"{self._server}: its stream is not read now.", "It is begun again.")
        ((_, lsn),) = self._session.rows(anchors.EMIT)
        self._awaited = lsn_of(lsn)
        return self._awaited

    def _connected(self, session: PostgresqlSession, born_us: int) -> Replication:
        until = time.monotonic() + _BUSY_S
        while True:
            slots.end_reader(session, self._slot, born_us)
            try:
                return Replication(self._server, self._slot, [self._publication], name=slots.reader_name(born_us))
            except Transient as error:
                if not error.answered or time.monotonic() > until:  # else another reads it
                    raise
            time.sleep(_BUSY_PAUSE_S)

    def _move_on(self) -> None:
        """While nothing is committed, an anchor is."""
        now = time.monotonic()
        if now - self._moved >= self._idle_s and now - self._emitted >= _REPEAT_S:
            assert self._session is not None, "it is open"
            self._session.rows(anchors.EMIT)
            self._emitted = now

    def _events(self, events: Sequence[Event]) -> tuple[list[tuple[int, bytes]], list[int]]:
        """Changes of schema, and the ts of commits, 0 for those that have none."""
        heard: list[tuple[int, bytes]] = []
        of_commits: list[int] = []
        for event in events:
            match event:
                case Commit():
                    ts = self._chain.commit(event.lsn, event.time_us, self._said)
                    of_commits.append(ts or 0)
                    if self._crossing is not None:
                        self._crossing.commit(event.lsn, ts, self._said)
                    if ts is None:  # who has emptied what nobody has seen has changed nothing
                        self._altered = [each for each in self._altered if isinstance(each, Relation)]
                    else:
                        heard += [(ts - 1, content_of(each)) for each in self._altered]
                        self._altered.clear()
                    self._said = None
                    self._received = max(self._received, event.end_lsn)
                    self._moved, self._emitted = time.monotonic(), float("-inf")
                case LogicalMessage():
                    if event.is_transactional:
                        self._said = anchors.said(event.prefix, event.content) or self._said
                case Relation():
                    self._primary_keys.pop(event, None)  # it may be described again because that is another one
                    self._altered.append(event)
                case Truncate():
                    self._altered.append(event)
                case KeepAlive():
                    self._received = max(self._received, event.end_lsn)
        return heard, of_commits

    def _rows(self, changes: Iterator[NetChanges], ts: npt.NDArray[np.uint64]) -> Iterator[SlotRows]:
        seen: dict[int, list[tuple[Relation, Ints]]] = {}
        for net in changes:
            relation = net.relation
            batch = net.batch(relation.oid, ts)
            if not ts.all():
                batch = batch.filter(pc.not_equal(batch["commit_ts"], 0))
            if not batch.num_rows:
                continue
            before = seen.setdefault(relation.oid, [])
            error = None
            if relation.oid in self._unclear:
                error = _no_key(relation)
            elif any(each != relation and len(np.intersect1d(commits, net.commits)) for each, commits in before):
                error = _several_versions(relation)
            before.append((relation, np.flatnonzero(np.bincount(net.commits))))
            yield SlotRows(relation.oid, batch, error, relation)

    def _primary_key(self, relation: Relation) -> Sequence[str] | None:
        self.tell()  # a large transaction is looked at for longer than the server waits
        if relation.oid not in self._wanted:
            return None
        if relation.replica_identity != "f":
            return ()
        if relation not in self._primary_keys:
            assert self._session is not None, "it is open"
            for table in read_published(self._session, self._publication).tables:
                primary = [name for index in table.indexes if index.is_primary for name, _ in index.columns]
                self._last_known[table.id] = primary
            if relation.oid not in self._last_known:  # rows of it may all be ones that have been handed on
                self._unclear.add(relation.oid)
            self._primary_keys[relation] = self._last_known.get(relation.oid, [])
        return self._primary_keys[relation]


def _no_key(relation: Relation) -> NeedsHuman:
    return NeedsHuman(
        f"Rows of table {relation.full_name} can't be told apart: its replica identity is FULL, and it has been "
        "dropped or has left the publication, so its primary key is not known any more.",
        "Leave the table out by spec.filter.rules, or start a new changefeed.",
    )


def _several_versions(relation: Relation) -> NeedsHuman:
    return NeedsHuman(
        f"A transaction has changed rows of table {relation.full_name}, then its columns, then rows again, which can't "
        "be followed.",
        "Leave the table out by spec.filter.rules, or start a new changefeed.",
    )
