"""The entries of a plan record, made of the planner's cuts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.errors import NeedsHuman
from changefeed.log.records import PlanEntry
from changefeed.log.state import State
from changefeed.model.position import Position
from changefeed.owner.planning.planner import Cut
from changefeed.sink.contract import Outputs


@dataclass(frozen=True)
class Table:
    """What decodes and names a dispatcher's rows from now on."""

    table_id: int  # physical
    table_info: str  # hash
    table_version: int
    series: str  # of its outputs
    name: str = ""


def make_plan(
    state: State, cuts: Iterable[Cut], tables: Mapping[int, Table], outputs: Outputs, pd_ms: int
) -> tuple[PlanEntry, ...]:
    """The entries of a plan record at `pd_ms`: what they are written to follows from the log (rule 15).

    Raises NeedsHuman when a cut does not go on from the log.
    """
    entries: list[PlanEntry] = []
    reached: dict[int, tuple[Position, dict[str, Any]]] = {}
    for number, cut in enumerate(cuts):
        table = tables[cut.dispatcher]
        start, last = reached.get(cut.dispatcher) or (state.position(cut.dispatcher), state.output(cut.dispatcher))
        if not cut.from_ <= start < cut.to:
            raise NeedsHuman(
                f"Dispatcher {cut.dispatcher} is planned up to {cut.from_.commit_ts}, "
                f"in the log up to {start.commit_ts}.",
                "Report this as a bug, with the log.",
            )
        output = outputs.next(table.series, pd_ms, last)
        entries.append(
            PlanEntry.model_validate(
                {
                    "entry": number,
                    "dispatcher": cut.dispatcher,
                    "table_id": table.table_id,
                    "from": start,
                    "to": cut.to,
                    "output": output,
                    "table_version": table.table_version,
                    "table_info": table.table_info,
                    "estimate": cut.estimate,
                    "reason": cut.reason,
                }
            )
        )
        reached[cut.dispatcher] = (cut.to, output)
    return tuple(entries)
