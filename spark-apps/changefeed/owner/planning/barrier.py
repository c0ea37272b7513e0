"""How far anything may be planned: the DDL span's resolved-ts, pending DDLs, syncpoints, the target (rules 1, 9, 24).
Pure.

Why data never overtakes a schema change:

1. *A table is resolved to 110, the DDL span is stuck at 90, an ALTER at 100 has not been seen.* `limit` is 90.
2. *The ALTER at T is seen.* The limit of the dispatchers it involves is T itself: rows at exactly T belong to the old
   schema (rule 9). Once all of them are flushed to T, it is executed and recorded; their rows > T have the new schema.
   Other dispatchers continue above T, but the checkpoint stays at T - 1, because a reader of checkpoint T expects the
   DDL.
3. *A later DDL arrives first.* DDLs are executed in the order of (finish ts, job id). None is handed in before the DDL
   span has resolved to it, after which no earlier one can arrive.
4. *Two DDLs at T1 < T2 are pending, on different tables.* The tables of the second drain to T2 in the meantime; it is
   executed after the first.
5. *The DDL span is pulled again and repeats itself.* Anything already executed, or part of the schema that the run
   started with, is dropped before it gets here. The resolved-ts restarts lower, but what it once said about the past
   stays true, so the highest counts.
6. *A syncpoint at T.* It acts like a DDL that involves every dispatcher, and comes between the DDLs at T and those
   above.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Set

from changefeed.errors import ProtocolViolation
from changefeed.owner.planning.syncpoints import Syncpoints
from changefeed.sink.contract import Ddl


class Barrier:
    """The one barrier of a changefeed over `(start_ts, target_ts]`; target_ts None: for ever.

    On a restart start_ts is the ts of the schema that the run begins with: every DDL up to it is executed.
    """

    def __init__(self, start_ts: int, target_ts: int | None = None, syncpoints: Syncpoints | None = None) -> None:
        self._target_ts = target_ts
        self._syncpoints = syncpoints
        self._resolved_ts = start_ts
        self._pending: deque[Ddl] = deque()
        self._last = (start_ts, 0)

    @property
    def resolved_ts(self) -> int:
        """Every DDL <= it is known."""
        return self._resolved_ts

    def on_ddl(self, ddl: Ddl) -> None:
        """A finished one, in their order, and before the resolved-ts that covers it.

        Raises ProtocolViolation when the DDL span had already said that nothing more comes at or below its ts.
        """
        if ddl.ts <= self._resolved_ts or ddl.order <= self._last:
            raise ProtocolViolation(
                f"DDL job {ddl.job_id} at {ddl.ts} ({ddl.description}) came after the DDL span resolved to "
                f"{self._resolved_ts}.",
                "Restart the changefeed; if this happens again, report it as a bug.",
            )
        self._last = ddl.order
        if self._target_ts is None or ddl.ts <= self._target_ts:
            self._pending.append(ddl)

    def on_resolved(self, ts: int) -> None:
        """Every DDL <= ts was handed to `on_ddl`."""
        self._resolved_ts = max(self._resolved_ts, ts)

    def ceiling(self) -> int:
        """No row of any dispatcher above it may be planned."""
        return min(ts for ts in (self._resolved_ts, self._target_ts, self._syncpoint_ts) if ts is not None)

    def limit(self, dispatcher: int) -> int:
        """No row of the dispatcher above it may be planned; T of a DDL that involves it is still allowed."""
        stops = (ddl.ts for ddl in self._pending if dispatcher in ddl.involved)
        return min(self.ceiling(), next(stops, self._resolved_ts))

    def lowest_limit(self, dispatchers: Set[int]) -> int:
        """The lowest `limit` of these."""
        stops = (ddl.ts for ddl in self._pending if not dispatchers.isdisjoint(ddl.involved))
        return min(self.ceiling(), next(stops, self._resolved_ts))

    def checkpoint_limit(self) -> int:
        """No checkpoint may be above it: T - 1 while a DDL or syncpoint at T is pending."""
        pending = [ddl.ts - 1 for ddl in self.known()[:1]]
        if self._syncpoint_ts is not None:
            pending.append(self._syncpoint_ts - 1)
        return min([self.ceiling(), *pending])

    def stopped(self, dispatchers: Iterable[int]) -> frozenset[int]:
        """Those of which everything up to their limit is known to the DDL span, and nothing above it can be planned."""
        if self.is_at_target() or self.ceiling() == self._syncpoint_ts:
            return frozenset(dispatchers)
        return frozenset(dispatcher for ddl in self.known() for dispatcher in ddl.involved)

    def is_at_target(self) -> bool:
        """Whether the DDL span has reached the end."""
        return self.ceiling() == self._target_ts

    def due(self, flushed_ts: Callable[[int], int]) -> Ddl | None:
        """The next DDL, once every dispatcher that it involves is flushed to its ts; maybe none is."""
        for ddl in self.known()[:1]:
            if ddl.ts <= self.ceiling() and all(flushed_ts(dispatcher) >= ddl.ts for dispatcher in ddl.involved):
                return ddl
        return None

    def executed(self) -> Ddl:
        """The next one is recorded; it."""
        return self._pending.popleft()

    def syncpoint(self) -> int | None:
        """The next one, if all DDLs up to it are executed: it is due once every dispatcher is flushed to it."""
        ts = self._syncpoint_ts
        return ts if ts == self.ceiling() and not any(ddl.ts <= ts for ddl in self.known()[:1]) else None

    def syncpoint_written(self) -> None:
        """The one that was due is recorded."""
        assert self._syncpoints is not None, "there are none"
        self._syncpoints.written()

    def is_finished(self, checkpoint_ts: int) -> bool:
        """Whether a checkpoint completes the changefeed; no pending DDL <= target can be below it."""
        return self._target_ts is not None and checkpoint_ts >= self._target_ts

    @property
    def _syncpoint_ts(self) -> int | None:
        return None if self._syncpoints is None else self._syncpoints.next_ts

    def known(self) -> list[Ddl]:
        """Those that no earlier one can come before."""
        return [ddl for ddl in self._pending if ddl.ts <= self._resolved_ts]
