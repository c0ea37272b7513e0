"""Holds the upstream's history while it is being read (rule 23)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

from changefeed.model.tso import MAX_TS
from changefeed.reading.failures import NotVerifiable
from changefeed.upstream.tikv.client.pd import PdClient

_HOLD_S = 600
_REFRESH_S = 60.0


@contextlib.asynccontextmanager
async def held(pd: PdClient, ts: int, what: str) -> AsyncIterator[None]:
    """What is after `ts`, and the rows as they stood at it, are held back from GC, and were so to the end.

    `what`: of the changefeed stands at `ts`. Raises NotVerifiable.
    """
    holder = f"changefeed-verify-{uuid.uuid4().hex[:12]}"

    async def check() -> None:
        answer = await pd.update_safepoint(holder, _HOLD_S, ts - 1)
        if answer > ts - 1:  # no hold is taken there any more; see upstream.tikv.client.safepoint.check_held
            raise NotVerifiable(
                f"The upstream's garbage collection may have gone up to {answer}, past the changefeed's {what} {ts}.",
                "Earlier changes can no longer be compared. Verify a sink soon after it is written, or have TiDB keep "
                "more history from before the start on (tidb_gc_life_time).",
            )

    async def refresh() -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            await check()

    try:
        await check()
        refreshing = asyncio.create_task(refresh())
        try:
            yield
        finally:
            refreshing.cancel()
        await check()
    finally:
        await pd.update_safepoint(holder, 0, MAX_TS)
