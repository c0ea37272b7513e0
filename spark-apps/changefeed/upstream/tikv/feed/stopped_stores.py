"""Which stores send no change data, or not all, and why, so that a resolved-ts that stands still can be attributed to
them.

Pure: what streams meet and the time in, what to say out.
"""

from __future__ import annotations

from changefeed.upstream.contract import BEHIND, Stopped

#: A stopped store is asked again every few seconds. One that nobody has asked for so long leads nothing any more.
FORGET_SECONDS = 20.0
#: The store, or this side, does not trust the other; the reason of the condition.
REFUSED = "TikvRefuses"
#: It takes no registrations: its change feed's memory is used up, or too many scans wait in it.
CONGESTED = "StoreCongested"
BUSY = "StoreBusy"
#: In place of a store's id, which a read that was refused does not tell.
READ = 0


_TURNS_AWAY = {
    CONGESTED: (
        "is congested: another client of its change feed does not read what it is sent, or cdc.sink-memory-quota is "
        "too small for what one region sends. This changefeed reads all that it is sent.",
        "Look for a changefeed or a tool that has stalled, or raise the quota in TiKV's configuration.",
    ),
    BUSY: (
        "is busy: more scans wait in its change feed, of all its clients, than it takes.",
        "If this lasts, look for clients that register their regions over and over.",
    ),
    BEHIND: (
        "is congested: this changefeed reads what it is sent more slowly than it comes.",
        "Give its pullers more CPU (spec.spark.executor), or raise spec.spark.pullers.count.",
    ),
}


def turns_away(store_id: int, reason: str) -> Stopped:
    """A store takes no registrations; `reason`: one of the last three above."""
    what, step = _TURNS_AWAY[reason]
    return Stopped(store_id, reason, f"Store {store_id} {what} {step}")


class StoppedStores:
    def __init__(self) -> None:
        self._stopped: dict[int, tuple[Stopped, float]] = {}  # with when it was met last, monotonic seconds

    def met(self, stopped: Stopped, now: float) -> None:
        self._stopped[stopped.store_id] = (stopped, now)

    def sends(self, store_id: int) -> None:
        """Or stops for a reason of which nothing is to be said."""
        self._stopped.pop(store_id, None)

    def first(self, now: float) -> Stopped | None:
        """Return the store with the lowest id of those that are stopped now."""
        self._stopped = {
            store_id: (stopped, met) for store_id, (stopped, met) in self._stopped.items() if now - met < FORGET_SECONDS
        }
        return self._stopped[min(self._stopped)][0] if self._stopped else None
