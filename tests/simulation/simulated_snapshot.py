"""Reads of the simulated upstream as of a ts, as initial copies make them, and the regions by which they are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from simulated_pd import SimulatedPd
    from simulated_transactions import Region
    from simulated_upstream import Upstream


class SimulatedSnapshot:
    """A row or two a call; between calls anything may happen to the upstream, GC included."""

    def __init__(self, pd: SimulatedPd, ts: int) -> None:
        self._pd = pd
        self._ts = ts

    async def columns(self, start: bytes, end: bytes) -> AsyncIterator[tuple[pa.Array, pa.Array]]:
        while True:
            page = await self._pd.read(start, end, self._ts)
            if not page:
                return
            yield pa.array([key for key, _ in page], pa.binary()), pa.array([value for _, value in page], pa.binary())
            start = page[-1][0] + b"\0"


class Regions:
    """PD, where nothing fails."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def scan_regions(self, start: bytes, end: bytes, /) -> list[Region]:
        return [each for each in self._upstream.regions if each.start < end and (not each.end or start < each.end)]


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What comes out of one that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise AssertionError("it waits")
