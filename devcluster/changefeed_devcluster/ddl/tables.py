"""DDLs of whole tables, views and sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import keys
from ..tidb.partitions import TidbPartition, partitions_sql
from ..tidb.schema import (
    DELETE_ONLY,
    WRITE_ONLY,
    DbInfo,
    NamedTable,
    NewColumn,
    PrimaryKey,
    TidbTable,
    ci_str,
    create_table_sql,
    full_name,
    make_table,
)
from ..tidb.server import TidbServer
from .jobs import JobType
from .running import RunningJob, about, involving, sql

Partitions = Mapping[str, int | None]  # by name, in order: the key that each is below, None for the last one


@dataclass(frozen=True)
class NewTable:
    """A table to be made, as CREATE TABLE says it. `pk`: a column or several, clustered; None: `_tidb_rowid`."""

    name: str
    columns: Sequence[NewColumn]
    pk: PrimaryKey = "id"
    partitions: Partitions | None = None


def create_table(
    tidb: TidbServer, db: str, new: NewTable, regions: int = 1, handles: int = 1000, at_once: bool = False
) -> NamedTable:
    """Create it in a database that exists, split into `regions` so that the handles 1..handles fall evenly.

    Raises ValueError if the table can't be made; only one with an int handle has more than one region.
    """
    table, query = _made(tidb, db, new)
    if regions > 1 and table.info.clustered:
        raise ValueError(f"table {table.name} can't be split: its handle is not an integer")
    for n in range(1, regions):
        tidb.split(keys.record_key(table.id, 1 + n * handles // regions))
    args = {"table_info": table.info.to_json(), "fk_check": True}
    named = table.id, table.info.name
    job = RunningJob(tidb, JobType.CREATE_TABLE, table.db, named, query, args, at_once=at_once)
    (table,) = job.finish(table)
    return table


def create_tables(tidb: TidbServer, db: str, several: Sequence[NewTable]) -> tuple[NamedTable, ...]:
    """Create them in one job, as a restore or the fast way does."""
    made = [_made(tidb, db, new) for new in several]
    tables = [table for table, _ in made]
    args = {"tables": [{"table_info": table.info.to_json()} for table in tables], "fk_check": True}
    query = "; ".join(query for _, query in made)
    job = RunningJob(tidb, JobType.CREATE_TABLES, tables[0].db, (0, ""), query, args, involving=involving(*tables))
    return job.finish(*tables, carried=[table.info for table in tables])


def create_like(tidb: TidbServer, table: NamedTable, name: str) -> NamedTable:
    """Another table without partitions, with the same columns under the same ids."""
    (id_,) = tidb.new_physical_ids(1)
    info = replace(table.info, id=id_, name=_free(tidb, table.db.name, name), partitions=())
    query = f"CREATE TABLE `{table.db.name}`.`{name}` LIKE {sql(table)}"
    args = {"table_info": info.to_json(), "fk_check": True}
    made = NamedTable(table.db, info)
    waits = involving(made, shared=[table])
    job = RunningJob(tidb, JobType.CREATE_TABLE, table.db, (id_, name), query, args, involving=waits)
    return job.finish(made)[0]


def _made(tidb: TidbServer, db: str, new: NewTable) -> tuple[NamedTable, str]:
    _free(tidb, db, new.name)
    if db not in tidb.databases:
        raise ValueError(f"there is no database {db}: create it first")
    (id_,) = tidb.new_physical_ids(1)
    info = make_table(id_, new.name, new.columns, new.pk)
    query = create_table_sql(db, new.name, new.columns, new.pk)
    if new.partitions:
        info = replace(info, partitions=new_partitions(tidb, new.partitions))
        query += f" {partitions_sql(info.pk or '', info.partitions)}"
    return NamedTable(tidb.databases[db], info), query


def new_partitions(tidb: TidbServer, given: Partitions) -> tuple[TidbPartition, ...]:
    ids = tidb.new_physical_ids(len(given))
    return tuple(TidbPartition(id_, *each) for id_, each in zip(ids, given.items(), strict=True))


def drop_table(tidb: TidbServer, table: NamedTable) -> None:
    """Takes the table out of the catalog; its rows stay in the store, without an event, as in TiKV before GC."""
    named = [{"Schema": ci_str(table.db.name), "Name": ci_str(table.info.name)}]
    args = {"identifiers": named, "fk_check": True, "old_partition_ids": [each.id for each in table.info.partitions]}
    _dropped(about(tidb, JobType.DROP_TABLE, table, f"DROP TABLE {sql(table)}", args), table)


def _dropped(job: RunningJob, table: NamedTable) -> None:
    for state in (WRITE_ONLY, DELETE_ONLY):
        job.show(replace(table, info=table.info.of_state(state)))
    job.finish(erased=[table])


def recover_table(tidb: TidbServer, table: NamedTable, name: str) -> NamedTable:
    """A table that was dropped, under its old id with its old rows."""
    recovered = replace(table, info=replace(table.info, name=_free(tidb, table.db.name, name)))
    query = f"FLASHBACK TABLE `{table.info.name}` TO `{name}`"
    info = {"SchemaID": table.db.id, "OldSchemaName": table.db.name, "OldTableName": table.info.name}
    args = {"recover_info": {"RecoverTableInfos": [info]}}
    (recovered,) = about(tidb, JobType.RECOVER_TABLE, recovered, query, args).finish(recovered)
    return recovered


def truncate_table(tidb: TidbServer, table: NamedTable) -> NamedTable:
    """The same table under a new id, empty."""
    (id_,) = tidb.new_physical_ids(1)
    old = table.info.partitions
    new = tuple(replace(each, id=new) for each, new in zip(old, tidb.new_physical_ids(len(old)), strict=True))
    args = {
        "new_table_id": id_,
        "fk_check": True,
        "new_partition_ids": [each.id for each in new] or None,
        "old_partition_ids": [each.id for each in old] or None,
    }
    after = replace(table, info=replace(table.info, id=id_, partitions=new))
    job = about(tidb, JobType.TRUNCATE_TABLE, table, f"TRUNCATE TABLE {sql(table)}", args)
    (after,) = job.finish(after, erased=[table])
    return after


def rename_table(tidb: TidbServer, table: NamedTable, db: DbInfo, name: str) -> NamedTable:
    """Into another database, or the same one."""
    _free(tidb, db.name, name)
    after = NamedTable(db, replace(table.info, name=name))
    args = {"old_schema_id": table.db.id, "old_schema_name": ci_str(table.db.name), "new_table_name": ci_str(name)}
    query = f"RENAME TABLE {sql(table)} TO {sql(after)}"
    # The job's database is the new one, its table the old one. Sessions use the new name before it is done.
    named, waits = (table.id, table.info.name), involving(table, after)
    job = RunningJob(tidb, JobType.RENAME_TABLE, db, named, query, args, involving=waits)
    job.show(after, erased=[table])
    (after,) = job.finish(after)
    return after


def swap_tables(tidb: TidbServer, one: NamedTable, other: NamedTable) -> tuple[NamedTable, NamedTable]:
    """Each gets the other's name, in one statement with a name in between."""
    between = NamedTable(one.db, replace(one.info, name=f"{one.info.name}_between"))
    steps = [(one, between), (other, _named(other, one)), (between, _named(one, other))]
    infos = [
        {
            "old_schema_id": old.db.id, "new_schema_id": new.db.id, "table_id": old.id,
            "old_schema_name": ci_str(old.db.name), "old_table_name": ci_str(old.info.name),
            "new_table_name": ci_str(new.info.name),
        }
        for old, new in steps
    ]  # fmt: skip
    query = f"RENAME TABLE {', '.join(f'{sql(old)} TO {sql(new)}' for old, new in steps)}"
    args, waits = {"rename_table_infos": infos}, [each for step in steps for each in involving(*step)]
    job = RunningJob(tidb, JobType.RENAME_TABLES, steps[-1][1].db, (one.id, ""), query, args, involving=waits)
    job.show(steps[2][1], steps[1][1], erased=[one, other])
    after, before = job.finish(steps[2][1], steps[1][1], carried=[new.info for _, new in steps])
    return after, before


def _named(table: NamedTable, as_: NamedTable) -> NamedTable:
    return NamedTable(as_.db, replace(table.info, name=as_.info.name))


def _free(tidb: TidbServer, db: str, name: str) -> str:
    if full_name(db, name) in tidb.tables:
        raise ValueError(f"table {db}.{name} exists")
    return name


# --- what has no rows ---


def create_view(tidb: TidbServer, name: str, of: NamedTable, replaced: NamedTable | None = None) -> NamedTable:
    """The view `name` of a table's columns, in its database; instead of one that is there."""
    (id_,) = tidb.new_physical_ids(1)
    columns = tuple(replace(column, offset=n) for n, column in enumerate(of.info.public))
    select = f"SELECT {', '.join(f'`{column.name}`' for column in columns)} FROM {sql(of)}"
    view = {
        "view_algorithm": 0, "view_definer": {"Username": "root", "Hostname": "%"}, "view_security": 0,
        "view_select": select, "view_checkoption": 1, "view_cols": [ci_str(column.name) for column in columns],
    }  # fmt: skip
    info = TidbTable(id_, name, columns, max_column_id=len(columns), attributes={"view": view})
    args = {
        "table_info": info.to_json(), "on_exist_replace": replaced is not None,
        "old_view_tbl_id": replaced.id if replaced else 0,
    }  # fmt: skip
    query = f"CREATE{' OR REPLACE' if replaced else ''} VIEW `{of.db.name}`.`{name}` AS {select}"
    job = RunningJob(tidb, JobType.CREATE_VIEW, of.db, (id_, name), query, args)
    (made,) = job.finish(NamedTable(of.db, info), erased=[replaced] if replaced else [])
    return made


def drop_view(tidb: TidbServer, view: NamedTable) -> None:
    _dropped(about(tidb, JobType.DROP_VIEW, view, f"DROP VIEW {sql(view)}"), view)


def create_sequence(tidb: TidbServer, db: DbInfo, name: str) -> NamedTable:
    (id_,) = tidb.new_physical_ids(1)
    sequence: dict[str, Any] = {
        "sequence_start": 1, "sequence_cache": True, "sequence_cycle": False, "sequence_min_value": 1,
        "sequence_max_value": 9223372036854775806, "sequence_increment": 1, "sequence_cache_value": 1000,
        "sequence_comment": "",
    }  # fmt: skip
    info = TidbTable(id_, _free(tidb, db.name, name), (), attributes={"sequence": sequence})
    query = f"CREATE SEQUENCE `{db.name}`.`{name}`"
    (made,) = RunningJob(tidb, JobType.CREATE_SEQUENCE, db, (id_, name), query).finish(NamedTable(db, info))
    return made


def drop_sequence(tidb: TidbServer, sequence: NamedTable) -> None:
    _dropped(about(tidb, JobType.DROP_SEQUENCE, sequence, f"DROP SEQUENCE {sql(sequence)}"), sequence)
