"""Holding back the upstream's GC (CORRECTNESS.md, rule 14): history is held before it is needed.

TiKV answers a read below its GC safepoint with an incomplete scan and no error, so nothing may be read at a ts before
`hold(ts)` has returned.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.errors import SnapshotLostByGC
from changefeed.model.tso import MAX_TS, to_datetime
from changefeed.upstream.pd import PdClient


def check_held(ts: int, min_safe_point: int) -> None:
    """Raise SnapshotLostByGC when a hold of `ts` was not honoured: GC may have passed it."""
    if min_safe_point > ts - 1:
        raise lost_history(ts, min_safe_point)


def lost_history(ts: int, safepoint: int) -> SnapshotLostByGC:
    """GC may have taken changes after `ts`."""
    return SnapshotLostByGC(
        f"SnapshotLostByGC: the changes since {_moment(ts)} are not all there any more: "
        f"the cluster's GC safepoint is {_moment(safepoint)}.",
        "Start a new changefeed from a later startTs, with an empty sink or a new snapshot of the data.",
    )


@dataclass(frozen=True)
class Held:
    """Every change after `ts` can be read until `until_ms` at least, by PD's clock (ms since 1970)."""

    ts: int
    until_ms: int


class Safepoint:
    """One changefeed's hold. It lapses `ttl_seconds` after the last `hold`; `held` is what that got, None before it.

    Another `ttl_seconds` counts from the next `hold` on.
    """

    def __init__(self, pd: PdClient, service_id: str, ttl_seconds: int) -> None:
        self._pd = pd
        self._service_id = service_id
        self.ttl_seconds = ttl_seconds
        self.held: Held | None = None

    async def hold(self, ts: int) -> int:
        """Keep every change with commit_ts >= `ts` readable; `ts` > 0, and normally rises.

        Returns the cluster's least safepoint, read after the call began. Raises SnapshotLostByGC, Transient.
        """
        asked_at_ms = await self._pd.pd_ms()
        least = await self._pd.update_safepoint(self._service_id, self.ttl_seconds, ts - 1)
        # GC that had passed before the services were asked, or by somebody who asks none.
        least = max(least, await self._pd.gc_safepoint())
        check_held(ts, least)
        self.held = Held(ts, asked_at_ms + self.ttl_seconds * 1000)
        return least

    async def remove(self) -> None:
        """Let GC go on; only after the changefeed's `closed` record."""
        await self._pd.update_safepoint(self._service_id, 0, MAX_TS)


def _moment(ts: int) -> str:
    return f"{ts} ({to_datetime(ts):%Y-%m-%d %H:%M:%S} UTC)"
