"""Whether this driver still works, for the liveness probe: its event loop runs and Spark's JVM responds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SILENT_S = 15.0  # the JVM is killed before, by who watches it: this is for when that hangs too
_TURN_EVERY_S = 0.5


class Health:
    """Made and begun on the loop that it is about."""

    def __init__(self, jvm_silent_s: Callable[[], float]) -> None:
        """`jvm_silent_s`: for how long it has not answered; asked in any thread, and must not block."""
        self._jvm_silent_s = jvm_silent_s
        self._loop = asyncio.get_running_loop()
        self._turn()

    def close(self) -> None:
        self._next.cancel()

    def ill(self) -> str | None:
        """Why this process should be killed; None while it works. Any thread, at once."""
        still_s = time.monotonic() - self._turned_at
        if still_s >= SILENT_S:
            return f"The driver's event loop has stood still for {still_s:.0f} s."
        if (silent_s := self._jvm_silent_s()) >= SILENT_S:
            return f"Spark's JVM has not answered for {silent_s:.0f} s."
        return None

    def _turn(self) -> None:
        self._turned_at = time.monotonic()
        self._next = self._loop.call_later(_TURN_EVERY_S, self._turn)
