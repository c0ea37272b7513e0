"""`MysqlDdlSink`: executes each DDL once in a MySQL-compatible server, and writes syncpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from changefeed.errors import NeedsHuman, Unavailable
from changefeed.model.record import CommitRecord, PlanEntry
from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.job import Job
from changefeed.sink.contract import Claim, Ddl
from changefeed.sink.mysql.control import Control
from changefeed.sink.mysql.ddl_record import (
    ABSENT,
    DdlId,
    DdlTable,
    Subject,
    look,
    setting,
    statement,
    subjects,
    uses_database,
    was_executed,
)
from changefeed.sink.mysql.failures import DONE_BEFORE, Refusal
from changefeed.sink.mysql.index_builds import Build, IndexBuilds, is_build
from changefeed.sink.mysql.rows.literals import bytes_literal, identifier
from changefeed.sink.mysql.server import Server, Session
from changefeed.sink.mysql.syncpoint import SNAPSHOT_TS, Syncpoints

_DAY_S = 86400  # an index of a large table takes hours
_LOCK_S = 10
_ASK_S = 5

T = TypeVar("T")


class MysqlDdlSink:
    """Implements DdlSink. `claim` names a dispatcher that is there for this alone.

    A lock of the server is held while a DDL is executed, by its connection. So another driver, which claims first and
    then waits for the lock, sees what came of it. Without `database`, for our tables, a DDL that was executed before is
    known by the server's refusal to do it twice.
    """

    def __init__(
        self,
        server: Server,
        database: str | None,
        claim: Claim,
        patience: Patience,
        syncpoints: Syncpoints | None = None,
    ) -> None:
        """Raises Fenced, and what `patience` gives up."""
        self._server, self._patience = server, patience
        self._claim, self._where = claim, str(server)
        self._syncpoints = syncpoints
        self._control = None if database is None else Control(server, database, patience, answer_s=_DAY_S)
        self._table = DdlTable(database or "")
        self._call(self._check_defaults)
        self._builds = IndexBuilds(lambda build: patience.call(self._where, lambda: self._run_build(build)))
        if self._control is not None:
            self._call(lambda session: session.run([self._table.create()]))
            self._control.claim(claim)
            for build in self._call(self._open_builds):
                self._builds.start(build)
        if syncpoints is not None:
            self._call(lambda session: [session.run([each]) for each in syncpoints.create()])

    def publish(self, entries: Sequence[PlanEntry], record: CommitRecord) -> None:
        pass

    def execute(self, ddl: Ddl) -> None:
        """Returns when the DDL is done, by this call or an earlier one; or begun, if it only builds an index.

        Raises Fenced, Unavailable, and NeedsHuman where the server refuses the statement, or nobody can tell whether it
        was executed.
        """
        if ddl.job is None or not ddl.is_told:
            return
        job, id_ = ddl.job, DdlId(self._claim.changefeed, ddl.ts, ddl.job.id)
        self._builds.wait_for(subjects(job))
        if (control := self._control) is None:
            self._call(lambda session: _execute_unrecorded(session, job, ddl.ts))
        elif is_build(ddl):
            if (build := control.run(lambda: self._begin_build(control, job, id_))) is not None:
                self._builds.start(build)
        else:
            control.run(lambda: self._execute(control, job, id_))

    def write_syncpoint(self, ts: int) -> None:
        """Raises Fenced, and what the patience gives up."""
        assert self._syncpoints is not None, "they were asked for"
        syncpoints = self._syncpoints
        self._call(lambda session: self._write_syncpoint(session, syncpoints, ts))

    def write_checkpoint(self, ts: int) -> None:
        self._builds.check()

    def close(self) -> None:
        """What builds an index goes on: the server does, and the next driver sees to it."""
        if self._control is not None:
            self._control.close()

    def _call(self, attempt: Callable[[Session], T]) -> T:
        """By the connection that makes claims, or one for this alone."""
        if (control := self._control) is not None:
            return control.run(lambda: attempt(control.session))

        def by_another() -> T:
            session = Session(self._server, _DAY_S)
            try:
                return attempt(session)
            finally:
                session.close()

        return self._patience.call(self._where, by_another)

    def _check_defaults(self, session: Session) -> None:
        """Else a TIMESTAMP column would not be what it is upstream. Only the server's administrator may set it."""
        if session.rows(b"SELECT @@explicit_defaults_for_timestamp") == [(b"0",)]:
            raise NeedsHuman(
                f"{self._where}: explicit_defaults_for_timestamp is OFF: columns of DDLs would get other defaults.",
                "Set it ON in the server's configuration.",
            )

    def _execute(self, control: Control, job: Job, ddl: DdlId) -> None:
        session = control.session
        self._lock(session, ddl.changefeed)
        try:
            control.check(self._claim)
            known = session.rows(self._table.read(ddl))
            if known and int(known[0][0]):
                return
            now = [_look(session, subject) for subject in subjects(job)]
            if not known:
                self._begin(control, self._table.begin(ddl, now))
            if not known or not was_executed(job, known[0][1].decode().split(), now):
                _run(session, _statements(job, ddl.ts))
            session.run([self._table.end(ddl)])
        finally:
            session.close()  # with what it was set to, and the lock

    def _begin(self, control: Control, intent: bytes) -> None:
        control.session.run([b"BEGIN"])
        control.check(self._claim)
        control.session.run([intent])
        control.session.commit()

    def _begin_build(self, control: Control, job: Job, ddl: DdlId) -> Build | None:
        """None: the index stands."""
        session, (table,) = control.session, subjects(job)
        if known := session.rows(self._table.read(ddl)):
            assert int(known[0][0]), "it was waited for"
            return None
        build = Build(ddl, table, _look(session, table), _statements(job, ddl.ts))
        self._begin(control, self._table.begin(ddl, [build.look], build.to_json()))
        return build

    def _open_builds(self, session: Session) -> list[Build]:
        rows = session.rows(self._table.open_builds(self._claim.changefeed))
        ids = [DdlId(self._claim.changefeed, int(ts), int(job)) for ts, job, _, _ in rows]
        return [Build.from_json(ddl, row[2].decode(), row[3]) for ddl, row in zip(ids, rows, strict=True)]

    def _run_build(self, build: Build) -> None:
        session = Session(self._server, _DAY_S)
        try:
            while not _has_locked(session, repr(build.ddl)):
                pass  # a former driver's is still under way, which may take hours
            if not int(session.rows(self._table.read(build.ddl))[0][0]):
                while _look(session, build.table) == build.look and not self._is_built(session, build):
                    time.sleep(_ASK_S)
                session.run([self._table.end(build.ddl)])
        finally:
            session.close()

    def _is_built(self, session: Session, build: Build) -> bool:
        """By this call. No: TiDB is at it, for a connection that is gone; there its lock is no longer held."""
        try:
            _run(session, build.statements)
        except Refusal as refusal:
            if not (refusal.number in DONE_BEFORE and session.is_tidb and session.rows(build.table.jobs)):
                raise
            return False
        return True

    def _write_syncpoint(self, session: Session, syncpoints: Syncpoints, ts: int) -> None:
        session.run([b"BEGIN"])
        if self._control is not None:
            self._control.check(self._claim)
        session.run([syncpoints.add(ts, int(session.rows(SNAPSHOT_TS)[0][0]) if session.is_tidb else 0)])
        session.commit()
        session.run([syncpoints.remove_old()])

    def _lock(self, session: Session, of: str) -> None:
        if not _has_locked(session, of):
            raise Unavailable(
                f"{self._where}: another connection executes a DDL of changefeed {self._claim.changefeed}.",
                "It is waited for.",
            )


def _has_locked(session: Session, of: str) -> bool:
    """Waits a while. It lasts as long as the session."""
    name = blake2b(of.encode(), digest_size=16).hexdigest().encode()
    query = b"SELECT GET_LOCK(CONCAT('changefeed-', %s), %d)" % (bytes_literal(name), _LOCK_S)
    return session.rows(query) == [(b"1",)]


def _statements(job: Job, ts: int) -> tuple[bytes, ...]:
    """What the session must be set to, then the statement itself."""
    use = [b"USE " + identifier(job.schema_name)] if uses_database(job) else []
    return *use, setting(job, ts), statement(job)


def _run(session: Session, statements: Sequence[bytes]) -> None:
    session.run(statements[:-1])
    session.run(statements[-1:])


def _look(session: Session, subject: Subject) -> str:
    if not session.rows(subject.find):
        return ABSENT
    shown = session.rows(subject.show)[0]
    return look(b"\0".join(part for part in shown if part is not None))


def _execute_unrecorded(session: Session, job: Job, ts: int) -> None:
    try:
        _run(session, _statements(job, ts))
    except Refusal as refusal:
        if refusal.number not in DONE_BEFORE:
            raise
