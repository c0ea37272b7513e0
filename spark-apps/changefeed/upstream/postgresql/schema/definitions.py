"""The definitions with which a changefeed begins: the log's, and of all other tables the catalog's.

The catalog has them as they are now, which may be later than `ts`: what a row then says of its table mends that
(`evolution`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing

from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.postgresql.schema.catalog import PublishedTables, made_database, read_published
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession


async def read_schema(
    server: PostgresqlServer, publication: str, ts: int, known: Mapping[int, TableInfo]
) -> SchemaHistory:
    """As Upstream.schema. Raises what PostgresqlSession does."""
    return schema_of(await read_catalog(server, publication), ts, known)


async def read_catalog(server: PostgresqlServer, publication: str) -> PublishedTables:
    """As it is now, over a connection of its own."""
    return await asyncio.to_thread(_read, server, publication)


def schema_of(now: PublishedTables, ts: int, known: Mapping[int, TableInfo]) -> SchemaHistory:
    """Tables in `known` are as they are there, also if they are gone. Pure.

    A table that has the name of one of these was made, or renamed, since: the stream has not come to that yet.
    """
    known = dict(known)
    taken = {table.qualified for table in known.values()}
    others = (table for table in now.tables if table.id not in known and table.qualified not in taken)
    there = {database.name for database in now.databases}
    gone = sorted({table.schema_name for table in known.values()} - there)
    return SchemaHistory(ts, [*now.databases, *map(made_database, gone)], [*known.values(), *others])


def _read(server: PostgresqlServer, publication: str) -> PublishedTables:
    with closing(PostgresqlSession(server)) as session:
        return read_published(session, publication)
