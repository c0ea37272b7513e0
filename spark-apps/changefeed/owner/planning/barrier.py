"""How far anything may be planned: the DDL span's resolved-ts, the first pending DDL, the target (rules 1, 9, 24).

Pure. Until DDLs are executed, one that touches a selected table stops the changefeed at its ts: none is ever skipped.

Why data never overtakes a schema change:

1. *A table is resolved to 110, the DDL span is stuck at 90, an ALTER at 100 has not been seen.* `limit` is 90.
2. *The ALTER at T is seen.* `limit` is T itself: rows at exactly T belong to the old schema (rule 9), so they are
   planned. The checkpoint stays at T - 1, for a reader of checkpoint T expects the DDL.
3. *A later DDL arrives first.* DDLs are ordered by (finish ts, job id), and nothing is decided before the DDL span has
   resolved to T: then no earlier one can come.
4. *The DDL span is pulled anew and repeats itself.* Jobs are known by their id; those at or below start_ts are part of
   the schema at start_ts. Its resolved-ts starts again lower, but what it once said of its past stays true, so the
   highest holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.errors import NeedsHuman, ProtocolViolation


@dataclass(frozen=True, order=True)
class Ddl:
    ts: int  # finish ts
    job_id: int
    description: str  # of the statement and its table, for people


class Barrier:
    """The one barrier of a changefeed over `(start_ts, target_ts]`; target_ts None: for ever.

    On a restart start_ts is the recorded checkpoint: the ts of the schema that the run begins with.
    """

    def __init__(self, start_ts: int, target_ts: int | None = None) -> None:
        self._start_ts = start_ts
        self._target_ts = target_ts
        self._resolved_ts = start_ts
        self._pending: dict[int, Ddl] = {}

    @property
    def resolved_ts(self) -> int:
        """Every DDL <= it is known."""
        return self._resolved_ts

    def on_ddl(self, ts: int, job_id: int, touches_selected: bool, description: str) -> None:
        """A finished DDL job; report it before the resolved-ts that covers it.

        Raises ProtocolViolation when the DDL span had already said that nothing more comes at or below ts.
        """
        if ts <= self._start_ts or not touches_selected or job_id in self._pending:
            return
        if ts <= self._resolved_ts:
            raise ProtocolViolation(
                f"DDL job {job_id} at {ts} ({description}) came after the DDL span resolved to {self._resolved_ts}.",
                "Start the changefeed again; if this comes back, report it as a bug.",
            )
        self._pending[job_id] = Ddl(ts, job_id, description)

    def on_resolved(self, ts: int) -> None:
        """Every DDL <= ts was handed to `on_ddl`."""
        self._resolved_ts = max(self._resolved_ts, ts)

    def limit(self) -> int:
        """No row above it may be planned; T of the first pending DDL is still allowed."""
        return min([self._resolved_ts, *self._stops()])

    def checkpoint_limit(self) -> int:
        """No checkpoint may be above it: T - 1 while a DDL at T is pending."""
        first = self._first()
        return min(self.limit(), first.ts - 1) if first else self.limit()

    def edge(self) -> int | None:
        """The ts at which all stops, once the DDL span has reached it: rows <= it are to be written now."""
        limit = self.limit()
        return limit if limit in self._stops() else None

    def stopped_at(self, flushed_ts: int) -> Ddl | None:
        """The DDL that stops the changefeed, once every dispatcher is flushed to its ts (`checkpoint.flushed_ts`)."""
        first = self._first()
        return first if first and self.edge() == first.ts <= flushed_ts else None

    def is_finished(self, checkpoint_ts: int) -> bool:
        """Whether a checkpoint completes the changefeed; no pending DDL <= target can be below it."""
        return self._target_ts is not None and checkpoint_ts >= self._target_ts

    def _first(self) -> Ddl | None:
        return min(self._pending.values(), default=None)

    def _stops(self) -> list[int]:
        first = self._first()
        return [ts for ts in (first.ts if first else None, self._target_ts) if ts is not None]


def stopped_by(ddl: Ddl, checkpoint_ts: int) -> NeedsHuman:
    """What a run ends with that has come to a DDL."""
    return NeedsHuman(
        f"Stopped at {ddl.ts} by a DDL on a selected table: {ddl.description} (job {ddl.job_id}). "
        f"Everything up to that ts is written; the checkpoint is {checkpoint_ts}.",
        "DDLs are not replicated yet: apply it downstream, then start a new changefeed with that ts as startTs.",
    )
