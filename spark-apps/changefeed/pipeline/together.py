"""This module processes small entries together, when they are in one work order and their tables decode alike.

An entry takes some forty calls into numpy and Arrow, whether it has five rows or five thousand. With a thousand quiet
tables or partitions, each entry would pay for these calls alone. Here, the rows of several entries are sorted by entry
first, mounted as if they were one table's, and split again.

Each entry gets the same rows as from `EntryRows`, whatever is processed with it (rule 10). If anything fails, the joint
result is discarded and each entry is processed by itself, so that the error names the table it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.errors import ChangefeedError
from changefeed.eventstore.slices import SegmentSlice
from changefeed.log.records import PlanEntry
from changefeed.model.position import OP_UPDATE
from changefeed.model.rows import NO_ROWS, RAW_SCHEMA
from changefeed.pipeline.mounter import drop_unseen
from changefeed.pipeline.recipe import Recipe, Recipes
from changefeed.pipeline.run import read_slices
from changefeed.pipeline.sorter import sort_entries
from changefeed.pipeline.work import Work, WorkEntry
from changefeed.sink.records import Records, sliced
from changefeed.sink.stages import CpuTime
from changefeed.upstream.contract import Decoder
from changefeed.upstream.decoders import decoder_of

#: Raw bytes of an entry, as it was planned. What it shares with others is nothing beside what more rows cost.
SMALL_BYTES = 64 << 10
MOST_BYTES = 8 << 20  # of what is read for all: it is copied, and stays until the last of them is written

_Numbers = npt.NDArray[np.int64]


@dataclass
class MadeRows:
    """As `run.EntryRows`, of an entry whose rows are made already. `cpu`: the first one has what all have cost."""

    recipe: Recipe
    records: Records | None  # None: it has none
    rows: int
    raw_rows: int
    cpu: CpuTime
    filtered_rows: int = 0

    def __iter__(self) -> Iterator[Records]:
        if self.records is not None:
            yield self.records


def make_together(
    work: Work,
    recipes: Recipes,
    read: Callable[[SegmentSlice], pa.Table],
    check: Callable[[SegmentSlice], None],
    readers: Executor | None = None,
) -> dict[int, MadeRows]:
    """Those entries of `work` that share their steps, by number.

    `read`, `readers`: as of `EntryRows`. `check`: that what was read was it to the end; raises otherwise.
    """
    made: dict[int, MadeRows] = {}
    for alike in _alike(work, recipes):
        try:
            made |= _make(alike, read, check, readers)
        except ChangefeedError:
            continue  # one of them raises it again, and it is told then
    return made


def _alike(work: Work, recipes: Recipes) -> list[list[tuple[WorkEntry, Recipe]]]:
    """Several each, and at most one of a dispatcher: its next one is not to be told from it."""
    found: dict[str, dict[int, tuple[WorkEntry, Recipe]]] = {}
    for entry in work.entries:
        plan = entry.plan_entry
        if plan.estimate <= SMALL_BYTES and plan.from_.is_end_of_ts and plan.to.is_end_of_ts:
            recipe = recipes.of(work, plan.table_info)
            if recipe.likeness is not None:
                found.setdefault(recipe.likeness, {}).setdefault(plan.dispatcher, (entry, recipe))
    return [list(alike.values()) for alike in found.values() if len(alike) > 1]


def _make(
    alike: Sequence[tuple[WorkEntry, Recipe]],
    read: Callable[[SegmentSlice], pa.Table],
    check: Callable[[SegmentSlice], None],
    readers: Executor | None,
) -> dict[int, MadeRows]:
    """None of them when they are too large after all, or a key is not one of its table's."""
    cpu, (_, recipe) = CpuTime(), alike[0]
    plans = [entry.plan_entry for entry, _ in alike]
    slices = read_slices([piece for entry, _ in alike for piece in entry.segments], read, readers)
    if not slices or sum(rows.get_total_buffer_size() for _, rows in slices) > MOST_BYTES:
        return {}
    owners = np.repeat(np.arange(len(alike)), [len(entry.segments) for entry, _ in alike])
    rows, pieces = _numbered(slices, owners, plans, decoder_of(recipe.table))
    for piece in {(piece.uri, piece.slot is None): piece for piece, _ in slices}.values():  # most share a segment
        check(piece)
    cpu.went_to("read")
    if rows is None:
        return {}
    unique, rows = sort_entries(rows, pieces, recipe.table, split=recipe.mounting.split)
    cpu.went_to("sort")
    rows = drop_unseen(rows)
    records = recipe.mount(rows) if rows.num_rows else None
    raw_edges, edges = _edges(unique, alike), _edges(rows, alike)
    record_edges = _record_edges(rows, edges, recipe)
    made = {
        plan.entry: MadeRows(
            own,
            _part(records, own, int(record_edges[number]), int(record_edges[number + 1])),
            int(edges[number + 1] - edges[number]),
            int(raw_edges[number + 1] - raw_edges[number]),
            CpuTime() if number else cpu,
        )
        for number, (plan, (_, own)) in enumerate(zip(plans, alike, strict=True))
    }
    cpu.went_to("mount")
    return made


def _numbered(
    slices: Sequence[tuple[SegmentSlice, pa.Table]], owners: _Numbers, plans: Sequence[PlanEntry], decoder: Decoder
) -> tuple[pa.RecordBatch | None, list[tuple[SegmentSlice, int]]]:
    """The rows in their entries' bounds, copied: `span_id` is the entry's number here, and all keys are the first
    one's table's. With the slices, and how many rows of each these are. None: a key is not one of its table's.
    """
    rows = pa.concat_batches([NO_ROWS, *(batch for _, table in slices for batch in table.to_batches())])
    pieces = np.repeat(np.arange(len(slices)), [table.num_rows for _, table in slices])
    entries = owners[pieces]
    after = np.array([plan.from_.commit_ts for plan in plans], np.uint64)
    upto = np.array([plan.to.commit_ts for plan in plans], np.uint64)
    commit_ts = rows.column("commit_ts").to_numpy()
    inside = (commit_ts > after[entries]) & (commit_ts <= upto[entries])
    if not inside.all():
        rows, pieces, entries = rows.filter(pa.array(inside)), pieces[inside], entries[inside]
    counts = np.bincount(pieces, minlength=len(slices)).tolist()
    keys = decoder.moved(rows.column("key"), [plan.table_id for plan in plans], entries)
    if keys is None:
        return None, []
    columns = {"span_id": pa.array(entries.astype(np.uint64)), "key": keys}
    arrays = [columns.get(name, rows.column(name)) for name in RAW_SCHEMA.names]
    numbered = pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)
    return numbered, [(piece, count) for (piece, _), count in zip(slices, counts, strict=True)]


def _edges(rows: pa.RecordBatch, alike: Sequence[object]) -> _Numbers:
    """Where each entry's rows begin, and the last one's end."""
    found: _Numbers = np.searchsorted(rows.column("span_id").to_numpy(), np.arange(len(alike) + 1))
    return found


def _record_edges(rows: pa.RecordBatch, edges: _Numbers, recipe: Recipe) -> _Numbers:
    """The same of what is mounted of them."""
    if not recipe.mounting.halve_updates:
        return edges
    before = np.zeros(rows.num_rows + 1, np.int64)  # updates before each row
    np.cumsum(rows.column("op").to_numpy() == OP_UPDATE, out=before[1:])
    return edges + before[edges]


def _part(records: Records | None, recipe: Recipe, first: int, end: int) -> Records | None:
    if records is None or end == first:
        return None
    return replace(sliced(records, first, end - first), table=recipe.table, written=recipe.selection.columns)
