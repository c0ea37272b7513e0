"""The upstream's rows, in the form that both sides of a comparison of rows have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pyarrow as pa

from changefeed.schema.row.rowv2 import decode_rows
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.pd import PdClient
from changefeed.verify.mysql.values import of_upstream
from changefeed.verify.progress import VerifyProgress
from changefeed.verify.upstream.standing import rows_at


async def add_upstream(
    pd: PdClient,
    info: TableInfo,
    physical_id: int,
    ts: int,
    add: Callable[[list[pa.BinaryArray]], None],
    progress: VerifyProgress,
    time_zone: str = "UTC",
) -> None:
    """Give `add` the rows of a physical table as it stood at `ts`, in pieces; in a thread, while the next is read.

    `time_zone`: in which TIMESTAMP is shown.
    """

    def decode_and_add(keys: pa.Array, values: pa.Array) -> None:
        decoded = decode_rows(info, keys, values, time_zone, info.output_columns)
        add([of_upstream(*pair) for pair in zip(info.output_columns, decoded, strict=True)])

    async for keys, values in rows_at(pd, physical_id, ts):
        await asyncio.to_thread(decode_and_add, keys, values)
        progress.advance(len(keys))
