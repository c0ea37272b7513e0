"""The statements that make a table: those of the upstream, under another name, or of its columns."""

from __future__ import annotations

import pytest
from changefeed.reading.schema.columns import TableColumn
from changefeed.reading.schema.schema_file import ConsumerSchemaFile
from changefeed.restore.folder import script
from changefeed.restore.schema.catalog import RestoreCatalog
from changefeed.restore.schema.definition import definition, is_as_said
from changefeed.restore.schema.table import RestoredTable

ID = TableColumn("id", "BIGINT", "20", "", False, True)
NAME = TableColumn("na`me", "VARCHAR", "9", "", True, False, default="it's \\ b")


def table(*statements: tuple[int, str, tuple[TableColumn, ...]]) -> RestoredTable:
    """Behind (type, statement, columns) of `shop.t`."""
    catalog = RestoreCatalog("text", 1, lambda schema, name: True)
    for version, (type_, query, columns) in enumerate(statements, 10):
        catalog.execute([ConsumerSchemaFile("p", "shop", "t", version, query, type_, columns)])
    (made,) = catalog.tables
    return made


CREATE = (3, "CREATE TABLE IF NOT EXISTS t (id BIGINT PRIMARY KEY, KEY k (id)) COMMENT 'a; b';", (ID,))
OF_ID = "CREATE TABLE `x`.`y` (\n  `id` BIGINT NOT NULL,\n  PRIMARY KEY (`id`)\n)"


def test_what_was_said_is_said_of_another_name() -> None:
    made = table(
        CREATE,
        (5, "ALTER TABLE `shop`.`t` ADD COLUMN `na``me` VARCHAR(9)", (ID, NAME)),
        (7, "CREATE INDEX i ON t (id)", (ID, NAME)),
    )
    assert is_as_said(made)
    assert definition(made, ("x", "y")) == [
        "CREATE TABLE IF NOT EXISTS `x`.`y` (id BIGINT PRIMARY KEY, KEY k (id)) COMMENT 'a; b'",
        "ALTER TABLE `x`.`y` ADD COLUMN `na``me` VARCHAR(9)",
        "CREATE INDEX i ON `x`.`y` (id)",
    ]
    assert script(made).startswith(
        "CREATE DATABASE IF NOT EXISTS `shop`;\nUSE `shop`;\nCREATE TABLE IF NOT EXISTS `shop`.`t`"
    )


def test_a_truncated_table_keeps_its_definition() -> None:
    made = table(CREATE, (11, "TRUNCATE TABLE t", (ID,)))
    assert [statement.partition(" (")[0] for statement in definition(made)] == ["CREATE TABLE IF NOT EXISTS `shop`.`t`"]


@pytest.mark.parametrize(
    "query",
    [
        "CREATE TABLE t LIKE other",
        "CREATE TABLE t (id BIGINT PRIMARY KEY); CREATE TABLE u (id BIGINT)",
        "CREATE TABLE t (id BIGINT PRIMARY KEY, FOREIGN KEY (id) REFERENCES other (id))",
        "CREATE TABLE 'unfinished",
        "",
    ],
)
def test_what_can_not_stand_alone_is_made_of_columns(query: str) -> None:
    made = table((3 if query else 0, query, (ID,)))
    assert not is_as_said(made)
    assert definition(made, ("x", "y")) == [OF_ID]
    assert script(made).startswith("-- Made of its columns")


def test_a_renamed_table_is_made_of_columns() -> None:
    catalog = RestoreCatalog("text", 1, lambda schema, name: True)
    catalog.execute([ConsumerSchemaFile("p", "shop", "t", 10, CREATE[1], 3, (ID,))])
    catalog.execute([ConsumerSchemaFile("p", "shop", "u", 11, "RENAME TABLE t TO u", 14, (ID,))])
    (made,) = catalog.tables
    assert definition(made) == [OF_ID.replace("`x`.`y`", "`shop`.`u`")]


def test_columns_of_each_type() -> None:
    columns = (
        ID, NAME,
        TableColumn("a", "BIGINT UNSIGNED", "20", "", True, False, default="7"),
        TableColumn("b", "DECIMAL UNSIGNED", "12", "2", False, False),
        TableColumn("c", "DATETIME", "", "3", True, False, default="CURRENT_TIMESTAMP(3)"),
        TableColumn("d", "ENUM", "", "", True, False, ("x", "y'z"), "x"),
        TableColumn("e", "BIT", "12", "", True, False, default="\x00"),
        TableColumn("f", "LONGTEXT", "4294967295", "", True, False),
        TableColumn("g", "VARBINARY", "16", "", True, False),
        TableColumn("h", "TIMESTAMP", "", "", True, False),
    )  # fmt: skip
    (statement,) = definition(table((3, "CREATE TABLE t LIKE u", columns)), ("x", "y"))
    assert statement.splitlines()[1:-2] == [
        "  `id` BIGINT NOT NULL,",
        "  `na``me` VARCHAR(9) NULL DEFAULT 'it''s \\\\ b',",
        "  `a` BIGINT UNSIGNED NULL DEFAULT '7',",
        "  `b` DECIMAL(12, 2) UNSIGNED NOT NULL,",
        "  `c` DATETIME(3) NULL DEFAULT CURRENT_TIMESTAMP(3),",
        "  `d` ENUM('x', 'y''z') NULL DEFAULT 'x',",
        "  `e` BIT(12) NULL,",
        "  `f` LONGTEXT NULL,",
        "  `g` VARBINARY(16) NULL,",
        "  `h` TIMESTAMP NULL,",
    ]
