"""What the product knows of an upstream, whichever it is. Each kind of upstream has a folder beside this module.

A ts is a hybrid time: milliseconds since 1970, shifted by 18 bits, and a counter (model.tso). Who assigns it is the
upstream's business; these hold for all:

- *A commit has one ts*, and changes a row at most once. The ts is the same whenever the commit is read again, after
  any failure.
- *Order.* Of two commits that change one row, or one table's definition and its rows, the later has the higher ts.
- *A resolved-ts is kept.* No row or change of schema at or below one comes for the first time after it.
- *A change of schema at T comes after every row at T*: rows at T have the definition of before.
- *Rows may come twice*, each time with the same start_ts, op and bytes, but never not at all: where history is gone,
  SnapshotLostByGC takes their place.
- *History is held before it is needed*: nothing is read at or after a ts before `HistoryLease.hold(ts)` has returned.

The numbers of rules below are those of docs/design/rules.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changefeed.clock import Clock
from changefeed.errors import ChangefeedError, ProtocolViolation
from changefeed.model.rows import RAW_SCHEMA, raw_bytes
from changefeed.model.table_copy import TableCopy
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import ColumnInfo, TableInfo

#: How long a call waits for an upstream that does not answer, in seconds.
PATIENCE_S = 20.0
#: How often who drives a changefeed renews its hold, in seconds.
RENEW_S = 60.0
#: How long what a server sends waits for more of it, if it is little.
GATHER_SECONDS = 0.2
#: The bounds of all keys that a table has.
WHOLE_TABLE = (b"", b"")
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
    """Every row of the subscription with commit_ts <= ts has been handed on; or every change of schema up to ts.

    It keeps coming, with a rising ts, while nothing is written. In a SchemaFeed `sub_id` means nothing.
    """

    sub_id: int
    ts: int


@dataclass(frozen=True)
class SubscriptionFailed:
    """The subscription can't go on; it is released already."""

    sub_id: int
    error: ChangefeedError


@dataclass(frozen=True)
class SchemaNews:
    """`content`: of a change of schema at `ts`; b"": all changes of schema up to `ts` have been told.

    Of an upstream whose changes of schema stand among its rows: `SchemaFeed.hear` gets what the feed of rows meets, and
    knows what `content` means. They come in the order of their ts, and ahead of the rows that are written under the
    change; b"" follows each sooner or later. A feed that begins again tells them again, from where it begins.
    """

    ts: int
    content: bytes


FeedEvent = Data | Resolved | SchemaNews | SubscriptionFailed


#: The reason of one that keeps in memory what this side does not read.
BEHIND = "PullersBehind"


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


class Feed(Protocol):
    """Pulls rows of tables: `async with upstream.feed(emit) as feed: feed.subscribe(...)`.

    `emit` of an event is awaited before the next of the same subscription. An error that is no single subscription's
    ends the `async with` block and leaves it as it is, not in an exception group, even if a background task meets it.
    """

    metrics: FeedMetrics

    async def __aenter__(self) -> Feed: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def subscribe(
        self,
        sub_id: int,
        span_id: int,
        start_key: bytes,
        end_key: bytes,
        start_ts: int,
        copy: TableCopy | None = None,
        reached_ts: int = 0,
    ) -> None:
        """Pull rows of the physical table `span_id` with commit_ts > start_ts.

        `[start_key, end_key)`: a part of it; b"" is its beginning, or its end. A sub_id is used once, ever. Parts of a
        table that is not copied are pulled at once, also by several feeds.

        `copy`: start_ts is inside of it. Then the rows as of `copy.ts` come first, chunk by chunk of
        `copy.chunks(start_ts)`: as inserts at the chunk's ts with start_ts 0, and a Resolved behind each chunk. One at
        `copy.ts` is behind all of them, and changes above it follow.

        `reached_ts`: no row above it has been read of any table, also of those that nobody pulls now.
        """
        ...

    def release(self, sub_id: int) -> None:
        """Stop pulling; no event of the subscription follows, but one whose `emit` is running."""
        ...

    def hold(self, sub_id: int) -> None:
        """Stop pulling until `resume` (rule 17). Held already, or unknown: nothing happens."""
        ...

    def resume(self, sub_id: int) -> None:
        """Pull again, from the subscription's resolved-ts; rows above that may repeat."""
        ...

    def blocked(self) -> list[tuple[int, BlockedRegion]]:
        """Spans, and living transactions that hold them back, the lowest first."""
        return []

    def stopped(self) -> Stopped | None:
        """A server that sends nothing or not all, with the reason; None while no such is known."""
        return None

    def congested(self) -> list[Stopped]:
        """The servers that have taken no registrations for a while."""
        return []


@dataclass(frozen=True)
class SchemaStep:
    """The change takes effect at `ts`, behind all that were handed on before it."""

    change: SchemaChange
    ts: int


SchemaEvent = SchemaStep | Resolved | SubscriptionFailed


class SchemaFeed(Protocol):
    """Pulls changes of schema: `async with upstream.schema_feed(schema, emit): ...`.

    `emit` raises NeedsHuman for a change that can't be followed. SubscriptionFailed with that error is then the last
    event: a resolved-ts behind it would let rows pass the change. The same goes for changes that can't be pulled.
    Other errors leave the block as a Feed's do.
    """

    async def __aenter__(self) -> SchemaFeed: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def stopped(self) -> Stopped | None:
        """As Feed.stopped."""
        return None

    def hear(self, ts: int, content: bytes) -> None:
        """A SchemaNews, in the order in which the feed that met it has told it. Returns at once.

        Raises ProtocolViolation where no feed of rows tells any.
        """
        raise ProtocolViolation(
            f"A puller tells of a change of schema at {ts}, which this upstream does not have among its rows.",
            "Restart the changefeed; if this happens again, report it as a bug.",
        )


@dataclass(frozen=True)
class KeptLog:
    """What an upstream keeps of its log for a hold, where it says so.

    `state`: its own word for that. `most_bytes`: of more it lets the hold go; None: there is no such bound. `gone_ms`:
    when it would, as things go, by its clock; None: not foreseen. `warning`: what is about to be lost, and what to do,
    in words that stay the same while it is so.
    """

    bytes: int
    state: str = ""
    most_bytes: int | None = None
    gone_ms: int | None = None
    warning: str = ""


@dataclass(frozen=True)
class HeldUntil:
    """Every change with commit_ts >= `ts` stays readable until `until_ms`, by the upstream's clock (ms since 1970)."""

    ts: int
    until_ms: int
    kept: KeptLog | None = None


@dataclass(frozen=True)
class Hold:
    """Every change with commit_ts >= `ts` is kept until `until_ms` by the upstream's clock; None: for ever.

    `ts` 0: the upstream does not say. `is_read`: somebody reads what it keeps, as far as the upstream knows of readers.
    """

    name: str
    ts: int
    until_ms: int | None
    is_read: bool = False


class HistoryLease(Protocol):
    """One changefeed's hold on the upstream's history. It lapses `ttl_seconds` after the last `hold`.

    `held` is what that got, None before it. Another `ttl_seconds` counts from the next `hold` on.
    """

    ttl_seconds: int

    @property
    def held(self) -> HeldUntil | None: ...

    async def begin(self, lead: int = 0) -> int:
        """Make the hold, for a first start: a ts from which on every change is readable. Raises Transient.

        `lead`: what the changefeed holds from then on begins so much below that ts.
        """
        ...

    async def hold(self, ts: int) -> None:
        """Keep every change with commit_ts >= `ts` readable. Raises SnapshotLostByGC, Transient."""
        ...

    async def remove(self) -> None:
        """Let history go; only after the changefeed's `closed` record."""
        ...


class Decoder(Protocol):
    """What the bytes of an upstream's rows say. `keys` and `values` are as its feed hands them on.

    Values have the types of `schema.values`. All raise NeedsHuman, naming table and key, for what can't be decoded.
    `pads_char`: a CHAR has blanks up to its length.
    """

    pads_char: bool = False

    def check_supported(self, table: TableInfo) -> None:
        """Raises NeedsHuman, naming table, column and type, if rows of `table` can't be decoded faithfully."""
        ...

    def rows(
        self,
        table: TableInfo,
        keys: pa.BinaryArray,
        values: pa.BinaryArray,
        time_zone: str,
        columns: Sequence[ColumnInfo] | None = None,
        *,
        are_whole: bool = False,
    ) -> list[pa.Array]:
        """One array for each of `columns`, by default `table.output_columns`.

        For a delete, `values` has the old value; an empty one can't be decoded. TIMESTAMP is text in `time_zone`.
        `are_whole`: a row that `table` does not define, as one written under another definition, can't be decoded.
        """
        ...

    def absent_value(self, column: ColumnInfo, time_zone: str) -> pa.Array:
        """What rows have that are older than the column, as one element.

        Raises ValueError for a default of no such type.
        """
        ...

    def wrong_rows(self, table: TableInfo, keys: pa.BinaryArray, values: pa.BinaryArray) -> npt.NDArray[np.int64]:
        """The rows that carry a checksum which is not that of their content."""
        return np.zeros(0, np.int64)

    def moved(self, keys: pa.BinaryArray, tables: Sequence[int], of: npt.NDArray[np.int64]) -> pa.BinaryArray | None:
        """The keys as the first of `tables` would have them, so that all can be decoded at once; `of`: whose each is.

        None when they can't be: each table's rows are decoded by themselves.
        """
        return None


class Upstream(Protocol):
    """A database to which a driver or a task is connected. Calls raise Transient once their patience is over."""

    @property
    def cluster_id(self) -> int:
        """Tells the database from every other, and is not 0; the log is of one."""
        ...

    @property
    def has_old_definitions(self) -> bool:
        """Whether `schema` has definitions as they were. If not, the log keeps those that a driver begins with."""
        return True

    async def now(self) -> int:
        """A ts above that of every commit before the call, and below that of every transaction that begins after it."""
        ...

    async def now_ms(self) -> int:
        """Its clock, in ms since 1970."""
        ...

    def history_lease(self, name: str, ttl_seconds: int) -> HistoryLease:
        """The hold of that name, which need not be there yet."""
        ...

    async def holds(self) -> list[Hold]:
        """Those that have not expired, of whomever, by name. Raises Unavailable where they can't be listed."""
        return []

    async def release(self, name: str) -> None:
        """Remove one that `holds` has listed. Nothing if it is not there any more."""
        await self.history_lease(name, 0).remove()

    async def schema(self, ts: int, known: Mapping[int, TableInfo] | None = None) -> SchemaHistory:
        """All definitions at `ts`, changes with that very ts included (rule 24).

        `known`: by physical id, those that the log has at `ts`. An upstream that can't look back relies on them.
        """
        ...

    def schema_feed(self, schema: SchemaHistory, emit: Callable[[SchemaEvent], Awaitable[None]]) -> SchemaFeed:
        """Changes after `schema.snapshot_ts`. `emit` applies each to `schema` before it returns."""
        ...

    def feed(
        self,
        emit: Callable[[FeedEvent], Awaitable[None]],
        clock: Clock | None = None,
        *,
        scratch_folder: Path | None = None,
        room: Callable[[], Awaitable[None]] | None = None,
        gather_s: float = GATHER_SECONDS,
        scan_rate: float | None = None,
    ) -> Feed:
        """What an upstream has no use for it ignores.

        `scratch_folder`: for what memory has no room for; None: it stays in memory.

        `room` is awaited before more of a scan, or of what was put aside, is taken in, and must not wait for ever.
        `scan_rate`: bytes a second of initial copies, None: no bound.
        """
        ...

    async def check(self, selects: Callable[[str, str], bool]) -> list[str]:
        """Return what may keep rows from being read one day, each with what mends it.

        `selects`: the changefeed's tables, by database and name. Raises NeedsHuman and SnapshotLostByGC for what keeps
        rows from being read now, all at once.
        """
        return []

    async def tables_now(self) -> tuple[TableInfo, ...] | None:
        """All that can be selected; None where the schema feed tells of each one that comes or goes."""
        return None

    def check_can_copy(self) -> None:
        """Raises InvalidSpec for spec.initialCopy where rows can't be had as of a ts."""

    async def bounds(self, table_id: int, most: int) -> tuple[bytes, ...]:
        """The keys between which a physical table has parts of a like size, at most so many."""
        ...

    async def copy_bounds(self, table: TableInfo, table_id: int, most: int) -> tuple[bytes, ...]:
        """The bounds of a TableCopy of no more than `most` chunks. It misses the rows at or above the last of them.

        `table`: by which its rows will be decoded. Raises NeedsHuman, Transient.
        """
        return await self.bounds(table_id, most)

    async def close(self) -> None:
        """Nothing is asked of it any more."""


class Access(Protocol):
    """How an upstream is reached, and which one it must be: what every process of a changefeed is told. Pickled."""

    @property
    def address(self) -> str:
        """By which people know it."""
        ...

    @property
    def has_history(self) -> bool:
        """Whether rows can be read as they were at an earlier ts, and every change since one.

        If not, what a sink has can only be compared with the tables as they stand.
        """
        return True

    def listed_hold(self, name: str) -> str:
        """How `Upstream.holds` lists what `Upstream.history_lease` gets by this name."""
        return name

    def of_cluster(self, cluster_id: int) -> Access:
        """The same, of that one only: `connect` refuses another. 0: whichever it is."""
        ...

    async def connect(self, deadline: float = 10.0) -> Upstream:
        """Raises Unavailable, Refused, NeedsHuman."""
        ...
