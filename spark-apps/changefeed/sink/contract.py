"""The sink interface: an `EventSink` in each pipeline task, and a `SinkDriver` in the driver.

An event is a plan entry: all rows of a dispatcher in `(from, upto]`, in chunks sorted by (commit_ts, start_ts, op,
key). The rules for an EventSink, to which tests/integration/test_integration_sink_conformance.py holds every sink:

1. *Threads.* Any thread may write. Events of one dispatcher are written by one thread at a time, in order.
2. *Rows.* `write` consumes all chunks of an event in the calling thread before it returns. If the chunks raise, so does
   it: nothing of that event counts, and it will be written again.
3. *Callback.* Called once, by any thread, when all rows of the event are downstream and survive the loss of this
   process. It does not block.
4. *Order.* A dispatcher's rows take effect in the order of its events, where the downstream has an order.
5. *Bounded.* `write` blocks while the sink holds too much unwritten data.
6. *Failure.* An error that a retry can't fix is reported once, to `failed`. From then on `write` raises it, and nothing
   new is started; an event already in progress may still be called back.
7. *Close.* When it returns, nothing is being written any more, and no callback follows.

An event may be written again after any failure, by another process, while the first is still alive. It must count once:
a file has the same bytes, a database remembers. `Claim.writer` grows with each assignment of a dispatcher, and a sink
that can remember refuses a lower one (rule 25).

A SinkDriver has one caller at a time. Each method returns when its effect is durable, and may be called again for the
same ts after any failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from changefeed.log.records import CommitRecord, PlanEntry
from changefeed.objectstore.patience import Patience
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import Touched
from changefeed.schema.table_info import ColumnInfo, TableInfo
from changefeed.sink.records import Mounting, Records


class EntryId(NamedTuple):
    """An entry's position among those of its dispatcher: its plan's record, and its number there."""

    plan: int
    entry: int


@dataclass(frozen=True)
class Claim:
    """Who writes a dispatcher's entries. `changefeed`: names one transaction log, and no other that ever was.

    `writer` grows with each assignment of the dispatcher within an epoch.
    """

    changefeed: str
    dispatcher: int
    epoch: int
    nonce: str
    writer: int

    def gives_way_to(self, epoch: int, nonce: str, writer: int) -> bool:
        """Whether who has claimed the dispatcher before keeps this one out: one who came later, or another driver."""
        is_foreign = epoch == self.epoch and nonce != self.nonce
        return is_foreign or (epoch, writer) > (self.epoch, self.writer)


@dataclass(frozen=True)
class Entry:
    """A plan entry, as a sink needs it. `options`: the sink's, as its plan's epoch had them (rule 10)."""

    claim: Claim
    id: EntryId
    upto: int  # commit ts
    output: Mapping[str, Any] = field(compare=False)  # as `Outputs` names it
    table: TableInfo
    table_version: int
    columns: tuple[ColumnInfo, ...]  # that are written
    pd_ms: int  # the plan's "now"
    time_zone: str  # in which TIMESTAMP values are shown
    options: Mapping[str, Any] = field(compare=False)


@dataclass(frozen=True)
class Written:
    """An entry's rows as the downstream got them. `digest`: of a file's bytes."""

    bytes: int
    digest: str = ""


@dataclass(frozen=True)
class Event:
    """An entry with its rows; `chunks` can be taken once."""

    entry: Entry
    chunks: Iterable[Records]
    written: Callable[[Written], None]


class Outputs:
    """Names what entries are written to. This one is of sinks where rows need no names.

    An output follows from the dispatcher's newest one, which is in the log, and from the plan's time: the names of
    every driver are the same, whatever its clock (rule 15). Nobody but the sink looks into an output.
    """

    def series(self, table: TableInfo, dispatcher: int, table_version: int) -> str:
        """What the outputs of a table version have in common. Raises NeedsHuman for a table that can't have any."""
        return ""

    def next(self, series: str, pd_ms: int, last: Mapping[str, Any]) -> dict[str, Any]:
        """An output after `last`, which may be of another series; {}: it is the dispatcher's first."""
        return {}


class EventSink(Protocol):
    """See the module's rules. Errors are of the classes in `errors`."""

    def write(self, event: Event) -> None: ...

    def cpu_seconds(self) -> Mapping[str, float]:
        """What it has spent since this was last asked, by stage."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Surroundings:
    """What a task gives its sink.

    `patience`: with the downstream, `disk`: with the spool folder, of who calls `write`; both end with the task.
    `failed`: see rule 6. `waiting`: around each wait of a `write` for room, which may take long and is no standstill.
    """

    changefeed: str
    spool_folder: Path
    patience: Patience
    disk: Patience
    failed: Callable[[BaseException], None]
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext


class SinkJob(Protocol):
    """A sink on its way to the tasks: pickled, so it has secrets by the paths of their files (rule 21)."""

    def mounting(self, options: Mapping[str, Any], time_zone: str) -> Mounting:
        """How it wants rows. `options`, `time_zone`: the sink's and the changefeed's, as a plan's epoch had them."""
        ...

    def open(self, around: Surroundings) -> EventSink:
        """Raises Unavailable, Refused, NeedsHuman."""
        ...


@dataclass(frozen=True)
class Notice:
    """What readers of one table or database learn of a DDL: the definition, and perhaps the statement.

    `table`: as it is then, or was if it is gone; None: the notice is the database's. `with_statement`: readers execute
    it for the sake of this one. `has_rows`: rows are written in this definition.
    """

    database: str
    table: TableInfo | None = None
    with_statement: bool = True
    has_rows: bool = False


@dataclass(frozen=True)
class Ddl:
    """A DDL as it concerns the changefeed; dispatchers are known by the physical ids of their tables.

    `involved`: those that are there before it. Of them `left` end with it, the others go on under a new version.
    `before`, `tables`: definitions, by dispatcher, of those that were there, and of those that go on or join.
    `touched`: definitions of all tables, views and databases of the change: names come from there.
    `is_told`: readers are told the statement, which an event filter may leave out. `notices`: who of them learns what.
    """

    ts: int  # finish ts
    job_id: int
    change: SchemaChange | None = field(default=None, compare=False)
    query: str = field(default="", compare=False)
    description: str = field(default="", compare=False)  # of the statement and its table, for people
    involved: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()
    before: Mapping[int, TableInfo] = field(default_factory=dict, compare=False)
    tables: Mapping[int, TableInfo] = field(default_factory=dict, compare=False)
    touched: Touched = field(default_factory=Touched, compare=False)
    is_told: bool = field(default=False, compare=False)
    notices: tuple[Notice, ...] = field(default=(), compare=False)

    @property
    def order(self) -> tuple[int, int]:
        return self.ts, self.job_id


class SinkDriver:
    """See the module's rules. What a kind does not define does nothing: readers are not told."""

    def publish(self, entries: Sequence[PlanEntry], record: CommitRecord) -> None:
        """Entries that are written, before the log says so. `record`: the next commit record, whose files they are, in
        the same order: those of a dispatcher as they were planned, none left out. It may never be appended; another
        driver then publishes the same entries under another record, and not all of them at once.
        """

    def execute(self, ddl: Ddl) -> None:
        """Every row up to its ts is written, and none above it of the tables that it concerns."""

    def write_syncpoint(self, ts: int) -> None:
        """Every row and DDL up to ts is written, and none above: tell readers, if they can be told."""

    def write_checkpoint(self, ts: int) -> None:
        """For readers: a checkpoint that stands in the log (rule 11)."""

    def close(self) -> None:
        """No other call follows."""


class FirstFailure:
    """Tells of the first failure of a sink's threads, once (rule 6). Thread-safe."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    @property
    def is_set(self) -> bool:
        return self._error is not None

    def set(self, error: BaseException) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._failed(error)

    def check(self) -> None:
        """Raises what has failed."""
        if self._error is not None:
            raise self._error
