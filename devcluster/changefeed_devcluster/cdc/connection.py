"""One stream of a client, its registrations, and the queue of what is to be sent on it.

Rows are encoded when the queue is drained, once for all who get them. Nothing here knows a store, a region or a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..store.txn import MAX_TS, RowChange, StoreChange
from ..watermark.advancer import WatermarkAdvancer
from . import events

_ROW_OVERHEAD = 64


class RegionRows:
    """The rows of one change in one region, encoded at the first need and then shared by all subscriptions."""

    __slots__ = ("_groups", "_high", "_low", "change", "rows", "size")

    def __init__(self, change: StoreChange, rows: list[RowChange]) -> None:
        # An empty row has no key that a part of the region could be found by.
        keys = [change.told_key(row) for row in rows]
        self.change = change
        self.rows = rows
        self._low = min(keys)
        self._high = max(keys)
        self.size = sum(len(row.key) + len(row.value) + len(row.old_value or b"") + _ROW_OVERHEAD for row in rows)
        self._groups: list[bytes] | None = None

    def of(self, subscription: CdcRegistration) -> list[RowChange] | None:
        """Return those in the subscription's range, None for all."""
        if subscription.is_whole or subscription.covers(self._low, self._high):
            return None
        return [row for row in self.rows if subscription.covers(key := self.change.told_key(row), key)]

    def groups(self, picked: list[RowChange] | None) -> list[bytes]:
        """Entries bodies of all rows, or of some."""
        if picked is not None:
            return events.group_rows(events.change_rows(self.change, picked))
        if self._groups is None:
            self._groups = events.group_rows(events.change_rows(self.change, self.rows))
        return self._groups


@dataclass(eq=False, slots=True)
class CdcRegistration:
    """One registration: (connection, request, region). `advancer` knows the PUT and DELETE locks of its range.

    `is_whole`: its range is all of the region. `initialized`: its scan is queued. When it `is_ripe` it is told
    resolved-ts: at the first tick if others of its region are told them already, else at the second. `held_ts`: the
    next start ts of a frozen history that is being played.
    """

    connection: CdcConnection
    request_id: int
    region_id: int
    epoch_version: int
    checkpoint_ts: int
    start: bytes
    end: bytes
    filter_loop: bool
    tags: tuple[bytes, bytes]
    advancer: WatermarkAdvancer = field(default_factory=lambda: WatermarkAdvancer(spares_large=False))
    held_ts: int = MAX_TS
    resolved_ts: int = 0
    is_whole: bool = False
    initialized: bool = False
    is_ripe: bool = False
    closed: bool = False

    def covers(self, low: bytes, high: bytes) -> bool:
        return self.start <= low and (not self.end or high < self.end)

    def drops(self, txn_source: int) -> bool:
        """Loop and lossy-DDL filtering (docs/design/tikv.md, Transaction sources)."""
        return txn_source > 0 and (txn_source >> 8 != 0 or (self.filter_loop and txn_source & 0xFF != 0))

    def frames(self, groups: Sequence[bytes]) -> list[bytes]:
        return [events.entries_event(*self.tags, group) for group in groups]


class LiveRows(NamedTuple):
    """Queue entry: rows of a change for a subscription; `picked` None means all.

    The `lane` of an entry says with which others it must stay in order, None: with all.
    """

    subscription: CdcRegistration
    rows: RegionRows
    picked: list[RowChange] | None

    @property
    def size(self) -> int:
        return self.rows.size

    @property
    def lane(self) -> tuple[int, int, str] | None:
        return self.subscription.request_id, self.subscription.region_id, "live"

    def frames(self) -> list[bytes]:
        return self.subscription.frames(self.rows.groups(self.picked))


class Frames(NamedTuple):
    """Queue entry: finished elements of ChangeDataEvent.events."""

    size: int
    done: list[bytes]
    lane: tuple[int, int, str] | None = None

    def frames(self) -> list[bytes]:
        return self.done


class QueuedEvent(NamedTuple):
    """Queue entry: a whole ChangeDataEvent."""

    size: int
    body: bytes
    lane: tuple[int, int, str] | None = None


class CdcConnection:
    """One stream of a client. `wake` is called, inside the store's lock, when the queue has got its first entry.

    `ticks`: how many resolved-ts of each region wait in the queue.
    """

    def __init__(self, store_id: int, multiplexing: bool, wake: Callable[[], None]) -> None:
        self.store_id = store_id
        self.multiplexing = multiplexing
        self.version: tuple[int, ...] | None = None
        self.subscriptions: dict[tuple[int, int], CdcRegistration] = {}
        self.queue: deque[LiveRows | Frames | QueuedEvent] = deque()
        self.pushed_bytes = 0
        self.sent_bytes = 0
        self.ticks = 0
        self._wake = wake
        self._awake = False

    def push(self, item: LiveRows | Frames | QueuedEvent) -> None:
        self.queue.append(item)
        self.pushed_bytes += item.size
        if not self._awake:
            self._awake = True
            self._wake()

    def drain(self) -> list[LiveRows | Frames | QueuedEvent]:
        """All that is queued; call it inside the store's lock."""
        items = list(self.queue)
        self.queue.clear()
        self.ticks = 0
        self._awake = False
        return items

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent. One side writes each counter: pushers inside the lock, and the sender."""
        return self.pushed_bytes - self.sent_bytes

    @property
    def batches_resolved(self) -> bool:
        return self.version is not None and self.version >= BATCH_RESOLVED_SINCE


BATCH_RESOLVED_SINCE = (4, 0, 8, 1)
CLUSTER_ID_SINCE = (5, 3, 0, 1)
