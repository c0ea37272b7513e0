"""Who holds history back, and how far it is gone: service GC safepoints, which newer PDs call GC barriers (facts, 1.9).

A plain state machine: the second of the day is handed in, what must be kept is handed to `save`, and a GC safepoint
that has moved to `collect`, which deletes the history below it.
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
    """`save` gets each hold that changes; one with expires_at 0 is removed. `gc_safe_point` only rises."""

    def __init__(
        self, save: Callable[[Hold], None] | None = None, collect: Callable[[int], None] | None = None
    ) -> None:
        self.gc_safe_point = 0
        self._save = save
        self._collect = collect
        self._holds = {GC_WORKER: Hold(GC_WORKER, NEVER, 0)}

    # --- holds ---

    def update(self, service_id: bytes, ttl: int, safe_point: int, now: int) -> Hold:
        """Sets (ttl > 0) or removes a hold; gives the lowest living one after it.

        A safepoint below the lowest living one is refused: what comes back is then above what was asked for.
        """
        if ttl <= 0:
            self.remove(service_id)
        elif safe_point >= self.lowest(now).safe_point:
            self._keep(Hold(service_id, min(now + ttl, NEVER), safe_point))
        return self.lowest(now)

    def remove(self, service_id: bytes) -> Hold | None:
        """Ends a hold, the GC worker's never; gives what it was."""
        hold = None if service_id == GC_WORKER else self._holds.get(service_id)
        if hold is not None:
            self._keep(Hold(service_id, 0, 0))
        return hold

    def set_barrier(self, service_id: bytes, ttl: int, safe_point: int, now: int) -> Hold:
        """As `update`, but a barrier below the transaction safepoint, or a wrong one, raises ValueError."""
        if ttl <= 0 or not service_id or service_id == GC_WORKER:
            raise ValueError(f"a GC barrier needs a name of its own and a ttl above 0: {service_id!r}, {ttl}")
        lowest = self.lowest(now).safe_point
        if safe_point < lowest:
            raise ValueError(f"GC barrier {safe_point} is below the transaction safe point {lowest}")
        self.update(service_id, ttl, safe_point, now)
        return self._holds[service_id]

    def lowest(self, now: int) -> Hold:
        """The lowest living hold; the GC worker's never expires. Its ts is the transaction safepoint of newer PDs."""
        return min(
            (hold for hold in self._holds.values() if hold.expires_at >= now),
            key=lambda hold: (hold.safe_point, hold.service_id),
        )

    def living(self, now: int) -> list[Hold]:
        return sorted(hold for hold in self._holds.values() if hold.expires_at >= now)

    # --- garbage collection ---

    def advance_gc(self, safe_point: int) -> None:
        """History below safe_point is gone; a lower one than before changes nothing. It asks no hold."""
        if safe_point > self.gc_safe_point:
            self.gc_safe_point = safe_point
            if self._collect:
                self._collect(safe_point)

    # --- replay ---

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
