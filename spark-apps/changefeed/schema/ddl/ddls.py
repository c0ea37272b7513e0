"""Every DDL of TiDB: its effect on definitions, and TiCDC's name for it.

The single table behind schema history, event filters, the reference page and the tests. A type that is not in it stops
a changefeed (rule 29).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from changefeed.schema.ddl.actions import Action


class Effect(Enum):
    """What follows from a job."""

    NOTHING = "decides no byte of a file: counters, locks, placement, TiFlash, sequences, resource groups"
    TABLE = "the job carries a table's new definition, maybe under another id"
    TABLES = "it carries those of several new tables"
    RENAMES = "it carries those of several tables, in the statement's order"
    TABLE_DROP = "a table or view is gone"
    EXCHANGE = "a partition and a table change places"
    DATABASE = "it carries a database's definition"
    DATABASE_DROP = "a database is gone with its tables"
    UNFOLLOWABLE = "it changes rows or definitions without saying how"


@dataclass(frozen=True)
class DdlKind:
    """`statement`: its part that tells it from others. `event_type`: of `ignoreEvent`, "" if TiCDC has none."""

    action: Action
    effect: Effect
    statement: str
    event_type: str = ""


def _all(effect: Effect, *ddls: tuple[Action, str, str] | tuple[Action, str]) -> Iterable[DdlKind]:
    return (DdlKind(ddl[0], effect, *ddl[1:]) for ddl in ddls)


_TABLE = (
    (Action.CREATE_TABLE, "CREATE TABLE", "create table"),
    (Action.RECOVER_TABLE, "RECOVER TABLE, FLASHBACK TABLE", "recover table"),
    (Action.RENAME_TABLE, "RENAME TABLE", "rename table"),
    (Action.TRUNCATE_TABLE, "TRUNCATE TABLE", "truncate table"),
    (Action.ADD_COLUMN, "ADD COLUMN", "add column"),
    (Action.ADD_COLUMNS, "ADD COLUMN, before TiDB 6.2", "add column"),
    (Action.DROP_COLUMN, "DROP COLUMN", "drop column"),
    (Action.DROP_COLUMNS, "DROP COLUMN, before TiDB 6.2", "drop column"),
    (Action.MODIFY_COLUMN, "MODIFY COLUMN, CHANGE COLUMN, RENAME COLUMN", "modify column"),
    (Action.SET_DEFAULT_VALUE, "ALTER COLUMN … SET DEFAULT", "set default value"),
    (Action.MULTI_SCHEMA_CHANGE, "several changes in one ALTER TABLE", "multi schema change"),
    (Action.ADD_INDEX, "ADD INDEX", "create index"),
    (Action.DROP_INDEX, "DROP INDEX", "drop index"),
    (Action.RENAME_INDEX, "RENAME INDEX", "rename index"),
    (Action.ALTER_INDEX_VISIBILITY, "ALTER INDEX … INVISIBLE", "alter index visibility"),
    (Action.ADD_PRIMARY_KEY, "ADD PRIMARY KEY", "add primary key"),
    (Action.DROP_PRIMARY_KEY, "DROP PRIMARY KEY", "drop primary key"),
    (Action.ADD_FOREIGN_KEY, "ADD FOREIGN KEY", "add foreign key"),
    (Action.DROP_FOREIGN_KEY, "DROP FOREIGN KEY", "drop foreign key"),
    (Action.ADD_COLUMNAR_INDEX, "ADD VECTOR INDEX"),
    (Action.REBASE_AUTO_ID, "AUTO_INCREMENT = n", "rebase auto id"),
    (Action.SHARD_ROW_ID, "SHARD_ROW_ID_BITS = n"),
    (Action.MODIFY_TABLE_COMMENT, "COMMENT = '…'", "modify table comment"),
    (Action.MODIFY_TABLE_CHARSET_AND_COLLATE, "CHARACTER SET = …", "modify table charset and collate"),
    (Action.ALTER_TTL_INFO, "TTL = …", "alter ttl info"),
    (Action.ALTER_TTL_REMOVE, "REMOVE TTL", "alter ttl remove"),
    (Action.MODIFY_ENGINE_ATTRIBUTE, "ENGINE_ATTRIBUTE = '…'"),
    (Action.ALTER_TABLE_MODE, "a table's mode, during a restore"),
    (Action.REPAIR_TABLE, "ADMIN REPAIR TABLE"),
    (Action.ADD_TABLE_PARTITION, "ADD PARTITION", "add table partition"),
    (Action.DROP_TABLE_PARTITION, "DROP PARTITION", "drop table partition"),
    (Action.TRUNCATE_TABLE_PARTITION, "TRUNCATE PARTITION", "truncate table partition"),
    (Action.REORGANIZE_PARTITION, "REORGANIZE PARTITION", "reorganize table partition"),
    (Action.ALTER_TABLE_PARTITIONING, "PARTITION BY …", "alter table partitioning"),
    (Action.REMOVE_PARTITIONING, "REMOVE PARTITIONING", "remove table partitioning"),
    (Action.CREATE_VIEW, "CREATE VIEW", "create view"),
)
_NOTHING = (
    (Action.LOCK_TABLE, "LOCK TABLES"),
    (Action.UNLOCK_TABLE, "UNLOCK TABLES"),
    (Action.SET_TIFLASH_REPLICA, "SET TIFLASH REPLICA"),
    (Action.UPDATE_TIFLASH_REPLICA_STATUS, "a TiFlash replica is ready"),
    (Action.CREATE_SEQUENCE, "CREATE SEQUENCE"),
    (Action.ALTER_SEQUENCE, "ALTER SEQUENCE"),
    (Action.DROP_SEQUENCE, "DROP SEQUENCE"),
    (Action.MODIFY_TABLE_AUTO_ID_CACHE, "AUTO_ID_CACHE = n"),
    (Action.REBASE_AUTO_RANDOM_BASE, "AUTO_RANDOM_BASE = n"),
    (Action.ADD_CHECK_CONSTRAINT, "ADD CONSTRAINT … CHECK"),
    (Action.DROP_CHECK_CONSTRAINT, "DROP CONSTRAINT"),
    (Action.ALTER_CHECK_CONSTRAINT, "ALTER CONSTRAINT … NOT ENFORCED"),
    (Action.ALTER_TABLE_ATTRIBUTES, "ATTRIBUTES = '…'"),
    (Action.ALTER_TABLE_PARTITION_ATTRIBUTES, "PARTITION … ATTRIBUTES = '…'"),
    (Action.CREATE_PLACEMENT_POLICY, "CREATE PLACEMENT POLICY"),
    (Action.ALTER_PLACEMENT_POLICY, "ALTER PLACEMENT POLICY"),
    (Action.DROP_PLACEMENT_POLICY, "DROP PLACEMENT POLICY"),
    (Action.ALTER_TABLE_PARTITION_PLACEMENT, "PARTITION … PLACEMENT POLICY = …"),
    (Action.MODIFY_SCHEMA_DEFAULT_PLACEMENT, "ALTER DATABASE … PLACEMENT POLICY = …"),
    (Action.ALTER_TABLE_PLACEMENT, "PLACEMENT POLICY = …"),
    (Action.ALTER_CACHE_TABLE, "CACHE"),
    (Action.ALTER_NO_CACHE_TABLE, "NOCACHE"),
    (Action.CREATE_RESOURCE_GROUP, "CREATE RESOURCE GROUP"),
    (Action.ALTER_RESOURCE_GROUP, "ALTER RESOURCE GROUP"),
    (Action.DROP_RESOURCE_GROUP, "DROP RESOURCE GROUP"),
)
_OTHERS = (
    DdlKind(Action.CREATE_TABLES, Effect.TABLES, "several tables in one job, by a restore", "create table"),
    DdlKind(Action.RENAME_TABLES, Effect.RENAMES, "RENAME TABLE, of several", "rename table"),
    DdlKind(Action.DROP_TABLE, Effect.TABLE_DROP, "DROP TABLE", "drop table"),
    DdlKind(Action.DROP_VIEW, Effect.TABLE_DROP, "DROP VIEW", "drop view"),
    DdlKind(Action.EXCHANGE_TABLE_PARTITION, Effect.EXCHANGE, "EXCHANGE PARTITION", "exchange table partition"),
    DdlKind(Action.CREATE_SCHEMA, Effect.DATABASE, "CREATE DATABASE", "create database"),
    DdlKind(
        Action.MODIFY_SCHEMA_CHARSET_AND_COLLATE,
        Effect.DATABASE,
        "ALTER DATABASE … CHARACTER SET = …",
        "modify schema charset and collate",
    ),
    DdlKind(Action.MODIFY_SCHEMA_READ_ONLY, Effect.DATABASE, "ALTER DATABASE … READ ONLY = …"),
    DdlKind(Action.DROP_SCHEMA, Effect.DATABASE_DROP, "DROP DATABASE", "drop database"),
    DdlKind(Action.FLASHBACK_CLUSTER, Effect.UNFOLLOWABLE, "FLASHBACK CLUSTER"),
    DdlKind(Action.RECOVER_SCHEMA, Effect.UNFOLLOWABLE, "FLASHBACK DATABASE"),
    DdlKind(Action.REFRESH_META, Effect.UNFOLLOWABLE, "meta data replaced, by a restore"),
)

DDLS: dict[int, DdlKind] = {
    ddl.action: ddl for ddl in (*_all(Effect.TABLE, *_TABLE), *_all(Effect.NOTHING, *_NOTHING), *_OTHERS)
}


def effect_of(type_: int) -> Effect:
    """Return the effect of a job's type; one that is not known can't be followed either."""
    known = DDLS.get(type_)
    return Effect.UNFOLLOWABLE if known is None else known.effect
