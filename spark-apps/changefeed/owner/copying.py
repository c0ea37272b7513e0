"""Which tables a driver has to copy, and where they are cut (docs/architecture.md, Initial copy)."""

from __future__ import annotations

from collections.abc import Mapping

from changefeed.errors import InvalidSpec, NeedsHuman
from changefeed.model.memcomparable import decode_bytes
from changefeed.model.record import CopiedTable, CopyRecord
from changefeed.model.table_copy import COPY_TICKS, bounds_of
from changefeed.owner.transaction_log.state import State
from changefeed.schema.keys import table_span
from changefeed.schema.storage import SchemaStorage
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.pd import PdClient


def tables_to_copy(state: State, tables: Mapping[int, TableInfo]) -> list[int]:
    """The physical tables among `tables` that no driver has pulled before, in order."""
    if not state.initial_copy or state.finished:
        return []
    return sorted(tables.keys() - state.copied.keys() - state.dispatchers.keys())


def check_copies_are_selected(state: State, tables: Mapping[int, TableInfo]) -> None:
    """A table that is left out before it is copied would lack rows when it is selected again."""
    for dispatcher, copy in state.copies().items():
        if dispatcher not in tables and copy.is_under_way(state.flushed_ts(dispatcher)):
            raise InvalidSpec(
                "spec.filter.rules",
                f"table {dispatcher} is not selected any more, but its copy is under way",
                "Select it again until it is copied. If it can't be, rewind (spec.restart).",
            )


def check_unchanged(names: list[int], before: Mapping[int, TableInfo], then: SchemaStorage, ts: int) -> None:
    """Rows at `ts` are decoded by what their tables were `before`, at the checkpoint. Raises NeedsHuman."""
    for dispatcher in names:
        now = then.table(before[dispatcher].id, ts)
        if now is None or now.hash != before[dispatcher].hash:
            raise NeedsHuman(
                f"{before[dispatcher].full_name} was altered in the millisecond after the checkpoint "
                f"{ts - COPY_TICKS}, in which its copy is to stand.",
                "Leave it out of spec.filter.rules until the checkpoint has moved, then select it again.",
            )


async def copy_record(state: State, dispatchers: list[int], pd: PdClient) -> CopyRecord:
    """By which these tables are copied. Raises Transient."""
    tables = []
    for dispatcher in dispatchers:
        start, end = table_span(dispatcher)
        borders = [
            decode_bytes(region.start_key)[0] for region in await pd.scan_regions(start, end) if region.start_key
        ]
        bounds = tuple(bound.hex() for bound in bounds_of(start, end, borders))
        tables.append(CopiedTable(dispatcher=dispatcher, bounds=bounds))
    return CopyRecord(
        n=state.n + 1,
        epoch=state.epoch.number,
        nonce=state.epoch.nonce,
        from_ts=state.checkpoint_ts,
        tables=tuple(tables),
    )
