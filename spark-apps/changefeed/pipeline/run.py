"""One plan entry from segments to what its sink is given: read, sort, filter, mount in bounded chunks.

It is a function of the work and the upstream's history alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import NeedsHuman
from changefeed.eventstore.slices import SegmentSlice
from changefeed.pipeline.mounter import drop_unseen
from changefeed.pipeline.recipe import Recipe
from changefeed.pipeline.sorter import sort_parts
from changefeed.pipeline.work import WorkEntry
from changefeed.schema.table_info import TableInfo
from changefeed.sink.records import Records
from changefeed.sink.stages import CpuTime
from changefeed.upstream.decoders import decoder_of

_LOG = logging.getLogger(__name__)

#: A chunk ends at the row that reaches so many bytes: what is made of it stays in the processor's caches.
CHUNK_BYTES = 8 << 20
CELL_BYTES = 16  # that a decoded value takes beside those of its row, at about


class EntryRows:
    """An entry's rows as its sink shows them, in order and in bounded chunks. They can be taken once.

    Raises what `read` does, ProtocolViolation (copies of a row that differ), NeedsHuman (rows that can't be decoded).
    """

    def __init__(
        self,
        recipe: Recipe,
        entry: WorkEntry,
        read: Callable[[SegmentSlice], pa.Table],
        readers: Executor | None = None,
    ) -> None:
        """`readers`: to read several segments at a time."""
        self.recipe = recipe
        self.rows = self.raw_rows = self.filtered_rows = 0  # so far
        self.cpu = CpuTime()
        self._entry = entry
        self._read = read
        self._readers = readers

    def __iter__(self) -> Iterator[Records]:
        cpu, recipe, plan = self.cpu, self.recipe, self._entry.plan_entry
        cpu.resume()
        slices = read_slices(self._entry.segments, self._read, self._readers)
        cpu.went_to("read")
        for found in sort_parts(slices, recipe.table, plan.from_, plan.to, split=recipe.mounting.split):
            self.raw_rows += found.raw_rows
            cpu.went_to("sort")
            for chunk in chunks(drop_unseen(found.rows), len(recipe.selection.columns)):
                if records := self._mounted(chunk):
                    yield records
                    cpu.resume()

    def _mounted(self, chunk: pa.RecordBatch) -> Records | None:
        """None: nothing of it is written."""
        recipe = self.recipe
        kept = recipe.selection.rows.kept(chunk)
        self.filtered_rows += chunk.num_rows - kept.num_rows
        self.rows += kept.num_rows
        self.cpu.went_to("filter")
        if not kept.num_rows:
            return None
        check_integrity(recipe.integrity, kept, recipe.table)
        records = recipe.mount(kept)
        self.cpu.went_to("mount")
        return records


def read_slices(
    pieces: Sequence[SegmentSlice], read: Callable[[SegmentSlice], pa.Table], readers: Executor | None
) -> list[tuple[SegmentSlice, pa.Table]]:
    """Several at a time: hundreds of small segments in a store cost a round trip or two each, and next to no CPU."""
    tables = readers.map(read, pieces) if readers is not None and len(pieces) > 1 else map(read, pieces)
    return list(zip(pieces, tables, strict=True))


def chunks(rows: pa.RecordBatch, columns: int) -> Iterator[pa.RecordBatch]:
    """The rows in pieces that are small, also when `columns` are decoded; where one ends depends on the rows alone
    (rule 10).
    """
    if not rows.num_rows:
        return
    total = np.arange(1, rows.num_rows + 1) * (columns * CELL_BYTES)  # bytes up to the end of each row
    for name in ("value", "old_value"):
        column = rows.column(name)
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: rows.num_rows + 1].astype(np.int64)
        total += offsets[1:] - offsets[0]
    start = 0
    while start < rows.num_rows:
        before = int(total[start - 1]) if start else 0
        end = min(int(np.searchsorted(total, before + CHUNK_BYTES)) + 1, rows.num_rows)
        yield rows.slice(start, end - start)
        start = end


def check_integrity(integrity: Mapping[str, Any], rows: pa.RecordBatch, table: TableInfo) -> None:
    """Refuses, or reports, rows whose checksum is not that of their content (`spec.integrity`).

    `integrity`: of the effective spec. `rows`: RAW_SCHEMA; both what each row is and what it was.

    Raises NeedsHuman, or logs one warning for all of them, as `onCorruption` says.
    """
    if integrity["level"] == "None":
        return
    for side in ("value", "old_value"):
        values = pc.fill_null(rows.column(side), b"")
        there = pc.greater(pc.binary_length(values), 0)
        keys, values = rows.column("key").filter(there), values.filter(there)
        by = table.decoded_by
        wrong = decoder_of(by).wrong_rows(by, keys, values)
        if not len(wrong):
            continue
        key = table.said_key(keys[int(wrong[0])].as_py())
        said = f"table {table.full_name}, {key}: the row's checksum is not that of its content"
        if integrity["onCorruption"] == "Error":
            raise NeedsHuman(
                f"{said}.",
                "Compare the row with the upstream, run ADMIN CHECK TABLE, and fix it there; or let it pass with "
                "spec.integrity.onCorruption: Warn and a rewind (spec.restart): what was planned keeps its settings.",
            )
        _LOG.warning("%s; %d rows of this file are so.", said, len(wrong))
