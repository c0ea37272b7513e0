"""What the product knows of an upstream, whichever it is. Each kind of upstream has a folder beside this module."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from changefeed.errors import ChangefeedError
from changefeed.model.rows import RAW_SCHEMA, raw_bytes

OPS = ("delete", "update", "insert")  # by op (model.position)
_OP = RAW_SCHEMA.get_field_index("op")


@dataclass(frozen=True)
class Data:
    sub_id: int
    span_id: int
    batch: pa.RecordBatch  # RAW_SCHEMA, commit_ts > the subscription's start_ts; may repeat rows (rule 4)

    @cached_property
    def bytes(self) -> int:
        """Raw ones. Several ask, and of a batch with a row or two, a trickle's, it costs as much as all the rest."""
        return raw_bytes(self.batch)


@dataclass(frozen=True)
class Resolved:
    """Every row of the subscription with commit_ts <= ts has been handed on."""

    sub_id: int
    ts: int


@dataclass(frozen=True)
class SubscriptionFailed:
    """The subscription can't go on; it is released already."""

    sub_id: int
    error: ChangefeedError


FeedEvent = Data | Resolved | SubscriptionFailed


@dataclass(frozen=True)
class Stopped:
    """`store_id` READ: a read has met it. `reason`: of the condition UpstreamAvailable. `message`: with what to do."""

    store_id: int
    reason: str
    message: str


@dataclass(frozen=True)
class BlockedRegion:
    """A region's resolved-ts stays at `resolved_ts` while the transaction of `start_ts` lives; it has locked `key`.

    `ttl_ms`: how long after its start it dies, unless a heartbeat comes before.
    """

    sub_id: int
    resolved_ts: int
    start_ts: int
    key: bytes
    primary: bytes
    ttl_ms: int = 0


@dataclass
class FeedMetrics:
    """What a SpanFeed has done so far. `events`: rows by OPS; `errors`: by reason."""

    events: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    registrations: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0  # of the whole task
    finished_locks: int = 0  # of dead transactions
    pending_rows: int = 0  # now
    blocking_transactions: int = 0  # now: living ones that hold a resolved-ts back, as far as known
    congested_stores: int = 0  # now: those that have taken no registrations for a while
    blocking_s: float = 0.0  # since the oldest of them began

    def count(self, batch: pa.RecordBatch, size: int) -> None:
        """Rows of RAW_SCHEMA, of `size` raw bytes, have left the matcher."""
        self.bytes += size
        column = batch.column(_OP)  # bytes: a trickle's batch has a row or two, for which numpy takes longer
        ops = memoryview(column.buffers()[1])[column.offset :][: len(column)].tobytes()
        for number, op in enumerate(OPS):
            self.events[op] += ops.count(number)
