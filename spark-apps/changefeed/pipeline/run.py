"""One plan entry from segments to spooled file: read, sort, mount, encode in bounded chunks.

The bytes are a function of the work and the upstream's history alone; where they are spooled is not part of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from changefeed.model.record import FileCommitted, SegmentSlice, Work, WorkEntry
from changefeed.objectstore.patience import Patience
from changefeed.pipeline.integrity import check_integrity
from changefeed.pipeline.mounter import drop_unseen, mount
from changefeed.pipeline.recipe import Recipes
from changefeed.pipeline.sorter import sort_parts
from changefeed.pipeline.spool import Spool
from changefeed.pipeline.stages import CpuTime

#: A chunk ends at so many rows, or at the row that reaches so many raw bytes; both depend on the rows alone (rule 10).
CHUNK_ROWS = 100_000
CHUNK_BYTES = 32 << 20

_RECIPES = Recipes()


@dataclass(frozen=True)
class Encoded:
    """A plan entry's file, complete; `cpu`: seconds by pipeline.stages.STAGES."""

    path: str
    file: FileCommitted
    spool: Spool
    cpu: Mapping[str, float]


def encode_entry(
    work: Work,
    entry: WorkEntry,
    read: Callable[[SegmentSlice], pa.Table],
    spool_dir: Path,
    patience: Patience | None = None,
    readers: Executor | None = None,
) -> Encoded:
    """The entry's file, whose spool is the caller's to put and discard. `readers`: to read several segments at a time.

    An entry without rows gives a file too (rule 13). No spool file is left when it fails: raises what `read` raises,
    ProtocolViolation (copies of a row that differ), NeedsHuman (rows that cannot be decoded), Unavailable (no room to
    spool, until `patience` ends).
    """
    spool = Spool(spool_dir / f"{work.record}-{entry.plan_entry.entry}-{secrets.token_hex(8)}", patience)
    try:
        return _encode(work, entry, read, spool, readers)
    except BaseException:
        spool.discard()
        raise


def _encode(
    work: Work,
    entry: WorkEntry,
    read: Callable[[SegmentSlice], pa.Table],
    spool: Spool,
    readers: Executor | None,
) -> Encoded:
    plan = entry.plan_entry
    recipe = _RECIPES.of(work, plan.table_info)
    table, codec, selection = recipe.table, recipe.codec, recipe.selection
    cpu = CpuTime()
    slices = _read(entry.segments, read, readers)
    cpu.went_to("read")
    raw_rows = filtered = written = 0
    if head := codec.header(selection.columns):
        spool.append(pa.py_buffer(head))
    for found in sort_parts(slices, table, plan.from_, plan.to, split=recipe.split):
        raw_rows += found.raw_rows
        cpu.went_to("sort")
        for chunk in _chunks(drop_unseen(found.rows)):
            kept = selection.rows.kept(chunk)
            filtered += chunk.num_rows - kept.num_rows
            cpu.went_to("filter")
            if not kept.num_rows:
                continue
            check_integrity(recipe.integrity, kept, table)
            records = mount(
                kept,
                table,
                recipe.time_zone,
                written=selection.columns,
                halve_updates=codec.halve_updates,
                with_old=codec.with_old,
            )
            cpu.went_to("mount")
            pieces = list(codec.encode(records, work.pd_ms))
            cpu.went_to("encode")
            for lines in pieces:
                spool.append(lines)
            cpu.went_to("spool")
            written += kept.num_rows
    file = FileCommitted(
        plan=work.record,
        entry=plan.entry,
        rows=written,
        raw_rows=raw_rows,
        filtered_rows=filtered,
        bytes=spool.length,
        hash=spool.hash,
    )
    return Encoded(plan.path, file, spool, cpu.seconds)


def _read(
    pieces: Sequence[SegmentSlice], read: Callable[[SegmentSlice], pa.Table], readers: Executor | None
) -> list[tuple[SegmentSlice, pa.Table]]:
    """Several at a time: hundreds of small segments in a store cost a round trip or two each, and next to no CPU."""
    tables = readers.map(read, pieces) if readers is not None and len(pieces) > 1 else map(read, pieces)
    return list(zip(pieces, tables, strict=True))


def _chunks(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not rows.num_rows:
        return
    total = np.zeros(rows.num_rows, np.int64)  # bytes up to the end of each row
    for name in ("value", "old_value"):
        column = rows.column(name)
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: rows.num_rows + 1].astype(np.int64)
        total += offsets[1:] - offsets[0]
    start = 0
    while start < rows.num_rows:
        before = int(total[start - 1]) if start else 0
        full = int(np.searchsorted(total, before + CHUNK_BYTES)) + 1
        end = min(start + CHUNK_ROWS, full, rows.num_rows)
        yield rows.slice(start, end - start)
        start = end
