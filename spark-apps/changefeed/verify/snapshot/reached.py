"""Waits until a changefeed has written what a snapshot of its upstream has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from changefeed.reading.failures import NotVerifiable
from changefeed.reading.progress import ReadingProgress
from changefeed.restore.source import moment

#: How long a checkpoint may stand still until nobody is thought to move it, in seconds, besides what the sink waits.
STANDS_STILL_S = 60.0
_PAUSE_S = 0.2


async def reached(
    checkpoint: Callable[[], int], where: str, ts: int, flush_s: float, progress: ReadingProgress
) -> None:
    """Waits for the checkpoint in `where` to be at `ts`. `flush_s`: how long the sink may keep rows back.

    Raises NotVerifiable when it stands still below that.
    """
    progress.stage("the checkpoint")
    highest, until = 0, 0.0
    while (found := await asyncio.to_thread(checkpoint)) < ts:
        if found > highest:
            highest, until = found, time.monotonic() + STANDS_STILL_S + flush_s
        if time.monotonic() > until:
            raise NotVerifiable(
                f"The checkpoint in {where} stands still at {moment(found)}, below {moment(ts)}, as of when the "
                "upstream's rows were read.",
                "PostgreSQL has no earlier rows, so the changefeed must run meanwhile: start it, then verify again.",
            )
        await asyncio.sleep(_PAUSE_S)
