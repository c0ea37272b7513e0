"""Trying again with back-off until a deadline: one object per operation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

from changefeed.errors import Transient


class Attempts:
    """`what` names the operation in the error that ends it; seconds are of the event loop's monotonic clock."""

    def __init__(self, what: str, patience: float) -> None:
        self._what = what
        self._patience = patience
        self.progress()

    def progress(self) -> None:
        """It got somewhere: the deadline and the back-off start again."""
        self._until = asyncio.get_running_loop().time() + self._patience
        self._failures = 0

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done inside has a patience of its own: the deadline moves on by as long as it takes."""
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._until += asyncio.get_running_loop().time() - began

    @property
    def left(self) -> float:
        """Seconds until the deadline, never below zero."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    async def pause(self, why: str, base: float = 0.002, cap: float = 0.5) -> None:
        """Sleep before the next attempt: `base` doubled by each failure up to `cap`, half of it random.

        Raises Transient that says `why` when the deadline would pass.
        """
        delay = min(cap, base * 2.0**self._failures) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 32)
        if delay >= self.left:
            raise Transient(
                f"{self._what} did not succeed in {self._patience:g} s: {why}.",
                "Look at the health of the upstream; it is tried again.",
                retry_after=1.0,
            )
        await asyncio.sleep(delay)
