"""DDLs as they come, which the driver pulls itself because every minimum depends on them (rule 1)."""

from __future__ import annotations

from collections.abc import Callable

from changefeed.errors import ChangefeedError
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.timeline import Timeline
from changefeed.schema.history import SchemaHistory
from changefeed.sink.contract import Ddl
from changefeed.upstream.contract import Resolved, SchemaEvent, SchemaStep, SubscriptionFailed


class Ddls:
    """Takes what the upstream's schema feed hands on: into `schema` and, as `timeline` sees it, into `barrier`.

    `routed`: a DDL as it concerns the sink's tables. `changed` is called after each event; `failed` once, when a DDL
    can't be followed or pulled: the barrier stays where it is then.
    """

    def __init__(
        self,
        schema: SchemaHistory,
        timeline: Timeline,
        barrier: Barrier,
        changed: Callable[[], None],
        failed: Callable[[ChangefeedError], None],
        routed: Callable[[Ddl], Ddl] = lambda ddl: ddl,
    ) -> None:
        self._schema = schema
        self._timeline = timeline
        self._barrier = barrier
        self._changed = changed
        self._failed = failed
        self._routed = routed

    async def take(self, event: SchemaEvent) -> None:
        """Raises NeedsHuman for a DDL that can't be followed, after which the feed reports that it has failed."""
        match event:
            case SchemaStep(change, ts):
                self._schema.apply(change, ts)
                if (ddl := self._timeline.follow(change, ts, self._schema.touches(change))) is not None:
                    self._barrier.on_ddl(self._routed(ddl))
            case Resolved(ts=ts):
                self._barrier.on_resolved(ts)
            case SubscriptionFailed(error=error):
                self._failed(error)
        self._changed()
