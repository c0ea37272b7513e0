"""The schema as it was at a ts, read from TiDB's meta keys (docs/design/tidb.md, Meta keys)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from typing import Any, Protocol

from changefeed.errors import NeedsHuman
from changefeed.schema.ddl.actions import Action
from changefeed.schema.ddl.ddls import Effect, effect_of
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import (
    STATE_PUBLIC,
    DatabaseInfo,
    TableInfo,
    parse_database_info,
    parse_table_info,
)
from changefeed.spec.filter.table_filter import SYSTEM_SCHEMAS
from changefeed.upstream.tikv.tidb.job import decode_job
from changefeed.upstream.tikv.tidb.keys import (
    DATABASES,
    DDL_JOB_SPAN,
    DDL_JOB_TABLE,
    decode_meta_hash_key,
    hash_span,
    table_key,
)


class SnapshotReader(Protocol):
    """A consistent view of raw keys and values at one ts."""

    async def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """All pairs with start ≤ key < end, by key."""
        ...


async def load_schema(reader: SnapshotReader, ts: int) -> SchemaHistory:
    """All databases at `ts`, which `reader` must read at, and the tables of those that are the users'.

    Raises NeedsHuman if `mysql.tidb_ddl_job`, where DDLs are seen, is not there.
    """
    stored = [database async for database in _databases(reader)]
    ddl_job_table = await _ddl_job_table(reader, stored)
    if ddl_job_table is None:
        raise NeedsHuman(
            f"the upstream has no table {'.'.join(DDL_JOB_TABLE)} at ts {ts}: its DDLs cannot be seen.",
            "Use TiDB 7.5 or later with at least one TiDB server bootstrapped, and a start ts after that.",
        )
    jobs = [decode_job(value, ddl_job_table) async for _, value in reader.scan(*DDL_JOB_SPAN)]
    going = {job.schema_id for job in jobs if job.is_under_way and job.type == Action.DROP_SCHEMA}
    databases = [database for database in stored if database.state == STATE_PUBLIC or database.id in going]
    dropped = {job.table_id for job in jobs if job.is_under_way and effect_of(job.type) is Effect.TABLE_DROP}
    tables: list[TableInfo] = []
    for database in databases:
        if database.name.lower() not in SYSTEM_SCHEMAS:
            tables += [table async for table in _tables(reader, database, dropped)]
    return SchemaHistory(ts, databases, tables, ddl_job_table, (job.id for job in jobs if job.is_shown))


async def read_table(reader: SnapshotReader, database_id: int, table_id: int) -> TableInfo | None:
    """A table's definition as sessions use it then, without the name of its database; None: it is not there."""
    key = table_key(database_id, table_id)
    value = await reader.get(key)
    return None if value is None else parse_table_info(_before_its_job(_json(key, value)), "")


async def _databases(reader: SnapshotReader) -> AsyncIterator[DatabaseInfo]:
    async for key, value in reader.scan(*hash_span(DATABASES)):
        if decode_meta_hash_key(key)[1].startswith(b"DB:"):
            yield parse_database_info(_json(key, value))


async def _tables(
    reader: SnapshotReader, database: DatabaseInfo, dropped: Container[int] = ()
) -> AsyncIterator[TableInfo]:
    """The public ones, and those that are being dropped: they are there until their job is done (tidb.effects)."""
    async for key, value in reader.scan(*hash_span(b"DB:%d" % database.id)):
        if decode_meta_hash_key(key)[1].startswith(b"Table:"):
            info = _before_its_job(_json(key, value))
            if info.get("id") in dropped:
                info = {**info, "state": STATE_PUBLIC}
            table = parse_table_info(info, database.name)
            if table.state == STATE_PUBLIC:
                yield table


def _before_its_job(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition with the partitions that rows are in until a job which is under way has finished.

    While partitions are reorganised, dropped or truncated, TiDB shows the new ones before the job's end, and keeps what
    goes and what comes in two more lists. A table without partitions that gets some has one of its own id meanwhile.
    """
    partition = table.get("partition") or {}
    adding, dropping = partition.get("adding_definitions") or [], partition.get("dropping_definitions") or []
    definitions = partition.get("definitions") or []
    here = {each["id"]: each for each in [*definitions, *dropping]}
    for each in adding:
        here.pop(each["id"], None)
    is_none = list(here) == [table.get("id")]
    return {**table, "partition": None if is_none else {**partition, "definitions": list(here.values())}}


async def _ddl_job_table(reader: SnapshotReader, databases: Iterable[DatabaseInfo]) -> TableInfo | None:
    for database in databases:
        if database.name.lower() == DDL_JOB_TABLE[0]:
            async for table in _tables(reader, database):
                if table.name.lower() == DDL_JOB_TABLE[1]:
                    return table
    return None


def _json(key: bytes, value: bytes) -> Mapping[str, Any]:
    try:
        info = json.loads(value)
    except ValueError as error:
        raise NeedsHuman(
            f"the schema's meta key {key.hex()} holds no JSON ({error}).", "Report the TiDB version and the key."
        ) from error
    if not isinstance(info, Mapping):
        raise NeedsHuman(f"the schema's meta key {key.hex()} holds no JSON object.", "Report the TiDB version.")
    return info
