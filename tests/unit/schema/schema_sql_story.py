"""Definitions as TiDB stores them, in few words, and what is written for a job that leads from some to others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any

from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.statements import Statement, statements
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.upstream.tikv.tidb.job import Job, parse_job

MARIADB, MYSQL, TIDB = Dialect("MariaDB", (10, 11, 6)), Dialect("MySQL", (8, 0, 36)), Dialect("TiDB", (8, 5, 1))
MYSQL_56 = Dialect("MySQL", (5, 6, 51))
NOT_NULL, PRI, UNSIGNED, ZEROFILL, AUTO, NO_DEFAULT, ON_UPDATE = 1, 2, 32, 64, 512, 4096, 8192
WHOLE = -1
TINY, INT, TIMESTAMP, BIGINT, DATE, DATETIME, VARCHAR, BIT, JSON, DECIMAL = 1, 3, 7, 8, 10, 12, 15, 16, 245, 246
VECTOR = 225
ENUM, BLOB, CHAR = 247, 252, 254
TEXTS = (VARCHAR, ENUM, BLOB, CHAR)
UTF8 = ("utf8mb4", "utf8mb4_bin")


def column(id_: int, name: str, tp: int = INT, flag: int = 0, flen: int = -1, decimal: int = 0, **more: Any) -> Any:
    """`charset`, `collate`, `elems` are the type's, all else the column's own."""
    charset, collate = UTF8 if tp in TEXTS else ("binary", "binary")
    type_ = {
        "Tp": tp, "Flag": flag, "Flen": flen, "Decimal": decimal, "Charset": more.pop("charset", charset),
        "Collate": more.pop("collate", collate), "Elems": more.pop("elems", None),
    }  # fmt: skip
    plain = {"default": None, "default_bit": None, "origin_default": None, "generated_expr_string": "", "comment": ""}
    return {"id": id_, "name": named(name), "type": type_, "state": 5, "version": 2, **plain, **more}


def index(id_: int, name: str, *parts: str | tuple[str, int], **more: Any) -> Any:
    of = [part if isinstance(part, tuple) else (part, WHOLE) for part in parts]
    columns = [{"name": named(part), "length": length} for part, length in of]
    is_primary = name == "PRIMARY"
    plain = {"is_unique": is_primary, "is_primary": is_primary, "is_invisible": False, "comment": "", "state": 5}
    return {"id": id_, "idx_name": named(name), "idx_cols": columns, **plain, **more}


def partition(id_: int, name: str, *below: str, values: Any = None, comment: str = "") -> Any:
    return {"id": id_, "name": named(name), "less_than": list(below) or None, "in_values": values, "comment": comment}


def partitions(*definitions: Any, type_: int = 1, expr: str = "`id`", columns: Any = None) -> Any:
    names = None if columns is None else list(map(named, columns))
    return {"type": type_, "expr": expr, "columns": names, "enable": True, "definitions": list(definitions)}


def table(*columns: Any, name: str = "Orders", database: str = "Shop", id_: int = 1, **more: Any) -> TableInfo:
    """By id, the first column, unless `pk` is False."""
    cols = [each | {"offset": place} for place, each in enumerate(columns or (column(1, "id", flag=NOT_NULL | PRI),))]
    plain = {"charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5, "pk_is_handle": more.pop("pk", True)}
    return parse_table_info({"id": id_, "name": named(name), "cols": cols, **plain, **more}, database)


def named(name: str) -> Any:
    return {"O": name, "L": name.lower()}


def job(action: Action, query: str = "", **more: Any) -> Job:
    """Its names are of no use, as TiDB's are."""
    members = {"id": 7, "type": int(action), "state": 4, "schema_name": "nobody", "table_name": "nothing"}
    return parse_job({**members, "query": query, "table_id": 1, "sql_mode": 1436549152, **more})


def written(of: Job | Action, touched: Touched, dialect: Dialect = MARIADB, zone: tzinfo = UTC) -> list[str]:
    return [each.text for each in whole(of, touched, dialect, zone)]


def whole(of: Job | Action, touched: Touched, dialect: Dialect = MARIADB, zone: tzinfo = UTC) -> tuple[Statement, ...]:
    return statements(of if isinstance(of, Job) else job(of), touched, dialect, zone)


def created(after: TableInfo, dialect: Dialect = MARIADB) -> str:
    (text,) = written(Action.CREATE_TABLE, Touched((), (after,)), dialect)
    return text


def altered(
    before: TableInfo, after: TableInfo, of: Job | Action = Action.MODIFY_COLUMN, dialect: Dialect = MARIADB
) -> list[str]:
    """Without the words that all of them begin with."""
    begin = f"ALTER TABLE `{after.schema_name}`.`{after.name}` "
    texts = written(of, Touched((before,), (after,)), dialect)
    assert all(text.startswith(begin) for text in texts)
    return [text.removeprefix(begin) for text in texts]


def renamed(of: TableInfo, database: str, name: str) -> TableInfo:
    return replace(of, schema_name=database, name=name)
