"""Syncpoints: ts at which the downstream equals the upstream, and waits until it has been told so. Pure.

They are the multiples of an interval, so they are the same for every changefeed of a cluster and need no log record:

1. *A driver dies before it writes a syncpoint.* Nothing above it has been planned, and the next driver starts with it.
2. *It dies after that, but before the checkpoint records it.* The next one writes it again: nothing came in between.
3. *The interval is new or has changed.* Some tables may already be past the next multiple: the first syncpoint is one
   that no table has passed.
"""

from __future__ import annotations

from changefeed.model.tso import compose


class Syncpoints:
    """The next one, of those every `interval_ms`."""

    def __init__(self, interval_ms: int, whole_from_ts: int, reached_ts: int) -> None:
        """`whole_from_ts`: above the checkpoint and every copy. `reached_ts`: no row and no DDL above it is written or
        planned.
        """
        self._step = compose(interval_ms)
        self.next_ts = -(-max(whole_from_ts, reached_ts) // self._step) * self._step

    def written(self) -> None:
        self.next_ts += self._step
