"""The timestamp oracle: strictly increasing ts from the wall clock, over restarts too.

Before a millisecond is used, an end of the window it lies in has been saved; a later oracle starts at that end. So it
can't give out a ts twice even if it was killed and the clock was set back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOGICAL_BITS = 18
_LOGICAL_END = 1 << LOGICAL_BITS
_WINDOW_MS = 500
_POLL_S = 0.003


def compose(physical_ms: int, logical: int = 0) -> int:
    return physical_ms << LOGICAL_BITS | logical


class Oracle:
    """`save(ms)` is called before any ts at or above the last saved ms is given out. Thread-safe.

    While it `is_frozen`, `next` waits as a client of PD does.
    """

    def __init__(
        self,
        save: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.time,
        is_frozen: Callable[[], bool] = lambda: False,
    ) -> None:
        self._save = save
        self._clock = clock
        self._is_frozen = is_frozen
        self._lock = threading.Lock()
        self._last = 0
        self._saved_ms = 0

    def raise_to(self, ts: int) -> None:
        """Every later ts is above `ts`."""
        with self._lock:
            self._last = max(self._last, ts)

    @property
    def latest(self) -> int:
        """A ts that is not behind any that was given out, nor behind the clock."""
        return max(self._last, compose(int(self._clock() * 1000)))

    def allocate(self, count: int = 1) -> int:
        """The largest of `count` consecutive ts of one millisecond; count is 1 to 262,143."""
        if not 1 <= count < _LOGICAL_END:
            raise ValueError(f"{count} timestamps at once: ask for 1 to {_LOGICAL_END - 1}")
        with self._lock:
            now_ms = int(self._clock() * 1000)
            last_ms, logical = self._last >> LOGICAL_BITS, (self._last & (_LOGICAL_END - 1)) + count
            if now_ms > last_ms:
                last_ms, logical = now_ms, count
            elif logical >= _LOGICAL_END:
                last_ms, logical = last_ms + 1, count
            if self._save and last_ms >= self._saved_ms:
                self._saved_ms = last_ms + _WINDOW_MS
                self._save(self._saved_ms)
            self._last = compose(last_ms, logical)
            return self._last

    def next(self) -> int:
        """One new ts, for whoever may be kept waiting."""
        while self._is_frozen():
            time.sleep(_POLL_S)
        return self.allocate(1)
