"""DDLs of partitions. Rows of one that is dropped stay in the store without an event, as in TiKV before GC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .jobs import JobType
from .partitions import Partition
from .schema import Table
from .tidb import Tidb


def add_partition(tidb: Tidb, table: Table, name: str, below: int | None) -> Table:
    """Behind the last one."""
    (id_,) = tidb.new_physical_ids(1)
    added = Partition(id_, name, below)
    statement = f"ADD PARTITION ({added.sql()})"
    return _alter(tidb, JobType.ADD_TABLE_PARTITION, table, statement, (*table.info.partitions, added))


def drop_partition(tidb: Tidb, table: Table, name: str) -> Table:
    kept = tuple(partition for partition in table.info.partitions if partition.name != name)
    return _alter(tidb, JobType.DROP_TABLE_PARTITION, table, f"DROP PARTITION `{name}`", kept)


def truncate_partition(tidb: Tidb, table: Table, name: str) -> Table:
    """The partition under a new id, empty."""
    (id_,) = tidb.new_physical_ids(1)
    after = tuple(replace(each, id=id_) if each.name == name else each for each in table.info.partitions)
    return _alter(tidb, JobType.TRUNCATE_TABLE_PARTITION, table, f"TRUNCATE PARTITION `{name}`", after)


def reorganize_partition(tidb: Tidb, table: Table, names: Sequence[str], into: Mapping[str, int | None]) -> Table:
    """Consecutive partitions become others, to which their rows are copied; nobody may write meanwhile."""
    ids = tidb.new_physical_ids(len(into))
    new = [Partition(id_, name, below) for id_, (name, below) in zip(ids, into.items(), strict=True)]
    first = next(n for n, partition in enumerate(table.info.partitions) if partition.name in names)
    kept = [partition for partition in table.info.partitions if partition.name not in names]
    after = replace(table, info=replace(table.info, partitions=(*kept[:first], *new, *kept[first:])))
    rows = tidb.snapshot(table, tidb.now())
    with tidb.begin() as txn:
        for pk, row in rows.items():
            if after.physical_id(pk) in ids:
                txn.insert(after, row)
    statement = f"REORGANIZE PARTITION {', '.join(names)} INTO ({', '.join(each.sql() for each in new)})"
    return _alter(tidb, JobType.REORGANIZE_PARTITION, table, statement, after.info.partitions)


def exchange_partition(tidb: Tidb, table: Table, name: str, other: Table) -> tuple[Table, Table]:
    """The partition and the table without partitions, each with the other's rows; both as they are then."""
    (gone,) = [partition for partition in table.info.partitions if partition.name == name]
    after = tuple(replace(each, id=other.id) if each is gone else each for each in table.info.partitions)
    args = {
        "partition_id": gone.id, "pt_schema_id": table.db.id, "pt_table_id": table.id,
        "partition_name": name, "with_validation": True,
    }  # fmt: skip
    query = f"ALTER TABLE {_sql(table)} EXCHANGE PARTITION `{name}` WITH TABLE {_sql(other)}"
    swapped = replace(other, info=replace(other.info, id=gone.id))
    done = tidb.run(
        JobType.EXCHANGE_TABLE_PARTITION, other, query, args, replace(table.info, partitions=after), beside=swapped
    )
    return tidb.remember(Table(table.db, done)), tidb.remember(swapped)


def _alter(tidb: Tidb, kind: JobType, table: Table, statement: str, after: tuple[Partition, ...]) -> Table:
    query = f"ALTER TABLE {_sql(table)} {statement}"
    return tidb.remember(Table(table.db, tidb.run(kind, table, query, {}, replace(table.info, partitions=after))))


def _sql(table: Table) -> str:
    return f"`{table.db.name}`.`{table.info.name}`"
