"""What a pipeline task is told to write."""

from __future__ import annotations

from changefeed.eventstore.slices import SegmentSlice
from changefeed.log.records import PlanEntry
from changefeed.model.frozen import Frozen


class WorkEntry(Frozen):
    """A plan entry with its manifest (rule 3). `writer`: see sink.contract.Claim."""

    plan_entry: PlanEntry
    segments: tuple[SegmentSlice, ...]
    writer: int = 0


class Work(Frozen):
    """What a pipeline task needs to write some files of one plan: sent to it by the owner, never stored.

    `config` and `table_infos` are JSON: a task parses each only once, and orders come for every few files.
    """

    record: int
    epoch: int
    nonce: str
    pd_ms: int
    codec: str
    config: str  # effective spec of the epoch that recorded the plan
    entries: tuple[WorkEntry, ...]
    table_infos: dict[str, str]  # by hash
