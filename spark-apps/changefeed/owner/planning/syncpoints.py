"""Syncpoints: ts at which the downstream equals the upstream, and stands still until it is told so. Pure.

They are the multiples of an interval, so the same for every changefeed of a cluster, and need no record of their own:

1. *A driver dies before a syncpoint is written.* Nothing above it is planned yet, and the next driver begins with it.
2. *It dies after that, before the checkpoint says so.* The next one writes it again: nothing has come in between.
3. *The interval is new, or another one.* Some tables may be written beyond the next multiple: the first is one that no
   table has passed.
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
