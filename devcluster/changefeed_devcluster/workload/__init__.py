"""Workloads: what writes to the development cluster while a changefeed reads it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event
from typing import Protocol

from ..tidb.schema import NamedTable


class Workload(Protocol):
    """`create` makes what tables are missing (True: some were); `load` and `run` give the number of rows written."""

    @property
    def tables(self) -> Sequence[NamedTable]: ...

    def create(self) -> bool: ...

    def load(self, stop: Event) -> int: ...

    def run(self, stop: Event, rate: float) -> int: ...


class RowRate:
    """Holds a loop to `rate` rows a second without making up for time lost."""

    def __init__(self, rate: float, stop: Event) -> None:
        self._rate = rate
        self._stop = stop
        self._due = time.monotonic()

    def keep(self, rows: int) -> None:
        """Call it after having written `rows`: sleeps, or returns at once when `stop` is set."""
        now = time.monotonic()
        self._due = max(self._due, now - 0.5) + rows / self._rate
        # Short sleeps cost more than they give: sleep when a few milliseconds have gathered.
        if self._due - now > 0.005:
            self._stop.wait(self._due - now)
