"""DDL jobs as TiDB's job table and history have them (docs/design/tidb.md, Job contents)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from ..tidb.field_types import CHARSET, COLLATE, Json
from ..tidb.schema import NONE, PUBLIC, DbInfo, TidbTable
from .arguments import as_list, without_zeros


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
#: Jobs that carry what a reorganisation needs of the session, whether or not there is one.
_REORGANISES = frozenset({
    JobType.ADD_INDEX, JobType.ADD_PRIMARY_KEY, JobType.MODIFY_COLUMN, JobType.MULTI_SCHEMA_CHANGE,
    JobType.REORGANIZE_PARTITION, JobType.ALTER_TABLE_PARTITIONING, JobType.REMOVE_PARTITIONING,
})  # fmt: skip
_SCATTERS = frozenset({JobType.CREATE_TABLE, JobType.TRUNCATE_TABLE, JobType.ADD_TABLE_PARTITION})


@dataclass
class DdlSession:
    """What a DDL job takes of the session that it is typed in.

    `time_zone`: a name that the system knows; for others it is UTC, and `utc_offset` the seconds east of it. "": no job
    says it.
    `job_version`: 1 is TiDB up to 8.3, whose jobs have their arguments as a list.
    """

    time_zone: str = ""
    utc_offset: int = 0
    sql_mode: int = 1436549152
    charset: str = CHARSET
    collate: str = COLLATE
    job_version: int = 2


@dataclass(frozen=True)
class DdlJob:
    """A DDL job, filled in as TiDB's executor does: names in lower case, as keys that jobs wait for each other by.

    `db` is the database that the statement leads to, of several tables the last one's. `table_id` is the old id of a
    truncated table, `table_name` the old name of a renamed one, and both are the table's without partitions in an
    exchange. `table` and `tables`: the definitions after the DDL. `involving`: what it waits for, if that is not the
    table alone. `args`: as version 2 has them.
    """

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
    table: TidbTable | None = None
    tables: tuple[TidbTable, ...] = ()  # of a job that makes or renames several
    sub_jobs: tuple[tuple[JobType, Mapping[str, Any]], ...] = field(default=())  # of MULTI_SCHEMA_CHANGE
    involving: tuple[Mapping[str, Any], ...] = ()
    session: DdlSession = field(default_factory=DdlSession)
    schema_state: int = NONE
    real_start_ts: int = 0
    is_shown: bool = False  # sessions use the columns or the name that it leads to

    def to_json(self) -> Json:
        """Job JSON. Members that Go leaves out when they are empty are not there."""
        table = self.table.to_json() if self._is_done and self.table else None
        ends = self.type is JobType.DROP_SCHEMA
        db = replace(self.db, state=NONE if ends else PUBLIC).to_json() if self.type in _OF_DATABASES else None
        db = db if self._is_done else None
        tables = [each.to_json() for each in self.tables] if self._is_done and self.tables else None
        return {
            "id": self.id, "type": int(self.type), "schema_id": self.db.id, "table_id": self.table_id,
            "schema_name": self.db.name.lower(), "table_name": self.table_name.lower(), "state": int(self.state),
            "warning": None, "err": None, "err_count": 0, "row_count": 0,
            "raw_args": self._raw_args(self.type, self.args),
            "schema_state": self._schema_state(), "snapshot_ver": 0, "real_start_ts": self.real_start_ts,
            "start_ts": self.start_ts, "dependency_id": 0, "query": self.query,
            "binlog": {
                "SchemaVersion": self.schema_version if self._is_done else 0, "DBInfo": db, "TableInfo": table,
                "FinishedTS": 0, "MultipleTableInfos": tables,
            },
            "version": self.session.job_version, "reorg_meta": self._reorg_meta(),
            "multi_schema_info": self._multi_schema_info(), "priority": 0,
            "seq_num": self.id, "charset": self.session.charset, "collate": self.session.collate,
            "admin_operator": 0, "trace_info": None, "bdr_role": "", "cdc_write_source": 0, "local_mode": False,
            "sql_mode": self.session.sql_mode, "last_schema_version": self.schema_version,
            **({"involving_schema_info": [dict(each) for each in self.involving]} if self.involving else {}),
            **({"session_vars": {"tidb_scatter_region": ""}} if self.type in _SCATTERS else {}),
        }  # fmt: skip

    @property
    def _is_done(self) -> bool:
        return self.state in (JobState.DONE, JobState.SYNCED)

    def _schema_state(self) -> int:
        if self._is_done:
            return NONE if self.type in _DROPS or self.type is JobType.DROP_COLUMN else PUBLIC
        return self.schema_state

    def _raw_args(self, kind: JobType, args: Mapping[str, Any]) -> Any:
        if self.session.job_version == 1:
            return as_list(kind.name, args, is_done=self._is_done)
        return without_zeros(args)

    def _reorg_meta(self) -> Json | None:
        if self.type not in _REORGANISES:
            return None
        session = self.session
        location = {"name": session.time_zone, "offset": session.utc_offset} if session.time_zone else None
        return {
            "sql_mode": session.sql_mode, "warnings": {}, "warnings_count": {},
            "location": location, "reorg_tp": 0,
            "is_fast_reorg": True, "is_dist_reorg": True, "use_cloud_storage": False, "resource_group_name": "default",
            "version": 1, "target_scope": "", "max_node_count": 0, "analyze_state": 0, "stage": 0,
            "concurrency": 4, "batch_size": 256, "max_write_speed": 0,
        }  # fmt: skip

    def _multi_schema_info(self) -> Json | None:
        if not self.sub_jobs:
            return None
        sub_jobs = [
            {
                "type": int(kind), "raw_args": self._raw_args(kind, args), "schema_state": state, "snapshot_ver": 0,
                "real_start_ts": 0, "revertible": not self.is_shown, "state": int(done), "row_count": 0,
                "warning": None, "schema_version": self.schema_version, "reorg_tp": 0,
            }
            for kind, args in self.sub_jobs
            for state, done in [self._sub_state(kind)]
        ]  # fmt: skip
        return {"sub_jobs": sub_jobs, "revertible": not self.is_shown, "seq": 0}

    def _sub_state(self, kind: JobType) -> tuple[int, JobState]:
        """All of them show what they lead to in one step; what takes more steps behind it is not done with that."""
        if kind is JobType.DROP_COLUMN and not (self._is_done or self.is_shown):
            return PUBLIC, self.state
        if self._is_done or not self.is_shown:
            return self._schema_state(), self.state
        if kind is JobType.DROP_COLUMN:
            return self.schema_state, JobState.RUNNING
        return PUBLIC, JobState.RUNNING if kind is JobType.MODIFY_COLUMN else JobState.DONE

    def diff(self) -> Json:
        """The SchemaDiff that TiDB servers read under `Diff:<version>`."""
        table_id = self.table.id if self.table else self.table_id
        return {
            "version": self.schema_version, "type": int(self.type), "schema_id": self.db.id, "table_id": table_id,
            "sub_action_types": None, "old_table_id": self.table_id if table_id != self.table_id else 0,
            "old_schema_id": 0, "regenerate_schema_map": False, "affected_options": None,
        }  # fmt: skip
