"""DDL jobs as TiDB's job table and history have them (facts, tikv-wire 4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ..tidb.field_types import CHARSET, COLLATE, Json
from ..tidb.schema import NONE, PUBLIC, DbInfo, TableInfo


class JobState(IntEnum):
    NONE = 0
    RUNNING = 1
    ROLLING_BACK = 2
    ROLLBACK_DONE = 3
    DONE = 4
    SYNCED = 6
    QUEUEING = 8


class JobType(IntEnum):
    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT_VALUE = 15
    SHARD_ROW_ID = 16
    MODIFY_TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_TABLE_PARTITION = 19
    DROP_TABLE_PARTITION = 20
    CREATE_VIEW = 21
    MODIFY_TABLE_CHARSET_AND_COLLATE = 22
    TRUNCATE_TABLE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET_AND_COLLATE = 26
    SET_TIFLASH_REPLICA = 30
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    MODIFY_TABLE_AUTO_ID_CACHE = 39
    ALTER_INDEX_VISIBILITY = 41
    EXCHANGE_TABLE_PARTITION = 42
    ADD_CHECK_CONSTRAINT = 43
    DROP_CHECK_CONSTRAINT = 44
    RENAME_TABLES = 47
    ALTER_TABLE_ATTRIBUTES = 49
    CREATE_PLACEMENT_POLICY = 51
    ALTER_PLACEMENT_POLICY = 52
    DROP_PLACEMENT_POLICY = 53
    ALTER_TABLE_PLACEMENT = 56
    ALTER_CACHE_TABLE = 57
    ALTER_NO_CACHE_TABLE = 59
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    REORGANIZE_PARTITION = 64
    ALTER_TTL_INFO = 65
    ALTER_TTL_REMOVE = 67
    CREATE_RESOURCE_GROUP = 68
    DROP_RESOURCE_GROUP = 70
    ALTER_TABLE_PARTITIONING = 71
    REMOVE_PARTITIONING = 72


_OF_DATABASES = frozenset({JobType.CREATE_SCHEMA, JobType.DROP_SCHEMA, JobType.MODIFY_SCHEMA_CHARSET_AND_COLLATE})
_DROPS = frozenset({JobType.DROP_SCHEMA, JobType.DROP_TABLE, JobType.DROP_VIEW, JobType.DROP_SEQUENCE})


@dataclass(frozen=True)
class Job:
    """A DDL job. `table_id` is the old id of a truncated table; `table` and `tables` the definitions after the DDL."""

    id: int
    type: JobType
    db: DbInfo
    table_id: int
    table_name: str
    query: str
    args: Mapping[str, Any]
    start_ts: int
    state: JobState = JobState.QUEUEING
    schema_version: int = 0
    table: TableInfo | None = None
    tables: tuple[TableInfo, ...] = ()  # of a job that makes or renames several
    sub_jobs: tuple[tuple[JobType, Mapping[str, Any]], ...] = field(default=())  # of MULTI_SCHEMA_CHANGE

    def to_json(self) -> Json:
        """Job JSON, version 2 (arguments as an object)."""
        table = self.table.to_json() if self._is_done and self.table else None
        db = self.db.to_json() if self._is_done and self.type in _OF_DATABASES else None
        tables = [each.to_json() for each in self.tables] if self._is_done and self.tables else None
        return {
            "id": self.id, "type": int(self.type), "schema_id": self.db.id, "table_id": self.table_id,
            "schema_name": self.db.name, "table_name": self.table_name, "state": int(self.state),
            "warning": None, "err": None, "err_count": 0, "row_count": 0, "raw_args": dict(self.args),
            "schema_state": self._schema_state(), "snapshot_ver": 0, "real_start_ts": self.start_ts,
            "start_ts": self.start_ts, "dependency_id": 0, "query": self.query,
            "binlog": {
                "SchemaVersion": self.schema_version, "DBInfo": db, "TableInfo": table, "FinishedTS": 0,
                "MultipleTableInfos": tables,
            },
            "version": 2, "reorg_meta": None, "multi_schema_info": self._multi_schema_info(), "priority": 0,
            "seq_num": self.id, "charset": CHARSET, "collate": COLLATE,
            "involving_schema_info": [{"database": self.db.name, "table": self.table_name}],
            "admin_operator": 0, "trace_info": None, "bdr_role": "", "cdc_write_source": 0, "local_mode": False,
            "sql_mode": 1436549152, "session_vars": {}, "last_schema_version": self.schema_version,
        }  # fmt: skip

    @property
    def _is_done(self) -> bool:
        return self.state in (JobState.DONE, JobState.SYNCED)

    def _schema_state(self) -> int:
        return PUBLIC if self._is_done and self.type not in _DROPS else NONE

    def _multi_schema_info(self) -> Json | None:
        if not self.sub_jobs:
            return None
        sub_jobs = [
            {
                "type": int(kind), "raw_args": dict(args), "schema_state": self._schema_state(),
                "state": int(self.state), "revertible": False,
            }
            for kind, args in self.sub_jobs
        ]  # fmt: skip
        return {"sub_jobs": sub_jobs, "revertible": False, "seq": 0}

    def diff(self) -> Json:
        """The SchemaDiff that TiDB servers read under `Diff:<version>`."""
        table_id = self.table.id if self.table else self.table_id
        return {
            "version": self.schema_version, "type": int(self.type), "schema_id": self.db.id, "table_id": table_id,
            "sub_action_types": None, "old_table_id": self.table_id if table_id != self.table_id else 0,
            "old_schema_id": 0, "regenerate_schema_map": False, "affected_options": None,
        }  # fmt: skip
