"""MariaDB's LOAD DATA, in a server of this process's own."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pymysql
from consumers_reading import CSV, META, UNQUOTED, Column, Part, Reading, Row
from integration_mariadb import running

_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_QUOTED = "FIELDS TERMINATED BY ',' ENCLOSED BY '\"' LINES TERMINATED BY '\\r\\n'"
_ESCAPED = "FIELDS TERMINATED BY ',' ESCAPED BY '\\\\' LINES TERMINATED BY '\\r\\n'"


@cache
def server() -> Any:
    opened = ExitStack()
    atexit.register(opened.close)
    folder = Path("mariadb").absolute()
    folder.mkdir()
    port = opened.enter_context(running(folder)).port
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", charset="utf8mb4", autocommit=True)
    statement("CREATE DATABASE lake", connection)
    statement("USE lake", connection)
    statement("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'", connection)
    return connection


def statement(text: str, connection: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return list(cursor.fetchall())


def version() -> str:
    ((number,),) = statement("SELECT version()", server())
    return str(number).partition("-")[0]


def type_of(column: Column) -> str:
    """A BIT is loaded as a number, and bytes are base64."""
    return "BIGINT UNSIGNED" if column.base == "bit" else "LONGTEXT" if column.base in _BYTES else column.sql


def load(part: Part, how: str) -> Iterable[Row]:
    types = dict.fromkeys(META, "VARCHAR(64)") | {column.name: f"{type_of(column)} NULL" for column in part.columns}
    statement("DROP TABLE IF EXISTS t", server())
    statement(f"CREATE TABLE t ({', '.join(f'`{name}` {each}' for name, each in types.items())})", server())
    for path in part.files("**/CDC*.csv"):
        statement(f"LOAD DATA INFILE '{path}' INTO TABLE t CHARACTER SET utf8mb4 {how} {targets(part)}", server())
    cells = [f"CAST(`{c.name}` AS DOUBLE)" if c.base == "float" else f"`{c.name}`" for c in part.columns]
    return statement(f"SELECT op, commit_ts, {', '.join(cells)} FROM t", server())


def targets(part: Part) -> str:
    """The text 0 is the YEAR 2000 to MariaDB, the number 0 is the year 0."""
    names = {name: f"`{name}`" for name in part.fields}
    years = {c.name: f"@{c.name}" for c in part.columns if c.base == "year"}
    numbers = ", ".join(f"`{name}` = {variable} + 0" for name, variable in years.items())
    return f"({', '.join((names | years).values())}) {f'SET {numbers}' if numbers else ''}"


def quoted(part: Part) -> Iterable[Row]:
    return load(part, _QUOTED)


def escaped(part: Part) -> Iterable[Row]:
    return load(part, _ESCAPED)


READINGS = [
    Reading(CSV, quoted, how=f"`{_QUOTED}`"),
    Reading(UNQUOTED, escaped, how=f"`{_ESCAPED}`, and of a YEAR column y `(…, @y, …) SET y = @y + 0`"),
]
