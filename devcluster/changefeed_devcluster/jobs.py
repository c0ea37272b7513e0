"""DDL jobs as TiDB's job table and history have them (facts, tikv-wire 4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from .schema import CHARSET, COLLATE, PUBLIC, DbInfo, Json, TableInfo


class JobState(IntEnum):
    NONE = 0
    RUNNING = 1
    DONE = 4
    SYNCED = 6
    QUEUEING = 8


class JobType(IntEnum):
    CREATE_SCHEMA = 1
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    TRUNCATE_TABLE = 11
    ADD_TABLE_PARTITION = 19
    DROP_TABLE_PARTITION = 20
    TRUNCATE_TABLE_PARTITION = 23
    EXCHANGE_TABLE_PARTITION = 42
    REORGANIZE_PARTITION = 64


@dataclass(frozen=True)
class Job:
    """A DDL job. `table_id` is the old id of a truncated table; `table` its definition after the DDL."""

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

    def to_json(self) -> Json:
        """Job JSON, version 2 (arguments as an object)."""
        done = self.state in (JobState.DONE, JobState.SYNCED)
        table = self.table.to_json() if done and self.table else None
        db = self.db.to_json() if done and self.type is JobType.CREATE_SCHEMA else None
        return {
            "id": self.id, "type": int(self.type), "schema_id": self.db.id, "table_id": self.table_id,
            "schema_name": self.db.name, "table_name": self.table_name, "state": int(self.state),
            "warning": None, "err": None, "err_count": 0, "row_count": 0, "raw_args": dict(self.args),
            "schema_state": self._schema_state(), "snapshot_ver": 0, "real_start_ts": self.start_ts,
            "start_ts": self.start_ts, "dependency_id": 0, "query": self.query,
            "binlog": {
                "SchemaVersion": self.schema_version, "DBInfo": db, "TableInfo": table, "FinishedTS": 0,
                "MultipleTableInfos": None,
            },
            "version": 2, "reorg_meta": None, "multi_schema_info": None, "priority": 0, "seq_num": self.id,
            "charset": CHARSET, "collate": COLLATE,
            "involving_schema_info": [{"database": self.db.name, "table": self.table_name}],
            "admin_operator": 0, "trace_info": None, "bdr_role": "", "cdc_write_source": 0, "local_mode": False,
            "sql_mode": 1436549152, "session_vars": {}, "last_schema_version": self.schema_version,
        }  # fmt: skip

    def _schema_state(self) -> int:
        if self.state not in (JobState.DONE, JobState.SYNCED) or self.type is JobType.DROP_TABLE:
            return 0
        return PUBLIC

    def diff(self) -> Json:
        """The SchemaDiff that TiDB servers read under `Diff:<version>`."""
        table_id = self.table.id if self.table else self.table_id
        return {
            "version": self.schema_version, "type": int(self.type), "schema_id": self.db.id, "table_id": table_id,
            "sub_action_types": None, "old_table_id": self.table_id if table_id != self.table_id else 0,
            "old_schema_id": 0, "regenerate_schema_map": False, "affected_options": None,
        }  # fmt: skip
