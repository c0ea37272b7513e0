"""Which DDLs are not handed on: TiCDC's kinds, aliases and texts."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.filter.ddl import ignores_ddl
from changefeed.schema.ddl.actions import Action
from changefeed.spec.filter.event_types import DDLS
from changefeed.spec.filter.filters import Filter
from changefeed.upstream.tikv.tidb.job import Job, parse_job


def ignores(rule: dict[str, Any], action: int, query: str = "", **where: Any) -> bool:
    spec = Filter.model_validate({"eventFilters": [{"matcher": ["shop.*", "!shop.kept"]} | rule]})
    return ignores_ddl(spec, job(action, query), **{"schema": "shop", "table": "orders"} | where)


def job(action: int, query: str = "", start_ts: int = 1) -> Job:
    return parse_job({"type": action, "query": query, "start_ts": start_ts})


@pytest.mark.parametrize(
    ("event", "action", "expected"),
    [
        ("drop table", Action.DROP_TABLE, True),
        ("drop table", Action.TRUNCATE_TABLE, False),
        ("all ddl", Action.CREATE_TABLE, True),
        ("all dml", Action.CREATE_TABLE, False),
        ("alter table", Action.ADD_COLUMN, True),
        ("alter table", Action.RENAME_TABLE, True),
        ("alter table", Action.MULTI_SCHEMA_CHANGE, True),
        ("alter table", Action.TRUNCATE_TABLE, False),
        ("alter table", Action.ADD_FOREIGN_KEY, False),
        ("add column", Action.ADD_COLUMNS, True),
        ("create table", Action.CREATE_TABLES, True),
        ("rename table", Action.RENAME_TABLES, True),
        ("create index", Action.ADD_INDEX, True),
        ("add fulltext index", 230, True),
        ("all ddl", Action.LOCK_TABLE, False),
        ("all ddl", 999, False),
    ],
)
def test_a_ddl_is_ignored_by_its_kind(event: str, action: int, expected: bool) -> None:
    assert ignores({"ignoreEvent": [event]}, action) is expected


@pytest.mark.parametrize(
    ("event", "action"),
    [
        ("create schema", Action.CREATE_SCHEMA),
        ("create database", Action.CREATE_SCHEMA),
        ("drop schema", Action.DROP_SCHEMA),
        ("modify schema charset and collate", Action.MODIFY_SCHEMA_CHARSET_AND_COLLATE),
    ],
)
def test_a_ddl_of_a_schema_is_about_every_matcher_that_may_have_tables_of_it(event: str, action: int) -> None:
    assert ignores({"ignoreEvent": [event]}, action, table="")
    assert ignores({"ignoreEvent": [event], "matcher": ["shop.orders"]}, action, table="")
    assert not ignores({"ignoreEvent": [event]}, action, table="", schema="bank")
    assert not ignores({"ignoreEvent": [event], "matcher": ["shop.*", "!shop.*"]}, action, table="")


@pytest.mark.parametrize(
    ("pattern", "query", "expected"),
    [
        ("^drop table", "DROP TABLE orders", True),
        ("^drop table", "/* c */ DROP TABLE orders", False),
        (r"\borders\b", "ALTER TABLE `orders` ADD c INT", True),
        (r"orders\d", "ALTER TABLE orders", False),
    ],
)
def test_a_ddl_is_ignored_by_its_text(pattern: str, query: str, expected: bool) -> None:
    assert ignores({"ignoreSql": ["^never", pattern]}, Action.ADD_COLUMN, query) is expected


def test_a_kind_without_a_name_is_not_ignored_by_its_text() -> None:
    assert not ignores({"ignoreSql": ["."]}, Action.LOCK_TABLE, "LOCK TABLES orders READ")


def test_only_tables_of_the_matcher_count() -> None:
    assert not ignores({"ignoreEvent": ["all ddl"]}, Action.DROP_TABLE, table="kept")
    assert ignores({"ignoreEvent": ["all ddl"]}, Action.DROP_TABLE, table="ORDERS")


def test_a_ddl_of_an_ignored_transaction_is_ignored() -> None:
    spec = Filter.model_validate({"ignoreTxnStartTs": ["5"]})
    assert ignores_ddl(spec, job(999, start_ts=5), "shop", "orders")
    assert not ignores_ddl(spec, job(999, start_ts=6), "shop", "orders")


@pytest.mark.parametrize("event", DDLS)
def test_every_kind_can_be_ignored(event: str) -> None:
    assert sum(ignores({"ignoreEvent": [event]}, action) for action in range(300)) in (1, 2)
