"""Which tables a driver has to copy, and where they are split (docs/architecture.md, Initial copy)."""

from __future__ import annotations

from collections.abc import Mapping, Set

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.log.records import CopiedTable, CopyRecord
from changefeed.log.state import State
from changefeed.model.table_copy import COPY_TICKS, MOST_CHUNKS
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.spec.model import Changefeed
from changefeed.upstream.attempts import Attempts
from changefeed.upstream.contract import PATIENCE_S, Upstream


def tables_to_copy(state: State, selected: Set[int]) -> list[int]:
    """The physical tables among those that are selected that no driver has pulled before, in order."""
    if not state.initial_copy or state.finished:
        return []
    return sorted(selected - state.copied.keys() - state.dispatchers.keys())


def check_copies_are_selected(state: State, selected: Set[int]) -> None:
    """A table that is left out before it is copied would lack rows when it is selected again."""
    for dispatcher, copy in state.copies().items():
        if dispatcher not in selected and copy.is_under_way(state.flushed_ts(dispatcher)):
            raise InvalidSpec(
                "spec.filter.rules",
                f"table {dispatcher} is no longer selected, but is still being copied",
                "Select it until it has been copied. If that is impossible, rewind (spec.restart).",
            )


def _check_unchanged(names: list[int], before: Mapping[int, TableInfo], then: SchemaHistory, ts: int) -> None:
    """Rows at `ts` are decoded by what their tables were `before`, at the checkpoint. Raises NeedsHuman."""
    for dispatcher in names:
        now = then.table(before[dispatcher].id, ts)
        if now is None or now.hash != before[dispatcher].unrouted.hash:
            raise NeedsHuman(
                f"{before[dispatcher].full_name} was altered in the millisecond after the checkpoint "
                f"{ts - COPY_TICKS}, in which its copy is to stand.",
                "Leave it out of spec.filter.rules until the checkpoint has moved, then select it again.",
            )


async def copy_record(
    state: State, dispatchers: list[int], tables: Mapping[int, TableInfo], upstream: Upstream
) -> CopyRecord:
    """By which these tables are copied. Raises NeedsHuman, Transient."""
    copied = []
    for dispatcher in dispatchers:
        bounds = await upstream.copy_bounds(tables[dispatcher].unrouted, dispatcher, MOST_CHUNKS)
        copied.append(CopiedTable(dispatcher=dispatcher, bounds=tuple(bound.hex() for bound in bounds)))
    return CopyRecord(
        n=state.n + 1,
        epoch=state.epoch.number,
        nonce=state.epoch.nonce,
        from_ts=state.checkpoint_ts,
        tables=tuple(copied),
    )


async def check_can_copy(
    changefeed: Changefeed,
    dispatchers: list[int],
    tables: dict[int, TableInfo],
    state: State,
    schema_ts: int,
    upstream: Upstream,
) -> None:
    """That these tables can be read at the ts of their copies as they are defined at `schema_ts`."""
    ts = state.checkpoint_ts + COPY_TICKS
    target_ts = changefeed.spec.target_ts
    if target_ts is not None and target_ts <= ts:
        raise InvalidSpec(
            "spec.targetTs", f'"{target_ts}" is not above "{ts}", as of which tables are copied', "Give a later one."
        )
    attempts = Attempts(f"Waiting for the upstream to pass {ts}", PATIENCE_S)
    while await upstream.now() <= ts:
        await attempts.pause("its clock stands below")
    if ts > schema_ts:
        _check_unchanged(dispatchers, tables, await upstream.schema(ts), ts)
