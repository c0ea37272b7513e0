"""DDL jobs: the contents of a row of `mysql.tidb_ddl_job` (docs/design/tidb.md, DDL jobs, Job contents).

Plain Python, because jobs come one at a time. A job counts once its state is Done; its finish ts is the commit ts of
that row, which the JSON does not contain yet.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.change import ExchangeArgs, Rename, SchemaChange
from changefeed.schema.table_info import (
    STATE_PUBLIC,
    TableInfo,
    as_tidb_writes,
    name_of,
    parse_database_info,
    parse_table_info,
)
from changefeed.upstream.tikv.row.rowv2 import FLAG_LARGE, HEADER, VERSION
from changefeed.upstream.tikv.tidb.keys import DDL_JOB_TABLE

STATE_DONE, STATE_SYNCED = 4, 6
STATE_ROLLING_BACK, STATE_ROLLBACK_DONE, STATE_CANCELLED = 2, 3, 5
_WRITE_ONLY, _DELETE_ONLY, _DELETE_REORGANIZATION = 2, 1, 4  # of what is on its way out


@dataclass(frozen=True)
class SubJob:
    """One of several changes in an ALTER TABLE."""

    type: int
    state: int
    schema_state: int

    @property
    def is_shown(self) -> bool:
        """Whether sessions use what it leads to."""
        if self.type == Action.DROP_COLUMN:
            return self.schema_state in (_WRITE_ONLY, _DELETE_ONLY, _DELETE_REORGANIZATION)
        return self.state == STATE_DONE or (self.type == Action.MODIFY_COLUMN and self.schema_state == STATE_PUBLIC)


@dataclass(frozen=True, kw_only=True)
class Job(SchemaChange):
    """One DDL job, in whatever state.

    `schema_name` and `table_name` are no identifiers: TiDB fills them in lower case, with the database that the
    statement leads to, which of several tables is the last one's.
    """

    state: int
    schema_name: str
    table_name: str
    finished_ts: int  # 0 in a row of tidb_ddl_job: there the row's commit ts is it
    schema_version: int
    version: int  # of raw_args: 1 a list, 2 an object
    raw_args: Any = field(repr=False)
    charset: str
    collate: str
    schema_state: int = 0
    sub_jobs: tuple[SubJob, ...] = ()

    @property
    def is_undone(self) -> bool:
        """Or about to be."""
        return self.state in (STATE_ROLLING_BACK, STATE_ROLLBACK_DONE, STATE_CANCELLED)

    @property
    def is_under_way(self) -> bool:
        return not self.is_undone and self.state not in (STATE_DONE, STATE_SYNCED)

    @property
    def as_done(self) -> Job:
        return replace(self, state=STATE_DONE)

    @property
    def is_shown(self) -> bool:
        """Whether the row of a job that is under way says that sessions use what it leads to (tidb.effects)."""
        if not self.is_under_way:
            return False
        if self.type in (Action.MODIFY_COLUMN, Action.RENAME_TABLE, Action.RENAME_TABLES):
            return self.schema_state == STATE_PUBLIC
        if self.type == Action.MULTI_SCHEMA_CHANGE:
            return any(each.is_shown for each in self.sub_jobs)
        return self.type == Action.DROP_COLUMN and SubJob(self.type, self.state, self.schema_state).is_shown

    @property
    def is_done(self) -> bool:
        return self.state == STATE_DONE


def decode_job(value: bytes, ddl_table: TableInfo) -> Job:
    """The job in a row's value; `ddl_table` is the definition of `mysql.tidb_ddl_job`.

    Raises NeedsHuman if the value is not one that TiDB writes there.
    """
    column = next((column for column in ddl_table.columns if column.name.lower() == "job_meta"), None)
    if column is None:
        raise _unreadable("its definition has no column job_meta")
    meta = _stored_bytes(value, column.id)
    if meta is None:
        raise _unreadable(f"the row {value[:32].hex()}… holds no job_meta (column id {column.id})")
    try:
        job = json.loads(meta)
    except ValueError as error:
        raise _unreadable(f"job_meta is not a job's JSON ({error})") from error
    return parse_job(job)


def parse_job(job: Mapping[str, Any]) -> Job:
    """A Job JSON object. Raises NeedsHuman."""
    with as_tidb_writes("a DDL job"):
        return _job(job)


def _job(job: Mapping[str, Any]) -> Job:
    binlog = job.get("binlog") or {}
    table, database = binlog.get("TableInfo"), binlog.get("DBInfo")
    table_info = parse_table_info(table, "") if table else None
    location = (job.get("reorg_meta") or {}).get("location") or {}
    args, type_, state = job.get("raw_args"), int(job.get("type") or 0), int(job.get("state") or 0)
    is_done = state in (STATE_DONE, STATE_SYNCED)
    with as_tidb_writes(f"the arguments of DDL job {job.get('id')}"):
        exchange = _exchange(args) if type_ == Action.EXCHANGE_TABLE_PARTITION and is_done else None
        renames = tuple(_renames(args)) if type_ == Action.RENAME_TABLES else ()
        old_name = _old_name(args) if type_ == Action.RECOVER_TABLE else ""
    return Job(
        id=int(job.get("id") or 0),
        type=type_,
        state=state,
        schema_id=int(job.get("schema_id") or 0),
        table_id=int(job.get("table_id") or 0),
        schema_name=_text(job, "schema_name"),
        table_name=_text(job, "table_name") or (table_info.name if table_info else ""),
        query=_text(job, "query"),
        start_ts=int(job.get("start_ts") or 0),
        finished_ts=int(binlog.get("FinishedTS") or 0),
        schema_version=int(binlog.get("SchemaVersion") or 0),
        version=int(job.get("version") or 1),
        raw_args=args,
        charset=_text(job, "charset"),
        collate=_text(job, "collate"),
        sql_mode=int(job.get("sql_mode") or 0),
        table_info=table_info,
        database_info=parse_database_info(database) if database else None,
        table_infos=tuple(parse_table_info(info, "") for info in binlog.get("MultipleTableInfos") or ()),
        exchange=exchange,
        renames=renames,
        old_name=old_name,
        schema_state=int(job.get("schema_state") or 0),
        sub_jobs=tuple(map(_sub_job, (job.get("multi_schema_info") or {}).get("sub_jobs") or ())),
        time_zone=_text(location, "name"),
        utc_offset=int(location.get("offset") or 0),
    )


def _sub_job(job: Mapping[str, Any]) -> SubJob:
    return SubJob(int(job.get("type") or 0), int(job.get("state") or 0), int(job.get("schema_state") or 0))


def _text(job: Mapping[str, Any], member: str) -> str:
    value = job.get(member) or ""
    if not isinstance(value, str):
        raise TypeError(f"{member} is {value!r}")
    return value


def _exchange(args: Any) -> ExchangeArgs:
    if isinstance(args, Mapping):
        args = [args.get(name) for name in _EXCHANGE_MEMBERS]
    if not isinstance(args, Sequence) or len(args) < len(_EXCHANGE_MEMBERS):
        raise ValueError(f"its arguments are {args!r}")
    partition_id, schema_id, table_id, name, with_validation = args[: len(_EXCHANGE_MEMBERS)]
    return ExchangeArgs(int(partition_id), int(schema_id), int(table_id), str(name or ""), bool(with_validation))


def _renames(args: Any) -> Iterator[Rename]:
    if isinstance(args, Mapping):
        for info in args.get("rename_table_infos") or ():
            table_id, schema_id, old, new = (info.get(name) for name in _RENAME_MEMBERS)
            yield Rename(int(table_id or 0), int(schema_id or 0), name_of(old), name_of(new))
    elif isinstance(args, Sequence) and len(args) > 1:
        lists = [args[index] if index < len(args) else None for index in _RENAME_INDEXES]
        for table_id, schema_id, old, new in zip_longest(*(each or () for each in lists)):
            yield Rename(int(table_id or 0), int(schema_id or 0), name_of(old), name_of(new))


def _old_name(args: Any) -> str:
    found = args.get("recover_info") if isinstance(args, Mapping) else (args or [None])[0]
    infos = found.get("RecoverTableInfos") if isinstance(found, Mapping) else None
    return str((infos or [found or {}])[0].get("OldTableName") or "")


_EXCHANGE_MEMBERS = ("partition_id", "pt_schema_id", "pt_table_id", "partition_name", "with_validation")
_RENAME_MEMBERS = ("table_id", "new_schema_id", "old_schema_name", "new_table_name")
_RENAME_INDEXES = (3, 1, 4, 2)  # of these among the lists of version 1


def _stored_bytes(value: bytes, column_id: int) -> bytes | None:
    """One column of a v2 row; None if it is NULL or absent."""
    if len(value) < HEADER or value[0] != VERSION:
        raise _unreadable(f"the row {value[:32].hex()}… is not in row format v2")
    flags, values, nulls = struct.unpack_from("<BHH", value, 1)
    id_format, offset_format = ("I", "I") if flags & FLAG_LARGE else ("B", "H")
    layout = f"<{values}{id_format}{nulls}{id_format}{values}{offset_format}"
    begin_of_values = HEADER + struct.calcsize(layout)
    if begin_of_values > len(value):
        raise _unreadable(f"the row {value[:32].hex()}… ends inside its header")
    numbers = struct.unpack_from(layout, value, HEADER)
    ids, ends = numbers[:values], numbers[values + nulls :]
    if column_id not in ids:
        return None
    index = ids.index(column_id)
    begin = ends[index - 1] if index else 0
    return value[begin_of_values + begin : begin_of_values + ends[index]]


def _unreadable(why: str) -> NeedsHuman:
    return NeedsHuman(
        f"a row of {'.'.join(DDL_JOB_TABLE)} cannot be read: {why}.",
        "This TiDB version is not supported: report it with the job's row.",
    )
