"""ALTER TABLE as the difference of two definitions, as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
import schema_sql_story as story
from changefeed.errors import ExecuteByHand
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.sql.session import offset_text, only_offset, sql_mode, zone_of, zone_text
from schema_sql_story import (
    BIGINT,
    DATETIME,
    MARIADB,
    MYSQL,
    MYSQL_56,
    NOT_NULL,
    ON_UPDATE,
    PRI,
    TIDB,
    TIMESTAMP,
    VARCHAR,
    altered,
    column,
    index,
    job,
    partition,
    partitions,
    table,
    whole,
)  # fmt: skip

ID = column(1, "id", flag=NOT_NULL | PRI)
A, B, C = column(2, "a"), column(3, "b"), column(4, "c")
D, E = column(5, "d"), column(6, "e")
BEFORE = table(ID, A, B, C)

#: Columns after `id`, a, b, c, and the clauses.
COLUMNS = [
    ([A, B, C], []),
    ([A, B, C, D], ["ADD COLUMN `d` INT NULL"]),
    ([A, B, C, D, E], ["ADD COLUMN `d` INT NULL", "ADD COLUMN `e` INT NULL"]),
    ([A, D, E, B, C], ["ADD COLUMN `e` INT NULL AFTER `a`", "ADD COLUMN `d` INT NULL AFTER `a`"]),
    ([A, C], ["DROP COLUMN `b`"]),
    ([A, C, D], ["DROP COLUMN `b`", "ADD COLUMN `d` INT NULL"]),
    ([B, C, A], ["MODIFY COLUMN `a` INT NULL AFTER `c`"]),
    ([C, A, B], ["MODIFY COLUMN `c` INT NULL AFTER `id`"]),
    ([B, A, C], ["MODIFY COLUMN `b` INT NULL AFTER `id`"]),
    ([column(2, "x"), B, C], ["CHANGE COLUMN `a` `x` INT NULL"]),
    ([column(2, "A"), B, C], ["CHANGE COLUMN `a` `A` INT NULL"]),
    ([column(2, "a", BIGINT, NOT_NULL), B, C], ["MODIFY COLUMN `a` BIGINT NOT NULL"]),
    ([column(9, "a", BIGINT), B, C], ["MODIFY COLUMN `a` BIGINT NULL"]),  # TiDB has rewritten it
    ([B, C, column(9, "a", BIGINT)], ["MODIFY COLUMN `a` BIGINT NULL AFTER `c`"]),
    ([column(2, "a", default="5"), B, C], ["MODIFY COLUMN `a` INT NULL DEFAULT '5'"]),
    ([column(2, "a", comment="it's"), B, C], ["MODIFY COLUMN `a` INT NULL COMMENT 'it''s'"]),
]


@pytest.mark.parametrize(("columns", "clauses"), COLUMNS, ids=[" ".join(clauses) for _, clauses in COLUMNS])
def test_columns(columns: list[dict[str, object]], clauses: list[str]) -> None:
    after = table(ID, *columns)
    assert altered(BEFORE, after) == ([", ".join(clauses)] if clauses else [])


def test_a_first_column_and_several_places() -> None:
    after = table(D, ID, E, A, B, C)
    (text,) = altered(BEFORE, after)
    assert text == "ADD COLUMN `d` INT NULL FIRST, ADD COLUMN `e` INT NULL AFTER `id`"


def test_a_column_that_is_rewritten_under_another_name_is_told_by_the_statement() -> None:
    after = table(ID, column(9, "x", BIGINT), B, column(10, "y", BIGINT))
    query = "ALTER TABLE t CHANGE COLUMN `A` x BIGINT, change c Y BIGINT"
    (text,) = altered(BEFORE, after, job(Action.MULTI_SCHEMA_CHANGE, query))
    assert text == "CHANGE COLUMN `a` `x` BIGINT NULL, CHANGE COLUMN `c` `y` BIGINT NULL"
    (text,) = altered(BEFORE, after, job(Action.MULTI_SCHEMA_CHANGE, "ALTER TABLE t DROP a, ADD x BIGINT …"))
    assert text.startswith("DROP COLUMN `a`, DROP COLUMN `c`, ADD COLUMN `x` BIGINT NULL AFTER `id`")


def test_indexes() -> None:
    before = table(ID, A, B, index_info=[index(1, "by_a", "a"), index(2, "by_b", "b"), index(3, "old", "a", "b")])
    after = table(
        ID, A, B, index_info=[index(1, "by_a", "a"), index(4, "by_b", "b", is_unique=True), index(3, "new", "a", "b")]
    )
    assert altered(before, after) == [
        "DROP KEY `by_b`, RENAME KEY `old` TO `new`, ADD UNIQUE KEY `by_b` (`b`)"
    ]  # fmt: skip
    assert altered(before, after, dialect=MYSQL_56) == [
        "DROP KEY `by_b`, DROP KEY `old`, ADD UNIQUE KEY `by_b` (`b`), ADD KEY `new` (`a`, `b`)"
    ]


def test_an_index_that_tidb_has_built_again_for_a_column_is_not_touched() -> None:
    before = table(ID, A, B, index_info=[index(1, "by_a", "a", "b")])
    after = table(ID, column(9, "x", BIGINT), B, index_info=[index(2, "by_a", "x", "b")])
    assert altered(before, after, job(Action.MODIFY_COLUMN, "ALTER TABLE t CHANGE a x BIGINT")) == [
        "CHANGE COLUMN `a` `x` BIGINT NULL"
    ]


def test_the_index_of_a_column_that_is_dropped_goes_first() -> None:
    before = table(ID, A, B, index_info=[index(1, "by_a", "a")])
    assert altered(before, table(ID, B), Action.DROP_COLUMN) == ["DROP KEY `by_a`, DROP COLUMN `a`"]


def test_an_index_is_hidden_where_the_server_can() -> None:
    before = table(ID, A, index_info=[index(1, "by_a", "a")])
    after = table(ID, A, index_info=[index(1, "by_a", "a", is_invisible=True)])
    assert altered(before, after, Action.ALTER_INDEX_VISIBILITY, MYSQL) == ["ALTER INDEX `by_a` INVISIBLE"]
    assert altered(after, before, Action.ALTER_INDEX_VISIBILITY, TIDB) == ["ALTER INDEX `by_a` VISIBLE"]
    assert altered(before, after, Action.ALTER_INDEX_VISIBILITY, MARIADB) == []


def test_primary_keys() -> None:
    before = table(column(1, "id"), A, pk=False)
    after = table(column(1, "id", flag=NOT_NULL | PRI), A, pk=False, index_info=[index(1, "PRIMARY", "id")])
    assert altered(before, after, Action.ADD_PRIMARY_KEY) == ["ADD PRIMARY KEY (`id`)"]
    assert altered(before, after, Action.ADD_PRIMARY_KEY, TIDB) == ["ADD PRIMARY KEY (`id`) NONCLUSTERED"]
    without = table(column(1, "id", flag=NOT_NULL), A, pk=False)
    assert altered(after, without, Action.DROP_PRIMARY_KEY) == ["DROP PRIMARY KEY"]


def test_foreign_keys() -> None:
    key = {
        "fk_name": story.named("fk_1"), "cols": [story.named("a")], "ref_schema": story.named(""),
        "ref_table": story.named("Parents"), "ref_cols": [story.named("id")], "on_delete": 3, "on_update": 4,
        "state": 5,
    }  # fmt: skip
    after = table(ID, A, B, C, fk_info=[key], index_info=[index(1, "fk_1", "a")])
    assert altered(BEFORE, after, Action.ADD_FOREIGN_KEY) == [
        "ADD KEY `fk_1` (`a`), ADD CONSTRAINT `fk_1` FOREIGN KEY (`a`) REFERENCES `Shop`.`Parents` (`id`) "
        "ON DELETE SET NULL ON UPDATE NO ACTION"
    ]
    assert altered(after, BEFORE, Action.DROP_FOREIGN_KEY) == ["DROP FOREIGN KEY `fk_1`, DROP KEY `fk_1`"]


def test_options() -> None:
    after = table(ID, A, B, C, charset="gbk", collate="gbk_bin", comment="it's", auto_inc_id=7, ShardRowIDBits=4)
    text = "DEFAULT CHARACTER SET gbk COLLATE gbk_bin, AUTO_INCREMENT = 7, COMMENT = 'it''s'"
    assert altered(BEFORE, after, Action.MODIFY_TABLE_COMMENT) == [text]
    assert altered(BEFORE, after, Action.MODIFY_TABLE_COMMENT, TIDB) == [f"{text}, SHARD_ROW_ID_BITS = 4"]
    without = table(ID, A, B, C, charset="gbk", collate="gbk_bin", auto_inc_id=7)
    assert altered(after, without, Action.MODIFY_TABLE_COMMENT) == ["COMMENT = ''"]


def test_a_column_whose_collation_is_not_the_tables() -> None:
    before = table(ID, column(2, "a", VARCHAR, 0, 9))
    after = table(ID, column(2, "a", VARCHAR, 0, 9, collate="utf8mb4_unicode_ci"), collate="utf8mb4_general_ci")
    assert altered(before, after, Action.MODIFY_TABLE_CHARSET_AND_COLLATE) == [
        "MODIFY COLUMN `a` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NULL, "
        "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    ]


def test_ttl_is_tidbs_and_never_on_downstream() -> None:
    ttl = {"column": story.named("a"), "interval_expr": "1", "interval_time_unit": 5, "enable": True}
    after = table(ID, A, B, C, ttl_info=ttl)
    wanted = ["TTL = `a` + INTERVAL 1 DAY TTL_ENABLE = 'OFF'"]
    assert altered(BEFORE, after, Action.ALTER_TTL_INFO, TIDB) == wanted
    assert altered(after, BEFORE, Action.ALTER_TTL_REMOVE, TIDB) == ["REMOVE TTL"]
    assert altered(BEFORE, after, Action.ALTER_TTL_INFO) == altered(after, BEFORE, Action.ALTER_TTL_REMOVE) == []


P0, P1, P2 = partition(11, "p0", "10"), partition(12, "p1", "20"), partition(13, "p2", "MAXVALUE")
HASHED = [partition(number, f"p{number}") for number in range(4)]


@pytest.mark.parametrize(
    ("action", "before", "after", "clauses"),
    [
        (Action.ADD_TABLE_PARTITION, [P0], [P0, P1, P2], [
            "ADD PARTITION (PARTITION `p1` VALUES LESS THAN (20), PARTITION `p2` VALUES LESS THAN (MAXVALUE))",
        ]),
        (Action.DROP_TABLE_PARTITION, [P0, P1, P2], [P1], ["DROP PARTITION `p0`, `p2`"]),
        (Action.TRUNCATE_TABLE_PARTITION, [P0, P1], [P0, P1 | {"id": 20}], ["TRUNCATE PARTITION `p1`"]),
        (Action.REORGANIZE_PARTITION, [P0, P2], [P0, partition(21, "p1", "15"), partition(22, "p2", "MAXVALUE")], [
            "REORGANIZE PARTITION `p2` INTO (PARTITION `p1` VALUES LESS THAN (15), "
            "PARTITION `p2` VALUES LESS THAN (MAXVALUE))",
        ]),
        (Action.ALTER_TABLE_PARTITIONING, [P0], [P0 | {"id": 30}], [
            "PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (10))",
        ]),
        (Action.ALTER_TABLE_PARTITIONING, None, [P0], [
            "PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (10))",
        ]),
        (Action.REMOVE_PARTITIONING, [P0], None, ["REMOVE PARTITIONING"]),
        (Action.SET_TIFLASH_REPLICA, [P0], [P0], []),
    ],
)  # fmt: skip
def test_partitions(action: Action, before: list[object], after: list[object], clauses: list[str]) -> None:
    def of(definitions: list[object] | None) -> object:
        return None if definitions is None else partitions(*definitions)

    assert altered(table(ID, partition=of(before)), table(ID, partition=of(after)), action) == clauses


def test_partitions_that_are_counted() -> None:
    two, four = (
        partitions(*some, type_=2) for some in (HASHED[:2], [each | {"id": each["id"] + 9} for each in HASHED])
    )
    action = Action.REORGANIZE_PARTITION
    assert altered(table(ID, partition=two), table(ID, partition=four), action) == ["ADD PARTITION PARTITIONS 2"]
    assert altered(table(ID, partition=four), table(ID, partition=two), action) == ["COALESCE PARTITION 2"]


def test_older_rows_get_what_they_have_upstream_then_the_default_is_set() -> None:
    at = column(
        9, "at", DATETIME, ON_UPDATE, default="CURRENT_TIMESTAMP", origin_default="2024-05-06 15:08:09"
    )  # fmt: skip
    added, default = whole(Action.ADD_COLUMN, Touched((table(ID),), (table(ID, at),)))
    assert (added.text, added.is_repeatable) == (
        "ALTER TABLE `Shop`.`Orders` ADD COLUMN `at` DATETIME NULL DEFAULT '2024-05-06 15:08:09' "
        "ON UPDATE CURRENT_TIMESTAMP",
        False,
    )
    assert (default.text, default.is_repeatable) == (
        "ALTER TABLE `Shop`.`Orders` MODIFY COLUMN `at` DATETIME NULL DEFAULT CURRENT_TIMESTAMP "
        "ON UPDATE CURRENT_TIMESTAMP",
        True,
    )


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        ({"default": "5", "origin_default": "5"}, ["ADD COLUMN `x` INT NULL DEFAULT '5'"]),
        ({"flag": NOT_NULL, "origin_default": "0"}, ["ADD COLUMN `x` INT NOT NULL"]),
        ({"default": "5"}, ["ADD COLUMN `x` INT NULL", "MODIFY COLUMN `x` INT NULL DEFAULT '5'"]),
        ({"origin_default": "5"}, ["ADD COLUMN `x` INT NULL DEFAULT '5'", "MODIFY COLUMN `x` INT NULL"]),
    ],
)
def test_older_rows_of_other_columns(more: dict[str, object], texts: list[str]) -> None:
    assert altered(table(ID), table(ID, column(9, "x", **more)), Action.ADD_COLUMN) == texts  # type: ignore[arg-type]


EAST = ZoneInfo("Asia/Shanghai")


def test_a_cast_is_made_in_the_sessions_zone_and_defaults_stand_in_it_too() -> None:
    before = table(ID, column(2, "at", DATETIME))
    after = table(ID, column(9, "at", TIMESTAMP, default="2024-01-01 00:00:00"))
    (statement,) = whole(Action.MODIFY_COLUMN, Touched((before,), (after,)), zone=EAST)
    assert statement.text.endswith("MODIFY COLUMN `at` TIMESTAMP NULL DEFAULT '2024-01-01 08:00:00'")
    assert (statement.zone, statement.table, statement.casts) == (EAST, ("Shop", "Orders"), ("at",))


def test_where_no_value_is_cast_the_zone_says_nothing() -> None:
    before = table(ID, column(2, "at", TIMESTAMP))
    after = table(ID, column(2, "at", TIMESTAMP, default="2024-01-01 00:00:00"))
    (statement,) = whole(Action.SET_DEFAULT_VALUE, Touched((before,), (after,)), zone=EAST)
    assert (statement.zone, statement.casts) == (UTC, ())
    assert statement.text.endswith("DEFAULT '2024-01-01 00:00:00'")


def test_a_default_that_no_clock_of_the_zone_shows_once_is_refused() -> None:
    before = table(ID, column(2, "at", DATETIME))
    after = table(ID, column(9, "at", TIMESTAMP, default="2024-10-27 01:30:00"))  # the second 02:30 of that night
    with pytest.raises(ExecuteByHand, match=r"has no clear time in Europe/Berlin"):
        whole(Action.MODIFY_COLUMN, Touched((before,), (after,)), zone=ZoneInfo("Europe/Berlin"))


def test_a_table_that_was_never_known_is_refused() -> None:
    with pytest.raises(ExecuteByHand, match=r"alters Shop\.Orders, of which no earlier definition is known"):
        whole(Action.ADD_COLUMN, Touched((), (BEFORE,)))


@pytest.mark.parametrize(
    ("location", "otherwise", "zone"),
    [
        ({"name": "Asia/Shanghai", "offset": 0}, "Europe/Berlin", EAST),
        ({"name": "UTC", "offset": 28800}, "Europe/Berlin", timezone(timedelta(hours=8))),
        ({"name": "UTC", "offset": 0}, "Asia/Shanghai", UTC),
        ({"name": "System", "offset": 0}, "Asia/Shanghai", EAST),
        ({"name": "Nowhere/Else", "offset": 0}, "Asia/Shanghai", EAST),
        (None, "Asia/Shanghai", EAST),
        (None, "", UTC),
    ],
)
def test_the_zone_is_the_sessions_or_else_the_changefeeds(location: object, otherwise: str, zone: object) -> None:
    of = job(Action.MODIFY_COLUMN, reorg_meta=None if location is None else {"location": location})
    assert zone_of(of, otherwise) == zone


def test_zones_as_text() -> None:
    assert zone_text(UTC) == "+00:00"
    assert zone_text(EAST) == "Asia/Shanghai"
    assert zone_text(timezone(timedelta(hours=-9, minutes=-30))) == "-09:30"
    assert offset_text(timedelta(hours=5, minutes=45)) == "+05:45"


def test_the_only_offset_of_a_time() -> None:
    winter, summer = datetime(2024, 1, 1), datetime(2024, 7, 1)
    assert only_offset(EAST, winter, summer) == timedelta(hours=8)
    assert only_offset(ZoneInfo("Europe/Berlin"), winter, winter) == timedelta(hours=1)
    assert only_offset(ZoneInfo("Europe/Berlin"), winter, summer) is None


def test_the_sql_mode_keeps_what_decides_values() -> None:
    strict = "NO_AUTO_VALUE_ON_ZERO,STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO"
    assert sql_mode(job(Action.MODIFY_COLUMN)) == strict  # of TiDB's default
    assert sql_mode(job(Action.MODIFY_COLUMN, sql_mode=0b100)) == "NO_AUTO_VALUE_ON_ZERO"  # ANSI_QUOTES
