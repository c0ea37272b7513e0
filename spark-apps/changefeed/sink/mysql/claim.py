"""A MySQL-compatible server that changes are applied to. Our own tables there hold progress and owner (rule 25)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from changefeed.errors import InvalidSpec, UnknownThing
from changefeed.filter.ddl import leaves_ddls_out
from changefeed.log.state import State
from changefeed.objectstore.patience import Patience
from changefeed.schema.table_info import TableInfo
from changefeed.sink.claim import SinkClaim, Taken, Versions, identity_downstream
from changefeed.sink.contract import Claim
from changefeed.sink.mysql.ddl_record import DdlTable
from changefeed.sink.mysql.definitions.check import check
from changefeed.sink.mysql.driver import MysqlDriver
from changefeed.sink.mysql.entry_writer import MysqlEndpoint, MysqlJob
from changefeed.sink.mysql.rows.keys import TableKeys
from changefeed.sink.mysql.server import Session
from changefeed.sink.mysql.sink import Options
from changefeed.sink.mysql.syncpoint import SyncpointStatements
from changefeed.spec.field.secret import secret_folder
from changefeed.spec.model import Changefeed

_DDLS = 0  # no table has this id: the dispatcher that stands for the driver's own statements


def mysql_endpoint(changefeed: Changefeed, secrets_dir: Path | None = None) -> MysqlEndpoint:
    """Raises InvalidSpec without the folder of the Secrets that it needs."""
    spec = changefeed.spec.sink.mysql
    assert spec is not None, "the sink is mysql"
    return MysqlEndpoint(
        spec.uri,
        secret_folder("spec.sink.mysql.credentials", spec.credentials, secrets_dir),
        secret_folder("spec.sink.mysql.tls", spec.tls, secrets_dir),
    )


class MysqlClaim(SinkClaim):
    """Holds no database: its progress there says who may write."""

    in_order = True
    fingerprint = "mysql-1"

    def __init__(self, changefeed: Changefeed, secrets_dir: Path | None = None) -> None:
        spec = changefeed.spec.sink.mysql
        assert spec is not None, "the sink is mysql"
        self.uri = spec.uri
        self._endpoint = mysql_endpoint(changefeed, secrets_dir)
        self._time_zone, self._leaves_out = changefeed.spec.time_zone, leaves_ddls_out(changefeed.spec.filter)
        metadata = changefeed.metadata
        self._syncpoints: SyncpointStatements | None = None
        if spec.enable_sync_point:
            self._syncpoints = SyncpointStatements(
                f"{metadata.namespace}/{metadata.name}", round(spec.sync_point_retention)
            )
        self._options = Options(
            workers=spec.worker_count,
            max_txn_row=spec.max_txn_row,
            safe_mode=spec.safe_mode,
            by_transaction=spec.transaction_atomicity == "table",
            progress_database=spec.progress_database or None,
        )

    def open(self) -> None:
        self._ask(lambda session: session.rows(b"SELECT 1"))

    def check_rewind(self, state: State, state_uri: str) -> None:
        raise InvalidSpec(
            "spec.restart",
            "a database can't be written again from an earlier ts: it has later rows and definitions",
            "Restore it to its state at fromTs, then create a new changefeed with startTs.",
        )

    def settle_in(self, taken: Taken, tables: Versions) -> None:
        """Without tables of ours nobody knows which DDLs were executed, so that the others are not compared yet."""
        selected = list({table.id: table for _, table, _, _ in tables}.values())
        for table in selected:
            TableKeys.of(table)
        if (database := self._options.progress_database) is not None:
            self._ask(lambda session: self._check(session, selected, lambda: is_past(session, database, taken.state)))

    def job(self) -> MysqlJob:
        return MysqlJob(self._endpoint, self._options)

    def driver(self, taken: Taken, poll_fence: Callable[[], object], patience: Patience) -> MysqlDriver:
        epoch = taken.state.epoch
        claim = Claim(identity_downstream(taken.state), _DDLS, epoch.number, epoch.nonce, 0)
        database = self._options.progress_database
        return MysqlDriver(
            self._endpoint.server(),
            database,
            claim,
            patience,
            self._syncpoints,
            self._time_zone,
            leaves_out=self._leaves_out,
        )

    def _check(self, session: Session, tables: Iterable[TableInfo], is_past: Callable[[], bool]) -> None:
        check(session, self.uri, tables, leaves_out=self._leaves_out, is_past=is_past)

    def _ask(self, attempt: Callable[[Session], object]) -> None:
        session = Session(self._endpoint.server())
        try:
            Patience().call(self.uri, lambda: attempt(session))
        finally:
            session.close()


def is_past(session: Session, progress_database: str, state: State) -> bool:
    """Whether a DDL was executed, or begun, which is not in the log yet."""
    ts, job = max((state.checkpoint_ts, 0), state.last_ddl or (0, 0))
    try:
        return bool(session.rows(DdlTable(progress_database).later(identity_downstream(state), ts, job)))
    except UnknownThing:
        return False
