"""DDLs of databases, and those that belong to no database at all."""

from __future__ import annotations

from dataclasses import replace

from ..tidb.schema import DELETE_ONLY, WRITE_ONLY, DbInfo
from ..tidb.server import TidbServer
from .jobs import JobType
from .running import RunningJob, involving_database

_NO_DATABASE = DbInfo(0, "")
#: Statements that concern no table's rows, with a name in them.
GLOBAL = {
    JobType.CREATE_PLACEMENT_POLICY: "CREATE PLACEMENT POLICY `{name}` FOLLOWERS=2",
    JobType.ALTER_PLACEMENT_POLICY: "ALTER PLACEMENT POLICY `{name}` FOLLOWERS=3",
    JobType.DROP_PLACEMENT_POLICY: "DROP PLACEMENT POLICY `{name}`",
    JobType.CREATE_RESOURCE_GROUP: "CREATE RESOURCE GROUP `{name}` RU_PER_SEC=2000",
    JobType.DROP_RESOURCE_GROUP: "DROP RESOURCE GROUP `{name}`",
}


def create_database(tidb: TidbServer, name: str) -> DbInfo:
    """Raises ValueError if it exists."""
    if name in tidb.databases:
        raise ValueError(f"database {name} exists")
    (id_,) = tidb.allocate_ids(1)
    db = DbInfo(id_, name)
    args = {"db_info": db.to_json()}
    query, waits = f"CREATE DATABASE `{name}`", involving_database(name)
    RunningJob(tidb, JobType.CREATE_SCHEMA, db, (0, ""), query, args, involving=waits).finish(db=db)
    tidb.databases[name] = db
    return db


def alter_database(tidb: TidbServer, name: str, charset: str, collate: str) -> DbInfo:
    """Change its character set, which later tables have when they name none."""
    db = replace(tidb.databases[name], charset=charset, collate=collate)
    query = f"ALTER DATABASE `{name}` CHARACTER SET = {charset} COLLATE = {collate}"
    args = {"to_charset": charset, "to_collate": collate}
    kind, waits = JobType.MODIFY_SCHEMA_CHARSET_AND_COLLATE, involving_database(name)
    RunningJob(tidb, kind, db, (0, ""), query, args, involving=waits).finish(db=db)
    tidb.databases[name] = db
    for table in [table for table in tidb.tables.values() if table.db.id == db.id]:
        tidb.remember(replace(table, db=db))
    return db


def drop_database(tidb: TidbServer, name: str) -> None:
    """Drop it with its tables."""
    db = tidb.databases[name]
    tables = [table for table in tidb.tables.values() if table.db.id == db.id]
    ids = [id_ for table in tables for id_ in table.physical_ids]
    args = {"fk_check": True, "all_dropped_table_ids": ids}
    query, waits = f"DROP DATABASE `{name}`", involving_database(name)
    job = RunningJob(tidb, JobType.DROP_SCHEMA, db, (0, ""), query, args, involving=waits)
    for state in (WRITE_ONLY, DELETE_ONLY):
        job.show_database(replace(db, state=state))
    job.finish(erased=tables, erased_db=db)
    del tidb.databases[name]


def run_global(tidb: TidbServer, kind: JobType, name: str) -> None:
    """One of GLOBAL."""
    what = "policy" if "POLICY" in kind.name else "resource_group"
    query, waits = GLOBAL[kind].format(name=name), [{what: name.lower()}]
    RunningJob(tidb, kind, _NO_DATABASE, (0, ""), query, involving=waits).finish()
