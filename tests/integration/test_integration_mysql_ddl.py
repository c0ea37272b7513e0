"""DDLs against a real server: each is executed once, wherever a driver dies between its intent and its word."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import Fenced, NeedsHuman
from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.job import Job
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.contract import Claim, Ddl
from changefeed.sink.mysql.ddl import MysqlDdlSink
from changefeed.sink.mysql.server import Session
from changefeed.sink.mysql.syncpoint import Syncpoints
from changefeed.sink.storage.schema_file import SchemaFile
from integration_mariadb import MariaDb, running


class Died(BaseException):
    """In the place of a driver's death."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with running(tmp_path_factory.mktemp("mariadb")) as database:
        yield database


@pytest.fixture
def database(server: MariaDb) -> MariaDb:
    """A table t of two columns and a partitioned p, in a database of its own."""
    for name in ("shop", "fresh", "changefeed", "tidb_cdc"):
        server.query(f"DROP DATABASE IF EXISTS {name}")
    server.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, a INT)",
        "CREATE TABLE shop.p (id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9))",
        "INSERT INTO shop.t VALUES (1, 1)",
    )
    return server


def info(name: str) -> TableInfo:
    return parse_table_info({"id": 1, "name": name}, "shop")


def job(action: Action, query: str, table: str = "t", after: str | None = None, **more: Any) -> Job:
    """`after`: the table's name after it."""
    members: dict[str, Any] = {
        "id": int(action), "type": int(action), "state": 6, "schema_id": 1, "table_id": 1, "schema_name": "shop",
        "table_name": table, "query": query, "start_ts": 1, "finished_ts": 2, "schema_version": 1, "version": 1,
        "raw_args": None, "charset": "utf8mb4", "collate": "utf8mb4_bin", "sql_mode": 0,
        "table_info": info(after or table) if table else None, "database_info": None, "table_infos": (),
    }  # fmt: skip
    return Job(**members | more)


#: Each would fail, or do something else, if it were executed twice.
JOBS = [
    job(Action.CREATE_SCHEMA, "CREATE DATABASE fresh", "", schema_name="fresh"),
    job(Action.DROP_SCHEMA, "DROP DATABASE shop", ""),
    job(Action.CREATE_TABLE, "CREATE TABLE n (id INT PRIMARY KEY)", "n"),
    job(Action.DROP_TABLE, "DROP TABLE t, p"),
    job(Action.CREATE_VIEW, "CREATE VIEW v AS SELECT id FROM t", "v"),
    job(Action.ADD_COLUMN, "ALTER TABLE t ADD COLUMN b INT DEFAULT 5"),
    job(Action.DROP_COLUMN, "ALTER TABLE t DROP COLUMN a"),
    job(Action.MODIFY_COLUMN, "ALTER TABLE t CHANGE a c BIGINT"),
    job(Action.ADD_INDEX, "ALTER TABLE t ADD INDEX (a)"),
    job(Action.MULTI_SCHEMA_CHANGE, "ALTER TABLE t ADD COLUMN b INT, ADD INDEX (a), ADD UNIQUE (b)"),
    job(Action.RENAME_TABLE, "RENAME TABLE t TO u", after="u"),
    job(Action.ADD_TABLE_PARTITION, "ALTER TABLE p ADD PARTITION (PARTITION p1 VALUES LESS THAN (20))", "p"),
    job(Action.ADD_FOREIGN_KEY, "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES t (id)"),
    job(Action.TRUNCATE_TABLE, "TRUNCATE TABLE t"),
]


SYNCPOINTS = Syncpoints("prod/feed", retention_s=3600)


def open_sink(database: MariaDb, writer: int = 1) -> MysqlDdlSink:
    claim = Claim("cf", 0, 1, "n", writer)
    return MysqlDdlSink(database.server(), "changefeed", claim, Patience(30), SYNCPOINTS)


def ddl_of(job: Job, ts: int = 10) -> Ddl:
    files = (SchemaFile(job.schema_name, job.table_name, ts, query=job.query),)
    return Ddl(ts, job.id, job=job, query=job.query, schema_files=files)


def adds_index(query: str, *, is_unique: bool = False) -> Ddl:
    """Of table t, which had none."""
    index = {"id": 1, "idx_name": "a", "idx_cols": [{"name": "a", "length": -1}], "is_unique": is_unique, "state": 5}
    after = parse_table_info({"id": 1, "name": "t", "index_info": [index]}, "shop")
    return replace(ddl_of(job(Action.ADD_INDEX, query)), before={1: info("t")}, tables={1: after})


def structure(database: MariaDb) -> list[tuple[Any, ...]]:
    """All columns, indexes, partitions and constraints, and the rows of t."""
    found: list[tuple[Any, ...]] = []
    for table, columns in (
        ("columns", "table_schema, table_name, column_name, column_type"),
        ("statistics", "table_schema, table_name, index_name, column_name"),
        ("partitions", "table_schema, table_name, partition_name"),
        ("table_constraints", "table_schema, table_name, constraint_name"),
    ):
        where = "WHERE table_schema IN ('shop', 'fresh')"
        found += database.query(f"SELECT {columns} FROM information_schema.{table} {where} ORDER BY {columns}")
    return found + database.query("SHOW DATABASES")


@pytest.mark.parametrize("ddl", JOBS, ids=[Action(job.type).name for job in JOBS])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_rule_25_a_ddl_is_executed_once_wherever_its_driver_dies(
    database: MariaDb, monkeypatch: pytest.MonkeyPatch, ddl: Job, moment: str
) -> None:
    """`moment`: of the death, and of the statement."""
    sink = open_sink(database)
    with monkeypatch.context() as patched:
        _die(patched, moment, ddl)
        with pytest.raises(Died):
            sink.execute(ddl_of(ddl, 10 << 18))
    sink.close()
    left = structure(database)
    heir = open_sink(database, 2)
    heir.execute(ddl_of(ddl, 10 << 18))
    done = structure(database)
    assert (left == done) == (moment == "after" or ddl.type == Action.TRUNCATE_TABLE)
    heir.execute(ddl_of(ddl, 10 << 18))
    heir.close()
    assert structure(database) == done
    assert database.query("SELECT is_done FROM changefeed.ddls") == [(b"1",)]


def _die(patched: pytest.MonkeyPatch, moment: str, ddl: Job) -> None:
    run = Session.run

    def dying(self: Session, statements: list[bytes]) -> list[int]:
        is_it = statements[0].startswith((ddl.query[:10].encode(), b"DROP TABLE `"))
        if is_it and moment == "before":
            raise Died
        changed = run(self, statements)
        if is_it:
            raise Died
        return changed

    patched.setattr(Session, "run", dying)


def test_a_driver_that_was_replaced_executes_nothing(database: MariaDb) -> None:
    old, heir = open_sink(database, 1), open_sink(database, 2)
    with pytest.raises(Fenced):
        old.execute(ddl_of(job(Action.DROP_COLUMN, "ALTER TABLE t DROP COLUMN a")))
    assert database.query("SELECT a FROM shop.t") == [(b"1",)]
    old.close()
    heir.close()


def test_a_statement_that_is_refused_can_be_mended_by_a_person(database: MariaDb) -> None:
    ddl = job(Action.ADD_COLUMN, "ALTER TABLE gone ADD COLUMN b INT", "gone")
    sink = open_sink(database)
    with pytest.raises(NeedsHuman, match=r"gone.*\(1146\)"):
        sink.execute(ddl_of(ddl))
    database.query("CREATE TABLE shop.gone (id INT PRIMARY KEY, b INT)")
    sink.execute(ddl_of(ddl))
    sink.close()


def test_what_may_have_changed_places_needs_a_person(database: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    ddl = job(Action.EXCHANGE_TABLE_PARTITION, "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE t")
    sink = open_sink(database)
    with monkeypatch.context() as patched:
        _die(patched, "after", ddl)
        with pytest.raises(Died):
            sink.execute(ddl_of(ddl))
    with pytest.raises(NeedsHuman, match="was executed downstream is unknown"):
        sink.execute(ddl_of(ddl))
    assert database.query("SELECT id FROM shop.p") == [(b"1",)]
    sink.close()


@contextlib.contextmanager
def read_by_another(database: MariaDb) -> Iterator[None]:
    """Table t is, by a transaction that is open: whoever alters it waits."""
    reader = Session(database.server())
    reader.run([b"BEGIN", b"SELECT * FROM shop.t"])
    try:
        yield
    finally:
        reader.close()


def indexes(database: MariaDb) -> list[bytes]:
    return [row[2] for row in database.query("SHOW INDEX FROM shop.t")]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)


def test_what_comes_after_an_index_does_not_wait_for_it(database: MariaDb) -> None:
    sink = open_sink(database)
    with read_by_another(database):
        sink.execute(adds_index("ALTER TABLE t ADD INDEX (a)"))
        sink.write_checkpoint(11)
        sink.execute(ddl_of(job(Action.CREATE_TABLE, "CREATE TABLE n (id INT PRIMARY KEY)", "n"), 20))
        assert indexes(database) == [b"PRIMARY"]
    sink.execute(ddl_of(job(Action.ADD_COLUMN, "ALTER TABLE t ADD COLUMN b INT"), 30))
    assert indexes(database) == [b"PRIMARY", b"a"]
    sink.close()
    assert database.query("SELECT is_done FROM changefeed.ddls ORDER BY ts") == [(b"1",)] * 3


def test_rule_25_the_next_driver_goes_on_with_an_index_and_it_is_built_once(database: MariaDb) -> None:
    sink, ddl = open_sink(database), adds_index("ALTER TABLE t ADD INDEX (a)")
    with read_by_another(database):
        sink.execute(ddl)
        heir = open_sink(database, 2)
    heir.execute(ddl)  # it is not in the log yet
    heir.execute(ddl)
    assert indexes(database) == [b"PRIMARY", b"a"]
    assert database.query("SELECT is_done FROM changefeed.ddls") == [(b"1",)]
    sink.close()
    heir.close()


def test_an_index_that_no_driver_has_seen_to_its_end_is_built_by_the_next(
    database: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("changefeed.sink.mysql.index_builds.IndexBuilds.start", lambda self, build: None)
        sink = open_sink(database)
        sink.execute(adds_index("ALTER TABLE t ADD INDEX (a)"))
        sink.close()
    assert indexes(database) == [b"PRIMARY"]
    heir = open_sink(database, 2)
    wait_until(lambda: database.query("SELECT is_done FROM changefeed.ddls") == [(b"1",)])
    assert indexes(database) == [b"PRIMARY", b"a"]
    heir.close()


def test_an_index_that_is_refused_stops_the_changefeed(database: MariaDb) -> None:
    sink = open_sink(database)
    sink.execute(adds_index("ALTER TABLE t ADD INDEX (gone)"))
    ended = []

    def has_failed() -> bool:
        with contextlib.suppress(NeedsHuman):
            sink.write_checkpoint(11)
            return False
        ended.append(True)
        return True

    wait_until(has_failed)
    with pytest.raises(NeedsHuman, match=r"gone.*\(1072\)"):
        sink.execute(ddl_of(job(Action.CREATE_TABLE, "CREATE TABLE n (id INT PRIMARY KEY)", "n"), 20))
    sink.close()


def test_rows_wait_for_an_index_that_may_refuse_them(database: MariaDb) -> None:
    sink = open_sink(database)
    sink.execute(adds_index("ALTER TABLE t ADD UNIQUE INDEX (a)", is_unique=True))
    assert indexes(database) == [b"PRIMARY", b"a"]
    sink.close()


def test_a_syncpoint_is_told_once_and_kept_for_a_while(database: MariaDb) -> None:
    sink = open_sink(database)
    told = "SELECT changefeed, primary_ts, secondary_ts FROM tidb_cdc.syncpoint_v1 ORDER BY primary_ts"
    for ts in (419430400262144000, 419430400262144000, 419430400524288000):
        sink.write_syncpoint(ts)
    assert database.query(told) == [
        (b"prod/feed", b"419430400262144000", b"0"),
        (b"prod/feed", b"419430400524288000", b"0"),
    ]
    database.query("UPDATE tidb_cdc.syncpoint_v1 SET created_at = NOW() - INTERVAL 3601 SECOND")
    sink.write_syncpoint(419430400786432000)
    assert [row[1] for row in database.query(told)] == [b"419430400786432000"]
    sink.close()


def test_rule_25_a_driver_that_was_replaced_tells_no_syncpoint(database: MariaDb) -> None:
    old, heir = open_sink(database, 1), open_sink(database, 2)
    with pytest.raises(Fenced):
        old.write_syncpoint(419430400262144000)
    assert database.query("SELECT * FROM tidb_cdc.syncpoint_v1") == []
    old.close()
    heir.close()


def test_a_server_whose_columns_would_get_other_defaults_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(NeedsHuman, match="explicit_defaults_for_timestamp is OFF")
    with running(tmp_path, "--explicit-defaults-for-timestamp=OFF") as database, refused:
        open_sink(database)
