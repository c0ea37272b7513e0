"""What a scan shows and what a frozen history tells afterwards: Entries bodies and messages, a batch at a time.

Generators that lock, queue and close nothing: `subscriptions.py` takes their steps.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..frozen import LIVE, SCANNED, FrozenHistory, ShardPart
from ..store.mvcc import ScannedVersion
from ..store.store import MvccStore
from ..store.txn import Lock
from . import events
from .connection import CdcRegistration, QueuedEvent

_STEP_VERSIONS = 1024
BATCH_BYTES = 1 << 20


class ScanSnapshot(NamedTuple):
    """What a scan has to show: versions above `after_ts` of changes up to `seq`, and the locks of that
    moment in key order.

    `frozen`: pieces of the frozen history with the number of their transactions that had happened at that moment.
    """

    seq: int
    after_ts: int
    locks: deque[Lock]
    frozen: list[tuple[ShardPart, int]]


def scanned(
    store: MvccStore, frozen: FrozenHistory, subscription: CdcRegistration, snapshot: ScanSnapshot
) -> Iterator[list[bytes]]:
    """The Entries bodies of a scan, in key order, _STEP_VERSIONS rows and about BATCH_BYTES at a time."""
    position = subscription.start
    for piece, happened in snapshot.frozen:
        # Nobody writes to its keys, but they may be locked.
        yield from _stored(store, subscription, snapshot, position, piece.end)
        first = piece.shard.first_after(snapshot.after_ts)
        coming = piece.bodies(piece.transactions(first, happened), SCANNED, frozen.stored)
        yield from _sized(body for _, bodies in coming for body in bodies)
        position = piece.end
    yield from _stored(store, subscription, snapshot, position, subscription.end)


def _stored(
    store: MvccStore, subscription: CdcRegistration, snapshot: ScanSnapshot, start: bytes, end: bytes
) -> Iterator[list[bytes]]:
    position: bytes | None = start
    if end and start >= end:
        position = None
    while position is not None:
        versions, following = store.scan_versions(position, end, snapshot.after_ts, snapshot.seq, _STEP_VERSIONS)
        found = _with_locks(versions, snapshot.locks, following or end or None)
        rows = events.scan_rows(item for item in found if not subscription.drops(_source(item)))
        yield from _sized(events.group_rows(rows))
        position = following


def played(
    frozen: FrozenHistory, subscription: CdcRegistration, snapshot: ScanSnapshot
) -> Iterator[tuple[QueuedEvent, ShardPart, int]]:
    """Return what of the frozen history had not happened at the snapshot, in the order of its ts.

    Messages of about BATCH_BYTES of whole transactions, each with the last transaction in it.
    """
    transactions = heapq.merge(
        *(_coming(frozen, piece, happened) for piece, happened in snapshot.frozen),
        key=lambda transaction: transaction[0].shard.start_of(transaction[1]),
    )
    frames: list[bytes] = []
    size = 0
    last: tuple[ShardPart, int] | None = None
    for piece, number, bodies in transactions:
        made = subscription.frames(bodies)
        length = sum(map(len, made))
        if last and size + length > BATCH_BYTES:
            yield QueuedEvent(size, b"".join(frames)), *last
            frames, size = [], 0
        frames += made
        size += length
        last = piece, number
    if last:
        yield QueuedEvent(size, b"".join(frames)), *last


def _coming(frozen: FrozenHistory, piece: ShardPart, happened: int) -> Iterator[tuple[ShardPart, int, list[bytes]]]:
    numbers = piece.transactions(happened, piece.shard.transactions)
    for number, bodies in piece.bodies(numbers, LIVE, frozen.stored):
        yield piece, number, bodies


def _sized(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lists of about BATCH_BYTES."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and size + len(body) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


def _with_locks(
    versions: list[ScannedVersion], locks: deque[Lock], following: bytes | None
) -> Sequence[Lock | ScannedVersion]:
    """A step's versions with the locks of its keys, a key's lock first. Takes those locks."""
    taken: list[Lock | ScannedVersion] = []
    while locks and (following is None or locks[0].key < following):
        taken.append(locks.popleft())
    if not taken:
        return versions
    return list(heapq.merge(taken, versions, key=lambda item: item.key))


def _source(item: Lock | ScannedVersion) -> int:
    return item.txn_source if isinstance(item, Lock) else item.version.txn_source
