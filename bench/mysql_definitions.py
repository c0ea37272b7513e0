"""What it adds to a start to compare 1,000 tables of a MySQL-compatible server with the upstream's definitions.

bench/mysql_definitions.py --port 3306   # of 127.0.0.1, user root without a password; makes the database bench_start
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from changefeed.log.state import State
from changefeed.schema.sql.definition import Definition
from changefeed.schema.sql.tables import create_table
from changefeed.schema.table_info import TableInfo, parse_table_info
from changefeed.sink.claim import Taken
from changefeed.sink.mysql.claim import MysqlClaim
from changefeed.sink.mysql.server import MysqlServer, Session
from changefeed.spec.parse import parse
from changefeed_devcluster.tidb.schema import NewColumn, make_table

_DATABASE = "bench_start"
_TURNS = 5
_COLUMNS = (
    NewColumn("id", "bigint"),
    *(NewColumn(f"name_{n}", "varchar(40)") for n in range(3)),
    *(NewColumn(f"count_{n}", "int", nullable=True) for n in range(3)),
    NewColumn("amount", "decimal(10,2)", nullable=True),
    NewColumn("at", "datetime(3)"),
    NewColumn("note", "text", nullable=True),
)
_INDEXES = (("by_name", "name_0", True), ("by_at", "at", False))


def definition(number: int) -> TableInfo:
    """Return a table of 10 columns, a primary key and two indexes."""
    info = make_table(number + 1, f"t{number}", _COLUMNS, "id").to_json()
    indexes = [
        {"id": n, "idx_name": name, "idx_cols": [{"name": of, "length": -1}], "is_unique": is_unique, "state": 5}
        for n, (name, of, is_unique) in enumerate(_INDEXES, 1)
    ]
    return parse_table_info(info | {"index_info": indexes}, _DATABASE)


@contextmanager
def there(port: int, tables: list[TableInfo]) -> Iterator[None]:
    session = Session(MysqlServer("127.0.0.1", port, "root", ""), one_by_one=True)
    database = _DATABASE.encode()
    session.run([b"DROP DATABASE IF EXISTS " + database, b"CREATE DATABASE " + database])
    session.run([create_table(Definition.of(table), session.dialect).encode() for table in tables])
    yield
    session.run([b"DROP DATABASE " + database])
    session.close()


def seconds(port: int, tables: list[TableInfo], progress_database: str) -> tuple[float, float]:
    """Measure the sink's part of a start, in seconds and CPU seconds. Without its own database nothing is compared."""
    sink = {"uri": f"mysql://127.0.0.1:{port}", "progressDatabase": progress_database}
    resource = {
        "apiVersion": "changefeed.dev/v1alpha1",
        "kind": "Changefeed",
        "metadata": {"name": "bench"},
        "spec": {
            "upstream": {"pdAddresses": ["http://127.0.0.1:2379"]},
            "filter": {"rules": [f"{_DATABASE}.*"]},
            "state": {"uri": "file:///tmp/bench"},
            "sink": {"mysql": sink},
        },
    }
    driven = MysqlClaim(parse(json.dumps(resource)))
    found = []
    for _ in range(_TURNS):
        began, cpu = time.monotonic(), time.process_time()
        driven.settle_in(Taken(State(), ""), [(table.id, table, 1, True) for table in tables])
        found.append((time.monotonic() - began, time.process_time() - cpu))
    return median(wall for wall, _ in found), median(cpu for _, cpu in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tables", type=int, default=1000)
    given = parser.parse_args()
    tables = [definition(number) for number in range(given.tables)]
    with there(given.port, tables):
        for what, database in (("not compared", ""), ("compared", "changefeed")):
            wall, cpu = seconds(given.port, tables, database)
            sys.stdout.write(f"start, {given.tables:,} tables, {what:<14}{wall:11.2f} s {cpu:19.2f} CPU seconds\n")


if __name__ == "__main__":
    main()
