"""What has been before a world: to do a plan of one world once more in another, where other things go wrong (O9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from changefeed.model.record import CommitRecord, DdlRecord, decode_record
from changefeed.sink.storage.layout import Layout
from simulated_upstream import Shape, Upstream

if TYPE_CHECKING:
    from simulated_world import World


@dataclass(frozen=True)
class Past:
    """An upstream's whole history, the log up to a plan, the files of all before it, and those of the plan."""

    upstream: Upstream
    shape: Shape
    layout: Layout
    records: tuple[bytes, ...]
    before: Mapping[str, bytes]
    files: Mapping[str, bytes]


def pasts(world: World) -> Iterator[Past]:
    """One for each plan of a world that is over."""
    records, before = world.oracles.records, dict[str, bytes]()
    for body in records[1:]:
        record = decode_record(body)
        if isinstance(record, DdlRecord):
            before |= {path: world.store.objects[path] for path in record.schema_files}
        if isinstance(record, CommitRecord) and record.plan is not None:
            plan = world.oracles.states[record.plan].plan
            assert plan is not None
            files = {entry.path: world.store.objects[entry.path] for entry in plan.entries}
            log = tuple(records[1 : record.plan + 1])
            yield Past(world.upstream, world.shape, world.layout, log, dict(before), files)
            before |= files
