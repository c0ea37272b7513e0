"""CREATE TABLE, whole tables and databases: the statements that are written from definitions, as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import schema_sql_story as story
from changefeed.errors import ExecuteByHand
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.sql.dialect import Dialect
from schema_sql_story import (
    AUTO,
    BIGINT,
    BIT,
    BLOB,
    CHAR,
    DATE,
    DATETIME,
    DECIMAL,
    ENUM,
    INT,
    JSON,
    MARIADB,
    MYSQL,
    MYSQL_56,
    NO_DEFAULT,
    NOT_NULL,
    ON_UPDATE,
    PRI,
    TIDB,
    TIMESTAMP,
    TINY,
    UNSIGNED,
    VARCHAR,
    VECTOR,
    ZEROFILL,
    column,
    created,
    index,
    job,
    partition,
    partitions,
    renamed,
    table,
    whole,
    written,
)  # fmt: skip

ID = column(1, "id", flag=NOT_NULL | PRI)
OPTIONS = "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
BELOW_10 = partitions(partition(11, "p0", "10"), partition(12, "rest", "MAXVALUE"))

#: A column's definition, and its text.
COLUMNS = [
    (column(2, "a", TINY, flen=1, default="1"), "`a` TINYINT(1) NULL DEFAULT '1'"),
    (column(2, "a", INT, UNSIGNED | ZEROFILL, 8), "`a` INT(8) UNSIGNED ZEROFILL NULL"),
    (column(2, "a", BIGINT, NOT_NULL | UNSIGNED | NO_DEFAULT, 20), "`a` BIGINT UNSIGNED NOT NULL"),
    (column(2, "a", BIGINT, NOT_NULL | AUTO, 20), "`a` BIGINT NOT NULL AUTO_INCREMENT"),
    (column(2, "a", DECIMAL, 0, 20, 4, default="1.5"), "`a` DECIMAL(20, 4) NULL DEFAULT '1.5'"),
    (column(2, "a", BIT, 0, 4, default="\x05", default_bit="BQ=="), "`a` BIT(4) NULL DEFAULT b'101'"),
    (column(2, "a", VARCHAR, 0, 20), "`a` VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL"),
    (
        column(2, "a", CHAR, 0, 2, charset="latin1", collate="latin1_bin", default="it's \\", comment="a`b'c"),
        r"`a` CHAR(2) CHARACTER SET latin1 COLLATE latin1_bin NULL DEFAULT 'it''s \\' COMMENT 'a`b''c'",
    ),
    (column(2, "a", VARCHAR, 0, 9, charset="binary", collate="binary"), "`a` VARBINARY(9) NULL"),
    (column(2, "a", BLOB, 0, 65535, charset="binary", collate="binary"), "`a` BLOB NULL"),
    (column(2, "a", BLOB, 0, 65535), "`a` TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL"),
    (
        column(2, "a", ENUM, elems=["x", "it's"], collate="utf8mb4_general_ci"),
        "`a` ENUM('x', 'it''s') CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NULL",
    ),
    (column(2, "a", TIMESTAMP, 0, 19), "`a` TIMESTAMP NULL"),
    (
        column(2, "a", DATETIME, ON_UPDATE, 22, 2, default="CURRENT_TIMESTAMP"),
        "`a` DATETIME(2) NULL DEFAULT CURRENT_TIMESTAMP(2) ON UPDATE CURRENT_TIMESTAMP(2)",
    ),
    (
        column(2, "a", TIMESTAMP, NOT_NULL, 19, default="2024-01-01 00:00:00"),
        "`a` TIMESTAMP NOT NULL DEFAULT '2024-01-01 00:00:00'",
    ),
    (
        column(2, "a", VARCHAR, 0, 36, default="uuid()", default_is_expr=True),
        "`a` VARCHAR(36) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL DEFAULT (uuid())",
    ),
    (column(2, "a", INT, default="nextval(`shop`.`s`)", default_is_expr=True), "`a` INT NULL"),
    (
        column(2, "a", INT, generated_expr_string="`id` + 1 /* not ours */"),
        "`a` INT GENERATED ALWAYS AS (`id` + 1) VIRTUAL",
    ),
    (
        column(2, "a", INT, NOT_NULL, generated_expr_string="`id` * 2", generated_stored=True),
        "`a` INT GENERATED ALWAYS AS (`id` * 2) STORED",
    ),
]


@pytest.mark.parametrize(("stored", "text"), COLUMNS, ids=[text for _, text in COLUMNS])
def test_a_column_is_written_whole(stored: dict[str, object], text: str) -> None:
    wanted = f"CREATE TABLE `Shop`.`Orders` (`id` INT NOT NULL, {text}, PRIMARY KEY (`id`)) {OPTIONS}"
    assert created(table(ID, stored)) == wanted


def test_a_generated_column_says_not_null_where_the_server_knows_that() -> None:
    stored = column(2, "a", INT, NOT_NULL, generated_expr_string="`id` * 2", generated_stored=True)
    assert "`a` INT GENERATED ALWAYS AS (`id` * 2) STORED NOT NULL" in created(table(ID, stored), MYSQL)


def test_keys_constraints_options_and_partitions() -> None:
    made = table(
        ID,
        column(2, "name", VARCHAR, 0, 20),
        index_info=[
            index(1, "by name", ("name", 10), "id", is_unique=True, comment="it's"),
            index(2, "coming", "name", state=2),
            index(3, "Hidden", "name", is_invisible=True),
        ],
        fk_info=[
            {
                "fk_name": story.named("fk"),
                "cols": [story.named("id")],
                "ref_schema": story.named("Ref"),
                "ref_table": story.named("P"),
                "ref_cols": [story.named("k")],
                "on_delete": 2,
                "on_update": 0,
                "state": 5,
            }
        ],
        constraint_info=[
            {"constraint_name": story.named("c"), "expr_string": "`id` > 0", "enforced": True, "state": 5},
            {"constraint_name": story.named("d"), "expr_string": "`id` > 9", "enforced": False, "state": 5},
        ],
        comment="all; of it",
        auto_inc_id=100,
        partition=BELOW_10,
    )
    name = "`name` VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL"
    wanted = (
        f"CREATE TABLE `Shop`.`Orders` (`id` INT NOT NULL, {name}, PRIMARY KEY (`id`), "
        "UNIQUE KEY `by name` (`name`(10), `id`) COMMENT 'it''s', KEY `Hidden` (`name`), CONSTRAINT `fk` FOREIGN KEY "
        "(`id`) REFERENCES `Ref`.`P` (`k`) ON DELETE CASCADE, CONSTRAINT `c` CHECK (`id` > 0)) "
        f"{OPTIONS} AUTO_INCREMENT = 100 COMMENT = 'all; of it' PARTITION BY RANGE (`id`) "
        "(PARTITION `p0` VALUES LESS THAN (10), PARTITION `rest` VALUES LESS THAN (MAXVALUE))"
    )
    assert created(made) == wanted
    assert "KEY `Hidden` (`name`) INVISIBLE" in created(made, MYSQL)


def test_an_index_of_an_expression() -> None:
    hidden = column(2, "_V$_lower_0", VARCHAR, hidden=True, generated_expr_string="lower(`id`)")
    made = table(ID, hidden, index_info=[index(1, "lower", "_V$_lower_0")])
    assert "(`id` INT NOT NULL, PRIMARY KEY (`id`), KEY `lower` ((lower(`id`))))" in created(made, MYSQL)
    with pytest.raises(ExecuteByHand, match=r"MariaDB 10\.11\.6 knows no index of an expression, such as lower"):
        created(made, MARIADB)


def test_a_default_that_the_server_can_t_compute_is_refused() -> None:
    made = table(ID, column(2, "a", VARCHAR, 0, 36, default="uuid()", default_is_expr=True))
    with pytest.raises(ExecuteByHand, match=r"MySQL 5\.6\.51 knows no default such as that of a"):
        created(made, MYSQL_56)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (column(2, "a", generated_expr_string="`id` + 1"), "knows no generated columns, such as a"),
        (column(2, "a", DATE, default="CURRENT_DATE"), "knows no default such as that of a, 'CURRENT_DATE'"),
        (column(2, "a", VECTOR), "is sent no VECTOR, such as a"),
        (
            column(2, "a", VARCHAR, 0, 9, collate="utf8mb4_0900_ai_ci"),
            "has no collation utf8mb4_0900_ai_ci, which a has",
        ),
        (
            column(2, "a", VARCHAR, 0, 9, charset="gb18030", collate="gb18030_chinese_ci"),
            "has no collation gb18030_chinese_ci",
        ),
    ],
)
def test_a_column_that_the_server_does_not_know_is_refused_by_its_name(stored: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecuteByHand, match=message):
        created(table(ID, stored), MYSQL_56)
    # A change elsewhere in such a table, which somebody has made, is none of it.
    before, after = table(ID, stored), table(ID, stored, column(3, "b"))
    assert written(Action.ADD_COLUMN, Touched((before,), (after,)), MYSQL_56) == [
        "ALTER TABLE `Shop`.`Orders` ADD COLUMN `b` INT NULL"
    ]


def test_json_is_a_text_where_the_server_has_no_such_type() -> None:
    text = "`a` LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL"
    assert text in created(table(ID, column(2, "a", JSON)), MYSQL_56)


def test_a_collation_that_pads_under_the_upstreams_name_is_another_one() -> None:
    made = table(ID, column(2, "a", VARCHAR, 0, 9, collate="utf8mb4_0900_bin"))
    assert "COLLATE utf8mb4_nopad_bin NULL" in created(made)
    assert "COLLATE utf8mb4_0900_bin NULL" in created(made, MYSQL)


def test_an_index_takes_as_much_of_a_text_as_the_server_does() -> None:
    columns = ID, column(2, "a", VARCHAR, 0, 255), column(3, "b", VARCHAR, 0, 255, charset="latin1")
    made = table(*columns, index_info=[index(1, "k", "a", "b"), index(2, "short", ("a", 191))])
    assert "KEY `k` (`a`, `b`), KEY `short` (`a`(191))" in created(made, MYSQL)
    assert "KEY `k` (`a`(191), `b`), KEY `short` (`a`(191))" in created(made, MYSQL_56)
    unique = table(*columns, index_info=[index(1, "k", "a", is_unique=True)])
    with pytest.raises(ExecuteByHand, match=r"MySQL 5\.6\.51 takes 767 bytes of a column into a key; k has 1020 of a"):
        created(unique, MYSQL_56)


def test_a_partition_of_all_other_values() -> None:
    of_all = partitions(partition(10, "p0", values=[["1"]]), partition(11, "rest", values=[["DEFAULT"]]), type_=3)
    assert "PARTITION `rest` DEFAULT)" in created(table(ID, partition=of_all))
    with pytest.raises(ExecuteByHand, match="knows no partition of all other values, such as rest"):
        created(table(ID, partition=of_all), MYSQL)


def test_what_only_tidb_has_is_written_for_tidb_only() -> None:
    ttl = {"column": story.named("at"), "interval_expr": "3", "interval_time_unit": 7, "enable": True}
    made = table(
        column(1, "id", BIGINT, NOT_NULL | PRI, 20),
        column(2, "at", DATETIME),
        auto_random_bits=5,
        auto_random_range_bits=54,
        ttl_info=ttl | {"job_interval": "24h"},
        index_info=[index(1, "vectors", "at", vector_index={"dimension": 3})],
    )
    assert created(made) == (
        f"CREATE TABLE `Shop`.`Orders` (`id` BIGINT NOT NULL, `at` DATETIME NULL, PRIMARY KEY (`id`)) {OPTIONS}"
    )
    assert created(made, TIDB) == (
        "CREATE TABLE `Shop`.`Orders` (`id` BIGINT NOT NULL AUTO_RANDOM(5, 54), `at` DATETIME NULL, PRIMARY KEY (`id`) "
        f"CLUSTERED) {OPTIONS} TTL = `at` + INTERVAL 3 MONTH TTL_ENABLE = 'OFF' TTL_JOB_INTERVAL = '24h'"
    )
    heap = table(
        column(1, "id", flag=NOT_NULL | PRI), pk=False, ShardRowIDBits=4, index_info=[index(1, "PRIMARY", "id")]
    )
    wanted = f"(`id` INT NOT NULL, PRIMARY KEY (`id`) NONCLUSTERED) {OPTIONS} SHARD_ROW_ID_BITS = 4"
    assert created(heap, TIDB).endswith(wanted)


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (partitions(partition(11, "p0"), partition(12, "p1"), type_=2), "HASH (`id`) PARTITIONS 2"),
        (partitions(partition(11, "a"), type_=2), "HASH (`id`) (PARTITION `a`)"),
        (partitions(partition(11, "p0"), type_=4, columns=["id"]), "KEY (`id`) PARTITIONS 1"),
        (partitions(partition(11, "p0"), type_=4, columns=[]), "KEY () PARTITIONS 1"),
        (
            partitions(partition(11, "p0", "10", "'x;'"), columns=["id", "a"]),
            "RANGE COLUMNS (`id`, `a`) (PARTITION `p0` VALUES LESS THAN (10, 'x;'))",
        ),
        (
            partitions(partition(11, "p0", values=[["1"], ["NULL"]], comment="c"), partition(12, "p1"), type_=3),
            "LIST (`id`) (PARTITION `p0` VALUES IN (1, NULL) COMMENT 'c', PARTITION `p1` DEFAULT)",
        ),
        (
            partitions(partition(11, "p0", values=[["1", "2"], ["3", "4"]]), type_=3, columns=["id", "a"]),
            "LIST COLUMNS (`id`, `a`) (PARTITION `p0` VALUES IN ((1, 2), (3, 4)))",
        ),
    ],
)
def test_each_kind_of_partitions(stored: dict[str, object], text: str) -> None:
    assert created(table(ID, partition=stored)).endswith(f" PARTITION BY {text}")


def test_several_tables_of_one_job_can_be_made_one_by_one() -> None:
    several = table(id_=1, name="a"), table(id_=2, name="b")
    found = whole(Action.CREATE_TABLES, Touched((), several))
    assert [(each.text.partition(" (")[0], each.makes) for each in found] == [
        ("CREATE TABLE `Shop`.`a`", ("Shop", "a")),
        ("CREATE TABLE `Shop`.`b`", ("Shop", "b")),
    ]


VIEW = {"view_algorithm": 0, "view_security": 0, "view_select": "SELECT /*+ USE_INDEX(a) */ `a`.`x` FROM `Shop`.`a`"}


def test_a_view_is_its_stored_query_without_hints_and_definer() -> None:
    view = table(column(1, "X"), name="v", database="Dst", pk=False, view=VIEW)
    wanted = "VIEW `Dst`.`v` (`X`) AS SELECT   `a`.`x` FROM `Shop`.`a`"
    assert written(Action.CREATE_VIEW, Touched((), (view,))) == [f"CREATE {wanted}"]
    (again,) = whole(Action.CREATE_VIEW, Touched((replace(view, id=9),), (view,)))
    assert (again.text, again.is_repeatable) == (f"CREATE OR REPLACE {wanted}", True)
    invoker = table(column(1, "X"), name="v", pk=False, view=VIEW | {"view_algorithm": 1, "view_security": 1})
    (text,) = written(Action.CREATE_VIEW, Touched((), (invoker,)))
    assert text.startswith("CREATE ALGORITHM = MERGE SQL SECURITY INVOKER VIEW `Shop`.`v`")


@pytest.mark.parametrize("odd", ["SELECT 1; DROP TABLE x", "SELECT 'a", "SELECT `a"])
def test_a_stored_text_that_is_no_single_expression_is_refused(odd: str) -> None:
    view = table(column(1, "X"), name="v", pk=False, view=VIEW | {"view_select": odd})
    with pytest.raises(ExecuteByHand, match="is no part of one expression"):
        written(Action.CREATE_VIEW, Touched((), (view,)))


def test_names_come_from_definitions() -> None:
    orders = table()
    view = table(column(1, "X"), name="V", pk=False, view=VIEW)
    archive = renamed(orders, "Dst", "Archive")
    assert written(Action.DROP_TABLE, Touched((orders,), ())) == ["DROP TABLE `Shop`.`Orders`"]
    assert written(Action.DROP_VIEW, Touched((view,), ())) == ["DROP VIEW `Shop`.`V`"]
    truncated = Touched((orders,), (replace(orders, id=2),))
    assert written(Action.TRUNCATE_TABLE, truncated) == ["TRUNCATE TABLE `Shop`.`Orders`"]
    wanted = ["RENAME TABLE `Shop`.`Orders` TO `Dst`.`Archive`"]
    assert written(Action.RENAME_TABLE, Touched((orders,), (archive,))) == wanted


@pytest.mark.parametrize("version", [1, 2])
def test_several_renames_stand_in_their_order_with_what_lies_between(version: int) -> None:
    """Where sessions use the new names before the job is done, its definitions have the last ones only."""
    a, b = table(name="a"), table(name="b", id_=2)
    steps = (renamed(a, "Shop", "b"), renamed(b, "Shop", "a"), renamed(a, "Shop", "b"))
    names = [(1, "Shop", "C"), (2, "Shop", "a"), (1, "Dst", "b")]
    args: object = {
        "rename_table_infos": [
            {"table_id": id_, "old_schema_name": story.named(old), "new_table_name": story.named(new)}
            for id_, old, new in names
        ]
    }
    if version == 1:
        args = [
            [],
            [],
            [story.named(new) for _, _, new in names],
            [1, 2, 1],
            [story.named(o) for _, o, _ in names],
            None,
        ]
    wanted = "RENAME TABLE `Shop`.`a` TO `Dst`.`C`, `Shop`.`b` TO `Shop`.`a`, `Dst`.`C` TO `Shop`.`b`"
    of = job(Action.RENAME_TABLES, raw_args=args, version=version)
    assert written(of, Touched((a, b), steps)) == [wanted]


def test_a_table_that_comes_out_of_a_system_database_is_refused() -> None:
    with pytest.raises(ExecuteByHand, match=r"gives Shop\.Orders its name.*rows are not known"):
        written(Action.RENAME_TABLE, Touched((), (table(),)))


@pytest.mark.parametrize(
    ("is_checked", "dialect", "more"),
    [(True, MYSQL, ""), (False, MYSQL, " WITHOUT VALIDATION"), (False, MARIADB, ""), (False, MYSQL_56, "")],
)
def test_an_exchange(is_checked: bool, dialect: Dialect, more: str) -> None:
    parted = table(name="Parted", id_=5, partition=BELOW_10)
    plain = table(name="Plain", database="Dst")
    args = {
        "partition_id": 12,
        "pt_schema_id": 3,
        "pt_table_id": 5,
        "partition_name": "REST",
        "with_validation": is_checked,
    }
    touched = Touched((plain, parted), (replace(plain, id=12), parted))
    text = f"ALTER TABLE `Shop`.`Parted` EXCHANGE PARTITION `rest` WITH TABLE `Dst`.`Plain`{more}"
    assert written(job(Action.EXCHANGE_TABLE_PARTITION, raw_args=args, version=2), touched, dialect) == [text]


def test_a_table_is_recovered_by_tidb_only() -> None:
    args = {"recover_info": {"RecoverTableInfos": [{"OldTableName": "Old"}]}}
    recovered = job(Action.RECOVER_TABLE, raw_args=args, version=2)
    touched = Touched((), (table(),))
    assert written(recovered, touched, TIDB) == ["FLASHBACK TABLE `Shop`.`Old` TO `Orders`"]
    with pytest.raises(ExecuteByHand, match=r"brings rows of Shop\.Orders back"):
        written(recovered, touched)


def test_databases() -> None:
    def of(action: Action, **more: object) -> list[str]:
        info = {"id": 3, "db_name": story.named("Shop"), "state": 5, **more}
        return written(job(action, binlog={"DBInfo": info}), Touched(databases=frozenset({"Shop"})))

    text = "DATABASE `Shop` CHARACTER SET"
    assert of(Action.CREATE_SCHEMA, charset="utf8mb4", collate="utf8mb4_general_ci") == [
        f"CREATE {text} utf8mb4 COLLATE utf8mb4_general_ci"
    ]
    # No column of ours takes it from there.
    assert of(Action.CREATE_SCHEMA, charset="utf8mb4", collate="utf8mb4_0900_ai_ci") == [
        f"CREATE {text} utf8mb4 COLLATE utf8mb4_bin"
    ]
    assert of(Action.MODIFY_SCHEMA_CHARSET_AND_COLLATE, charset="gbk") == [f"ALTER {text} gbk COLLATE gbk_chinese_ci"]
    assert of(Action.DROP_SCHEMA) == ["DROP DATABASE `Shop`"]
    assert of(Action.MODIFY_SCHEMA_READ_ONLY) == []


@pytest.mark.parametrize(
    ("said", "dialect"),
    [
        ("10.11.6-MariaDB-0+deb12u1", Dialect("MariaDB", (10, 11, 6))),
        ("5.5.5-10.4.32-MariaDB-log", Dialect("MariaDB", (10, 4, 32))),
        ("8.0.36", Dialect("MySQL", (8, 0, 36))),
        ("5.6.51-log", Dialect("MySQL", (5, 6, 51))),
        ("8.0.11-TiDB-v8.5.1", Dialect("TiDB", (8, 5, 1))),
        ("5.7.25-TiDB-v6.1.0", Dialect("TiDB", (6, 1, 0))),
    ],
)
def test_a_server_is_known_by_its_version(said: str, dialect: Dialect) -> None:
    assert Dialect.of(said) == dialect
