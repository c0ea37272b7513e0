"""`changefeed-devcluster ddl`: change the tables of a running development cluster, each way a command.

Every command answers one JSON line, with the DDL's finish ts, and exits 0; 2 means that the cluster refused what was
asked, 69 that none answers.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from ..control import DDL_METHOD
from ..harm import At, ask
from ..terminal import CommandFailed, say

TableName = Annotated[str, Parameter(help="DATABASE.TABLE")]
ColumnName = Annotated[str, Parameter(help="Name of a column.")]
IndexName = Annotated[str, Parameter(help="Name of an index.")]
PartitionName = Annotated[str, Parameter(help="Name of a partition.")]

ddl = App(name="ddl", help="Change the tables of a running development cluster: what it answers is one JSON line.")


@ddl.command(name="create-table")
def create_table(
    table: TableName,
    /,
    *columns: Annotated[str, Parameter(help="'NAME TYPE'; the first one is the primary key.")],
    partition: Annotated[
        list[str] | None, Parameter(help="NAME=BELOW, in order; BELOW is MAXVALUE for the last.")
    ] = None,
    at: At,
) -> None:
    """Make a table, and its database if there is none: `ddl create-table shop.notes "id bigint" "note varchar(20)"`.

    With `--partition` it is partitioned by range of its primary key.
    """
    partitions = dict(map(_partition, partition or ()))
    _ddl(at, "create-table", table=table, columns=columns, partitions=partitions)


@ddl.command(name="add-column")
def add_column(table: TableName, column: Annotated[str, Parameter(help="'NAME TYPE'")], /, *, at: At) -> None:
    """Add a column, NULL in the rows that are there: `ddl add-column bank.accounts_0 "note varchar(20)"`."""
    _ddl(at, "add-column", table=table, column=column)


@ddl.command(name="drop-column")
def drop_column(table: TableName, column: ColumnName, /, *, at: At) -> None:
    """Drop a column that is part of no key."""
    _ddl(at, "drop-column", table=table, column=column)


@ddl.command(name="modify-column")
def modify_column(table: TableName, column: ColumnName, to: str, /, *, at: At) -> None:
    """Give a column another name or type: `ddl modify-column shop.notes note "remark varchar(80)"`.

    Where the new type reads other bytes, every row is rewritten before.
    """
    _ddl(at, "modify-column", table=table, column=column, to=to)


@ddl.command(name="add-index")
def add_index(table: TableName, index: IndexName, column: ColumnName, /, *, unique: bool = False, at: At) -> None:
    """Add an index over a column."""
    _ddl(at, "add-index", table=table, index=index, column=column, unique=unique)


@ddl.command(name="drop-index")
def drop_index(table: TableName, index: IndexName, /, *, at: At) -> None:
    """Drop an index."""
    _ddl(at, "drop-index", table=table, index=index)


@ddl.command(name="rename-table")
def rename_table(table: TableName, to: TableName, /, *, at: At) -> None:
    """Give a table another name, also in another database that exists."""
    _ddl(at, "rename-table", table=table, to=to)


@ddl.command(name="drop-database")
def drop_database(database: Annotated[str, Parameter(help="Its name.")], /, *, at: At) -> None:
    """Drop a database with its tables."""
    _ddl(at, "drop-database", database=database)


@ddl.command(name="drop-table")
def drop_table(table: TableName, /, *, at: At) -> None:
    """Drop a table."""
    _ddl(at, "drop-table", table=table)


@ddl.command(name="truncate-table")
def truncate_table(table: TableName, /, *, at: At) -> None:
    """Empty a table: it has another id then."""
    _ddl(at, "truncate-table", table=table)


@ddl.command(name="add-partition")
def add_partition(table: TableName, partition: PartitionName, below: int, /, *, at: At) -> None:
    """Add a partition behind the last one, for keys below a number."""
    _ddl(at, "add-partition", table=table, partition=partition, below=below)


@ddl.command(name="drop-partition")
def drop_partition(table: TableName, partition: PartitionName, /, *, at: At) -> None:
    """Drop a partition with its rows."""
    _ddl(at, "drop-partition", table=table, partition=partition)


@ddl.command(name="truncate-partition")
def truncate_partition(table: TableName, partition: PartitionName, /, *, at: At) -> None:
    """Empty a partition: it has another id then."""
    _ddl(at, "truncate-partition", table=table, partition=partition)


@ddl.command(name="exchange-partition")
def exchange_partition(table: TableName, partition: PartitionName, other: TableName, /, *, at: At) -> None:
    """Let a partition and a table of the same columns change places, without a look at the rows."""
    _ddl(at, "exchange-partition", table=table, partition=partition, other=other)


def _partition(text: str) -> tuple[str, int | None]:
    name, _, below = text.partition("=")
    try:
        return name, None if below.upper() == "MAXVALUE" else int(below)
    except ValueError:
        raise CommandFailed(f"--partition {text!r} wants NAME=NUMBER, or NAME=MAXVALUE") from None


def _ddl(at: At, action: str, **arguments: object) -> None:
    say(**ask(at, DDL_METHOD, action, **arguments))
