"""Who holds history back, and how far it is gone: service GC safepoints, which newer PDs call GC barriers.

See docs/design/tikv.md, Service safepoints.

The newest PD has a transaction safepoint, which GC moves first and which stops at the lowest barrier; the GC safepoint
follows it. PDs of up to 8.5 have the services' safepoints alone, and GC is one of the services.

A plain state machine: the second of the day is handed in, what must be kept is handed to `save`, and a GC safepoint
that has moved to `collect`, which deletes the history below it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

GC_WORKER = b"gc_worker"
NEVER = (1 << 63) - 1


class ServiceSafePoint(NamedTuple):
    """A service's safepoint, alive until the unix second `expires_at` has passed."""

    service_id: bytes
    expires_at: int
    safe_point: int


class SafePoints:
    """The safepoints of the newest PD. The GC worker's hold is the transaction safepoint.

    `save` gets each hold that changes; one with expires_at 0 is removed. `gc_safe_point` only rises.
    """

    knows_barriers = True

    def __init__(
        self, save: Callable[[ServiceSafePoint], None] | None = None, collect: Callable[[int], None] | None = None
    ) -> None:
        self.gc_safe_point = 0
        self._save = save
        self._collect = collect
        self._holds = {GC_WORKER: ServiceSafePoint(GC_WORKER, NEVER, 0)}

    # --- holds ---

    def update(self, service_id: bytes, ttl: int, safe_point: int, now: int) -> ServiceSafePoint:
        """Sets (ttl > 0) or removes a hold; gives the transaction safepoint, the GC worker what has stopped it.

        A safepoint below the transaction safepoint is refused: what comes back is then above what was asked for.
        Raises ValueError when the GC worker wants to go back.
        """
        if ttl <= 0:
            self.remove(service_id)
        elif service_id == GC_WORKER:
            return self.advance_transactions(safe_point, now)
        elif safe_point >= self.transaction_safe_point:
            self._keep(ServiceSafePoint(service_id, min(now + ttl, NEVER), safe_point))
        return self._holds[GC_WORKER]

    @property
    def transaction_safe_point(self) -> int:
        """Return the ts below which no transaction may begin."""
        return self._holds[GC_WORKER].safe_point

    def advance_transactions(self, target: int, now: int) -> ServiceSafePoint:
        """Moves the transaction safepoint up to `target`, or to the lowest barrier below it, which is then given.

        Barriers that have expired are forgotten. Raises ValueError for one that lies back.
        """
        if target < self.transaction_safe_point:
            raise ValueError(
                f"ErrDecreasingTxnSafePoint: {target} is below the transaction safepoint {self.transaction_safe_point}"
            )
        barriers = [hold for hold in self._holds.values() if hold.service_id != GC_WORKER]
        for hold in barriers:
            if hold.expires_at < now:
                self._keep(ServiceSafePoint(hold.service_id, 0, 0))
        blockers = [hold for hold in barriers if hold.expires_at >= now and hold.safe_point < target]
        blocker = min(blockers, key=lambda hold: (hold.safe_point, hold.service_id), default=None)
        reached = ServiceSafePoint(GC_WORKER, NEVER, blocker.safe_point if blocker else target)
        self._keep(reached)
        return blocker or reached

    def may_collect(self, target: int, now: int) -> int:
        """Say how far the GC worker may go that wants to go to `target`."""
        if target > self.transaction_safe_point:
            self.advance_transactions(target, now)
        return min(target, self.transaction_safe_point)

    def remove(self, service_id: bytes) -> ServiceSafePoint | None:
        """Ends a hold, the GC worker's never; gives what it was."""
        hold = None if service_id == GC_WORKER else self._holds.get(service_id)
        if hold is not None:
            self._keep(ServiceSafePoint(service_id, 0, 0))
        return hold

    def set_barrier(self, service_id: bytes, ttl: int, safe_point: int, now: int) -> ServiceSafePoint:
        """Works as `update`, but a barrier below the transaction safepoint, or a wrong one, raises ValueError."""
        if ttl <= 0 or not service_id or service_id == GC_WORKER:
            raise ValueError(f"a GC barrier needs a name of its own and a ttl above 0: {service_id!r}, {ttl}")
        reached = self.transaction_safe_point
        if safe_point < reached:
            why = f"GC barrier {safe_point} is below the transaction safepoint {reached}"
            raise ValueError(f"ErrGCBarrierTSBehindTxnSafePoint: {why}")
        self.update(service_id, ttl, safe_point, now)
        return self._holds[service_id]

    def lowest(self, now: int) -> ServiceSafePoint:
        """The lowest living hold; the GC worker's never expires."""
        return min(
            (hold for hold in self._holds.values() if hold.expires_at >= now),
            key=lambda hold: (hold.safe_point, hold.service_id),
        )

    def living(self, now: int) -> list[ServiceSafePoint]:
        return sorted(hold for hold in self._holds.values() if hold.expires_at >= now)

    @property
    def barriers(self) -> list[ServiceSafePoint]:
        """All that are known: an expired one until the transaction safepoint moves the next time."""
        return sorted(hold for hold in self._holds.values() if hold.service_id != GC_WORKER)

    # --- garbage collection ---

    def advance_gc(self, safe_point: int) -> None:
        """History below safe_point is gone; a lower one than before changes nothing. It asks no hold."""
        if safe_point > self.gc_safe_point:
            self.gc_safe_point = safe_point
            if self._collect:
                self._collect(safe_point)

    # --- replay ---

    def restore(self, hold: ServiceSafePoint) -> None:
        """Sets a journaled hold."""
        if hold.expires_at:
            self._holds[hold.service_id] = hold
        else:
            self._holds.pop(hold.service_id, None)

    def _keep(self, hold: ServiceSafePoint) -> None:
        self.restore(hold)
        if self._save:
            self._save(hold)


class ServiceSafePoints(SafePoints):
    """Those of PDs up to 8.5: the GC worker is a service like others, and every service is told the least of all."""

    knows_barriers = False

    def update(self, service_id: bytes, ttl: int, safe_point: int, now: int) -> ServiceSafePoint:
        """Sets (ttl > 0) or removes a hold; gives the lowest living one after it.

        A safepoint below the lowest living one is refused: what comes back is then above what was asked for.
        """
        if ttl <= 0:
            self.remove(service_id)
        elif safe_point >= self.lowest(now).safe_point:
            self._keep(ServiceSafePoint(service_id, min(now + ttl, NEVER), safe_point))
        return self.lowest(now)

    def may_collect(self, target: int, now: int) -> int:
        return min(target, self.update(GC_WORKER, NEVER, target, now).safe_point)
