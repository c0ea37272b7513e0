"""Which leaders PD knows: it has the regions from its disk, their leaders from the leaders' own heartbeats.

So a PD that has just started knows a leader only once it has heard of it. A leader tells of itself once in a while, and
at once when something about its region changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .regions import Region

INTERVAL_S = 60.0
"""Between two heartbeats of a region in which nothing changes."""
_SPREAD = 0.618


class _QuietRegion(NamedTuple):
    leader_store: int
    version: int
    until: float


class Heartbeats:
    """Thread-safe as far as one call is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent: dict[int, _QuietRegion] = {}

    def forget(self, regions: Iterable[Region], interval_s: float = INTERVAL_S) -> None:
        """PD starts again: of these regions it hears one after the other, of the last one after the interval."""
        now = self._clock()
        self._silent = {
            region.id: _QuietRegion(region.leader_store, region.version, now + interval_s * (region.id * _SPREAD % 1))
            for region in regions
        }

    def knows(self, region: Region) -> bool:
        """Tell whether PD can name the region's leader."""
        silent = self._silent.get(region.id)
        if silent is None:
            return True
        is_as_before = (silent.leader_store, silent.version) == (region.leader_store, region.version)
        if is_as_before and self._clock() < silent.until:
            return False
        self._silent.pop(region.id, None)
        return True
