"""The connection that makes claims and records the ends of entries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from changefeed.errors import ChangefeedError
from changefeed.objectstore.patience import Patience
from changefeed.sink.contract import Claim, EntryId
from changefeed.sink.mysql.progress import (
    ProgressTables,
    Recorded,
    check,
    check_ours,
    decode_nodes,
    recorded,
)
from changefeed.sink.mysql.rows.changes import Rows
from changefeed.sink.mysql.server import MysqlServer, Session

T = TypeVar("T")


class Control:
    """Any thread may call it; one call at a time is under way. Raises what `patience` gives up, and Fenced."""

    def __init__(self, server: MysqlServer, database: str, patience: Patience, answer_s: int) -> None:
        """Makes the tables in `database`."""
        self.session = Session(server, answer_s)
        self._server, self._patience, self._lock = server, patience, threading.Lock()
        self.tables = self.run(lambda: self._make_tables(database))

    def run(self, attempt: Callable[[], T]) -> T:
        """Until it succeeds. What a failed attempt leaves open is rolled back."""

        def clean() -> T:
            try:
                self.session.begin()
                return attempt()
            except ChangefeedError:
                self.session.rollback()
                raise

        with self._lock:
            return self._patience.call(str(self._server), clean)

    def claim(self, claim: Claim) -> EntryId:
        def attempt() -> EntryId:
            self.session.run([b"BEGIN", self.tables.add(claim)])
            known = self._read(claim)
            check(claim, known)
            self.session.run([self.tables.claim(claim)])
            self.session.commit()
            return known.done

        return self.run(attempt)

    def check(self, claim: Claim) -> Recorded:
        """The dispatcher's row, which is ours; locked, if a transaction is open. Within `run`."""
        known = self._read(claim)
        check_ours(claim, known)
        return known

    def written_before(self, claim: Claim, entry: EntryId) -> Rows | None:
        """The nodes of the entry that are committed already; None if it is done."""

        def attempt() -> Rows | None:
            if entry <= self.check(claim).done:
                return None
            rows = self.session.rows(self.tables.nodes(claim, entry))
            return np.concatenate([np.zeros(0, np.int64), *(decode_nodes(int(first), bits) for first, bits in rows)])

        return self.run(attempt)

    def finish(self, claim: Claim, entry: EntryId, ts: int) -> None:
        """All of the entry is committed."""

        def attempt() -> None:
            self.session.run([b"BEGIN"])
            self.check(claim)
            self.session.run(self.tables.finish(claim, entry, ts))
            self.session.commit()

        self.run(attempt)

    def close(self) -> None:
        with self._lock:
            self.session.close()

    def _make_tables(self, database: str) -> ProgressTables:
        # To TiDB a shared lock is no lock.
        tables = ProgressTables(database, b"FOR UPDATE" if self.session.is_tidb else b"LOCK IN SHARE MODE")
        for statement in tables.create():
            self.session.run([statement])
        return tables

    def _read(self, claim: Claim) -> Recorded:
        return recorded(claim, self.session.rows(self.tables.read(claim)))
