"""Writes batches of rows as transactions, each until it is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from changefeed.errors import ChangefeedError, OutcomeUnknown, StatementRefused
from changefeed.objectstore.patience import Patience
from changefeed.sink.mysql.definitions.refused import explained
from changefeed.sink.mysql.order.schedule import Batch
from changefeed.sink.mysql.progress import ProgressTables, check_ours, encode_nodes, fenced, recorded
from changefeed.sink.mysql.server import MysqlServer, Session


@dataclass(frozen=True)
class PreparedBatch:
    batch: Batch
    statements: list[bytes]


class BatchWriter:
    """One thread at a time, which has a connection of its own.

    A batch's COMMIT is sent with the statements of the next one, which are made while the server works: it has not to
    wait for us. The batch counts as written once its COMMIT is answered.
    """

    def __init__(
        self,
        server: MysqlServer,
        progress: ProgressTables | None,
        patience: Patience,
        following: Callable[[], Batch | None],
        written: Callable[[Batch], object],
    ) -> None:
        """Without `progress`, rows must be safe to write again.

        `following` gives what is to be written next, without waiting for it; `written` is told what is committed.
        """
        self._server, self._progress, self._patience = server, progress, patience
        self._following, self._written = following, written
        self._session = Session(server)
        self._open: Batch | None = None  # its statements have been run, and it is not known to be committed
        self._is_lost = False  # its transaction has ended in an error,
        self._is_unknown = False  # of the connection at its COMMIT
        self._next: PreparedBatch | None = None

    def write(self, batch: Batch) -> None:
        """Returns when the batch and all that follow are committed. Raises Fenced, Unavailable, and what a person must
        mend.
        """
        self._next = PreparedBatch(batch, self._statements(batch))
        while self._next is not None:
            prepared, self._next = self._next, None
            self._patience.call(str(self._server), partial(self._go_on, prepared))
            self._prepare()
        self._patience.call(str(self._server), self._end)

    def close(self) -> None:
        self._session.close()

    def _prepare(self) -> None:
        if self._next is None and (batch := self._following()) is not None:
            self._next = PreparedBatch(batch, self._statements(batch))

    def _go_on(self, prepared: PreparedBatch) -> None:
        """Commit the open batch, if there is one, and open another."""
        if self._is_lost:
            self._open_again()
        if self._open is not None:
            answers = self._commit(self._open, prepared.statements)
        else:
            self._session.begin()
            answers = self._session.answers(prepared.statements)
        self._prepare()  # while the server works
        self._check(prepared.batch, answers)
        self._open = prepared.batch

    def _end(self) -> None:
        if self._is_lost:
            self._open_again()
        if self._open is not None:
            self._commit(self._open, [])

    def _commit(self, batch: Batch, following: list[bytes]) -> Iterator[int]:
        """What `Session.answers` gives of the statements that follow."""
        try:
            answers = self._session.commit(following)
        except ChangefeedError as error:
            self._session.rollback()
            self._is_lost, self._is_unknown = True, isinstance(error, OutcomeUnknown)
            raise
        self._open = None
        self._written(batch)
        return answers

    def _open_again(self) -> None:
        """The open batch, unless it is committed."""
        assert self._open is not None, "it is lost"
        self._session.begin()
        if self._is_unknown and self._stands(self._open):
            self._written(self._open)
            self._open = None
        else:
            self._is_unknown = False
            self._check(self._open, self._session.answers(self._statements(self._open)))
        self._is_lost = False

    def _statements(self, batch: Batch) -> list[bytes]:
        statements = batch.chunk.statements.of(batch.rows)
        if self._progress is None:
            return [b"BEGIN", *statements]
        first, members = encode_nodes(batch.chunk.numbers[batch.nodes])
        return [b"BEGIN", self._progress.add_nodes(batch.chunk.claim, batch.chunk.entry, first, members), *statements]

    def _check(self, batch: Batch, answers: Iterator[int]) -> None:
        """Take the answers to its statements."""
        claim = batch.chunk.claim
        try:
            changed = list(answers)
        except StatementRefused as refused:
            if self._progress is not None:
                # Rows of the one that has claimed the dispatcher since may be why.
                check_ours(claim, recorded(claim, self._session.rows(self._progress.read(claim))))
            raise explained(refused, self._session, str(self._server), batch) from None
        if self._progress is not None and changed[1] != 1:
            self._session.rollback()
            raise fenced(claim, "Another writer")

    def _stands(self, batch: Batch) -> bool:
        """Whether the batch is committed. Locks what would show it, which waits for a COMMIT that is under way."""
        if self._progress is None:
            return False
        first, _ = encode_nodes(batch.chunk.numbers[batch.nodes])
        self._session.run([b"BEGIN"])  # outside of a transaction nothing is locked
        stands = bool(self._session.rows(self._progress.has_nodes(batch.chunk.claim, batch.chunk.entry, first)))
        self._session.rollback()
        return stands
