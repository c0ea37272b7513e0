"""`MysqlSink`: commits the rows of entries in a MySQL-compatible server."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from changefeed.errors import Unavailable
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.control import Control
from changefeed.sink.mysql.order.schedule import Batch, Chunk, Schedule
from changefeed.sink.mysql.progress import NOTHING_DONE
from changefeed.sink.mysql.rows.changes import Changes, Mask, Rows
from changefeed.sink.mysql.rows.keys import TableKeys
from changefeed.sink.mysql.rows.statements import ChunkStatements
from changefeed.sink.mysql.server import ANSWER_S, MysqlServer
from changefeed.sink.mysql.writer import BatchWriter

_OPEN_CHUNKS = 3  # of one dispatcher
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class Options:
    """As `sink.mysql` of the spec names them."""

    workers: int = 16
    max_txn_row: int = 1024
    safe_mode: bool = False
    by_transaction: bool = False  # `transactionAtomicity: table`
    progress_database: str | None = "changefeed"  # None: no tables of ours, and safe mode


class MysqlSink:
    """Writes entries of several dispatchers, one thread a dispatcher. `claim` each, then `write` its entries in order.

    Each of `options.workers` threads has a connection, and one more is for claims and ends of entries. `claim`,
    `write` and `close` may be called by any thread. After one has raised, `write` of all raises the same: close the
    sink, make another, and claim again.

    Each row is written once in effect, whatever dies or is lost: by tables of ours in `options.progress_database`.
    Without these all is written again after a failure, so readers may see rows go back and forward once more, and
    nothing keeps out a writer that has been given up but lives.
    """

    def __init__(self, server: MysqlServer, options: Options, patience: Patience) -> None:
        """Raises what `patience` gives up, or Refused, when the server can't be used."""
        self._server, self._options, self._patience = server, options, patience
        database = options.progress_database
        self._control = None if database is None else Control(server, database, patience, ANSWER_S)
        self._schedule = Schedule(options.workers, options.max_txn_row, _BATCH_BYTES)
        self._changed = threading.Condition()  # guards the schedule and what follows
        self._failure: BaseException | None = None
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"mysql-{worker}", daemon=True)
            for worker in range(options.workers)
        ]
        for thread in self._threads:
            thread.start()

    def claim(self, claim: Claim) -> EntryId:
        """From now on only this one writes the dispatcher's entries; up to which all are done. Raises Fenced."""
        return NOTHING_DONE if self._control is None else self._control.claim(claim)

    def write(self, claim: Claim, entry: EntryId, ts: int, chunks: Iterable[Changes]) -> int:
        """Returns when all rows of the entry are committed: how many this call has written.

        `ts`: up to which the entry goes. `chunks` are the entry's rows in their order, which may be cut elsewhere each
        time; with `by_transaction` no transaction may be in two of them. Raises Fenced, Unavailable, and what a person
        must mend.
        """
        done = np.zeros(0, np.int64) if self._control is None else self._control.written_before(claim, entry)
        if done is None:
            return 0
        first, written = 0, 0
        try:
            for changes in chunks:
                starts = self._node_starts(changes)
                numbers = np.arange(len(starts) - 1) + first
                first += len(numbers)
                written += self._add(claim, entry, changes, starts, numbers, ~np.isin(numbers, done))
        finally:
            self._wait_for(claim, 0)  # also of an entry that is given up: who claims it next finds nothing under way
        if self._control is not None:
            self._control.finish(claim, entry, ts)
        return written

    def close(self) -> None:
        """Waits for transactions under way; what has not begun is not written. End `patience` first to wait less."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self._control is not None:
            self._control.close()

    def _node_starts(self, changes: Changes) -> Rows:
        """The first row of each node, and behind them how many rows there are."""
        if not self._options.by_transaction:
            return np.arange(len(changes) + 1)
        return np.append(changes.starts, len(changes))

    def _add(self, claim: Claim, entry: EntryId, changes: Changes, starts: Rows, numbers: Rows, todo: Mask) -> int:
        """Have the nodes `todo` of a chunk written: how many rows they are."""
        counts = np.diff(starts)
        if not todo.all():
            changes = changes.take(np.flatnonzero(np.repeat(todo, counts)))
            counts, numbers = counts[todo], numbers[todo]
        if not len(changes):
            return 0
        keys = TableKeys.of(changes.table)
        moved = keys.moved(changes)
        rows, hashes = keys.hashes(changes, moved)
        is_safe = self._options.safe_mode or self._control is None or keys.has_unseen
        statements = ChunkStatements(keys, changes, moved, is_safe)
        chunk = Chunk(claim, entry, statements, np.r_[0, counts.cumsum()], numbers)
        self._wait_for(claim, _OPEN_CHUNKS - 1)
        with self._changed:
            self._schedule.add(chunk, np.repeat(np.arange(len(counts)), counts)[rows], hashes)
            self._changed.notify_all()
        return len(changes)

    def _wait_for(self, claim: Claim, open_chunks: int) -> None:
        """Until no more chunks of the dispatcher are unwritten."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self._schedule.open_chunks(claim) <= open_chunks)
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise Unavailable("The sink is closed.", "Write to another one.")

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or self._failure is not None

    def _work(self, worker: int) -> None:
        tables = None if self._control is None else self._control.tables
        writer = BatchWriter(self._server, tables, self._patience, partial(self._take, worker), self._written)
        try:
            while (batch := self._next(worker)) is not None:
                writer.write(batch)
        except BaseException as error:  # noqa: BLE001 - `write` raises it
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
        finally:
            writer.close()

    def _take(self, worker: int) -> Batch | None:
        """What the worker has to write by now."""
        with self._changed:
            return None if self._has_ended else self._schedule.take(worker)

    def _written(self, batch: Batch) -> None:
        with self._changed:
            if self._schedule.written(batch):
                self._changed.notify_all()

    def _next(self, worker: int) -> Batch | None:
        """What the worker has to write, once there is something; None at the end."""
        with self._changed:
            batch: Batch | None = None
            while not self._has_ended and (batch := self._schedule.take(worker)) is None:
                self._changed.wait()
            return None if self._has_ended else batch
