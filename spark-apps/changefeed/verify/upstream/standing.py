"""A table's raw rows as of a ts."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pyarrow as pa

from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.tidb.keys import table_span
from changefeed.verify.upstream.read_ahead import read_ahead

_CHUNK_BYTES = 8 << 20


def rows_at(pd: PdClient, physical_id: int, ts: int) -> AsyncGenerator[tuple[pa.Array, pa.Array]]:
    """(keys, values) in pieces of some MiB; one is read ahead."""
    return rows_between(pd, *table_span(physical_id), ts)


def rows_between(pd: PdClient, start: bytes, end: bytes, ts: int) -> AsyncGenerator[tuple[pa.Array, pa.Array]]:
    """As `rows_at`, of the raw `[start, end)`."""
    return read_ahead(_pieces(pd, start, end, ts))


async def _pieces(pd: PdClient, start: bytes, end: bytes, ts: int) -> AsyncGenerator[tuple[pa.Array, pa.Array]]:
    pages: list[tuple[pa.Array, pa.Array]] = []
    size = 0
    async for keys, values in Snapshot(pd, ts).columns(start, end):
        pages.append((keys, values))
        size += values.nbytes
        if size >= _CHUNK_BYTES:
            yield _together(pages)
            pages, size = [], 0
    if pages:
        yield _together(pages)


def _together(pages: list[tuple[pa.Array, pa.Array]]) -> tuple[pa.Array, pa.Array]:
    return pa.concat_arrays([keys for keys, _ in pages]), pa.concat_arrays([values for _, values in pages])
