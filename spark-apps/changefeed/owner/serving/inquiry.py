"""Lets other threads, such as the HTTP server for metrics, query the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from changefeed.errors import Unavailable

_WAIT_S = 5.0
_KEPT_S = 1.0  # one answer serves all who ask so soon after it


class Inquiry:
    """Made on the loop that `make` is to be called on."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._made_at = float("-inf")
        self._made = b""

    def ask(self) -> bytes:
        """Any thread but the loop's. Raises Unavailable when the loop does not answer in time, or has ended."""
        asked = None
        try:
            asked = asyncio.run_coroutine_threadsafe(answer := self._answer(), self._loop)
            return asked.result(_WAIT_S)
        except TimeoutError:
            raise Unavailable(f"The driver's event loop has not answered for {_WAIT_S:g} s.") from None
        except RuntimeError:  # of a loop that is closed
            raise Unavailable("The driver ends.") from None
        finally:
            if asked is None:
                answer.close()
            else:
                asked.cancel()

    async def _answer(self) -> bytes:
        now = time.monotonic()
        if now - self._made_at >= _KEPT_S:
            self._made, self._made_at = self._make(), now
        return self._made
