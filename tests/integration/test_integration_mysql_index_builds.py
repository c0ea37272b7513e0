"""Indexes that a server builds while the changefeed goes on: once, whoever began, and waited for where needed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from changefeed.errors import (
    NeedsHuman,
    StatementRefused,
)
from changefeed.schema.ddl.actions import Action
from changefeed.sink.mysql.ddl_record import Subject
from changefeed.sink.mysql.driver import MysqlDriver
from changefeed.sink.mysql.index_builds import Build, IndexBuilds
from changefeed.sink.mysql.server import Session
from integration_mariadb import MariaDb
from integration_mysql_ddls import (
    ID,
    A,
    B,
    T,
    adds_index,
    ddl,
    open_sink,
    stored,
    with_tables,
)


@pytest.fixture
def database(mariadb: MariaDb) -> MariaDb:
    return with_tables(mariadb)


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
        sink.execute(adds_index())
        sink.write_checkpoint(11)
        sink.execute(ddl(Action.CREATE_TABLE, after=[stored("n", ID, id_=3)], ts=20))
        assert indexes(database) == [b"PRIMARY"]
    sink.execute(ddl(Action.ADD_COLUMN, [T], [stored("t", ID, A, B)], ts=30))
    assert indexes(database) == [b"PRIMARY", b"a"]
    sink.close()
    assert database.query("SELECT is_done FROM changefeed.ddls ORDER BY ts") == [(b"1",)] * 3


def test_rule_25_the_next_driver_goes_on_with_an_index_and_it_is_built_once(database: MariaDb) -> None:
    sink, told = open_sink(database), adds_index()
    with read_by_another(database):
        sink.execute(told)
        heir = open_sink(database, 2)
    heir.execute(told)  # it is not in the log yet
    heir.execute(told)
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
        sink.execute(adds_index())
        sink.close()
    assert indexes(database) == [b"PRIMARY"]
    heir = open_sink(database, 2)
    wait_until(lambda: database.query("SELECT is_done FROM changefeed.ddls") == [(b"1",)])
    assert indexes(database) == [b"PRIMARY", b"a"]
    heir.close()


def test_a_rename_waits_for_an_index_of_the_table(database: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for one whose statement the server has not been sent yet."""
    asked, renamed = threading.Event(), threading.Event()
    is_built, wait_for = MysqlDriver.is_built, IndexBuilds.wait_for

    def late(self: MysqlDriver, session: Session, build: Build) -> bool:
        assert asked.wait(30)
        assert not renamed.wait(0.5), "it did not wait"
        return is_built(self, session, build)

    def waits(self: IndexBuilds, subjects: Sequence[Subject]) -> None:
        if self._threads:
            asked.set()
        wait_for(self, subjects)

    monkeypatch.setattr(MysqlDriver, "is_built", late)
    monkeypatch.setattr(IndexBuilds, "wait_for", waits)
    indexed = [("a", "a", False)]
    sink = open_sink(database)
    sink.execute(adds_index())
    sink.execute(ddl(Action.RENAME_TABLE, [stored("t", indexes=indexed)], [stored("u", indexes=indexed)], ts=20))
    renamed.set()
    assert [row[2] for row in database.query("SHOW INDEX FROM shop.u")] == [b"PRIMARY", b"a"]
    sink.close()


def test_an_index_that_is_refused_stops_the_changefeed(database: MariaDb) -> None:
    sink = open_sink(database)
    sink.execute(adds_index(of="gone"))
    ended = []

    def has_failed() -> bool:
        with contextlib.suppress(NeedsHuman):
            sink.write_checkpoint(11)
            return False
        ended.append(True)
        return True

    wait_until(has_failed)
    with pytest.raises(StatementRefused, match=r"gone.*\(1072\)"):
        sink.execute(ddl(Action.CREATE_TABLE, after=[stored("n", ID, id_=3)], ts=20))
    sink.close()


def test_rows_wait_for_an_index_that_may_refuse_them(database: MariaDb) -> None:
    sink = open_sink(database)
    sink.execute(adds_index(is_unique=True))
    assert indexes(database) == [b"PRIMARY", b"a"]
    sink.close()
