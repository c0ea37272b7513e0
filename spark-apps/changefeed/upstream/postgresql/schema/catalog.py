"""The definitions of a publication's tables, from pg_catalog, as they are now.

A table's id is its OID, as a database's is that of the schema. Columns are those that rows have on the wire, so what a
publication leaves out is not there, and one that is generated is as any other. A domain is its base type.

Only columns of the primary key are NOT NULL: others may come to be nullable without a word of it in the stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from changefeed.schema.table_info import (
    FLAG_NOT_NULL,
    FLAG_PRI_KEY,
    FLAG_UNIQUE_KEY,
    STATE_PUBLIC,
    DatabaseInfo,
    TableInfo,
    parse_table_info,
)
from changefeed.upstream.postgresql.server import PostgresqlSession
from changefeed.upstream.postgresql.values.column_types import nearest_type

#: `DatabaseInfo.charset` and the like: a connection of ours has all text so.
_CHARSET, _COLLATE = "utf8mb4", "utf8mb4_bin"

_SCHEMAS = """
SELECT to_jsonb(found) FROM (
  SELECT oid::bigint AS id, nspname AS name FROM pg_namespace
  WHERE nspname NOT IN ('pg_catalog', 'information_schema') AND nspname NOT LIKE 'pg\\_%' ORDER BY oid
) found"""

#: By domain: what it is based on, in however many steps.
_BASES = """
WITH RECURSIVE domains(domain, base, typmod) AS (
  SELECT oid, typbasetype, typtypmod FROM pg_type WHERE typtype = 'd'
  UNION ALL
  SELECT d.domain, t.typbasetype, t.typtypmod FROM domains d JOIN pg_type t ON t.oid = d.base WHERE t.typtype = 'd'
), bases AS (
  SELECT d.* FROM domains d JOIN pg_type t ON t.oid = d.base WHERE t.typtype <> 'd'
)
"""

#: `missing`: what rows have that are older than the column, if that is not NULL. `published`: NULL before PostgreSQL
#: 15, which has no lists of columns; before 18 it may name generated columns, and they are never sent.
#: `is_partitioned` and `row_filter` (NULL before 15) are for who reads its rows.
_DEFINED = f"""{_BASES}
SELECT to_jsonb(found) FROM (
  SELECT c.oid::bigint AS id, n.nspname AS schema, c.relname AS name, c.relreplident::text AS identity,
    to_jsonb(p) -> 'attnames' AS published,
    c.relkind::text = 'p' AS is_partitioned, to_jsonb(p) ->> 'rowfilter' AS row_filter,
    current_setting('server_version_num')::int >= 180000 AS sends_generated,
    (SELECT jsonb_agg(jsonb_build_object('number', a.attnum, 'name', a.attname,
        'generated', a.attgenerated::text, 'missing', (a.attmissingval::text::text[])[1],
        'type', coalesce(b.base, a.atttypid)::bigint,
        'typmod', CASE WHEN b.domain IS NULL THEN a.atttypmod ELSE b.typmod END) ORDER BY a.attnum)
      FROM pg_attribute a LEFT JOIN bases b ON b.domain = a.atttypid
      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS columns,
    (SELECT jsonb_agg(jsonb_build_object('id', i.indexrelid::bigint, 'name', ic.relname,
        'is_primary', i.indisprimary, 'is_identity', i.indisreplident,
        'columns', (SELECT jsonb_agg(a.attname ORDER BY k.place)
          FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
          WHERE k.place <= i.indnkeyatts)) ORDER BY i.indexrelid)
      FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid
      WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
        AND i.indpred IS NULL AND i.indexprs IS NULL
    ) AS indexes
  FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
  WHERE p.pubname = :name"""
_TABLES = f"{_DEFINED} ORDER BY c.oid) found"
_TABLE = f"{_DEFINED} AND c.oid = CAST(:table AS oid)) found"

_DOMAINS = f"""{_BASES}
SELECT to_jsonb(found) FROM (SELECT domain::bigint AS domain, base::bigint AS base, typmod FROM bases) found"""

_PARTS = "SELECT oid::bigint FROM pg_class WHERE relispartition AND relkind IN ('r', 'p', 'f')"

_Row = Mapping[str, Any]


@dataclass(frozen=True)
class PublishedTables:
    """All schemas of a database, and the tables of a publication, ordered by id.

    `domains`: by the OID of each the type and typmod that it is based on, as the stream says the former only.
    `parts`: partitions that are described as tables are, but whose rows come as those of another table.
    """

    databases: tuple[DatabaseInfo, ...]
    tables: tuple[TableInfo, ...]
    domains: Mapping[int, tuple[int, int]]
    parts: frozenset[int] = frozenset()


def read_published(session: PostgresqlSession, publication: str) -> PublishedTables:
    """Ask the server. Raises what PostgresqlSession does."""
    schemas = [row for (row,) in session.rows(_SCHEMAS)]
    tables = [row for (row,) in session.rows(_TABLES, name=publication)]
    databases = (DatabaseInfo(row["id"], row["name"], _CHARSET, _COLLATE, STATE_PUBLIC) for row in schemas)
    domains = {row["domain"]: (row["base"], row["typmod"]) for (row,) in session.rows(_DOMAINS)}
    parts = {oid for (oid,) in session.rows(_PARTS)} - {row["id"] for row in tables}
    return PublishedTables(tuple(databases), tuple(map(definition, tables)), domains, frozenset(parts))


@dataclass(frozen=True)
class ReadableTable:
    """A table of a publication, for who reads its rows. `types`: the OIDs of its columns'.

    `identity`: positions of the columns that are its primary key. `form`: all that the form of its rows depends on.
    """

    info: TableInfo
    is_partitioned: bool
    row_filter: str | None
    identity: tuple[int, ...]
    types: tuple[int, ...]
    domains: Mapping[int, tuple[int, int]]
    form: str


def read_table(session: PostgresqlSession, publication: str, table: int) -> ReadableTable | None:
    """One of them by its OID; None: it is not there, or not published."""
    rows = session.rows(_TABLE, name=publication, table=table)
    if not rows:
        return None
    domains = {row["domain"]: (row["base"], row["typmod"]) for (row,) in session.rows(_DOMAINS)}
    ((row,),) = rows
    info = definition(row)
    primary = {name for index in info.indexes if index.is_primary for name, _ in index.columns}
    sent = [column for column in row["columns"] if _is_sent(row, column)]
    identity = tuple(number for number, column in enumerate(sent) if column["name"] in primary)
    columns = [[column[each] for each in ("number", "name", "type", "typmod", "generated")] for column in sent]
    return ReadableTable(
        info,
        row["is_partitioned"],
        row["row_filter"],
        identity,
        tuple(column["type"] for column in sent),
        domains,
        json.dumps([columns, identity, row["row_filter"]]),
    )


def made_database(name: str) -> DatabaseInfo:
    """A schema of which only the name is known. No OID is as large as its id."""
    id_ = 1 << 32 | int.from_bytes(blake2b(name.encode(), digest_size=4).digest())
    return DatabaseInfo(id_, name, _CHARSET, _COLLATE, STATE_PUBLIC)


def definition(row: _Row) -> TableInfo:
    """One of `_TABLES`. Pure."""
    columns = [column for column in row["columns"] if _is_sent(row, column)]
    names = {column["name"] for column in columns}
    indexes = [index for index in row["indexes"] or () if names.issuperset(index["columns"])]
    primary = _primary(indexes, row["identity"])
    flags = {
        name: FLAG_PRI_KEY | FLAG_NOT_NULL if index is primary else FLAG_UNIQUE_KEY
        for index in sorted(indexes, key=lambda index: index is primary)
        for name in index["columns"]
        if index is primary or len(index["columns"]) == 1
    }
    return parse_table_info(
        {
            "id": row["id"],
            "name": row["name"],
            "cols": [_column(number, column, flags.get(column["name"], 0)) for number, column in enumerate(columns)],
            "index_info": [_index(index, index is primary) for index in indexes],
            "state": STATE_PUBLIC,
            "upstream": "postgresql",
        },
        row["schema"],
    )


def _primary(indexes: Sequence[_Row], identity: str) -> _Row | None:
    """The index by which rows are told apart: the primary key, or the one that the replica identity names."""
    primary = next((index for index in indexes if index["is_primary"]), None)
    if primary is None and identity == "i":
        primary = next((index for index in indexes if index["is_identity"]), None)
    return primary


def _is_sent(row: _Row, column: _Row) -> bool:
    if column["generated"] and not row["sends_generated"]:
        return False
    return row["published"] is None or column["name"] in row["published"]


def _column(number: int, column: _Row, flag: int) -> dict[str, Any]:
    return {
        "id": column["number"],
        "name": column["name"],
        "offset": number,
        "type": nearest_type(column["type"], column["typmod"]).to_json(flag),
        "origin_default": column["missing"],
        "state": STATE_PUBLIC,
    }


def _index(index: _Row, is_primary: bool) -> dict[str, Any]:
    return {
        "id": index["id"],
        "idx_name": index["name"],
        "idx_cols": [{"name": name, "length": -1} for name in index["columns"]],
        "is_unique": True,
        "is_primary": is_primary,
        "state": STATE_PUBLIC,
    }
