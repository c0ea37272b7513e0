"""What servers that no test starts show of a table: MySQL 8, TiDB and Dolt, as their documentation and sources say."""

from __future__ import annotations

from typing import Any

import pytest
from changefeed.schema import table_info as ti
from changefeed.schema.sql.dialect import TIDB, Dialect
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo
from changefeed.sink.mysql.definitions.collations import Behaviour, Collation
from changefeed.sink.mysql.definitions.difference import ServerQueries, differences
from changefeed.sink.mysql.definitions.found import columns_query, indexes_query, partitions_query, tables
from sink_mysql_changes import column, index, table

NOT_NULL = ti.FLAG_NOT_NULL
RANGES = {
    "enable": True, "type": 1, "expr": "`id`",
    "definitions": [
        {"id": 11, "name": {"O": "p0"}, "less_than": ["10"]},
        {"id": 12, "name": {"O": "p1"}, "less_than": ["MAXVALUE"]},
    ],
}  # fmt: skip
ITEMS = table(
    [
        column("id", SqlType.BIGINT, NOT_NULL | ti.FLAG_PRI_KEY),
        column("code", SqlType.VARCHAR, NOT_NULL),
        column("amount", SqlType.DECIMAL, ti.FLAG_UNSIGNED, Flen=10, Decimal=2),
        column("at", SqlType.DATETIME, 0, Decimal=3),
        column("bits", SqlType.BIT, 0, Flen=5),
        column("hash", SqlType.CHAR, 0, Flen=8, Charset="binary", Collate="binary"),
        column("twice", SqlType.BIGINT) | {"generated_expr_string": "`id` * 2", "generated_stored": True},
    ],
    [index("code")],
    pk_is_handle=True,
    partition=RANGES,
)
Row = tuple[Any, ...]


def shown(width: str, extra: str, expression: str) -> list[Row]:
    """Rows of information_schema.columns. `width`: of integers."""
    return [
        ("id", "bigint", f"bigint{width}", "NO", "0", None, None, "", ""),
        ("code", "varchar", "varchar(20)", "NO", "0", "utf8mb4", "utf8mb4_bin", "", ""),
        ("amount", "decimal", "decimal(10,2) unsigned", "YES", "0", None, None, "", None),
        ("at", "datetime", "datetime(3)", "YES", "0", None, None, "", None),
        ("bits", "bit", "bit(5)", "YES", "0", None, None, "", None),
        ("hash", "binary", "binary(8)", "YES", "0", None, None, "", None),
        ("twice", "bigint", f"bigint{width}", "YES", "0", None, None, extra, expression),
    ]


SHOWN = [
    (Dialect("MySQL", (8, 4, 0)), shown("", "STORED GENERATED", "(`id` * 2)")),
    (Dialect("MySQL", (5, 7, 44)), shown("(20)", "STORED GENERATED", "(`id` * 2)")),
    (TIDB, shown("(20)", "STORED GENERATED", "`id` * 2")),
]


def wire(rows: list[Row]) -> list[tuple[bytes | None, ...]]:
    return [tuple(None if cell is None else str(cell).encode() for cell in row) for row in rows]


def compared(dialect: Dialect, columns: list[Row], of: TableInfo = ITEMS) -> list[str]:
    by_name = {("shop", "t"): ("shop", "t")}
    (name,) = by_name
    indexes = [
        (*name, "PRIMARY", "0", "id", None),
        (*name, "i", "0", "code", None),
    ]
    partitions = [(*name, "p0", "RANGE", "`id`", "10"), (*name, "p1", "RANGE", "`id`", "MAXVALUE")]
    found = tables(wire([(*name, *row) for row in columns]), wire(indexes), wire(partitions))
    pairs = frozenset({("a", "a ")})
    behaviour = Behaviour({Collation("utf8mb4", "utf8mb4_bin"): pairs})
    server = ServerQueries(dialect, behaviour, lambda table, one, other: one == other.strip("()"))
    return [each.what for each in differences(of, found[name], server)]


@pytest.mark.parametrize(("dialect", "columns"), SHOWN, ids=[str(dialect) for dialect, _ in SHOWN])
def test_a_table_that_each_server_shows_in_its_own_way_is_the_same(dialect: Dialect, columns: list[Row]) -> None:
    assert compared(dialect, columns) == []
    narrower = [(name, of, full.replace("(10,2)", "(9,2)").replace("(3)", "").replace("(5)", "(4)"), *rest)
                for name, of, full, *rest in columns]  # fmt: skip
    assert [each.partition(",")[0] for each in compared(dialect, narrower)] == [
        "the column amount is decimal(9",
        "the column at is datetime",
        "the column bits is bit(4)",
    ]


def test_names_are_asked_for_in_lower_case_too() -> None:
    """A server that keeps them so may compare them byte by byte."""
    for query in (
        columns_query([("Shop", "T")], True),
        indexes_query([("Shop", "T")]),
        partitions_query([("Shop", "T")]),
    ):
        assert b" WHERE `table_schema` IN ('Shop', 'shop') AND `table_name` IN ('T', 't')" in query


def test_of_many_tables_whole_databases_are_asked_for() -> None:
    few, many = ([("shop", f"t{n}") for n in range(count)] for count in (2, 1000))
    assert b" WHERE `table_schema` = 'shop' AND `table_name` IN ('t0', 't1') ORDER" in indexes_query(few)
    assert b" WHERE `table_schema` = 'shop' ORDER" in indexes_query(many)


@pytest.mark.parametrize(
    ("said", "shows_generated", "explains_less"),
    [
        ("5.6.51-log", False, True),
        ("5.7.44", True, False),
        ("8.0.33", True, False),  # Dolt's, too
        ("10.2.4-MariaDB", False, True),
        ("5.5.5-10.11.6-MariaDB-1", True, True),
        ("8.0.11-TiDB-v8.5.1", True, False),
    ],
)
def test_what_a_server_tells_of_computed_columns(said: str, shows_generated: bool, explains_less: bool) -> None:
    dialect = Dialect.of(said)
    assert (dialect.shows_generated, dialect.explains_less) == (shows_generated, explains_less)
