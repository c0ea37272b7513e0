"""What pipeline tasks need besides the owner's address, and how they carry out its orders for a sink."""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.model.record import Work, WorkEntry
from changefeed.objectstore import Location
from changefeed.pipeline.recipe import Recipe
from changefeed.sink.contract import Claim, Entry, EntryId, SinkJob


@dataclass(frozen=True)
class PipelineJob:
    """`changefeed`: see sink.contract.Claim."""

    changefeed: str
    state: Location  # the changefeed's own: segments
    sink: SinkJob


def entry_of(changefeed: str, work: Work, entry: WorkEntry, recipe: Recipe) -> Entry:
    """One of the entries that the owner has ordered."""
    plan = entry.plan_entry
    return Entry(
        claim=Claim(changefeed, plan.dispatcher, work.epoch, work.nonce, entry.writer),
        id=EntryId(work.record, plan.entry),
        upto=plan.to.commit_ts,
        path=plan.path,
        table=recipe.table,
        table_version=plan.table_version,
        columns=recipe.selection.columns,
        pd_ms=work.pd_ms,
        time_zone=recipe.mounting.time_zone,
        options=recipe.options,
    )
