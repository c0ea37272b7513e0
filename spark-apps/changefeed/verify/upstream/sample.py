"""Holds some of the versions that the change feed has given against reads of their keys.

Both the changefeed and verify learn of changes from TiKV's change feed. A read at a ts is answered by another part of
TiKV: it must give what a version says of its row at its commit ts, and one tick before it.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa

from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient

_FEWEST, _MOST = 4, 8  # of a piece of some MiB
_ONE_OF = 1 << 14


async def first_misread(pd: PdClient, versions: pa.Table, after_ts: int) -> str | None:
    """How one of some versions (history.SCAN_SCHEMA) is not what a read gives, for a person; None: all are.

    Rows as they were at `after_ts` can be read, but not before.
    """
    count = versions.num_rows
    chosen = min(count, _MOST, _FEWEST + count // _ONE_OF)
    indices = np.linspace(0, count, chosen, endpoint=False).astype(np.int64)
    rows = versions.take(pa.array(indices)).to_pylist()
    found = await asyncio.gather(*(_misread(pd, row, after_ts) for row in rows))
    return next((each for each in found if each is not None), None)


async def _misread(pd: PdClient, row: dict[str, object], after_ts: int) -> str | None:
    key, commit_ts = row["key"], row["commit_ts"]
    assert isinstance(key, bytes)
    assert isinstance(commit_ts, int)
    is_delete = bool(row["delete"])
    for ts, given in ((commit_ts, None if is_delete else row["value"]), (commit_ts - 1, row["old_value"])):
        if ts >= after_ts and ((read := await Snapshot(pd, ts).get(key)) or None) != (given or None):
            return f"key {key.hex()} has {_shown(given)} at {ts}, but a read there gives {_shown(read)}"
    return None


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else "no row"
