"""Cuts an entry that is too large to be sorted at once into parts, in the order of positions (rule 12).

1. *Many transactions.* A part is some whole commit ts, as many as fit.
2. *One commit ts that does not fit.* It is cut by what positions go by next: transaction, op, key. For each part of it
   the rows of every op with these keys are read: an update of a unique key has its halves among the deletes and the
   inserts, and copies of a row that differ must meet (rule 4).

Rows are looked at where they stand. Segments on a local disk are mapped, so what a part does not need costs no memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE

#: Of raw rows in a part: sorting and encoding them takes some three times as much, and is cheap while that is cached.
PART_BYTES = 8 << 20
#: Of those of a commit ts, which is cut only beyond it: whoever looks for the rows of a zone looks at all keys.
ZONE_BYTES = 48 << 20
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

    def select(self, rows: pa.Table) -> pa.Table:
        """What must be read for it."""
        commit_ts = rows["commit_ts"].to_numpy()
        wanted = (commit_ts >= self.first_ts) & (commit_ts <= self.last_ts)
        if self.zone is not None:
            wanted &= _between(rows["key"], self.zone.after, self.zone.upto)
        found = np.flatnonzero(wanted)
        first = int(found[0]) if len(found) else 0
        # A slice's rows stand by commit ts: those of a part are neighbours, and copied when they are sorted.
        together = bool(wanted[first : first + len(found)].all())
        return rows.slice(first, len(found)) if together else rows.filter(pa.array(wanted))

    def owns(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which of the rows that were read are its own, by their start ts and op."""
        if self.zone is None:
            return np.ones(rows.num_rows, np.bool_)
        owned: npt.NDArray[np.bool_] = rows.column("start_ts").to_numpy() == self.zone.start_ts
        owned &= rows.column("op").to_numpy() == self.zone.op
        return owned


def cut(
    tables: Sequence[pa.Table], first_ts: int, last_ts: int, size: int, zone_size: int, *, split: bool
) -> Iterator[Part]:
    """Parts of about `size` bytes that hold the rows of the tables (RAW_SCHEMA) with first_ts <= commit ts <= last_ts;
    a commit ts of more than both is cut into those of `zone_size`.

    `split`: updates may be halved.
    """
    found = [_bytes_by_ts(rows, first_ts, last_ts) for rows in tables if rows.num_rows]
    if not sum(len(ts) for ts, _ in found):
        return
    every_ts, index = np.unique(np.concatenate([ts for ts, _ in found]), return_inverse=True)
    total = np.cumsum(np.bincount(index, np.concatenate([held for _, held in found])))
    first = 0
    while first < len(every_ts):
        before = float(total[first - 1]) if first else 0.0
        end = max(int(np.searchsorted(total, before + size, side="right")), first + 1)
        ts, pieces = int(every_ts[first]), math.ceil((float(total[first]) - before) / max(size, zone_size))
        if pieces > 1:
            yield from (Part(ts, ts, zone) for zone in _zones(tables, ts, pieces, split))
        else:
            yield Part(ts, int(every_ts[end - 1]))
        first = end


def _bytes_by_ts(rows: pa.Table, first_ts: int, last_ts: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """Each commit ts, and about how many bytes its rows have."""
    commit_ts = rows["commit_ts"].to_numpy()
    inside = commit_ts[(commit_ts >= first_ts) & (commit_ts <= last_ts)]
    ts, count = np.unique(inside, return_counts=True)
    return ts, count * (rows.nbytes / rows.num_rows)


def _zones(tables: Sequence[pa.Table], commit_ts: int, pieces: int, split: bool) -> Iterator[Zone]:
    keys: list[bytes] = []
    ops: dict[int, set[int]] = {}
    for rows in tables:
        there = np.flatnonzero(rows["commit_ts"].to_numpy() == commit_ts)
        if not len(there):
            continue
        start_ts, op = rows["start_ts"].to_numpy()[there], rows["op"].to_numpy()[there]
        for transaction in np.unique(start_ts):
            ops.setdefault(int(transaction), set()).update(np.unique(op[start_ts == transaction]).tolist())
        step = max(1, len(there) // (_SAMPLES * pieces))
        keys += rows["key"].take(pa.array(there[::step])).to_pylist()
    bounds = _bounds(sorted(keys), pieces)
    for transaction in sorted(ops):
        for op in sorted(_shown(ops[transaction], split)):
            for after, upto in zip([None, *bounds], [*bounds, None], strict=True):
                yield Zone(transaction, op, after, upto)


def _bounds(keys: list[bytes], pieces: int) -> list[bytes]:
    """Keys that part the sorted ones evenly."""
    return sorted({keys[number * len(keys) // pieces] for number in range(1, pieces)})


def _shown(ops: set[int], split: bool) -> set[int]:
    """What positions rows of these ops may have."""
    return ops | {OP_DELETE, OP_INSERT} if split and OP_UPDATE in ops else ops


def _between(keys: pa.ChunkedArray, after: bytes | None, upto: bytes | None) -> npt.NDArray[np.bool_]:
    wanted = np.ones(len(keys), np.bool_)
    if after is not None:
        wanted &= pc.greater(keys, pa.scalar(after, keys.type)).to_numpy()
    if upto is not None:
        wanted &= pc.less_equal(keys, pa.scalar(upto, keys.type)).to_numpy()
    return wanted
