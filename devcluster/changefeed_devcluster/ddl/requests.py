"""DDLs of a running development cluster that another process asks for, each as a TiDB server of its own would run it.

Who writes meanwhile goes on with the definition it knows, as a TiDB server does until it has loaded the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..tidb.schema import DbInfo, NamedTable, NewColumn
from ..tidb.tidb import Tidb
from . import columns, databases, indexes, partitions, tables
from .running import last

if TYPE_CHECKING:
    from ..tidb.transaction import TidbCluster

Arguments = Mapping[str, Any]


def do_ddl(cluster: TidbCluster, action: str, arguments: Arguments) -> dict[str, Any]:
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
    made = [_column(text) for text in given["columns"]]
    if schema not in tidb.databases:
        tidb.create_database(schema)
    tidb.create_table(schema, name, made, made[0].name, partitions=given["partitions"])


def _add_column(tidb: Tidb, given: Arguments) -> None:
    column = _column(given["column"], nullable=True)
    table = _table(tidb, given)
    tidb.add_column(table, column)


def _drop_column(tidb: Tidb, given: Arguments) -> None:
    last(columns.drop_column(tidb, _table(tidb, given), given["column"]))


def _modify_column(tidb: Tidb, given: Arguments) -> None:
    table = _table(tidb, given)
    is_nullable = table.info.column(given["column"]).nullable
    last(columns.modify_column(tidb, table, given["column"], _column(given["to"], is_nullable)))


def _add_index(tidb: Tidb, given: Arguments) -> None:
    table, name = _table(tidb, given), given["index"]
    table.info.column(given["column"])
    if any(index.name == name for index in table.info.indexes):
        raise ValueError(f"table {table.name} has an index {name}")
    indexes.add_index(tidb, table, name, [given["column"]], given["unique"])


def _drop_index(tidb: Tidb, given: Arguments) -> None:
    table, name = _table(tidb, given), given["index"]
    if name not in (found := [index.name for index in table.info.secondary]):
        raise ValueError(f"table {table.name} has no index {name}: it has {', '.join(found) or 'none'}")
    indexes.drop_index(tidb, table, name)


def _rename_table(tidb: Tidb, given: Arguments) -> None:
    schema, name = _names(given, "to")
    tables.rename_table(tidb, _table(tidb, given), _database(tidb, schema), name)


def _drop_database(tidb: Tidb, given: Arguments) -> None:
    databases.drop_database(tidb, _database(tidb, given["database"]).name)


def _drop_table(tidb: Tidb, given: Arguments) -> None:
    tidb.drop_table(_table(tidb, given))


def _truncate_table(tidb: Tidb, given: Arguments) -> None:
    tidb.truncate_table(_table(tidb, given))


def _add_partition(tidb: Tidb, given: Arguments) -> None:
    table = _table(tidb, given)
    if not table.info.partitions:
        raise ValueError(f"table {table.name} has no partitions")
    partitions.add_partition(tidb, table, given["partition"], given["below"])


def _drop_partition(tidb: Tidb, given: Arguments) -> None:
    partitions.drop_partition(tidb, *_partition(tidb, given))


def _truncate_partition(tidb: Tidb, given: Arguments) -> None:
    partitions.truncate_partition(tidb, *_partition(tidb, given))


def _exchange_partition(tidb: Tidb, given: Arguments) -> None:
    (table, name), other = _partition(tidb, given), _table(tidb, given, "other")
    if [(c.id, c.name, c.type) for c in table.info.columns] != [(c.id, c.name, c.type) for c in other.info.columns]:
        raise ValueError(f"table {other.name} has not the columns of {table.name}")
    if other.info.partitions:
        raise ValueError(f"table {other.name} has partitions itself")
    partitions.exchange_partition(tidb, table, name, other)


_ACTIONS: dict[str, Callable[[Tidb, Arguments], None]] = {
    "create-table": _create_table,
    "add-column": _add_column,
    "drop-column": _drop_column,
    "modify-column": _modify_column,
    "add-index": _add_index,
    "drop-index": _drop_index,
    "rename-table": _rename_table,
    "drop-database": _drop_database,
    "drop-table": _drop_table,
    "truncate-table": _truncate_table,
    "add-partition": _add_partition,
    "drop-partition": _drop_partition,
    "truncate-partition": _truncate_partition,
    "exchange-partition": _exchange_partition,
}


def _names(given: Arguments, what: str = "table") -> tuple[str, str]:
    schema, dot, name = str(given[what]).partition(".")
    if not (schema and dot and name):
        raise ValueError(f"{given[what]!r} names no table: write DATABASE.TABLE")
    return schema, name


def _database(tidb: Tidb, name: str) -> DbInfo:
    if name == "mysql" or (found := tidb.databases.get(name)) is None:
        raise ValueError(f"there is no database {name} of yours")
    return found


def _table(tidb: Tidb, given: Arguments, what: str = "table") -> NamedTable:
    name = ".".join(_names(given, what))
    if (found := tidb.tables.get(name)) is None:
        raise ValueError(f"there is no table {name}: there are {', '.join(sorted(tidb.tables))}")
    return found


def _partition(tidb: Tidb, given: Arguments) -> tuple[NamedTable, str]:
    table, name = _table(tidb, given), str(given["partition"])
    if name not in (found := [partition.name for partition in table.info.partitions]):
        raise ValueError(f"table {table.name} has no partition {name}: it has {', '.join(found) or 'none'}")
    return table, name


def _column(text: str, nullable: bool = False) -> NewColumn:
    """`NAME TYPE`."""
    name, _, sql = text.strip().partition(" ")
    if not sql:
        raise ValueError(f"{text!r} is no column: write NAME and TYPE, as in 'note varchar(20)'")
    return NewColumn(name, sql.strip(), nullable=nullable)
