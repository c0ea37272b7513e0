"""What the reference page says of DDLs and types, on each server that there is here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.servers_reference import EXAMPLES, Example
from changefeed.errors import ExecuteByHand, StatementRefused, Transient
from changefeed.objectstore.patience import Patience
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.tables import create_table, create_view
from changefeed.schema.table_info import TableInfo
from changefeed.sink.contract import Claim, Ddl
from changefeed.sink.mysql.definitions.check import compare
from changefeed.sink.mysql.driver import MysqlDriver
from changefeed.sink.mysql.failures import failure
from changefeed.sink.mysql.server import Session
from changefeed.sink.mysql.syncpoint import SyncpointStatements
from changefeed.verify.mysql.report import verify
from changefeed_devcluster.tidb.schema import NewColumn
from conftest import wait_for
from integration_inprocess import new_world
from integration_mariadb import MariaDb, running
from integration_mysql_programs import every_server
from integration_types import KINDS, Kind

OPEN_BUILDS = "SELECT COUNT(*) FROM changefeed.ddls WHERE is_done = 0 AND build IS NOT NULL"
DATABASES = ("servers", "servers_new", "shop", "changefeed", "tidb_cdc")


@pytest.fixture
def database(mariadb: MariaDb) -> MariaDb:
    for name in DATABASES:
        mariadb.query(f"DROP DATABASE IF EXISTS {name}")
    return mariadb


@pytest.fixture
def session(database: MariaDb) -> Iterator[Session]:
    opened = Session(database.server())
    yield opened
    opened.close()


@every_server
def test_each_ddl_does_what_the_reference_says(database: MariaDb, session: Session) -> None:
    sink = MysqlDriver(
        database.server(), "changefeed", Claim("cf", 0, 1, "n", 1), Patience(30), SyncpointStatements("cf", 60)
    )
    wrong = []
    for ts, example in enumerate((each for examples in EXAMPLES.values() for each in examples), 10):
        prepare(database, example, session.dialect)
        try:
            said = example.statements(session.dialect)
        except ExecuteByHand as refused:
            said = [refused.message]
        try:
            sink.execute(ddl(example, ts))
            wait_for(
                lambda: database.query(OPEN_BUILDS) == [(b"0",)], "the index is built"
            )  # the next table is another
            done = example.statements(session.dialect)
            tables = [table for table in example.touched.after if not table.is_view]
            done += [each.what for _, found in compare(session, tables) for each in found if not each.is_harmless]
        except Exception as error:  # noqa: BLE001 - all that are wrong are shown
            done = [getattr(error, "message", repr(error)).partition(" The DDL's ts is")[0]]
        if done != said:
            wrong.append((example.ddl, done))
    sink.close()
    assert wrong == []


#: On a table of each: what harms rows, and what does not.
DIFFERENCES = {
    "MODIFY b VARCHAR(255) COLLATE utf8mb4_general_ci": "the column b has the collation utf8mb4_general_ci",
    "MODIFY b VARCHAR(200) COLLATE utf8mb4_bin": "the column b is varchar(200) of character set utf8mb4, which",
    "MODIFY a INT NOT NULL": "the column a is NOT NULL",
    "MODIFY a BIGINT": "the column a is bigint(20), which is wider",
    "DROP PRIMARY KEY": "no unique key has the columns by which rows are found, id",
    "ADD UNIQUE KEY k (a)": "the unique key k (a) is not in the upstream: rows may be merged",
    "ADD COLUMN c INT NOT NULL": "the column c is not in the upstream, is NOT NULL and has no default",
}


@every_server
def test_a_difference_is_told_and_mended(database: MariaDb, session: Session) -> None:
    (table,) = EXAMPLES["Columns and indexes"][0].touched.before
    for clauses, wanted in DIFFERENCES.items():
        database.query("DROP DATABASE IF EXISTS servers", "CREATE DATABASE servers", made(table, session.dialect))
        database.query(f"ALTER TABLE servers.t {clauses}")
        ((_, (difference,)),) = compare(session, [table])
        assert difference.what.startswith(wanted)
        database.query(*[difference.mend] * (not difference.is_harmless))
    ((_, differences),) = compare(session, [table])
    assert differences == []


@every_server
async def test_rows_of_every_type_are_the_upstream_s(database: MariaDb, tmp_path: Path) -> None:
    """In a table that the sink has made itself."""
    database.query("CREATE DATABASE shop", "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(64))")
    with new_world(tmp_path) as world:
        world.tidb.create_database("servers")
        kinds = {f"c{n}": kind.sql for n, kind in enumerate(KINDS)}
        columns = (NewColumn("id", "bigint"), *(NewColumn(name, sql, nullable=True) for name, sql in kinds.items()))
        table = world.tidb.create_table("servers", "t", columns)
        with world.tidb.begin() as txn:
            for row, values in enumerate(zip_longest(*map(values_of, KINDS))):
                txn.insert(table, {"id": row, **dict(zip(kinds, values, strict=True))})
        spec = {"filter": {"rules": ["servers.*", "shop.*"]}, "targetTs": str(world.tidb.now())}
        spec |= {"sink": {"mysql": {"uri": f"mysql://127.0.0.1:{database.port}"}}}
        outcome = await world.run(**spec).outcome()
        assert outcome.state == "finished"
        verdict = await verify(world.changefeed(**spec))
    assert verdict.ok, verdict.first_problem
    assert int(database.query("SELECT COUNT(*) FROM servers.t")[0][0]) == max(len(kind.cells) for kind in KINDS)


@pytest.mark.parametrize("mariadb", ["mariadb-10.11", "mariadb-11.4"], indirect=True)
def test_a_row_that_has_changed_since_is_told_and_the_transaction_begins_anew(session: Session) -> None:
    assert session.rows(b"SELECT @@innodb_snapshot_isolation") == [(b"1",)]
    assert isinstance(failure("here", 1020, "Record has changed since last read"), Transient)


def test_a_server_that_logs_statements_is_refused_at_the_start(tmp_path: Path) -> None:
    """As MySQL 5.6 does unless it is told otherwise: what several connections write has no order there."""
    refused = pytest.raises(StatementRefused, match=r"BINLOG_FORMAT = STATEMENT.*\(1665\).*Set binlog_format = ROW")
    with running(tmp_path, "--log-bin=log", "--server-id=1", of="mysql-5.6") as database, refused:
        MysqlDriver(database.server(), "changefeed", Claim("cf", 0, 1, "n", 1), Patience(30))


def values_of(kind: Kind) -> list[Any]:
    """Without the text that is no member of an ENUM, which a session in strict mode can't write."""
    return [each.value for each in kind.cells if each.value != "" or not kind.sql.startswith("enum")]


def ddl(example: Example, ts: int) -> Ddl:
    touched = example.touched
    before, after = ({table.id: table for table in tables} for tables in (touched.before, touched.after))
    return Ddl(ts, ts, change=example.job, before=before, tables=after, touched=touched, is_told=True)


def prepare(database: MariaDb, example: Example, dialect: Dialect) -> None:
    """The tables as they are before it."""
    database.query("DROP DATABASE IF EXISTS servers", "CREATE DATABASE servers")
    known = {table.id: table for table in (*EXAMPLES["Columns and indexes"][0].touched.before, *example.touched.before)}
    for table in sorted(known.values(), key=lambda table: table.is_view):
        database.query(made(table, dialect))
    has_new = example.job.database_info is not None and not example.ddl.startswith("CREATE")
    database.query("DROP DATABASE IF EXISTS servers_new", *["CREATE DATABASE servers_new"] * has_new)


def made(table: TableInfo, dialect: Dialect) -> str:
    definition = Definition.of(table)
    return create_view(definition, replaces=False) if table.is_view else create_table(definition, dialect)
