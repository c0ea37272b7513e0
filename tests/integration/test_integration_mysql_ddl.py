"""DDLs against a real server: each is executed once, wherever a driver dies between its intent and its word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import (
    ExecuteByHand,
    Fenced,
    NeedsHuman,
    OtherDefinition,
    StatementRefused,
    UnclearDdl,
    UnknownThing,
)
from changefeed.schema.ddl.actions import Action
from changefeed.schema.sql.statements import Statement
from changefeed.sink.contract import Ddl
from changefeed.sink.mysql import driver as mysql_driver
from changefeed.sink.mysql.server import Session
from changefeed_devcluster.tidb.schema import NewColumn, make_table
from integration_mariadb import MariaDb, running
from integration_mysql_ddls import (
    ID,
    P0,
    P1,
    A,
    B,
    P,
    T,
    ddl,
    open_sink,
    partitioned,
    stored,
    with_tables,
)
from integration_mysql_programs import every_server


class Died(BaseException):
    """In the place of a driver's death."""


@pytest.fixture
def database(mariadb: MariaDb) -> MariaDb:
    return with_tables(mariadb)


VIEW = {"view_select": "SELECT `id` FROM `shop`.`t`"}
FOREIGN = {"fk_name": "f", "cols": ["id"], "ref_schema": "", "ref_table": "t", "ref_cols": ["id"], "state": 5}
#: Each would fail, or do something else, if it were executed twice.
DDLS = [
    ddl(Action.CREATE_SCHEMA, database="fresh"),
    ddl(Action.DROP_SCHEMA, database="shop"),
    ddl(Action.CREATE_TABLE, after=[stored("n", ID, id_=3)]),
    ddl(Action.CREATE_TABLES, after=[stored("n", ID, id_=3), stored("m", ID, id_=4)]),
    ddl(Action.DROP_TABLE, [T]),
    ddl(Action.CREATE_VIEW, after=[stored("v", ID, id_=3, view=VIEW)]),
    ddl(Action.ADD_COLUMN, [T], [stored("t", ID, A, B)]),
    ddl(Action.DROP_COLUMN, [T], [stored("t", ID)]),
    ddl(Action.MODIFY_COLUMN, [T], [stored("t", ID, NewColumn("c", "bigint", nullable=True))]),
    ddl(Action.ADD_INDEX, [T], [stored("t", indexes=[("a", "a", True)])]),
    ddl(Action.MULTI_SCHEMA_CHANGE, [T], [stored("t", ID, A, B, indexes=[("a", "a", False), ("b", "b", True)])]),
    ddl(Action.RENAME_TABLE, [T], [stored("u")]),
    ddl(Action.ADD_TABLE_PARTITION, [P], [partitioned(P0, P1)]),
    ddl(Action.ADD_FOREIGN_KEY, [T], [stored("t", fk_info=[FOREIGN])]),
    ddl(Action.TRUNCATE_TABLE, [T], [stored("t", id_=3)]),
]


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


@pytest.mark.parametrize("told", DDLS, ids=[each.change.type_name for each in DDLS if each.change])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_rule_25_a_ddl_is_executed_once_wherever_its_driver_dies(
    database: MariaDb, monkeypatch: pytest.MonkeyPatch, told: Ddl, moment: str
) -> None:
    """`moment`: of the death, and of the first statement."""
    sink = open_sink(database)
    with monkeypatch.context() as patched:
        _die(patched, moment)
        with pytest.raises(Died):
            sink.execute(told)
    sink.close()
    left = structure(database)
    heir = open_sink(database, 2)
    heir.execute(told)
    done = structure(database)
    assert (left == done) == (
        told.change is not None
        and (
            told.change.type == Action.TRUNCATE_TABLE
            or (moment == "after" and told.change.type != Action.CREATE_TABLES)
        )
    )
    heir.execute(told)
    heir.close()
    assert structure(database) == done
    assert database.query("SELECT is_done FROM changefeed.ddls") == [(b"1",)]


_VERBS = (b"CREATE DATABASE `f", b"DROP", b"CREATE TABLE `s", b"CREATE VIEW", b"ALTER", b"RENAME", b"TRUNCATE")


def _die(patched: pytest.MonkeyPatch, moment: str, statement: int = 1) -> None:
    """At the DDL's `statement`, the first being 1."""
    run, seen = Session.run, 0

    def dying(self: Session, statements: Sequence[bytes]) -> list[int]:
        nonlocal seen
        seen += (is_one := statements[0].startswith(_VERBS))
        is_it = is_one and seen == statement
        if is_it and moment == "before":
            raise Died
        changed = run(self, statements)
        if is_it:
            raise Died
        return changed

    patched.setattr(Session, "run", dying)


#: A new column whose older rows have another value than the default, at +08:00.
AT = {"default": "CURRENT_TIMESTAMP", "origin_default": "2024-05-06 15:08:09"}


@every_server
@pytest.mark.parametrize("statement", [1, 2])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_rule_25_a_ddl_of_two_statements_is_finished_wherever_its_driver_dies(
    database: MariaDb, monkeypatch: pytest.MonkeyPatch, moment: str, statement: int
) -> None:
    after = stored("t", ID, A, NewColumn("at", "datetime", nullable=True))
    (*others, at), raw = after.columns, after.raw["cols"]
    after = replace(
        after,
        columns=(*others, replace(at, **AT)),
        raw={**after.raw, "cols": [*raw[:-1], raw[-1] | AT]},
    )
    told = ddl(Action.ADD_COLUMN, [T], [after])
    sink = open_sink(database)
    with monkeypatch.context() as patched:
        _die(patched, moment, statement)
        with pytest.raises(Died):
            sink.execute(told)
    sink.execute(told)
    sink.close()
    assert database.query("SELECT at FROM shop.t") == [(b"2024-05-06 15:08:09",)]
    (default,) = database.query("SELECT column_default FROM information_schema.columns WHERE column_name = 'at'")
    assert default[0].lower().startswith(b"current_timestamp")


def test_a_text_that_is_executed_in_a_comment_changes_nothing(database: MariaDb) -> None:
    """Some servers execute what others skip."""
    query = "ALTER TABLE t ADD COLUMN b INT /*M! COMMENT 'executed' */ /*! DEFAULT 7 */; SELECT 1"
    sink = open_sink(database)
    sink.execute(ddl(Action.ADD_COLUMN, [T], [stored("t", ID, A, B)], query=query))
    comment = {"generated_expr_string": "`id` + 1 /*M! + 1 */ /*! + 1 */"}
    before, after = stored("t", ID, A, B), stored("t", ID, A, B, NewColumn("g", "int", nullable=True))
    raw = after.raw["cols"]
    after = replace(after, raw={**after.raw, "cols": [*raw[:-1], raw[-1] | comment]})
    sink.execute(ddl(Action.ADD_COLUMN, [before], [after], ts=11))
    sink.close()
    found = database.query(
        "SELECT column_default, column_comment FROM information_schema.columns WHERE column_name='b'"
    )
    assert found == [(b"5", b"")]
    assert database.query("SELECT g FROM shop.t") == [(b"2",)]


def test_a_table_that_is_not_what_a_ddl_makes_of_it_stops_the_changefeed(database: MariaDb) -> None:
    database.query("ALTER TABLE shop.t MODIFY a TINYINT")
    added = ddl(Action.ADD_COLUMN, [T], [stored("t", ID, A, B)])
    for writer in (1, 2):  # also the next driver, which finds the DDL executed
        sink = open_sink(database, writer)
        with pytest.raises(OtherDefinition, match=r"shop\.t differs .* a is tinyint\(4\).* MODIFY COLUMN `a` INT NULL"):
            sink.execute(added)
        sink.close()
    database.query("ALTER TABLE shop.t MODIFY a INT")
    sink = open_sink(database, 3)
    sink.execute(added)
    sink.close()


def test_a_table_that_a_later_ddl_has_changed_is_not_held_against_an_earlier_one(database: MariaDb) -> None:
    added = ddl(Action.ADD_COLUMN, [T], [stored("t", ID, A, B)])
    sink = open_sink(database)
    sink.execute(added)
    sink.execute(ddl(Action.DROP_COLUMN, [stored("t", ID, A, B)], [T], ts=20))
    sink.close()
    heir = open_sink(database, 2)
    heir.execute(added)
    heir.close()


def test_ddls_go_over_a_connection_that_takes_one_statement(database: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    two = (Statement("DROP TABLE shop.t; DROP TABLE shop.p"),)
    monkeypatch.setattr(mysql_driver, "statements", lambda *_: two)
    sink = open_sink(database)
    with pytest.raises(StatementRefused, match=r"\(1064\)"):
        sink.execute(ddl(Action.DROP_TABLE, [T]))
    assert len(database.query("SHOW TABLES FROM shop")) == 2
    sink.close()


@every_server
@pytest.mark.parametrize(
    ("old", "new", "value", "wanted"),
    [
        ("datetime", "timestamp", "2024-01-01 08:00:00", b"2024-01-01 00:00:00"),
        ("timestamp", "datetime", "2024-01-01 00:00:00", b"2024-01-01 08:00:00"),
        ("varchar(40)", "timestamp", "2024-01-01 08:00:00", b"2024-01-01 00:00:00"),
        ("timestamp", "varchar(40)", "2024-01-01 00:00:00", b"2024-01-01 08:00:00"),
    ],
)
def test_a_cast_is_made_in_the_sessions_time_zone(
    database: MariaDb, old: str, new: str, value: str, wanted: bytes
) -> None:
    """The server knows no names of zones: an offset is taken where the zone has only one in the time of all rows."""
    database.query("DROP TABLE shop.t", f"CREATE TABLE shop.t (id INT PRIMARY KEY, a {old} NULL)")
    database.query(f"INSERT INTO shop.t VALUES (1, '{value}'), (2, NULL)")
    sink = open_sink(database)
    tables = [stored("t", ID, NewColumn("a", kind, nullable=True)) for kind in (old, new)]
    sink.execute(ddl(Action.MODIFY_COLUMN, tables[:1], tables[1:]))
    assert database.query("SELECT a FROM shop.t ORDER BY id") == [(wanted,), (None,)]
    sink.close()


def test_a_cast_that_no_offset_makes_is_refused_until_the_server_knows_the_zone(database: MariaDb) -> None:
    database.query("DROP TABLE shop.t", "CREATE TABLE shop.t (id INT PRIMARY KEY, a DATETIME)")
    database.query("INSERT INTO shop.t VALUES (1, '2024-01-01 08:00:00'), (2, '2024-07-01 08:00:00')")
    sink = open_sink(database)
    tables = [stored("t", ID, NewColumn("a", kind, nullable=True)) for kind in ("datetime", "timestamp")]
    berlin = {"location": {"name": "Europe/Berlin", "offset": 0}}
    told = ddl(Action.MODIFY_COLUMN, tables[:1], tables[1:], reorg_meta=berlin)
    with pytest.raises(ExecuteByHand, match=r"in the time zone Europe/Berlin only.*mysql_tzinfo_to_sql"):
        sink.execute(told)
    database.query("UPDATE shop.t SET a = '2024-01-01 08:00:00'")
    sink.execute(told)
    assert database.query("SELECT a FROM shop.t") == [(b"2024-01-01 07:00:00",)] * 2
    sink.close()


def test_what_the_server_does_not_know_is_refused_and_done_by_hand(database: MariaDb) -> None:
    hidden = make_table(1, "t", (ID, A, NewColumn("h", "int", nullable=True)), "id").to_json()["cols"]
    hidden[2] |= {"hidden": True, "generated_expr_string": "`a` + 1"}
    told = ddl(Action.ADD_INDEX, [T], [stored("t", indexes=[("odd", "h", False)], cols=hidden)])
    sink = open_sink(database)
    with pytest.raises(ExecuteByHand, match=r"knows no index of an expression, such as odd.*by hand.*is_done = 1"):
        sink.execute(told)
    database.query("ALTER TABLE shop.t ADD COLUMN h INT AS (a + 1), ADD INDEX odd (h)")
    sink.execute(told)
    assert database.query("SELECT is_done FROM changefeed.ddls") == [(b"1",)]
    sink.close()


@every_server
def test_a_driver_that_was_replaced_executes_nothing(database: MariaDb) -> None:
    old, heir = open_sink(database, 1), open_sink(database, 2)
    with pytest.raises(Fenced):
        old.execute(ddl(Action.DROP_COLUMN, [T], [stored("t", ID)]))
    assert database.query("SELECT a FROM shop.t") == [(b"1",)]
    old.close()
    heir.close()


def test_a_value_that_does_not_fit_stops_the_ddl(database: MariaDb) -> None:
    """In the SQL mode of the upstream's session, without which the server would make it fit."""
    strict = 1 << 21 | 1 << 22
    narrower = stored("t", ID, NewColumn("a", "tinyint", nullable=True))
    database.query("UPDATE shop.t SET a = 1000")
    sink = open_sink(database)
    with pytest.raises(
        StatementRefused, match=r"\(1264\)\. The statement was ALTER TABLE `shop`\.`t` MODIFY COLUMN `a`"
    ):
        sink.execute(ddl(Action.MODIFY_COLUMN, [T], [narrower], sql_mode=strict))
    assert database.query("SELECT a FROM shop.t") == [(b"1000",)]
    sink.close()


def test_a_statement_that_is_refused_can_be_mended_by_a_person(database: MariaDb) -> None:
    told = ddl(Action.ADD_COLUMN, [stored("gone", ID)], [stored("gone", ID, B)])
    sink = open_sink(database)
    with pytest.raises(UnknownThing, match=r"gone.*\(1146\)\. The statement was ALTER TABLE `shop`\.`gone` ADD COLUMN"):
        sink.execute(told)
    database.query("CREATE TABLE shop.gone (id INT PRIMARY KEY, b INT)")
    sink.execute(told)
    sink.close()


def test_what_may_have_changed_places_needs_a_person(database: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"partition_id": 10, "pt_schema_id": 1, "pt_table_id": 2, "partition_name": "p0", "with_validation": True}
    told = ddl(Action.EXCHANGE_TABLE_PARTITION, [T, P], [T, P], raw_args=args, version=2)
    sink = open_sink(database)
    with monkeypatch.context() as patched:
        _die(patched, "after")
        with pytest.raises(Died):
            sink.execute(told)
    with pytest.raises(UnclearDdl, match="was executed downstream is unknown"):
        sink.execute(told)
    assert database.query("SELECT id FROM shop.p") == [(b"1",)]
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
