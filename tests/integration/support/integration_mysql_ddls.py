"""DDLs as a driver gets them, and a sink on a server that has the tables they are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.actions import Action
from changefeed.schema.history import Touched
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.contract import Claim, Ddl
from changefeed.sink.mysql.driver import MysqlDriver
from changefeed.sink.mysql.syncpoint import SyncpointStatements
from changefeed.upstream.tikv.tidb.job import parse_job
from changefeed_devcluster.tidb.schema import NewColumn, make_table
from integration_mariadb import MariaDb


def with_tables(mariadb: MariaDb) -> MariaDb:
    """A table t of two columns and a partitioned p, in a database of its own."""
    for name in ("shop", "fresh", "changefeed", "tidb_cdc"):
        mariadb.query(f"DROP DATABASE IF EXISTS {name}")
    mariadb.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, a INT)",
        "CREATE TABLE shop.p (id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9))",
        "INSERT INTO shop.t VALUES (1, 1)",
    )
    return mariadb


ID, A = NewColumn("id", "int"), NewColumn("a", "int", nullable=True)
B = NewColumn("b", "int", nullable=True, default=5)
P0, P1 = ({"id": 10 + n, "name": {"O": f"p{n}"}, "less_than": [str(below)]} for n, below in enumerate((9, 20)))


def stored(name: str, *columns: NewColumn, id_: int = 1, indexes: Sequence[Any] = (), **more: Any) -> TableInfo:
    """A definition in the database shop, as TiDB keeps it. `indexes`: names and columns."""
    info = make_table(id_, name, columns or (ID, A), "id").to_json()
    by_name = [
        {"id": n + 1, "idx_name": name, "idx_cols": [{"name": of, "length": -1}], "is_unique": unique, "state": 5}
        for n, (name, of, unique) in enumerate(indexes)
    ]
    return parse_table_info(info | {"index_info": by_name} | more, "shop")


def partitioned(*partitions: Any) -> TableInfo:
    by = {"type": 1, "expr": "`id`", "enable": True, "definitions": list(partitions)}
    return stored("p", id_=2, partition=by)


def ddl(
    action: Action,
    before: Sequence[TableInfo] = (),
    after: Sequence[TableInfo] = (),
    *,
    database: str = "",
    ts: int = 10,
    **more: Any,
) -> Ddl:
    """What the job itself calls databases and tables is nothing to go by."""
    info = {"id": 1, "db_name": {"O": database}, "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}
    members = {"id": int(action), "type": int(action), "state": 6, "schema_name": "elsewhere", "table_name": "nothing"}
    job = parse_job(
        {**members, "table_id": 1, "query": "SIGNAL", "binlog": {"DBInfo": info if database else None}, **more}
    )
    touched = Touched(tuple(before), tuple(after), frozenset({database} if database else ()))
    by_id = {table.id: table for table in before}, {table.id: table for table in after}
    return Ddl(ts, job.id, change=job, before=by_id[0], tables=by_id[1], touched=touched, is_told=True)


T, P = stored("t"), partitioned(P0)
SYNCPOINTS = SyncpointStatements("prod/feed", retention_s=3600)


def open_sink(database: MariaDb, writer: int = 1) -> MysqlDriver:
    claim = Claim("cf", 0, 1, "n", writer)
    return MysqlDriver(database.server(), "changefeed", claim, Patience(30), SYNCPOINTS, "Asia/Shanghai")


def adds_index(name: str = "a", *, is_unique: bool = False, of: str = "a") -> Ddl:
    """Return a DDL that adds an index to table t, which had none."""
    return ddl(Action.ADD_INDEX, [T], [stored("t", indexes=[(name, of, is_unique)])])
