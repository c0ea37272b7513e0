"""What the MySQL sink makes of each DDL on each server: examples, and the reference page that is written from them.

The tests execute the examples on the servers that they have (tests/integration/test_integration_mysql_servers.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from difflib import SequenceMatcher
from typing import Any

from changefeed.errors import ExecuteByHand
from changefeed.schema import table_info as ti
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.sql.definition import HASH, KEY, LIST, RANGE
from changefeed.schema.sql.dialect import Dialect
from changefeed.schema.sql.statements import statements
from changefeed.schema.sql_type import SqlType
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.upstream.tikv.tidb.job import Job, parse_job

SERVERS = {
    "MySQL 5.6": Dialect("MySQL", (5, 6, 24)),
    "MySQL 5.7": Dialect("MySQL", (5, 7, 44)),
    "MySQL 8.0": Dialect("MySQL", (8, 0, 36)),
    "MariaDB 10.11": Dialect("MariaDB", (10, 11, 6)),
    "MariaDB 11.4": Dialect("MariaDB", (11, 4, 5)),
    "TiDB 8.5": Dialect("TiDB", (8, 5, 1)),
}
#: Whose statement the others are compared with; the next one where one has none.
_PLAIN = ("MySQL 8.0", "MariaDB 11.4", "TiDB 8.5")
_DATABASE, _NEW_DATABASE = "servers", "servers_new"
_WORD = re.compile(r"(?:`[^`]*`|'[^']*'|\(\d+\)|\w+|\S)\s*")
_JOB = re.compile(r"^DDL job \d+ \(.*?\) ")
_MOST_CHANGES = 2  # that are told one by one
_KEY = ti.FLAG_NOT_NULL | ti.FLAG_PRI_KEY
_TEXTS = ti.STRINGS | ti.BLOBS | {SqlType.ENUM, SqlType.SET}

_HEAD = """# DDLs on MySQL, MariaDB and TiDB

Generated from `spark-apps/changefeed/cli/servers_reference.py` by `make generate`; don't edit.

What the MySQL sink makes of a DDL depends on the server's version ([mysql-servers.md](../mysql-servers.md)).

- *runs*: the statement is that of MySQL 8.0. Other words say what it has instead, beside it or not.
- *refused*: the changefeed stops with `ExecuteByHand` before anything is executed. Do there by hand what the DDL
  means, then start again.

Tests execute each DDL of this page on MySQL 5.6.24, MariaDB 10.11 and MariaDB 11.4.5, and compare the tables that it
leaves with the upstream's definitions. The statements for MySQL 5.7, MySQL 8.0 and TiDB are tested as texts only.
"""


@dataclass(frozen=True)
class Example:
    """A statement of the reference page.

    `ddl`: what it stands for. `notes`: by server, what this does with the statement that it is given.
    """

    ddl: str
    job: Job
    touched: Touched
    notes: Mapping[str, str] = field(default_factory=dict)

    def statements(self, dialect: Dialect) -> list[str]:
        """Raises ExecuteByHand."""
        return [each.text for each in statements(self.job, self.touched, dialect, UTC)]


def _column(id_: int, name: str, tp: int, flag: int = 0, flen: int = -1, decimal: int = 0, **more: Any) -> Any:
    collate = more.pop("collate", "utf8mb4_bin" if tp in _TEXTS and not more.pop("binary", False) else "binary")
    type_ = {"Tp": tp, "Flag": flag, "Flen": flen, "Decimal": decimal, "Charset": collate.partition("_")[0],
             "Collate": collate, "Elems": more.pop("elems", None)}  # fmt: skip
    return {"id": id_, "name": _named(name), "type": type_, "state": ti.STATE_PUBLIC, "version": 2, **more}


def _index(id_: int, name: str, *columns: str, length: int = -1, **more: Any) -> Any:
    parts = [{"name": _named(each), "length": length} for each in columns]
    return {"id": id_, "idx_name": _named(name), "idx_cols": parts, "state": ti.STATE_PUBLIC, **more}


def _partitions(type_: int, *definitions: Any, expr: str = "`id`", columns: Sequence[str] = ()) -> Any:
    return {"type": type_, "expr": expr, "columns": list(map(_named, columns)), "enable": True,
            "definitions": list(definitions)}  # fmt: skip


def _partition(id_: int, name: str, *below: str, values: Any = None) -> Any:
    return {"id": id_, "name": _named(name), "less_than": list(below) or None, "in_values": values}


def _table(*columns: Any, name: str = "t", id_: int = 1, database: str = _DATABASE, **more: Any) -> TableInfo:
    cols = [each | {"offset": index} for index, each in enumerate((_ID, *columns))]
    plain = {"charset": "utf8mb4", "collate": "utf8mb4_bin", "state": ti.STATE_PUBLIC, "pk_is_handle": True}
    return parse_table_info({"id": id_, "name": _named(name), "cols": cols, **plain, **more}, database)


def _indexed(*columns: Any, of: str, name: str = "k", **more: Any) -> TableInfo:
    return _table(_A, _TEXT, *columns, index_info=[_index(1, name, of, **more)])


def _parted(type_: int, *definitions: Any, name: str = "p", id_: int = 2, **more: Any) -> TableInfo:
    return _table(name=name, id_=id_, partition=_partitions(type_, *definitions, **more))


def _named(name: str) -> Any:
    return {"O": name, "L": name.lower()}


def _job(action: Action, **more: Any) -> Job:
    return parse_job({"id": int(action), "type": int(action), "state": 6, "table_id": 1, "query": "-", **more})


_ID = _column(1, "id", SqlType.INT, _KEY, 11)
_A, _TEXT = _column(2, "a", SqlType.INT, 0, 11), _column(3, "b", SqlType.VARCHAR, 0, 255)
_T = _table(_A, _TEXT)
_PRIMARY = _index(1, "PRIMARY", "id", is_primary=True, is_unique=True)
_BELOW, _REST = _partition(11, "p0", "10"), _partition(12, "p1", "MAXVALUE")
_PARTED = _parted(RANGE, _BELOW, _REST)
_AT = _column(2, "a", SqlType.DATETIME, 0, 19)
_TTL = {"column": _named("a"), "interval_expr": "3", "interval_time_unit": 5, "enable": True, "job_interval": "1h"}
_NEW: dict[str, Any] = {"name": "n", "id_": 3}
_LISTED = _partition(11, "p0", values=[["1"]])
_EXPRESSION = _column(4, "_V$_e_0", SqlType.BIGINT, hidden=True, generated_expr_string="`a` + 1")
_VIEW = {"view_select": f"SELECT `{_DATABASE}`.`t`.`id` AS `id` FROM `{_DATABASE}`.`t`"}
_FOREIGN = {"fk_name": _named("f"), "cols": [_named("a")], "ref_schema": _named(_DATABASE), "ref_table": _named("t"),
            "ref_cols": [_named("id")], "on_delete": 2, "state": ti.STATE_PUBLIC}  # fmt: skip
_CHECK = {"constraint_name": _named("c"), "expr_string": "`a` > 0", "enforced": True, "state": ti.STATE_PUBLIC}
_EXCHANGE = {"partition_id": 11, "pt_schema_id": 1, "pt_table_id": 2, "partition_name": "p0", "with_validation": False}


def _altered(ddl: str, action: Action, after: TableInfo, before: TableInfo = _T, **more: Any) -> Example:
    notes = more.pop("notes", {})
    return Example(ddl, _job(action, **more), Touched((before,), (after,)), notes)


def _made(ddl: str, table: TableInfo, **more: Any) -> Example:
    return Example(ddl, _job(Action.CREATE_TABLE), Touched((), (table,)), **more)


def _type(ddl: str, tp: int, flag: int = 0, flen: int = -1, decimal: int = 0, **more: Any) -> Example:
    added = _column(4, "c", tp, flag, flen, decimal, **more)
    return _altered(ddl, Action.ADD_COLUMN, _table(_A, _TEXT, added))


def _database(ddl: str, action: Action, collate: str = "utf8mb4_bin") -> Example:
    info = {
        "id": 9,
        "db_name": _named(_NEW_DATABASE),
        "charset": collate.partition("_")[0],
        "collate": collate,
        "state": 5,
    }
    return Example(ddl, _job(action, binlog={"DBInfo": info}), Touched(databases=frozenset({_NEW_DATABASE})))


#: Types of a column that is added.
TYPES = (
    _type("TINYINT, SMALLINT, MEDIUMINT, INT, BIGINT, each UNSIGNED too", SqlType.BIGINT, ti.FLAG_UNSIGNED, 20),
    _type("DECIMAL", SqlType.DECIMAL, 0, 65, 30, default="1.5"),
    _type("FLOAT, DOUBLE", SqlType.DOUBLE, 0, 22, -1),
    _type("BIT", SqlType.BIT, 0, 64, default_bit="BQ=="),
    _type("YEAR", SqlType.YEAR, 0, 4),
    _type("DATE", SqlType.DATE, 0, 10, default="2024-01-01"),
    _type("TIME(6)", SqlType.TIME, 0, 17, 6),
    _type("DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE …", SqlType.DATETIME, 8192, 26, 6,
          default="CURRENT_TIMESTAMP", origin_default="2024-01-01 00:00:00.000000"),
    _type("TIMESTAMP(3)", SqlType.TIMESTAMP, 0, 23, 3),
    _type("CHAR, VARCHAR, TEXT, each of utf8mb4", SqlType.VARCHAR, 0, 100),
    _type("the same of latin1, ascii, utf8, gbk", SqlType.VARCHAR, 0, 100, collate="gbk_chinese_ci"),
    _type("the same of gb18030", SqlType.VARCHAR, 0, 100, collate="gb18030_chinese_ci"),
    _type("the same, COLLATE utf8mb4_general_ci or …_unicode_ci", SqlType.VARCHAR, 0, 100,
          collate="utf8mb4_unicode_ci"),
    _type("the same, COLLATE utf8mb4_0900_ai_ci", SqlType.VARCHAR, 0, 100, collate="utf8mb4_0900_ai_ci"),
    _type("the same, COLLATE utf8mb4_0900_bin", SqlType.VARCHAR, 0, 100, collate="utf8mb4_0900_bin"),
    _type("BINARY, VARBINARY, BLOB", SqlType.VARCHAR, 0, 100, collate="binary"),
    _type("ENUM, SET", SqlType.SET, 0, 4, elems=["a", "b'c"]),
    _type("JSON", SqlType.JSON, 0, 4294967295),
    _type("VECTOR", SqlType.VECTOR, 0, 3),
    _type("a column that is computed, STORED", SqlType.BIGINT, 0, 20, generated_expr_string="`a` * 2",
          generated_stored=True),
    _type("a column that is computed, VIRTUAL", SqlType.BIGINT, 0, 20, generated_expr_string="`a` * 2"),
    _type("DEFAULT (UUID())", SqlType.VARCHAR, 0, 36, default="uuid()", default_is_expr=True, origin_default="x"),
    _type("DEFAULT (CURRENT_DATE)", SqlType.DATE, 0, 10, default="CURRENT_DATE", origin_default="2024-01-01"),
)  # fmt: skip
COLUMNS_AND_KEYS = (
    _altered("DROP COLUMN", Action.DROP_COLUMN, _table(_A)),
    _altered("MODIFY COLUMN", Action.MODIFY_COLUMN, _table(_A, _column(3, "b", SqlType.VARCHAR, 0, 300))),
    _altered("CHANGE COLUMN, RENAME COLUMN", Action.MODIFY_COLUMN,
             _table(_A, _column(3, "c", SqlType.VARCHAR, 0, 255))),
    _altered("ALTER COLUMN … SET DEFAULT", Action.SET_DEFAULT_VALUE,
             _table(_column(2, "a", SqlType.INT, 0, 11, default="1"), _TEXT)),
    _altered("several changes in one ALTER TABLE", Action.MULTI_SCHEMA_CHANGE,
             _table(_TEXT, _column(4, "c", SqlType.INT, 0, 11), index_info=[_index(1, "k", "c")])),
    _altered("ADD INDEX", Action.ADD_INDEX, _indexed(of="a")),
    _altered("ADD INDEX of a VARCHAR(255) of utf8mb4", Action.ADD_INDEX, _indexed(of="b")),
    _altered("ADD UNIQUE INDEX of it", Action.ADD_INDEX, _indexed(of="b", is_unique=True)),
    _altered("ADD INDEX of an expression", Action.ADD_INDEX, _indexed(_EXPRESSION, of="_V$_e_0")),
    _altered("ADD VECTOR INDEX, or another one of TiFlash", Action.ADD_COLUMNAR_INDEX,
             _indexed(of="a", vector_index={"dimension": 3})),
    _altered("RENAME INDEX", Action.RENAME_INDEX, _indexed(of="a", name="l"),
             _indexed(of="a")),
    _altered("ALTER INDEX … INVISIBLE", Action.ALTER_INDEX_VISIBILITY,
             _indexed(of="a", is_invisible=True),
             _indexed(of="a")),
    _altered("DROP INDEX", Action.DROP_INDEX, _T, _indexed(of="a")),
    _altered("ADD PRIMARY KEY", Action.ADD_PRIMARY_KEY, _table(_A, pk_is_handle=False, index_info=[_PRIMARY]),
             _table(_A, pk_is_handle=False)),
    _altered("DROP PRIMARY KEY", Action.DROP_PRIMARY_KEY, _table(_A, pk_is_handle=False),
             _table(_A, pk_is_handle=False, index_info=[_PRIMARY])),
    _altered("ADD FOREIGN KEY", Action.ADD_FOREIGN_KEY, _table(_A, _TEXT, fk_info=[_FOREIGN])),
    _altered("DROP FOREIGN KEY", Action.DROP_FOREIGN_KEY, _T, _table(_A, _TEXT, fk_info=[_FOREIGN])),
)  # fmt: skip
TABLES = (
    _made("CREATE TABLE", _table(_A, **_NEW)),
    _made("CREATE TABLE … CHECK (…)", _table(_A, **_NEW, constraint_info=[_CHECK]),
          notes=dict.fromkeys(("MySQL 5.6", "MySQL 5.7"), "the server takes no notice of the constraint")),
    _made("CREATE TABLE … AUTO_RANDOM", _table(_A, **_NEW, auto_random_bits=5)),
    _made("CREATE TABLE … TTL = …", _table(_AT, **_NEW, ttl_info=_TTL)),
    _made("CREATE TABLE … PARTITION BY RANGE", _parted(RANGE, _BELOW, _REST, **_NEW)),
    _made("CREATE TABLE … PARTITION BY RANGE COLUMNS, LIST COLUMNS",
          _parted(RANGE, _BELOW, _REST, expr="", columns=["id"], **_NEW)),
    _made("CREATE TABLE … PARTITION BY LIST", _parted(LIST, _LISTED, **_NEW)),
    _made("the same with a DEFAULT partition",
          _parted(LIST, _LISTED, _partition(12, "p1", values=[["DEFAULT"]]), **_NEW)),
    _made("CREATE TABLE … PARTITION BY HASH",
          _parted(HASH, _partition(11, "p0"), _partition(12, "p1"), **_NEW)),
    _made("CREATE TABLE … PARTITION BY KEY",
          _parted(KEY, _partition(11, "p0"), _partition(12, "p1"), expr="", columns=["id"], **_NEW)),
    Example("DROP TABLE", _job(Action.DROP_TABLE), Touched((_T,), ())),
    Example("TRUNCATE TABLE", _job(Action.TRUNCATE_TABLE), Touched((_T,), (_table(_A, _TEXT, id_=3),))),
    _altered("RENAME TABLE", Action.RENAME_TABLE, _table(_A, _TEXT, name="u")),
    Example("RENAME TABLE, of several", _job(Action.RENAME_TABLES),
            Touched((_T, _PARTED), (_table(_A, _TEXT, name="u"), _parted(RANGE, _BELOW, _REST, name="t")))),
    Example("RECOVER TABLE, FLASHBACK TABLE", _job(Action.RECOVER_TABLE), Touched((), (_T,))),
    _altered("AUTO_INCREMENT = n", Action.REBASE_AUTO_ID, _table(_A, _TEXT, auto_inc_id=100)),
    _altered("COMMENT = '…'", Action.MODIFY_TABLE_COMMENT, _table(_A, _TEXT, comment="it's")),
    _altered("CHARACTER SET = …", Action.MODIFY_TABLE_CHARSET_AND_COLLATE,
             _table(_A, _TEXT, collate="utf8mb4_0900_ai_ci")),
    _altered("TTL = …", Action.ALTER_TTL_INFO, _table(_AT, ttl_info=_TTL), _table(_AT)),
    _altered("REMOVE TTL", Action.ALTER_TTL_REMOVE, _table(_AT), _table(_AT, ttl_info=_TTL)),
    _altered("SHARD_ROW_ID_BITS = n", Action.SHARD_ROW_ID, _table(_A, _TEXT, ShardRowIDBits=4)),
    Example("CREATE VIEW", _job(Action.CREATE_VIEW), Touched((), (_table(name="v", id_=4, view=_VIEW),))),
    Example("DROP VIEW", _job(Action.DROP_VIEW), Touched((_table(name="v", id_=4, view=_VIEW),), ())),
)  # fmt: skip
PARTITIONS = (
    _altered("ADD PARTITION", Action.ADD_TABLE_PARTITION,
             _parted(RANGE, _BELOW, _partition(13, "p2", "20")),
             _parted(RANGE, _BELOW)),
    _altered("DROP PARTITION", Action.DROP_TABLE_PARTITION, _parted(RANGE, _REST), _PARTED),
    _altered("TRUNCATE PARTITION", Action.TRUNCATE_TABLE_PARTITION,
             _parted(RANGE, _partition(13, "p0", "10"), _REST), _PARTED),
    _altered("REORGANIZE PARTITION", Action.REORGANIZE_PARTITION,
             _parted(RANGE, _BELOW, _partition(13, "p2", "20"), _partition(14, "p3", "MAXVALUE")),
             _PARTED),
    Example("EXCHANGE PARTITION … WITHOUT VALIDATION",
            _job(Action.EXCHANGE_TABLE_PARTITION, raw_args=_EXCHANGE, version=2),
            Touched((_table(), _PARTED), (_table(), _PARTED))),
    _altered("PARTITION BY …", Action.ALTER_TABLE_PARTITIONING, _PARTED, _table(name="p", id_=2)),
    _altered("REMOVE PARTITIONING", Action.REMOVE_PARTITIONING, _table(name="p", id_=2), _PARTED),
)  # fmt: skip
DATABASES = (
    _database("CREATE DATABASE", Action.CREATE_SCHEMA),
    _database("CREATE DATABASE … COLLATE utf8mb4_0900_ai_ci", Action.CREATE_SCHEMA, "utf8mb4_0900_ai_ci"),
    _database("ALTER DATABASE … CHARACTER SET = …", Action.MODIFY_SCHEMA_CHARSET_AND_COLLATE, "latin1_bin"),
    _database("DROP DATABASE", Action.DROP_SCHEMA),
)
EXAMPLES = {
    "Types of columns": TYPES,
    "Columns and indexes": COLUMNS_AND_KEYS,
    "Tables and views": TABLES,
    "Partitions": PARTITIONS,
    "Databases": DATABASES,
}


def servers_reference() -> str:
    """docs/reference/mysql-servers.md."""
    return _HEAD + "".join(f"\n## {title}\n\n{_rows(examples)}" for title, examples in EXAMPLES.items())


def _rows(examples: Sequence[Example]) -> str:
    head = f"| DDL | {' | '.join(SERVERS)} |\n|{'---|' * (len(SERVERS) + 1)}\n"
    return head + "".join(f"| {each.ddl} | {' | '.join(_cells(each))} |\n" for each in examples)


def _cells(example: Example) -> Iterator[str]:
    found = {name: _text(example, dialect) for name, dialect in SERVERS.items()}
    plain = next(text for name in _PLAIN if (text := found[name][0]) is not None)
    for name, (text, why) in found.items():
        yield f"refused: {why}" if text is None else example.notes.get(name) or _how(plain, text)


def _text(example: Example, dialect: Dialect) -> tuple[str | None, str]:
    """None: the DDL is refused, and why."""
    try:
        return "; ".join(example.statements(dialect)), ""
    except ExecuteByHand as refused:
        return None, _JOB.sub("", refused.message).removesuffix(".").removeprefix(f"{dialect} ")


def _how(plain: str, text: str) -> str:
    """List which words stand instead of which, if any do."""
    if not text:
        return "nothing is executed"
    old, new = _WORD.findall(plain), _WORD.findall(text)
    found = SequenceMatcher(None, _bare(old), _bare(new), autojunk=False).get_opcodes()
    changed = [ranges for tag, *ranges in found if tag != "equal"]
    if len(changed) > _MOST_CHANGES:
        (begin, _, new_begin, _), (_, end, _, new_end) = changed[0], changed[-1]
        changed = [[begin, end, new_begin, new_end]]
    texts = (("".join(old[a:b]).strip(), "".join(new[c:d]).strip()) for a, b, c, d in changed)
    return "; ".join(_changed(*each) for each in texts) or "runs"


def _bare(words: Sequence[str]) -> list[str]:
    return [word.strip() for word in words]


def _changed(gone: str, come: str) -> str:
    if gone and come:
        return f"{_code(come)} for {_code(gone)}"
    return f"without {_code(gone)}" if gone else f"with {_code(come)}"


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
