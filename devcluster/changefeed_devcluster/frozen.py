"""A history that is made at once, encoded at once, and then only served: what measures how fast a client reads.

A shard is a run of new rows of one table, in key order, a transaction every TXN_ROWS rows. Its change data, or what
KvScan answers of it, is encoded by numpy before anybody may ask for it, so that serving a row costs nothing but copying
its bytes. Nobody ever writes to the keys of a frozen history, and none of it stands in the `MvccStore`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import keys
from .cdc.events import COMMIT, COMMITTED, PREWRITE, varint
from .store.txn import SHORT_VALUE
from .tidb.rows import encode_rows, row_blocks

TXN_ROWS = 128
"""Rows a transaction: as many of sysbench's as fill one Event of 32 KiB."""
ROWS_PER_SECOND = 2_000_000
"""How fast the history pretends to have been written: it sets the distance between two commit ts."""
_CHUNK = 64 * TXN_ROWS
_TICK = TXN_ROWS * 1000 * (1 << 18) // ROWS_PER_SECOND
_TS_BYTES = 9

Columns = Sequence[tuple[int, npt.NDArray[Any]]]
RowSource = Callable[[int, int], Columns]
"""(first handle, number of rows) → columns as `rows.row_blocks` takes them; the same for the same handles."""


class Pairs(NamedTuple):
    """Rows as KvScan answers with them. Row n is `content[borders[n]:borders[n + 1]]`."""

    content: bytes
    borders: npt.NDArray[np.int64]

    def of(self, first: int, stop: int) -> bytes:
        return self.content[self.borders[first] : self.borders[stop]]


@dataclass(eq=False)
class Shard:
    """Rows of the handles first..last. Transaction n has start ts `starts[n]` and commit ts `starts[n] + span`.

    `step`: from one start ts to the next; 0: they are all parts of one transaction.

    `happened`: the number of transactions that are in the past. A scan shows those; the rest is delivered live.
    """

    table_id: int
    first: int
    last: int
    source: RowSource
    start_ts: int
    step: int
    happened: int = 0
    encoded: list[bytes] = field(default_factory=list)
    pairs: Pairs | None = None

    @property
    def low(self) -> bytes:
        return keys.record_key(self.table_id, self.first)

    @property
    def end(self) -> bytes:
        return keys.record_key(self.table_id, self.last + 1)

    @property
    def transactions(self) -> int:
        return -(-(self.last - self.first + 1) // TXN_ROWS)

    def handles(self, transaction: int) -> tuple[int, int]:
        """The first and the last handle of a transaction."""
        first = self.first + transaction * TXN_ROWS
        return first, min(first + TXN_ROWS - 1, self.last)

    def start_of(self, transaction: int) -> int:
        return self.start_ts + transaction * self.step

    def commit_of(self, transaction: int) -> int:
        return self.start_of(transaction) + _TICK // 2

    def first_after(self, ts: int) -> int:
        """The first transaction with a commit ts above `ts`."""
        if not self.step:
            return self.transactions if ts >= self.commit_of(0) else 0
        return min(max((ts - self.commit_of(0)) // self.step + 1, 0), self.transactions)

    def encode(self, log_types: Sequence[int], first: int, last: int) -> Iterator[bytes]:
        """Entries bodies of the handles first..last, those of a transaction together: one for each log type."""
        while first <= last:
            offset = (first - self.first) % TXN_ROWS
            count = min(_CHUNK - offset, last - first + 1)
            handles = np.arange(first, first + count, dtype=np.int64)
            columns = self.source(first, count)
            starts = self.start_ts + (handles - self.first) // TXN_ROWS * self.step
            by_type = [_encode(log, self.table_id, handles, columns, starts) for log in log_types]
            cuts = [0, *range(TXN_ROWS - offset, count, TXN_ROWS), count]
            for begin, end in pairwise(cuts):
                for rows in by_type:
                    yield b"".join(rows[begin:end])
            first += count

    def encode_pairs(self) -> Pairs:
        """All its rows."""
        rows = []
        for first in range(self.first, self.last + 1, _CHUNK):
            handles = np.arange(first, min(first + _CHUNK, self.last + 1), dtype=np.int64)
            rows += _encode_pairs(self.table_id, handles, self.source(first, len(handles)))
        return Pairs(b"".join(rows), np.cumsum([0, *map(len, rows)]))


class ShardPart(NamedTuple):
    """The part of a shard that lies in a key range: handles first..last."""

    shard: Shard
    first: int
    last: int

    @property
    def low(self) -> bytes:
        return keys.record_key(self.shard.table_id, self.first)

    @property
    def end(self) -> bytes:
        return keys.record_key(self.shard.table_id, self.last + 1)

    def transactions(self, first: int, stop: int) -> range:
        """Return those of the transactions first..stop-1 that have rows in the piece."""
        low = (self.first - self.shard.first) // TXN_ROWS
        high = (self.last - self.shard.first) // TXN_ROWS + 1
        return range(max(low, first), min(high, stop))

    def bodies(
        self, transactions: range, log_types: Sequence[int], stored: Sequence[int]
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Number and Entries bodies of each transaction, of its rows in the piece: kept ones where that is right."""
        if log_types == stored:
            for number in transactions:
                yield number, self._stored(number, log_types)
        elif transactions:
            first = max(self.shard.handles(transactions[0])[0], self.first)
            last = min(self.shard.handles(transactions[-1])[1], self.last)
            made = self.shard.encode(log_types, first, last)
            yield from ((number, [next(made) for _ in log_types]) for number in transactions)

    def rows(self, ts: int, reverse: bool, at_once: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values that are visible at `ts`."""
        shard = self.shard
        visible = min(shard.first_after(ts), shard.happened)
        last = min(shard.handles(visible - 1)[1], self.last) if visible else self.first - 1
        starts = range(self.first, last + 1, at_once)
        for first in reversed(starts) if reverse else starts:
            handles = np.arange(first, min(first + at_once, last + 1), dtype=np.int64)
            values = encode_rows(shard.source(first, len(handles)))
            pairs = list(zip(keys.record_keys(shard.table_id, handles), values, strict=True))
            yield from reversed(pairs) if reverse else pairs

    def answer(self, ts: int, limit: int) -> bytes | None:
        """The first `limit` rows, if they were encoded for KvScan and all of the shard is visible at `ts`."""
        shard = self.shard
        if shard.pairs is None or min(shard.first_after(ts), shard.happened) < shard.transactions:
            return None
        first = self.first - shard.first
        return shard.pairs.of(first, first + min(limit, self.last - self.first + 1))

    def _stored(self, transaction: int, log_types: Sequence[int]) -> list[bytes]:
        first, last = self.shard.handles(transaction)
        if self.first <= first and last <= self.last:
            width = len(log_types)
            return self.shard.encoded[transaction * width : (transaction + 1) * width]
        return list(self.shard.encode(log_types, max(first, self.first), min(last, self.last)))


SCANNED = (COMMITTED,)
LIVE = (PREWRITE, COMMIT)


class FrozenHistory:
    """Shards in key order. `live`: nothing of it has happened yet, it is delivered as if it were written now.

    `one`: what is added at once is one transaction. `read`: it is encoded for KvScan; change data is made when it is
    asked for.
    """

    def __init__(self, live: bool = False, one: bool = False, read: bool = False) -> None:
        self.live = live
        self._one = one
        self._read = read
        self.stored: Sequence[int] = () if read else LIVE if live else SCANNED
        self.shards: list[Shard] = []
        self._lows: list[bytes] = []

    def add(self, runs: Sequence[tuple[int, int, int, RowSource]], base_ts: int) -> int:
        """Encodes runs of (table id, first handle, last handle, source), all written side by side above `base_ts`.

        Gives the last commit ts. The keys must be free, and no subscriber may have been told a ts above `base_ts`.
        """
        step = 0 if self._one else len(runs) * _TICK
        shards = [
            Shard(table_id, first, last, source, base_ts + (1 if self._one else number + 1) * _TICK, step)
            for number, (table_id, first, last, source) in enumerate(runs)
        ]
        for shard in shards:
            if self._read:
                shard.pairs = shard.encode_pairs()
            else:
                shard.encoded.extend(shard.encode(self.stored, shard.first, shard.last))
            shard.happened = 0 if self.live else shard.transactions
        self.shards = sorted([*self.shards, *shards], key=lambda shard: shard.low)
        self._lows = [shard.low for shard in self.shards]
        return max(shard.commit_of(shard.transactions - 1) for shard in shards)

    def pieces(self, start: bytes, end: bytes) -> list[ShardPart]:
        """Return what lies in the raw [start, end), in key order; an empty `end` has no bound."""
        begin = max(bisect_right(self._lows, start) - 1, 0)
        stop = bisect_left(self._lows, end) if end else len(self._lows)
        found = []
        for shard in self.shards[begin:stop]:
            first = shard.first if start <= shard.low else shard.first + _rank(shard, start)
            last = shard.last if not end or shard.end <= end else shard.first + _rank(shard, end) - 1
            if first <= last:
                found.append(ShardPart(shard, first, last))
        return found

    def answer(self, start: bytes, end: bytes, ts: int, limit: int) -> bytes | None:
        """Return the first `limit` rows of the raw [start, end) at `ts` as a ScanResponse; None: as `rows` has them."""
        found = []
        for piece in self.pieces(start, end):
            part = piece.answer(ts, limit)
            if part is None:
                return None
            found.append(part)
            limit -= min(limit, piece.last - piece.first + 1)
        return b"".join(found)

    def rows(
        self, start: bytes, end: bytes, ts: int, reverse: bool = False, at_once: int = _CHUNK
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the raw [start, end) at `ts`, in key order or in the opposite one.

        `at_once`: how many are made together.
        """
        pieces = self.pieces(start, end)
        for piece in reversed(pieces) if reverse else pieces:
            yield from piece.rows(ts, reverse, at_once)


def _rank(shard: Shard, key: bytes) -> int:
    """Say how many of the shard's keys are below `key`."""
    handles = range(shard.first, shard.last + 1)
    return bisect_left(handles, key, key=lambda handle: keys.record_key(shard.table_id, handle))


# --- rows of Entries, as `events.py` writes them, many at once ---


def _encode(
    log_type: int, table_id: int, handles: npt.NDArray[np.int64], columns: Columns, starts: npt.NDArray[np.int64]
) -> list[bytes]:
    """Elements of Entries.entries, one a row."""
    row_keys = keys.record_key_block(table_id, handles)
    found = np.empty(len(handles), object)
    for chosen, values in row_blocks(columns):
        parts: list[bytes | npt.NDArray[np.uint8]] = [b"\x08", _ts_block(starts[chosen])]
        if log_type != PREWRITE:
            parts += (b"\x10", _ts_block(starts[chosen] + _TICK // 2))
        parts += (bytes((0x18, log_type, 0x20, 1, 0x2A, row_keys.shape[1])), row_keys[chosen])
        if log_type != COMMIT or values.shape[1] <= SHORT_VALUE:
            parts += (b"\x32" + varint(values.shape[1]), values)
        found[chosen] = _framed(b"\x0a", parts, len(chosen))
    rows: list[bytes] = found.tolist()
    return rows


def _encode_pairs(table_id: int, handles: npt.NDArray[np.int64], columns: Columns) -> list[bytes]:
    """Elements of ScanResponse.pairs, one a row."""
    row_keys = keys.record_key_block(table_id, handles)
    found = np.empty(len(handles), object)
    for chosen, values in row_blocks(columns):
        parts = (bytes((0x12, row_keys.shape[1])), row_keys[chosen], b"\x1a" + varint(values.shape[1]), values)
        found[chosen] = _framed(b"\x12", parts, len(chosen))
    rows: list[bytes] = found.tolist()
    return rows


def _framed(tag: bytes, parts: Sequence[bytes | npt.NDArray[np.uint8]], count: int) -> list[bytes]:
    """The parts side by side in `count` rows, after the tag and length of an element."""
    size = sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)
    head = tag + varint(size)
    block = np.empty((count, len(head) + size), np.uint8)
    at = 0
    for part in (head, *parts):
        columns = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        width = columns.shape[-1]
        block[:, at : at + width] = columns
        at += width
    rows: list[bytes] = block.view(f"V{block.shape[1]}").ravel().tolist()
    return rows


def _ts_block(ts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Varints of ts of today: always nine bytes (docs/design/tikv.md, Timestamps)."""
    shifts = np.arange(0, 7 * _TS_BYTES, 7, dtype=np.int64)
    block = (ts[:, None] >> shifts & 0x7F).astype(np.uint8)
    block[:, :-1] |= 0x80
    return block
