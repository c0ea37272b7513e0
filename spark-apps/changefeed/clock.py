"""Time as the cores see it: monotonic seconds that are handed in, never read (rule 27).

Shells pass `Clock`; the simulation passes its own with virtual time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def until_set(event: asyncio.Event, clock: Clock, seconds: float | None) -> None:
    """Wait for the event, `seconds` at most; None: however long it takes."""
    if seconds is None:
        await event.wait()
        return
    either = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(max(seconds, 0.0)))]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in either:
            one.cancel()
