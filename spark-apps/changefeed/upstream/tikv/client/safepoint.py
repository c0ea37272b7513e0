"""Holding back the upstream's GC (docs/design/rules.md, Rule 14): history is held before it is needed.

TiKV answers a read below its GC safepoint with an incomplete scan and no error, so nothing may be read at a ts before
`hold(ts)` has returned.
"""

from __future__ import annotations

from changefeed.errors import SnapshotLostByGC
from changefeed.model.tso import MAX_TS, to_datetime
from changefeed.upstream.contract import HeldUntil
from changefeed.upstream.tikv.client.pd import PdClient

_START_LATER = "Start a new changefeed from a later startTs, with an empty sink or a new snapshot of the data."


def check_held(ts: int, answer: int, gc_safe_point: int) -> None:
    """Raise SnapshotLostByGC when a hold of `ts` was not taken: GC has passed it, or may do so at any moment.

    `answer`: PD's to a safepoint of `ts` - 1. Whatever kind of ts that is (client.pd), above what was asked for it
    means that, and below it nothing.
    """
    if gc_safe_point > ts - 1:
        raise lost_history(ts, gc_safe_point)
    if answer > ts - 1:
        removed = f"what is older than {_moment(gc_safe_point)}" if gc_safe_point else "nothing"
        raise SnapshotLostByGC(
            f"SnapshotLostByGC: the changes since {_moment(ts)} can't be held any more: the cluster has released its "
            f"history up to {_moment(answer)} to GC, which has removed {removed} so far.",
            _START_LATER,
        )


def lost_history(ts: int, safepoint: int) -> SnapshotLostByGC:
    """GC may have taken changes after `ts`."""
    return SnapshotLostByGC(
        f"SnapshotLostByGC: the changes since {_moment(ts)} are not all there any more: "
        f"the cluster's GC safepoint is {_moment(safepoint)}.",
        _START_LATER,
    )


class Safepoint:
    """One changefeed's hold. It lapses `ttl_seconds` after the last `hold`; `held` is what that got, None before it.

    Another `ttl_seconds` counts from the next `hold` on.
    """

    def __init__(self, pd: PdClient, service_id: str, ttl_seconds: int) -> None:
        self._pd = pd
        self._service_id = service_id
        self.ttl_seconds = ttl_seconds
        self.held: HeldUntil | None = None

    async def begin(self, lead: int = 0) -> int:
        """Hold history from now on, and from so much before."""
        ts = await self._pd.tso()
        await self.hold(ts - lead)
        return ts

    async def hold(self, ts: int) -> None:
        """Keep every change with commit_ts >= `ts` readable; `ts` > 0, and normally rises.

        Raises SnapshotLostByGC, Transient.
        """
        asked_at_ms = await self._pd.pd_ms()
        answer = await self._pd.update_safepoint(self._service_id, self.ttl_seconds, ts - 1)
        # GC that had passed before the services were asked, or by somebody who asks none.
        check_held(ts, answer, await self._pd.gc_safepoint())
        self.held = HeldUntil(ts, asked_at_ms + self.ttl_seconds * 1000)

    async def remove(self) -> None:
        """Let GC go on; only after the changefeed's `closed` record."""
        await self._pd.update_safepoint(self._service_id, 0, MAX_TS)


def _moment(ts: int) -> str:
    return f"{ts} ({to_datetime(ts):%Y-%m-%d %H:%M:%S} UTC)"
