"""Writes a batch of rows as one transaction, retrying until it is committed."""

from __future__ import annotations

from changefeed.errors import OutcomeUnknown, StatementRefused
from changefeed.objectstore.patience import Patience
from changefeed.sink.mysql.definitions.refused import explained
from changefeed.sink.mysql.order.schedule import Batch
from changefeed.sink.mysql.progress import ProgressTables, check_ours, encode_nodes, fenced, recorded
from changefeed.sink.mysql.server import MysqlServer, Session


class BatchWriter:
    """One thread at a time, which has a connection of its own."""

    def __init__(self, server: MysqlServer, progress: ProgressTables | None, patience: Patience) -> None:
        """Without `progress`, rows must be safe to write again."""
        self._server, self._progress, self._patience = server, progress, patience
        self._session = Session(server)

    def write(self, batch: Batch) -> None:
        """Returns when the batch is committed. Raises Fenced, Unavailable, and what a person must mend."""
        statements = batch.chunk.statements.of(batch.rows)
        is_unknown = False  # whether an earlier attempt is committed

        def attempt() -> None:
            nonlocal is_unknown
            self._session.begin()
            if is_unknown and self._stands(batch):
                return
            is_unknown = False
            try:
                self._transact(batch, statements)
            except OutcomeUnknown:
                is_unknown = True
                raise

        self._patience.call(str(self._server), attempt)

    def close(self) -> None:
        self._session.close()

    def _transact(self, batch: Batch, statements: list[bytes]) -> None:
        try:
            self._write_once(batch, statements)
        except StatementRefused as refused:
            if self._progress is not None:
                # Rows of the one that has claimed the dispatcher since may be why.
                claim = batch.chunk.claim
                check_ours(claim, recorded(claim, self._session.rows(self._progress.read(claim))))
            raise explained(refused, self._session, str(self._server), batch) from None
        self._session.commit()

    def _write_once(self, batch: Batch, statements: list[bytes]) -> None:
        """Leaves its transaction open."""
        claim, at = batch.chunk.claim, batch.chunk.entry
        if self._progress is None:
            self._session.run([b"BEGIN", *statements])
            return
        first, members = encode_nodes(batch.chunk.numbers[batch.nodes])
        nodes = self._progress.add_nodes(claim, at, first, members)
        changed = self._session.run([b"BEGIN", nodes, *statements])
        if changed[1] != 1:
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
