"""A table's rows as they stood at a ts, raw."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pyarrow as pa

from changefeed.schema.keys import table_span
from changefeed.upstream.kv import Snapshot
from changefeed.upstream.pd import PdClient

_PAGE = 2048  # rows a call
_CHUNK_BYTES = 8 << 20


async def rows_at(pd: PdClient, physical_id: int, ts: int) -> AsyncIterator[tuple[pa.Array, pa.Array]]:
    """(keys, values) in pieces of some MiB."""
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    async for page in Snapshot(pd, ts).pages(*table_span(physical_id), _PAGE):
        keys += [pair.key for pair in page]
        values += [pair.value for pair in page]
        size += sum(map(len, values[-len(page) :]))
        if size >= _CHUNK_BYTES:
            yield pa.array(keys, pa.binary()), pa.array(values, pa.binary())
            keys, values, size = [], [], 0
    if keys:
        yield pa.array(keys, pa.binary()), pa.array(values, pa.binary())
