"""Row messages that wait for the end of their transaction: in memory, or, of a large one, in a scratch file.

The server has decided by then: it sends nothing of what is not committed, and keeps a large transaction on its disk
until it is. What it sends then still has to be looked at as a whole, as a row may be changed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from changefeed.upstream.postgresql.pgoutput.row_messages import RowMessages, gathered
from changefeed.upstream.postgresql.pgoutput.tuples import joined, view_of
from changefeed.upstream.scratch import Block, Scratch, ScratchFile

#: Of rows that are looked at together; and about what an open transaction has in memory.
PART_BYTES = 16 << 20
#: Some rows, which are read when they are asked for. Raises Unavailable.
Part = Callable[[], RowMessages]

_STORED = pa.schema([("message", pa.binary()), ("relation", pa.int64()), ("commit", pa.int64())])


class HeldRows:
    """Rows of several transactions, of which the last is open. `scratch`: None: all stay in memory."""

    def __init__(self, scratch: Scratch | None) -> None:
        self._scratch = scratch
        self._file: ScratchFile | None = None
        self._stored: list[Part] = []  # of the open transaction, ahead of what is in memory
        self._rows: list[RowMessages] = []

    def add(self, rows: RowMessages) -> None:
        """More, behind what there is."""
        self._rows.append(rows)

    def empty(self, commit: int, relations: Sequence[int]) -> None:
        """What the open transaction has done to these is gone by a Truncate."""
        without = partial(_without, commit=commit, relations=relations)
        self._stored = [partial(_read, part, without) for part in self._stored]
        self._rows = [without(rows) for rows in self._rows]

    def take(self, behind: int) -> list[Part]:
        """Those of transactions before number `behind`, which are over."""
        parts, self._stored, self._file = self._stored, [], None
        over = [(rows, rows.commits < behind) for rows in self._rows]
        self._rows = [rows.only(~chosen) for rows, chosen in over if not chosen.all()]
        ready = [rows if chosen.all() else rows.only(chosen) for rows, chosen in over if chosen.any()]
        return [*parts, *(partial(_same, rows) for rows in gathered(ready, PART_BYTES))]

    def shrink(self) -> None:
        """All are of one transaction: put them aside if they are many. Raises Unavailable."""
        if self._scratch is None or sum(rows.bytes for rows in self._rows) <= PART_BYTES:
            return
        if self._file is None:
            self._file = self._scratch()
        self._stored += [aside(rows, self._file) for rows in gathered(self._rows, PART_BYTES)]
        self._rows = []


def aside(rows: RowMessages, file: ScratchFile | None) -> Part:
    """Put them into the file; None: they stay where they are. Raises Unavailable."""
    if file is None:
        return partial(_same, rows)
    messages = joined(view_of(rows.data), [(rows.starts, rows.ends)])
    columns = [messages, pa.array(rows.relations), pa.array(rows.commits)]
    return partial(_restored, file, file.append(pa.RecordBatch.from_arrays(columns, schema=_STORED).serialize()))


def _restored(file: ScratchFile, block: Block) -> RowMessages:
    batch: Any = pa.ipc.read_record_batch(file.read(block), _STORED)
    _, offsets, data = batch["message"].buffers()
    bounds = np.frombuffer(offsets, np.int32)[: batch.num_rows + 1].astype(np.int64)
    messages = np.frombuffer(data, np.uint8)
    kinds = messages[bounds[:-1]]
    relations, commits = batch["relation"].to_numpy(), batch["commit"].to_numpy()
    return RowMessages(messages, bounds[:-1], bounds[1:], kinds, relations, commits)


def _same(rows: RowMessages) -> RowMessages:
    return rows


def _read(part: Part, changed: Callable[[RowMessages], RowMessages]) -> RowMessages:
    return changed(part())


def _without(rows: RowMessages, commit: int, relations: Sequence[int]) -> RowMessages:
    return rows.only(~((rows.commits == commit) & np.isin(rows.relations, relations)))
