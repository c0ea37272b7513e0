"""The schema as it was at a ts, read from TiDB's meta keys (facts, tikv-wire 4.3)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from changefeed.errors import NeedsHuman
from changefeed.schema.keys import DATABASES, DDL_JOB_TABLE, decode_meta_hash_key, hash_span
from changefeed.schema.storage import SchemaStorage
from changefeed.schema.table_info import (
    STATE_PUBLIC,
    SYSTEM_SCHEMAS,
    DatabaseInfo,
    TableInfo,
    parse_database_info,
    parse_table_info,
)


class Reader(Protocol):
    """A consistent view of raw keys and values at one ts."""

    async def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """All pairs with start ≤ key < end, by key."""
        ...


async def load_schema(reader: Reader, ts: int) -> SchemaStorage:
    """All public user databases and tables at `ts`, which `reader` must read at.

    Raises NeedsHuman if `mysql.tidb_ddl_job`, where DDLs are seen, is not there.
    """
    databases: list[DatabaseInfo] = []
    tables: list[TableInfo] = []
    ddl_job_table: TableInfo | None = None
    for database in [d async for d in _databases(reader)]:
        if database.name.lower() == DDL_JOB_TABLE[0]:
            ddl_job_table = await _ddl_job_table(reader, database)
        if database.name.lower() in SYSTEM_SCHEMAS:
            continue
        databases.append(database)
        tables += [table async for table in _tables(reader, database)]
    if ddl_job_table is None:
        raise NeedsHuman(
            f"the upstream has no table {'.'.join(DDL_JOB_TABLE)} at ts {ts}: its DDLs cannot be seen.",
            "Use TiDB 7.5 or later with at least one TiDB server bootstrapped, and a start ts after that.",
        )
    return SchemaStorage(ts, databases, tables, ddl_job_table)


async def _databases(reader: Reader) -> AsyncIterator[DatabaseInfo]:
    async for key, value in reader.scan(*hash_span(DATABASES)):
        if decode_meta_hash_key(key)[1].startswith(b"DB:"):
            database = parse_database_info(_json(key, value))
            if database.state == STATE_PUBLIC:
                yield database


async def _tables(reader: Reader, database: DatabaseInfo) -> AsyncIterator[TableInfo]:
    async for key, value in reader.scan(*hash_span(b"DB:%d" % database.id)):
        if decode_meta_hash_key(key)[1].startswith(b"Table:"):
            table = parse_table_info(_before_its_job(_json(key, value)), database.name)
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


async def _ddl_job_table(reader: Reader, database: DatabaseInfo) -> TableInfo | None:
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
