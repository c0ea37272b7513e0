"""DDLs of a running development cluster that another process asks for, each as a TiDB server of its own would run it.

Who writes meanwhile goes on with the definition it knows, as a TiDB server does until it has loaded the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import partition_ddl
from .schema import Column, Table
from .tidb import Tidb

if TYPE_CHECKING:
    from .transaction import Cluster

Arguments = Mapping[str, Any]


def do_ddl(cluster: Cluster, action: str, arguments: Arguments) -> dict[str, Any]:
    """The finish ts of the DDL. Raises ValueError for an unknown or wrong request."""
    do = _ACTIONS.get(action)
    if do is None:
        raise ValueError(f"unknown DDL {action!r}: one of {', '.join(_ACTIONS)}")
    tidb = Tidb(cluster)
    tidb.read_catalog()
    do(tidb, arguments)
    return {"ts": str(tidb.last_ddl_ts)}


def _create_table(tidb: Tidb, given: Arguments) -> None:
    schema, name = _names(given)
    columns = [_column(text) for text in given["columns"]]
    if schema not in tidb.databases:
        tidb.create_database(schema)
    tidb.create_table(schema, name, columns, columns[0].name, partitions=given["partitions"])


def _add_column(tidb: Tidb, given: Arguments) -> None:
    column = _column(given["column"], nullable=True)
    table = _table(tidb, given)
    if any(each.name == column.name for each in table.info.columns):
        raise ValueError(f"table {table.name} has a column {column.name}")
    tidb.add_column(table, column)


def _drop_table(tidb: Tidb, given: Arguments) -> None:
    tidb.drop_table(_table(tidb, given))


def _truncate_table(tidb: Tidb, given: Arguments) -> None:
    tidb.truncate_table(_table(tidb, given))


def _add_partition(tidb: Tidb, given: Arguments) -> None:
    table = _table(tidb, given)
    if not table.info.partitions:
        raise ValueError(f"table {table.name} has no partitions")
    partition_ddl.add_partition(tidb, table, given["partition"], given["below"])


def _drop_partition(tidb: Tidb, given: Arguments) -> None:
    partition_ddl.drop_partition(tidb, *_partition(tidb, given))


def _truncate_partition(tidb: Tidb, given: Arguments) -> None:
    partition_ddl.truncate_partition(tidb, *_partition(tidb, given))


_ACTIONS: dict[str, Callable[[Tidb, Arguments], None]] = {
    "create-table": _create_table,
    "add-column": _add_column,
    "drop-table": _drop_table,
    "truncate-table": _truncate_table,
    "add-partition": _add_partition,
    "drop-partition": _drop_partition,
    "truncate-partition": _truncate_partition,
}


def _names(given: Arguments) -> tuple[str, str]:
    schema, dot, name = str(given["table"]).partition(".")
    if not (schema and dot and name):
        raise ValueError(f"{given['table']!r} names no table: write DATABASE.TABLE")
    return schema, name


def _table(tidb: Tidb, given: Arguments) -> Table:
    name = ".".join(_names(given))
    if (found := tidb.tables.get(name)) is None:
        raise ValueError(f"there is no table {name}: there are {', '.join(sorted(tidb.tables))}")
    return found


def _partition(tidb: Tidb, given: Arguments) -> tuple[Table, str]:
    table, name = _table(tidb, given), str(given["partition"])
    if name not in (found := [partition.name for partition in table.info.partitions]):
        raise ValueError(f"table {table.name} has no partition {name}: it has {', '.join(found) or 'none'}")
    return table, name


def _column(text: str, nullable: bool = False) -> Column:
    """`NAME TYPE`."""
    name, _, sql = text.strip().partition(" ")
    if not sql:
        raise ValueError(f"{text!r} is no column: write NAME and TYPE, as in 'note varchar(20)'")
    return Column(name, sql.strip(), nullable=nullable)
