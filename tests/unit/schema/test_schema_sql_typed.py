"""Typed statements for readers without definitions: no comments, a collation for each character set."""

from __future__ import annotations

import pytest
from changefeed.schema.sql.typed import standalone

BIN = "COLLATE utf8mb4_bin"


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("CREATE TABLE t (id INT)  COMMENT 'a; b' ;", "CREATE TABLE t (id INT)  COMMENT 'a; b'"),
        ("CREATE TABLE t (a INT /*! NOT NULL */,-- x\n b INT) # y", "CREATE TABLE t (a INT , b INT)"),
        ("/* first */ DROP /**/TABLE t", "DROP TABLE t"),
        ("SELECT '/* no */', `--no`, \"#no\"", "SELECT '/* no */', `--no`, \"#no\""),
        ("CREATE TABLE t (id INT) DEFAULT CHARSET=utf8mb4", f"CREATE TABLE t (id INT) DEFAULT CHARSET=utf8mb4 {BIN}"),
        (
            "CREATE TABLE t (id INT) CHARACTER SET = utf8mb4, COMMENT 'x', COLLATE utf8mb4_general_ci",
            "CREATE TABLE t (id INT) CHARACTER SET = utf8mb4, COMMENT 'x', COLLATE utf8mb4_general_ci",
        ),
        (
            "CREATE TABLE t (a VARCHAR(9) CHARACTER SET utf8mb4 NOT NULL, b CHAR COLLATE gbk_bin CHARSET gbk)COLLATE x",
            f"CREATE TABLE t (a VARCHAR(9) CHARACTER SET utf8mb4 {BIN} NOT NULL, b CHAR COLLATE gbk_bin CHARSET gbk)"
            "COLLATE x",
        ),
        (
            "ALTER TABLE t ADD a CHAR CHARACTER SET utf8mb4, ADD b CHAR CHARSET gbk COLLATE gbk_bin",
            f"ALTER TABLE t ADD a CHAR CHARACTER SET utf8mb4 {BIN}, ADD b CHAR CHARSET gbk COLLATE gbk_bin",
        ),
        ("ALTER TABLE t CONVERT TO CHARSET gbk", "ALTER TABLE t CONVERT TO CHARSET gbk COLLATE gbk_chinese_ci"),
        ("CREATE DATABASE x CHARSET utf8mb4", f"CREATE DATABASE x CHARSET utf8mb4 {BIN}"),
        (
            "CREATE TABLE t (a INT, g CHAR AS (CAST(a AS CHAR CHARACTER SET utf8mb4)))",
            "CREATE TABLE t (a INT, g CHAR AS (CAST(a AS CHAR CHARACTER SET utf8mb4)))",
        ),
        ("CREATE TABLE t (charset INT, `character` INT)", "CREATE TABLE t (charset INT, `character` INT)"),
    ],
)
def test_a_statement_that_stands_alone(typed: str, wanted: str) -> None:
    assert standalone(typed) == wanted


@pytest.mark.parametrize("typed", ["SELECT 1; SELECT 2", "SELECT 'open", "", " -- nothing"])
def test_what_is_not_one_statement(typed: str) -> None:
    assert standalone(typed) is None
