"""How long a store or the upstream may fail before the driver gives up, and how what blocks is waited for.

Giving up is safe: a later run reads what has happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from changefeed.errors import ChangefeedError, Transient, Unavailable

T = TypeVar("T")

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 5.0
_PATIENCE_S = 60.0
_UPSTREAM_PATIENCE_S = 60.0


class Patience:
    """The pauses between the attempts of one call; `where` names the store."""

    def __init__(self, sleep: Callable[[float], None], where: str) -> None:
        self._sleep = sleep
        self._where = where
        self._wait = _FIRST_WAIT_S
        self._waited = 0.0

    def wait(self, error: ChangefeedError) -> None:
        """Before the next attempt, after one that ended with `error`. Raises Unavailable when it is time to give up."""
        if self._waited >= _PATIENCE_S:
            raise Unavailable(
                f"{self._where} has failed for {_PATIENCE_S:g} s. {error.message}",
                "Look at the store and the network to it; a later start goes on from the checkpoint.",
            ) from error
        self._sleep(self._wait)
        self._waited += self._wait
        self._wait = min(self._wait * 2, _LONGEST_WAIT_S)


async def answered(ask: Callable[[], Awaitable[T]], failed: Callable[[str], None]) -> T:
    """Ask PD again while it is away, and tell `failed` why. Raises Unavailable when that lasts too long."""
    until = time.monotonic() + _UPSTREAM_PATIENCE_S
    while True:
        try:
            return await ask()
        except Transient as error:
            failed(error.message)
            if time.monotonic() >= until:
                raise Unavailable(
                    f"The upstream has not answered for {_UPSTREAM_PATIENCE_S:g} s. {error.message}",
                    "Look at PD and the network to it; a later start goes on from the checkpoint.",
                ) from error
            await asyncio.sleep(error.retry_after)


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Run what blocks; a cancellation waits for its end, so that no effect outlives the run."""
    thread = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(thread)
    finally:
        await asyncio.gather(thread, return_exceptions=True)
