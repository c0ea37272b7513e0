"""Service GC safepoints as PD keeps them (facts, tikv-wire 1.9): who holds history back. Nothing here collects garbage.

A plain state machine: the second of the day is handed in, what must be kept is handed to `save`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

GC_WORKER = b"gc_worker"
NEVER = (1 << 63) - 1


class Hold(NamedTuple):
    """A service's safepoint, alive until the unix second `expires_at` has passed."""

    service_id: bytes
    expires_at: int
    safe_point: int


class SafePoints:
    """`save` gets each hold that changes; one with expires_at 0 is removed."""

    def __init__(self, save: Callable[[Hold], None] | None = None) -> None:
        self._save = save
        self._holds = {GC_WORKER: Hold(GC_WORKER, NEVER, 0)}

    def update(self, service_id: bytes, ttl: int, safe_point: int, now: int) -> Hold:
        """Sets (ttl > 0) or removes a hold; gives the lowest living one after it.

        A safepoint below the lowest living one is refused: what comes back is then above what was asked for.
        """
        if ttl <= 0:
            if service_id != GC_WORKER and service_id in self._holds:
                self._keep(Hold(service_id, 0, 0))
        elif safe_point >= self.lowest(now).safe_point:
            self._keep(Hold(service_id, min(now + ttl, NEVER), safe_point))
        return self.lowest(now)

    def lowest(self, now: int) -> Hold:
        """The lowest living hold; the GC worker's never expires."""
        return min(
            (hold for hold in self._holds.values() if hold.expires_at >= now),
            key=lambda hold: (hold.safe_point, hold.service_id),
        )

    def living(self, now: int) -> list[Hold]:
        return sorted(hold for hold in self._holds.values() if hold.expires_at >= now)

    def restore(self, hold: Hold) -> None:
        """Sets a journaled hold."""
        if hold.expires_at:
            self._holds[hold.service_id] = hold
        else:
            self._holds.pop(hold.service_id, None)

    def _keep(self, hold: Hold) -> None:
        self.restore(hold)
        if self._save:
            self._save(hold)
