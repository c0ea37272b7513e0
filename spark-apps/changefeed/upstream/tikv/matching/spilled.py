"""Uncommitted rows that don't fit in memory: their bytes are in scratch files, an index of them is in memory.

In memory a row takes 13 bytes, its slot and some bits; a key or a value is read when a slot says that it may match.
Rows arrive whenever the matcher's memory is full, as a *piece*, which is one file: first all keys, then all values,
both in batches of BATCH_BYTES. Once everything that a piece can return has been returned, its values are truncated, and
when its keys are no longer needed either, the file is released.

A pure object except for its scratch files. A row is never both here and in the matcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from changefeed.upstream.scratch import Block, Scratch, ScratchFile
from changefeed.upstream.tikv.matching.fates import Fates
from changefeed.upstream.tikv.matching.pairs import Numbers
from changefeed.upstream.tikv.matching.slot_index import SlotIndex
from changefeed.upstream.tikv.matching.slots import Flags

#: Of rows that are read back at once, as they are in memory.
BATCH_BYTES = 8 << 20
#: Bits of a row. It is undecided; it is to be given out; its own COMMIT has not been seen.
PENDING, DUE, UNCONFIRMED = 1, 2, 4

_VALUES = ["type", "op_type", "value", "old_value", "txn_source"]
_ROW_BYTES = 64  # of the columns that are numbers, about
_NONE = np.empty(0, np.intp)


class Stretch(NamedTuple):
    """Neighbouring rows of one transaction in one registration: of a large one there are few."""

    reg: int
    start_ts: int
    commit_ts: int


class _SpilledColumns:
    """Some columns of a piece, a block of its file for each batch. Raises Unavailable."""

    def __init__(self, rows: pl.DataFrame, cuts: list[int], file: ScratchFile) -> None:
        self._file = file
        self._blocks: list[Block] = []
        for begin, end in pairwise(cuts):
            (batch,) = rows.slice(begin, end - begin).rechunk().to_arrow().combine_chunks().to_batches()
            self._schema = batch.schema
            self._blocks.append(file.append(batch.serialize()))

    @property
    def end(self) -> int:
        return self._blocks[-1].end

    def read(self, batch: int) -> pl.DataFrame:
        content: Any = pa.ipc.read_record_batch(self._file.read(self._blocks[batch]), self._schema)
        return pl.DataFrame(content)


class _SpilledRows:
    """Rows [first, end) of all that were ever spilled. `stretches`: where one begins."""

    def __init__(self, first: int, rows: pl.DataFrame, file: ScratchFile) -> None:
        self.first = first
        self.bits: npt.NDArray[np.uint8] = np.full(rows.height, PENDING, np.uint8)
        self.pending, self.is_owing = rows.height, False
        reg, start_ts = rows["reg"].to_numpy(), rows["start_ts"].to_numpy()
        begins = np.ones(rows.height, bool)
        begins[1:] = (reg[1:] != reg[:-1]) | (start_ts[1:] != start_ts[:-1])
        self._stretches = np.flatnonzero(begins)
        self.reg, self.start_ts = reg[self._stretches], start_ts[self._stretches]
        self.commit_ts = np.zeros(len(self._stretches), np.uint64)
        self._cuts = _cuts(rows)
        self._file = file
        self._keys = _SpilledColumns(rows[["key"]], self._cuts, file)
        self._values: _SpilledColumns | None = _SpilledColumns(rows[_VALUES], self._cuts, file)

    @property
    def end(self) -> int:
        return self.first + len(self.bits)

    @property
    def stretch_of_each(self) -> Numbers:
        return self.stretch_of(np.arange(len(self.bits)))

    def stretch_of(self, rows: Numbers) -> Numbers:
        return np.searchsorted(self._stretches, rows, "right") - 1

    def by_batch(self, rows: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yield (batch, which of the row numbers are in it, where in it these rows are)."""
        batches = np.searchsorted(self._cuts, rows, "right") - 1
        for batch in np.unique(batches).tolist():
            which = np.flatnonzero(batches == batch)
            yield batch, which, rows[which] - self._cuts[batch]

    def keys(self, batch: int) -> pl.Series:
        return self._keys.read(batch)["key"]

    def rows(self, batch: int, where: Numbers) -> pl.DataFrame:
        """Some rows of a batch, in all columns but the slot."""
        if self._values is None:
            raise ValueError("the values have been given out")
        rows = self._keys.read(batch).hstack(self._values.read(batch))
        of = self.stretch_of(where + self._cuts[batch])
        numbers = pl.DataFrame({name: getattr(self, name)[of] for name in ("reg", "start_ts", "commit_ts")})
        return (rows if len(where) == rows.height else rows[where]).hstack(numbers)

    def settle(self) -> bool:
        """Count, and give up the space of what nobody will ask for. False: nobody will ask for anything."""
        self.pending = int(np.count_nonzero(self.bits & PENDING))
        self.is_owing = bool((self.bits & DUE).any())
        if self._values is not None and not (self.pending or self.is_owing):
            self._values = None
            self._file.cut(self._keys.end)
        return bool(self.bits.any())


class Spilled:
    """What finds nothing, or has nothing to find, costs nothing."""

    def __init__(self, scratch: Scratch | None) -> None:
        """Without scratch nothing may be put here."""
        self._scratch = scratch
        self._pieces: list[_SpilledRows] = []
        self._slots = SlotIndex()
        self._next = 0  # row number

    @property
    def pending_rows(self) -> int:
        return sum(piece.pending for piece in self._pieces)

    @property
    def is_owing(self) -> bool:
        """Whether there are rows to be given out."""
        return any(piece.is_owing for piece in self._pieces)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is here, of which nothing is left in the index either."""
        return not self._pieces and self._slots.is_empty

    @property
    def start_ts(self) -> npt.NDArray[np.uint64]:
        """Transactions that have rows here, some of them more than once."""
        return np.concatenate([np.empty(0, np.uint64), *(piece.start_ts for piece in self._pieces)])

    def put(self, rows: pl.DataFrame) -> None:
        """Undecided rows with their slots. Raises Unavailable."""
        if self._scratch is None:
            raise ValueError("no scratch for rows that memory has no room for")
        piece = _SpilledRows(self._next, rows, self._scratch())
        self._next = piece.end
        self._pieces.append(piece)
        self._slots.add(piece.first, rows["slot"].to_numpy())

    def forget_closed(self, is_open: Flags) -> None:
        closed = [(piece, ~is_open[piece.reg]) for piece in self._pieces]
        touched = [(piece, over) for piece, over in closed if over.any()]
        for piece, over in touched:
            piece.bits[over[piece.stretch_of_each]] = 0
        self._settle(piece for piece, _ in touched)

    def take_back(self, prewrites: pl.DataFrame) -> tuple[Numbers, list[pl.DataFrame]]:
        """(which of these repeat what is decided, the pending rows that others repeat); the latter are here no more.

        Raises Unavailable.
        """
        repeats: list[Numbers] = []
        taken: list[pl.DataFrame] = []
        found = self._same(prewrites)
        for piece, i, at in found:
            pending = (piece.bits[at] & PENDING) > 0
            repeats.append(i[~pending])
            at, first = np.unique(at[pending], return_index=True)  # one may be repeated twice
            slots = prewrites["slot"].gather(i[pending][first])
            for batch, which, where in piece.by_batch(at):
                taken.append(piece.rows(batch, where).hstack([slots.gather(which)]))
            piece.bits[at] = 0
        self._settle(piece for piece, _, _ in found)
        return np.concatenate([_NONE, *repeats]), taken

    def roll_back(self, rollbacks: pl.DataFrame) -> None:
        found = self._same(rollbacks)
        for piece, _, at in found:
            piece.bits[at[(piece.bits[at] & PENDING) > 0]] = 0
        self._settle(piece for piece, _, _ in found)

    def decide(self, fates: Fates, initialized: Flags, floor: npt.NDArray[np.uint64]) -> list[Stretch]:
        """Rows whose commit ts is known are due from now on, but those at or below their registration's floor."""
        waiting = [piece for piece in self._pieces if piece.pending]
        if not waiting:
            return []
        reg = np.concatenate([piece.reg for piece in waiting])
        fate = fates.of(reg, np.concatenate([piece.start_ts for piece in waiting]))
        fate[~initialized[reg]] = 0
        ends = np.cumsum([len(piece.reg) for piece in waiting])
        known = [(p, own) for p, own in zip(waiting, np.split(fate, ends[:-1]), strict=True) if own.any()]
        decided: list[Stretch] = []
        for piece, own in known:
            of = piece.stretch_of_each
            moved = np.flatnonzero((own > 0)[of] & ((piece.bits & PENDING) > 0))
            here = np.unique(of[moved])
            columns = (piece.reg[here], piece.start_ts[here], own[here])
            decided += map(Stretch, *(column.tolist() for column in columns))
            piece.commit_ts = np.where(own > 0, own, piece.commit_ts)
            wanted = (own > floor[piece.reg])[of[moved]]
            piece.bits[moved] = np.where(wanted, DUE | UNCONFIRMED, UNCONFIRMED)
        self._settle(piece for piece, _ in known)
        return decided

    def confirm(self, commits: pl.DataFrame) -> Numbers:
        """Which of these commits are of rows that are decided. Raises Unavailable."""
        confirmed: list[Numbers] = []
        found = self._same(commits)
        for piece, i, at in found:
            awaited = (piece.bits[at] & UNCONFIRMED) > 0
            confirmed.append(i[awaited])
            piece.bits[at[awaited]] &= ~np.uint8(UNCONFIRMED)
        self._settle(piece for piece, _, _ in found)
        return np.concatenate([_NONE, *confirmed])

    def due(self, is_open: Flags) -> Iterator[pl.DataFrame]:
        """What is to be given out, a batch at a time, which is read when it is asked for. Raises Unavailable.

        `is_open` is looked at then too: a registration may be closed meanwhile.
        """
        for piece in [piece for piece in self._pieces if piece.is_owing]:
            for batch, which, where in piece.by_batch(due := np.flatnonzero(piece.bits & DUE)):
                wanted = is_open[piece.reg[piece.stretch_of(due[which])]]
                if wanted.any():
                    yield piece.rows(batch, where[wanted])
            piece.bits[due] &= ~np.uint8(DUE)
            self._settle([piece])

    def _same(self, rows: pl.DataFrame) -> list[tuple[_SpilledRows, Numbers, Numbers]]:
        """(piece, i, at): its rows `at` have reg, start_ts and key of rows `i`: found by slot, then compared."""
        if not self._pieces or not rows.height:
            return []
        i, numbers = self._slots.find(rows["slot"].to_numpy())
        holders = np.searchsorted([piece.first for piece in self._pieces], numbers, "right") - 1
        found = []
        for holder in np.unique(holders).tolist():
            piece, mine = self._pieces[holder], holders == holder
            one, at = self._equal(piece, rows, i[mine], numbers[mine] - piece.first)
            if len(at):
                found.append((piece, one, at))
        return found

    def _equal(self, piece: _SpilledRows, rows: pl.DataFrame, i: Numbers, at: Numbers) -> tuple[Numbers, Numbers]:
        of = piece.stretch_of(at)
        same = piece.bits[at] > 0
        for name, own in (("reg", piece.reg), ("start_ts", piece.start_ts)):
            same &= rows[name].to_numpy()[i] == own[of]
        i, at = i[same], at[same]
        equal = np.zeros(len(at), bool)
        for batch, which, where in piece.by_batch(at):
            equal[which] = (piece.keys(batch).gather(where) == rows["key"].gather(i[which])).to_numpy()
        return i[equal], at[equal]

    def _settle(self, touched: Iterable[_SpilledRows]) -> None:
        over = [piece for piece in touched if not piece.settle()]
        for piece in over:
            self._slots.drop(piece.first, piece.end)
        if over:
            self._pieces = [piece for piece in self._pieces if piece not in over]


def _cuts(rows: pl.DataFrame) -> list[int]:
    """Row numbers at which a batch of BATCH_BYTES begins, and the end."""
    sizes = sum(
        (rows[name].bin.size().cast(pl.Int64) for name in ("key", "value", "old_value")), pl.Series([_ROW_BYTES])
    )
    batch = (sizes.cum_sum().to_numpy() - 1) // BATCH_BYTES
    return [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), rows.height]
