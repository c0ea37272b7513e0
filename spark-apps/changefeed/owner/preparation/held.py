"""The hold of a start that may fail: history is held before anything is read, and let go of if nobody will need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from changefeed.errors import ChangefeedError, Transient, Unavailable
from changefeed.owner import places
from changefeed.owner.transaction_log.log import Log
from changefeed.spec.model import Changefeed
from changefeed.upstream.holds import holds
from changefeed.upstream.pd import PdClient
from changefeed.upstream.safepoint import Safepoint

_REMOVAL_S = 5.0


async def makes_hold(changefeed: Changefeed, pd: PdClient, attempt: int) -> bool:
    """Whether it is a first start that makes the hold: else `changefeed hold` has, or the operator, which keeps it."""
    if changefeed.spec.start_ts is None:
        return True  # there is nothing to hold before a start
    if attempt:
        return False
    try:
        return places.service_id(changefeed) not in {hold.name for hold in await holds(pd)}
    except ChangefeedError:
        return False


@asynccontextmanager
async def held(safepoint: Safepoint, ts: int, log: Log | None, may_be_repeated: bool) -> AsyncIterator[None]:
    """Changes after `ts` are held. `log`: of a first start that makes the hold, and removes it if it fails.

    `may_be_repeated`: from the same ts. Then a start that failed because something was away leaves its hold to the next
    one, which would find nothing to be lost (exit code 69).
    """
    try:
        await safepoint.hold(ts)
        yield
    except BaseException as error:
        is_awaited = may_be_repeated and isinstance(error, Transient | Unavailable)
        if log is not None and not is_awaited:
            with suppress(ChangefeedError, TimeoutError):
                async with asyncio.timeout(_REMOVAL_S):
                    if (await asyncio.to_thread(log.read)).n == 0:  # nobody else has started it meanwhile
                        await safepoint.remove()
        raise
