"""Asks the server where a table is to be cut, so that chunks have some 100,000 rows, or 96 MiB. Blocks."""

from __future__ import annotations

from hashlib import blake2b

from changefeed.errors import NeedsHuman
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.postgresql.copies.key_ranges import CUT_AT, bounds_of
from changefeed.upstream.postgresql.schema.catalog import ReadableTable, read_table
from changefeed.upstream.postgresql.server import PostgresqlSession, quoted

CHUNK_ROWS = 100_000
_CHUNK_BYTES = 96 << 20
SAMPLED_PAGES = 4_000
#: Large values stand beside the pages. Of a table without partitions there is no tree.
_SIZE = """
SELECT coalesce(sum(pg_relation_size(relid)), 0)::bigint / current_setting('block_size')::int,
  coalesce(sum(pg_table_size(relid)), 0)::bigint
FROM (
  SELECT CAST(:table AS oid)::regclass AS relid
  UNION SELECT relid FROM pg_partition_tree(CAST(:table AS oid)::regclass) WHERE isleaf
) found"""
_EACH = """
SELECT key::text FROM (
  SELECT {key} AS key, row_number() OVER (ORDER BY {key}) AS number, count(*) OVER () AS count FROM {table} {sample}
) found WHERE number % greatest(1, least({rows}, count / {chunks} + 1)) = 0"""


def bounds(session: PostgresqlSession, publication: str, table: TableInfo, most: int) -> tuple[bytes, ...]:
    """The bounds of chunks of a table that is defined so. Raises NeedsHuman if it is defined otherwise by now."""
    found = read_table(session, publication, table.id)
    if found is None or found.info.columns != table.columns or found.info.qualified != table.qualified:
        raise NeedsHuman(f"Table {table.full_name} was altered, or dropped, just now.", "Start again.")
    return bounds_of(_borders(session, found), most, digest(found))


def digest(table: ReadableTable) -> bytes:
    """It differs for definitions whose rows differ in their form."""
    return blake2b(table.form.encode(), digest_size=16).digest()


def _borders(session: PostgresqlSession, table: ReadableTable) -> list[str]:
    """Values of the key's first column between which there are so many rows, by a sample of a large table."""
    first = table.identity[0]
    if table.types[first] not in CUT_AT:
        return []
    ((pages, size),) = session.rows(_SIZE, table=table.info.id)
    share = min(1.0, SAMPLED_PAGES / max(pages, 1))
    sample = "" if share == 1 else f"TABLESAMPLE SYSTEM ({100 * share:.6f}) REPEATABLE (7)"
    name = quoted(*table.info.qualified) if table.is_partitioned else f"ONLY {quoted(*table.info.qualified)}"
    key = quoted(table.info.columns[first].name)
    rows, chunks = max(1, int(CHUNK_ROWS * share)), 1 + size // _CHUNK_BYTES
    query = _EACH.format(key=key, table=name, sample=sample, rows=rows, chunks=chunks)
    return [text for (text,) in session.rows(query)]
