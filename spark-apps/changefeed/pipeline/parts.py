"""Cuts an entry that is too large to be sorted at once into parts, in the order of positions (rule 12).

1. *Many transactions.* A part is some whole commit ts, as many as fit.
2. *One commit ts that does not fit.* It is cut by what positions go by next: transaction, op, key. For each part of it
   the rows of every op with these keys are read: an update of a unique key has its halves among the deletes and the
   inserts, and copies of a row that differ must meet (rule 4).

Rows are looked at where they stand, and found by their order. Segments on a local disk are mapped, so what a part does
not need costs no memory.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.model.order import BY_POSITION, ordered
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE

#: Of raw rows in a part: sorting and encoding them takes some three times as much, and is cheap while that is cached.
PART_BYTES = 8 << 20
_SAMPLES = 64  # keys that are looked at for each cut


@dataclass(frozen=True)
class Zone:
    """Inside one commit ts: the rows of one op of one transaction, with keys above `after` up to `upto`; None: all."""

    start_ts: int
    op: int
    after: bytes | None
    upto: bytes | None


@dataclass(frozen=True)
class Part:
    """Rows with first_ts <= commit ts <= last_ts."""

    first_ts: int
    last_ts: int
    zone: Zone | None = None

    def select(self, rows: OrderedRows) -> list[pa.RecordBatch]:
        """What must be read for it, in pieces that have rows."""
        first, end = rows.of_ts(self.first_ts, self.last_ts)
        pieces = [(first, end)] if self.zone is None else rows.of_zone(first, end, self.zone)
        return [rows.batch.slice(first, end - first) for first, end in pieces if first < end]

    def owns(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which of the rows that were read are its own, by their start ts and op."""
        if self.zone is None:
            return np.ones(rows.num_rows, np.bool_)
        owned: npt.NDArray[np.bool_] = rows.column("start_ts").to_numpy() == self.zone.start_ts
        owned &= rows.column("op").to_numpy() == self.zone.op
        return owned


@dataclass(frozen=True)
class OrderedRows:
    """Rows that stand by position, as those of a segment's batches do."""

    batch: pa.RecordBatch

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> OrderedRows:
        return cls(ordered(batch, BY_POSITION))

    @cached_property
    def commit_ts(self) -> npt.NDArray[np.uint64]:
        found: npt.NDArray[np.uint64] = self.batch.column("commit_ts").to_numpy()
        return found

    @cached_property
    def _keys(self) -> pa.BinaryArray:
        return self.batch.column("key")

    def key(self, row: int) -> bytes:
        key: bytes = self._keys[row].as_py()
        return key

    def of_ts(self, first_ts: int, last_ts: int) -> tuple[int, int]:
        """The rows with first_ts <= commit ts <= last_ts, as [first, end)."""
        first = np.searchsorted(self.commit_ts, np.uint64(first_ts))
        return int(first), int(np.searchsorted(self.commit_ts, np.uint64(last_ts), side="right"))

    def of_zone(self, first: int, end: int, zone: Zone) -> list[tuple[int, int]]:
        """Those of [first, end), rows of one commit ts, that a zone's keys have, whatever transaction and op."""
        return [
            (
                low if zone.after is None else self._behind(zone.after, low, high),
                high if zone.upto is None else self._behind(zone.upto, low, high),
            )
            for low, high in self.runs(first, end)
        ]

    def runs(self, first: int, end: int) -> list[tuple[int, int]]:
        """The rows of [first, end), of one commit ts, parted by transaction and op: each run stands by key."""
        if first == end:
            return []
        low, high = np.searchsorted(self._borders, (first + 1, end))
        return list(pairwise((first, *self._borders[low:high].tolist(), end)))

    @cached_property
    def _borders(self) -> npt.NDArray[np.int64]:
        """Each row that has another transaction or op than the one before it."""
        start_ts, op = (self.batch.column(name).to_numpy() for name in ("start_ts", "op"))
        return 1 + np.flatnonzero((start_ts[1:] != start_ts[:-1]) | (op[1:] != op[:-1]))

    def _behind(self, key: bytes, low: int, high: int) -> int:
        """The first row of a run [low, high) with a higher key."""
        if key < self.key(low):  # most batches are outside of a zone
            return low
        if self.key(high - 1) <= key:
            return high
        return bisect_right(range(high), key, low, key=self.key)


def cut(rows: Sequence[OrderedRows], first_ts: int, last_ts: int, size: int, *, split: bool) -> Iterator[Part]:
    """Parts of about `size` bytes that hold the rows (RAW_SCHEMA) with first_ts <= commit ts <= last_ts.

    `split`: updates may be halved.
    """
    found = [_bytes_by_ts(each, first_ts, last_ts) for each in rows if each.batch.num_rows]
    if not sum(len(ts) for ts, _ in found):
        return
    every_ts, index = np.unique(np.concatenate([ts for ts, _ in found]), return_inverse=True)
    total = np.cumsum(np.bincount(index, np.concatenate([held for _, held in found])))
    first = 0
    while first < len(every_ts):
        before = float(total[first - 1]) if first else 0.0
        end = max(int(np.searchsorted(total, before + size, side="right")), first + 1)
        ts, pieces = int(every_ts[first]), math.ceil((float(total[first]) - before) / size)
        if pieces > 1:
            yield from (Part(ts, ts, zone) for zone in _zones(rows, ts, pieces, split))
        else:
            yield Part(ts, int(every_ts[end - 1]))
        first = end


def _bytes_by_ts(
    rows: OrderedRows, first_ts: int, last_ts: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """Each commit ts, and about how many bytes its rows have."""
    first, end = rows.of_ts(first_ts, last_ts)
    inside = rows.commit_ts[first:end]
    begins = np.flatnonzero(np.diff(inside, prepend=inside[:1] - np.uint64(1)))
    count = np.diff(begins, append=len(inside))
    return inside[begins], count * (rows.batch.nbytes / rows.batch.num_rows)


def _zones(rows: Sequence[OrderedRows], commit_ts: int, pieces: int, split: bool) -> Iterator[Zone]:
    found = [(each, *each.of_ts(commit_ts, commit_ts)) for each in rows]
    step = max(1, sum(end - first for _, first, end in found) // (_SAMPLES * pieces))
    keys: list[bytes] = []
    ops: dict[int, set[int]] = {}
    for each, first, end in found:
        start_ts, op = each.batch.column("start_ts"), each.batch.column("op")
        for low, _ in each.runs(first, end):
            ops.setdefault(start_ts[low].as_py(), set()).add(op[low].as_py())
        keys += map(each.key, range(first, end, step))
    bounds = _bounds(sorted(keys), pieces)
    for transaction in sorted(ops):
        for shown in sorted(_shown(ops[transaction], split)):
            for after, upto in zip([None, *bounds], [*bounds, None], strict=True):
                yield Zone(transaction, shown, after, upto)


def _bounds(keys: list[bytes], pieces: int) -> list[bytes]:
    """Keys that part the sorted ones evenly."""
    return sorted({keys[number * len(keys) // pieces] for number in range(1, pieces)})


def _shown(ops: set[int], split: bool) -> set[int]:
    """What positions rows of these ops may have."""
    return ops | {OP_DELETE, OP_INSERT} if split and OP_UPDATE in ops else ops
