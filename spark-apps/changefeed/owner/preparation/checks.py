"""Checks that a resource agrees with its log, and that its upstream meets the requirements. Writes nothing."""

from __future__ import annotations

from collections.abc import Set

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.log.records import PlanEntry
from changefeed.log.state import State
from changefeed.objectstore.open import canonical
from changefeed.schema.history import SchemaHistory
from changefeed.spec.model import Changefeed, RestartSpec
from changefeed.spec.parse import from_effective
from changefeed.spec.sink.choice import SinkSpec
from changefeed.upstream.contract import Upstream


def check_same(changefeed: Changefeed, state: State, cluster_id: int) -> None:
    """The resource must still be the one that the log is of."""
    wanted = changefeed.spec.upstream.cluster_id
    if wanted is not None and wanted != cluster_id:
        raise InvalidSpec(
            "spec.upstream.clusterId",
            f"{wanted} is wanted, but cluster {cluster_id} is at {changefeed.spec.upstream.address}",
            "Point spec.upstream at the right cluster.",
        )
    if state.n == 0:
        return
    if state.cluster_id != cluster_id:
        raise NeedsHuman(
            f"Changefeed {changefeed.name} belongs to cluster {state.cluster_id}, but spec.upstream is {cluster_id}.",
            "Point spec.upstream at the changefeed's own cluster, or create a new changefeed.",
        )
    start_ts = changefeed.spec.start_ts
    if changefeed.spec.initial_copy != state.initial_copy:
        raise _changed("spec.initialCopy", "it", str(state.initial_copy).lower())
    if start_ts is not None and start_ts != state.asked_ts:
        raise _changed("spec.startTs", f'"{start_ts}"', f'"{state.asked_ts}"')
    if state.epoch.number:
        was, spec = from_effective(state.epoch.config).spec, changefeed.spec
        for field, kept in spec.upstream.stays.items():
            if kept != (old := was.upstream.stays.get(field)):
                raise _changed(field, kept or "unset", old or "unset", another="name")
        before, now = was.sink, spec.sink
        if (before.kind, _same(before)) != (now.kind, _same(now)):
            raise _changed(f"spec.sink.{now.kind}.uri", now.uri, before.uri, another="name")
        for field, value in now.names.items():
            if value != before.names[field]:
                raise _changed(field, value, before.names[field])


def _changed(field: str, now: object, before: object, another: str = "name and sink") -> InvalidSpec:
    """`another`: what a new changefeed must not share with this one."""
    return InvalidSpec(
        field,
        f"{now} differs from {before}, with which the changefeed was started",
        f"It can't be changed: revert it, or create a new changefeed with another {another}.",
    )


def _same(sink: SinkSpec) -> str:
    """Equal for what is the same location."""
    return canonical(sink.uri) if sink.kind == "storage" else sink.uri


def due_restart(changefeed: Changefeed, state: State) -> RestartSpec | None:
    """spec.restart, when it asks for a rewind that is not done. A new changefeed has nothing to rewind."""
    restart = changefeed.spec.restart
    if restart is None or state.n == 0 or restart.nonce == state.restart_nonce:
        return None
    if restart.from_ts > state.checkpoint_ts:
        raise InvalidSpec(
            "spec.restart.fromTs",
            f'"{restart.from_ts}" is above the checkpoint "{state.checkpoint_ts}"',
            "Name a ts at or below it, or take spec.restart out: what is above comes by itself.",
        )
    return restart


def unselected(state: State, selected: Set[int]) -> list[tuple[int, PlanEntry]]:
    """(plan, entry) that wait for ever: nobody pulls what is not selected (rules 3, 10)."""
    return [(plan, entry) for plan, entry in state.open_entries() if entry.dispatcher not in selected]


def check_plans_are_selected(state: State, selected: Set[int], schema: SchemaHistory) -> None:
    for plan, entry in unselected(state, selected):
        table = schema.table(entry.dispatcher, schema.snapshot_ts)
        raise InvalidSpec(
            "spec.filter.rules",
            f"{table.full_name if table else entry.dispatcher} is no longer selected, but plan {plan} "
            "still has rows of it to write",
            "Select it again and let a run drain before you change the rules. If that plan fails, rewind "
            "(spec.restart).",
        )


async def check_not_ahead(start_ts: int, upstream: Upstream) -> None:
    now = await upstream.now()
    if start_ts > now:
        raise InvalidSpec(
            "spec.startTs", f'"{start_ts}" is in the future: the upstream is at "{now}"', "Leave it out to start now."
        )
