"""How long the driver waits for the upstream and for stores, whom it tells, and how it waits for blocking calls.

A run waits for PD as long as for a store (objectstore.patience). Giving up is safe: a later run reads what happened.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from changefeed.errors import Transient, Unavailable
from changefeed.objectstore.patience import RUN_S, Patience
from changefeed.owner.reporting.meter import Meter

T = TypeVar("T")


def patience_of(who: str, meter: Meter, ending: threading.Event) -> Patience:
    """With a store, of the run that this event loop belongs to; while it waits `meter` knows why."""
    soon = asyncio.get_running_loop().call_soon_threadsafe
    return Patience(
        RUN_S,
        failed=lambda error: soon(meter.store_failed, who, error),
        works=lambda at_once: soon(meter.store_works, who, at_once),
        ending=ending,
        count=lambda name, label: soon(meter.count, name, 1, label),
    )


async def answered(ask: Callable[[], Awaitable[T]], meter: Meter, for_s: float = RUN_S) -> T:
    """Ask the upstream again while it is away, and tell `meter` why. Raises Unavailable when that lasts `for_s`."""
    until = time.monotonic() + for_s
    while True:
        try:
            return await ask()
        except Transient as error:
            meter.pd_failed(error.message)
            if time.monotonic() >= until:
                raise Unavailable(
                    f"The upstream has not answered for {for_s:g} s. {error.message}",
                    f"{meter.next_step}; the next start resumes from the checkpoint.",
                ) from error
            await asyncio.sleep(error.retry_after)


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Run what blocks, to its end."""
    return await to_its_end(asyncio.to_thread(call, *arguments))


async def to_its_end(doing: Coroutine[Any, Any, T]) -> T:
    """A cancellation waits for the end of it, so that no effect outlives the run."""
    task = asyncio.ensure_future(doing)
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.gather(task, return_exceptions=True)
