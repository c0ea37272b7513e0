"""Asks a server again while it does not answer: it may just be restarting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from changefeed.errors import Transient, Unavailable

T = TypeVar("T")
_PAUSE_S = 1.0


async def patiently(call: Callable[[], T], seconds: float) -> T:
    """Return what `call` does, which blocks. Raises Transient when nobody has answered for so long."""
    until = time.monotonic() + seconds
    while True:
        try:
            return await asyncio.to_thread(call)
        except (Transient, Unavailable) as error:
            pause_s = error.retry_after if isinstance(error, Transient) else _PAUSE_S
            if time.monotonic() + pause_s > until:
                raise Transient(error.message, error.next_step, pause_s) from error
        await asyncio.sleep(pause_s)
