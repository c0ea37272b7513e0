"""The entries of a plan record, made of the planner's cuts: names and indexes come from the log (rule 15). Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from changefeed.errors import NeedsHuman
from changefeed.model.position import Position
from changefeed.model.record import PlanEntry
from changefeed.owner.planning.planner import Cut
from changefeed.owner.transaction_log.state import State


@dataclass(frozen=True)
class Table:
    """What decodes and names a dispatcher's rows from now on."""

    table_id: int  # physical
    table_info: str  # hash
    table_version: int
    place: str  # its directory but for the date
    name: str = ""


def make_plan(
    state: State,
    cuts: Iterable[Cut],
    tables: Mapping[int, Table],
    date: str,
    directory: Callable[[str, str], str],
    data_file: Callable[[str, int], str],
    schema_files: Container[tuple[int, int]],
) -> tuple[PlanEntry, ...]:
    """The entries of a plan record: names and indexes come from the log (rule 15).

    `date` is the sink's date of the plan's pd_ms ("" when directories have none); a dispatcher whose newest directory
    has a later one stays there, so `directory(place, date)` must go by the date it is given. It and
    `data_file(directory, index)` give paths below the sink's root. `schema_files` holds
    (dispatcher, table_version) of the schema files known to exist. Raises NeedsHuman when one is missing (rule 26) or
    when a cut does not go on from the log.
    """
    entries: list[PlanEntry] = []
    reached: dict[int, tuple[Position, str, int]] = {}
    for number, cut in enumerate(cuts):
        table = tables[cut.dispatcher]
        if (cut.dispatcher, table.table_version) not in schema_files:
            raise NeedsHuman(
                f"The schema file of dispatcher {cut.dispatcher}, version {table.table_version}, has not been written.",
                "Report this as a bug, with the log.",
            )
        last = state.dispatchers.get(cut.dispatcher)
        day = max(date, last.date) if last else date
        place = directory(table.place, day)
        start, before, index = reached.get(cut.dispatcher) or (
            state.position(cut.dispatcher),
            last.directory if last else "",
            last.next_index if last else 1,
        )
        if not cut.from_ <= start < cut.to:
            raise NeedsHuman(
                f"Dispatcher {cut.dispatcher} is planned up to {cut.from_.commit_ts}, "
                f"in the log up to {start.commit_ts}.",
                "Report this as a bug, with the log.",
            )
        index = index if place == before else 1
        entries.append(
            PlanEntry.model_validate(
                {
                    "entry": number,
                    "dispatcher": cut.dispatcher,
                    "table_id": table.table_id,
                    "from": start,
                    "to": cut.to,
                    "path": data_file(place, index),
                    "directory": place,
                    "index": index,
                    "date": day,
                    "table_version": table.table_version,
                    "table_info": table.table_info,
                    "estimate": cut.estimate,
                    "reason": cut.reason,
                }
            )
        )
        reached[cut.dispatcher] = (cut.to, place, index + 1)
    return tuple(entries)
