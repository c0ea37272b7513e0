"""`MysqlDriver`: executes each DDL once in a MySQL-compatible server, and writes syncpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from changefeed.errors import ExecuteByHand, NeedsHuman, StatementRefused, Unavailable
from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.sql.session import zone_of
from changefeed.schema.sql.statements import Statement, statements
from changefeed.sink.contract import Claim, Ddl, SinkDriver
from changefeed.sink.mysql.control import Control
from changefeed.sink.mysql.ddl_record import (
    ABSENT,
    DdlId,
    DdlTable,
    Subject,
    left,
    look,
    subjects,
    was_executed,
)
from changefeed.sink.mysql.ddl_session import setting
from changefeed.sink.mysql.definitions.check import check
from changefeed.sink.mysql.failures import DONE_BEFORE, of_ddl
from changefeed.sink.mysql.index_builds import Build, IndexBuilds, is_build
from changefeed.sink.mysql.rows.literals import bytes_literal
from changefeed.sink.mysql.server import MysqlServer, Session
from changefeed.sink.mysql.syncpoint import SNAPSHOT_TS, SyncpointStatements

_DAY_S = 86400  # an index of a large table takes hours
_LOCK_S = 10
_ASK_S = 5
#: Nobody remembers, without tables of ours, that a person has executed it.
_IGNORE_IT = (
    "Do downstream by hand what the DDL means, have an event filter ignore it (spec.filter.eventFilters, ignoreSql), "
    "then start again."
)

T = TypeVar("T")


class MysqlDriver(SinkDriver):
    """Executes DDLs and writes syncpoints. `claim` names a dispatcher that is there for this alone.

    A lock of the server is held while a DDL is executed, by its connection. So another driver, which claims first and
    then waits for the lock, sees what came of it. Without `database`, for our tables, a DDL that was executed before is
    known by the server's refusal to do it twice.
    """

    def __init__(
        self,
        server: MysqlServer,
        database: str | None,
        claim: Claim,
        patience: Patience,
        syncpoints: SyncpointStatements | None = None,
        time_zone: str = "UTC",
        *,
        leaves_out: bool = False,
    ) -> None:
        """`time_zone`: of upstream's sessions, where a DDL does not say it. `leaves_out`: event filters may leave
        DDLs out.

        Raises Fenced, and what `patience` gives up.
        """
        self._server, self._patience, self._time_zone = server, patience, time_zone
        self._claim, self._where = claim, str(server)
        self._syncpoints, self._leaves_out = syncpoints, leaves_out
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

    def execute(self, ddl: Ddl) -> None:
        """Returns when the DDL is done, by this call or an earlier one; or begun, if it only builds an index.

        Raises Fenced, Unavailable, ExecuteByHand, StatementRefused, OtherDefinition, and UnclearDdl.
        """
        if ddl.change is None:
            return
        id_ = DdlId(self._claim.changefeed, ddl.ts, ddl.job_id)
        if ddl.is_told:
            self._builds.wait_for(subjects(ddl.touched))
            self._execute_once(ddl, id_)
        if ddl.tables:
            self._call(lambda session: self._check(session, ddl, id_))

    def _execute_once(self, ddl: Ddl, id_: DdlId) -> None:
        if (control := self._control) is None:
            self._patience.call(self._where, lambda: self._in_session(lambda session: self._repeat(session, ddl)))
        elif not is_build(ddl) or not control.run(lambda: self._may_be_begun(control.session, ddl, id_)):
            control.run(lambda: self._in_session(lambda session: self._execute(control, session, ddl, id_)))
        elif (build := control.run(lambda: self._begin_build(control, ddl, id_))) is not None:
            self._builds.start(build)

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

    def _in_session(self, attempt: Callable[[Session], T]) -> T:
        """By a connection for this alone, which takes one statement at a time."""
        session = Session(self._server, _DAY_S, one_by_one=True)
        try:
            return attempt(session)
        finally:
            session.close()  # with what it was set to, and its lock

    def _execute(self, control: Control, session: Session, ddl: Ddl, id_: DdlId) -> None:
        self._lock(session, id_.changefeed)
        control.check(self._claim)
        known = control.session.rows(self._table.read(id_))
        if known and int(known[0][0]):
            return
        now = [_look(session, subject) for subject in subjects(ddl.touched)]
        if known:
            to_run = self._left(session, ddl, known[0][1].decode().split(), now)
        else:
            self._begin(control, self._table.begin(id_, now))
            to_run = self._statements(session, ddl)
        for statement in to_run:
            _run(session, [setting(session, _change(ddl), statement), statement.text.encode()])
        session.run([self._table.end(id_)])

    def _left(self, session: Session, ddl: Ddl, before: Sequence[str], now: Sequence[str]) -> Sequence[Statement]:
        """What is still to be executed. Of a DDL that can't be written, nothing, once somebody has executed it."""
        try:
            return left(_change(ddl), self._statements(session, ddl), subjects(ddl.touched), before, now)
        except ExecuteByHand:
            if before != now and was_executed(_change(ddl), before, now):
                return []
            raise

    def _statements(self, session: Session, ddl: Ddl) -> tuple[Statement, ...]:
        change = _change(ddl)
        try:
            return statements(change, ddl.touched, session.dialect, zone_of(change, self._time_zone))
        except ExecuteByHand as error:
            next_step = error.next_step if self._control is not None else _IGNORE_IT
            raise ExecuteByHand(f"{error.message} The DDL's ts is {ddl.ts}.", next_step) from None

    def _repeat(self, session: Session, ddl: Ddl) -> None:
        """Whatever was executed before."""
        for statement in self._statements(session, ddl):
            try:
                _run(session, [setting(session, _change(ddl), statement), statement.text.encode()])
            except StatementRefused as refusal:
                if refusal.number not in DONE_BEFORE:
                    raise

    def _check(self, session: Session, ddl: Ddl, id_: DdlId) -> None:
        """The changefeed's tables are what the DDL makes of them, unless a later one has been executed before."""

        def is_past() -> bool:
            if self._control is None:
                return False
            self._control.check(self._claim)
            return bool(session.rows(self._table.later(id_.changefeed, id_.ts, id_.job)))

        check(session, self._where, ddl.tables.values(), leaves_out=self._leaves_out, is_past=is_past)

    def _begin(self, control: Control, intent: bytes) -> None:
        control.session.run([b"BEGIN"])
        control.check(self._claim)
        control.session.run([intent])
        control.session.commit()

    def _may_be_begun(self, session: Session, ddl: Ddl, id_: DdlId) -> bool:
        """Whether there is a statement to run beside rows, and nobody was told before to do by hand what it does."""
        try:
            is_one = len(self._statements(session, ddl)) == 1
        except ExecuteByHand:
            return False
        known = session.rows(self._table.read(id_))
        return is_one and (not known or bool(int(known[0][0])))

    def _begin_build(self, control: Control, ddl: Ddl, id_: DdlId) -> Build | None:
        """None: the index stands."""
        session, (table,) = control.session, subjects(ddl.touched)
        if session.rows(self._table.read(id_)):
            return None  # done: it was waited for
        (statement,) = self._statements(session, ddl)
        texts = setting(session, _change(ddl), statement), statement.text.encode()
        build = Build(id_, table, _look(session, table), texts)
        self._begin(control, self._table.begin(id_, [build.look], build.to_json()))
        return build

    def _open_builds(self, session: Session) -> list[Build]:
        rows = session.rows(self._table.open_builds(self._claim.changefeed))
        ids = [DdlId(self._claim.changefeed, int(ts), int(job)) for ts, job, _, _ in rows]
        return [Build.from_json(ddl, row[2].decode(), row[3]) for ddl, row in zip(ids, rows, strict=True)]

    def _run_build(self, build: Build) -> None:
        def run(session: Session) -> None:
            while not _has_locked(session, repr(build.ddl)):
                pass  # a former driver's is still under way, which may take hours
            if not int(session.rows(self._table.read(build.ddl))[0][0]):
                while _look(session, build.table) == build.look and not self.is_built(session, build):
                    time.sleep(_ASK_S)
                session.run([self._table.end(build.ddl)])

        self._in_session(run)

    def is_built(self, session: Session, build: Build) -> bool:
        """By this call. No: TiDB is at it, for a connection that is gone; there its lock is no longer held."""
        try:
            _run(session, build.statements)
        except StatementRefused as refusal:
            if not (refusal.number in DONE_BEFORE and session.is_tidb and session.rows(build.table.jobs)):
                raise
            return False
        return True

    def _write_syncpoint(self, session: Session, syncpoints: SyncpointStatements, ts: int) -> None:
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


def _change(ddl: Ddl) -> SchemaChange:
    assert ddl.change is not None, "of this run"
    return ddl.change


def _run(session: Session, statements: Sequence[bytes]) -> None:
    """What the session must be set to, then the statement itself."""
    session.run(statements[:-1])
    try:
        session.run(statements[-1:])
    except StatementRefused as refused:
        raise of_ddl(refused, statements[-1].decode()) from None


def _look(session: Session, subject: Subject) -> str:
    if not session.rows(subject.find):
        return ABSENT
    shown = session.rows(subject.show)[0]
    return look(b"\0".join(part for part in shown if part is not None))
