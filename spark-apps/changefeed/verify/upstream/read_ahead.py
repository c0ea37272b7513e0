"""Reads the upstream ahead: the next piece comes while a thread works on this one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

_T = TypeVar("_T")


async def read_ahead(pieces: AsyncGenerator[_T]) -> AsyncGenerator[_T]:
    """The same pieces, none of them None. One is read ahead, as long as the caller works outside the event loop."""
    async with aclosing(pieces):
        following = _next(pieces)
        try:
            while (piece := await following) is not None:
                following = _next(pieces)
                yield piece
        finally:
            following.cancel()
            await asyncio.wait([following])
            if not following.cancelled():
                following.exception()  # of what nobody waits for any more


def _next(pieces: AsyncGenerator[_T]) -> asyncio.Task[_T | None]:
    async def step() -> _T | None:
        return await anext(pieces, None)

    return asyncio.create_task(step(), name="ahead")
