"""What has been before a world: to do a plan of one world once more in another, where other things go wrong (O9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from changefeed.log.records import CommitRecord, DdlRecord, PlanRecord, decode_record
from changefeed.sink.storage.layout import Layout
from simulated_tables import path_of, schema_file_of
from simulated_transactions import Shape
from simulated_upstream import Upstream

if TYPE_CHECKING:
    from simulated_world import World


@dataclass(frozen=True)
class Past:
    """An upstream's whole history, the log up to a plan, the files that are committed there, those that are open."""

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
            paths = [schema_file_of(table, record.ts) for table in record.dispatchers]
            before |= {path: world.store.objects[path] for path in paths}
        if isinstance(record, CommitRecord):
            plans = {each.plan.n: each.plan for each in world.oracles.states[record.n - 1].plans}
            paths = [path_of(plans[file.plan].entries[file.entry]) for file in record.files]
            before |= {path: world.store.objects[path] for path in paths}
        if isinstance(record, PlanRecord):
            paths = [path_of(entry) for _, entry in world.oracles.states[record.n].open_entries()]
            files = {path: world.store.objects[path] for path in paths}
            yield Past(world.upstream, world.shape, world.layout, tuple(records[1 : record.n + 1]), dict(before), files)
