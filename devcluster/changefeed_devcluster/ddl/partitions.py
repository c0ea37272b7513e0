"""DDLs of partitions. Rows of one that is dropped stay in the store without an event, as in TiKV before GC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..tidb.partitions import TidbPartition, partitions_sql
from ..tidb.schema import NamedTable
from ..tidb.server import TidbServer
from .jobs import JobType
from .running import RunningJob, about, involving, sql
from .tables import Partitions, new_partitions


def add_partition(tidb: TidbServer, table: NamedTable, name: str, below: int | None) -> NamedTable:
    """Add a partition behind the last one."""
    (added,) = new_partitions(tidb, {name: below})
    statement = f"ADD PARTITION ({added.sql()})"
    return _alter(tidb, JobType.ADD_TABLE_PARTITION, table, statement, (*table.info.partitions, added))


def drop_partition(tidb: TidbServer, table: NamedTable, name: str) -> NamedTable:
    kept = tuple(partition for partition in table.info.partitions if partition.name != name)
    return _alter(tidb, JobType.DROP_TABLE_PARTITION, table, f"DROP PARTITION `{name}`", kept)


def truncate_partition(tidb: TidbServer, table: NamedTable, name: str) -> NamedTable:
    """The partition under a new id, empty."""
    (id_,) = tidb.new_physical_ids(1)
    after = tuple(replace(each, id=id_) if each.name == name else each for each in table.info.partitions)
    return _alter(tidb, JobType.TRUNCATE_TABLE_PARTITION, table, f"TRUNCATE PARTITION `{name}`", after)


def reorganize_partition(tidb: TidbServer, table: NamedTable, names: Sequence[str], into: Partitions) -> NamedTable:
    """Consecutive partitions become others, to which their rows are copied; nobody may write meanwhile."""
    new = new_partitions(tidb, into)
    first = next(n for n, partition in enumerate(table.info.partitions) if partition.name in names)
    kept = [partition for partition in table.info.partitions if partition.name not in names]
    after = replace(table, info=replace(table.info, partitions=(*kept[:first], *new, *kept[first:])))
    _copy(tidb, table, after)
    statement = f"REORGANIZE PARTITION {', '.join(names)} INTO ({', '.join(each.sql() for each in new)})"
    return _alter(tidb, JobType.REORGANIZE_PARTITION, table, statement, after.info.partitions)


def exchange_partition(
    tidb: TidbServer, table: NamedTable, name: str, other: NamedTable
) -> tuple[NamedTable, NamedTable]:
    """The partition and the table without partitions, each with the other's rows; both as they are then.

    Nobody looks whether the other's rows belong there: WITHOUT VALIDATION.
    """
    (gone,) = [partition for partition in table.info.partitions if partition.name == name]
    after = tuple(replace(each, id=other.id) if each is gone else each for each in table.info.partitions)
    args = {
        "partition_id": gone.id, "pt_schema_id": table.db.id, "pt_table_id": table.id,
        "partition_name": name.lower(), "with_validation": False,
    }  # fmt: skip
    query = f"ALTER TABLE {sql(table)} EXCHANGE PARTITION `{name}` WITH TABLE {sql(other)} WITHOUT VALIDATION"
    named, waits = (other.id, other.info.name), involving(table, other)
    job = RunningJob(tidb, JobType.EXCHANGE_TABLE_PARTITION, other.db, named, query, args, involving=waits)
    swapped = replace(other, info=replace(other.info, id=gone.id))
    done = job.finish(replace(table, info=replace(table.info, partitions=after)), swapped, erased=[other])
    return done[0], done[1]


def alter_partitioning(tidb: TidbServer, table: NamedTable, into: Partitions) -> NamedTable:
    """Other partitions, or some where there were none: a table of another id, to which all rows are copied."""
    after = _under_new_id(tidb, table, new_partitions(tidb, into))
    statement = partitions_sql(after.pk, after.info.partitions)
    job = about(tidb, JobType.ALTER_TABLE_PARTITIONING, table, f"ALTER TABLE {sql(table)} {statement}")
    return job.finish(after, erased=[table])[0]


def remove_partitioning(tidb: TidbServer, table: NamedTable) -> NamedTable:
    """A table of another id without partitions, to which all rows are copied."""
    after = _under_new_id(tidb, table, ())
    query = f"ALTER TABLE {sql(table)} REMOVE PARTITIONING"
    return about(tidb, JobType.REMOVE_PARTITIONING, table, query).finish(after, erased=[table])[0]


def _under_new_id(tidb: TidbServer, table: NamedTable, partitions: tuple[TidbPartition, ...]) -> NamedTable:
    (id_,) = tidb.new_physical_ids(1)
    after = replace(table, info=replace(table.info, id=id_, partitions=partitions))
    _copy(tidb, table, after)
    return after


def _copy(tidb: TidbServer, table: NamedTable, after: NamedTable) -> None:
    """Rows into the physical tables that are new; nobody may write meanwhile."""
    rows = tidb.snapshot(table, tidb.now())
    with tidb.begin() as txn:
        for pk, row in rows.items():
            if after.physical_id(pk) not in table.physical_ids:
                txn.insert(after, row)


def _alter(
    tidb: TidbServer, kind: JobType, table: NamedTable, statement: str, after: tuple[TidbPartition, ...]
) -> NamedTable:
    job = about(tidb, kind, table, f"ALTER TABLE {sql(table)} {statement}")
    return job.finish(replace(table, info=replace(table.info, partitions=after)))[0]
