"""Pulls rows of tables out of a slot: one stream for all subscriptions (subscriptions), which begins anew when one
needs what has passed.

A shell around a thread: all that blocks is slot_reader's, and runs there. What the thread has is handed on here, in
this order: changes of schema, rows, and how far they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from changefeed.clock import Clock, SystemClock, until_set
from changefeed.errors import (
    ChangefeedError,
    NeedsHuman,
    ProtocolViolation,
    Refused,
    SnapshotLostByGC,
    Transient,
    Unavailable,
    first_error,
)
from changefeed.model.table_copy import TableCopy
from changefeed.model.tso import to_datetime
from changefeed.upstream.contract import (
    GATHER_SECONDS,
    Data,
    Feed,
    FeedEvent,
    FeedMetrics,
    Resolved,
    SchemaNews,
    Stopped,
    SubscriptionFailed,
)
from changefeed.upstream.postgresql.copies.initial_copy import InitialCopies
from changefeed.upstream.postgresql.copies.table_reader import TableReader
from changefeed.upstream.postgresql.failures import FailuresInARow
from changefeed.upstream.postgresql.pgoutput.changes import FEW_ROWS
from changefeed.upstream.postgresql.pgoutput.messages import Relation
from changefeed.upstream.postgresql.schema.news import read_content
from changefeed.upstream.postgresql.server import PostgresqlServer
from changefeed.upstream.postgresql.slot.slot_reader import SlotArrival, SlotReader, SlotRows
from changefeed.upstream.postgresql.slot.subscriptions import SlotSubscriptions
from changefeed.upstream.scratch import Scratch

T = TypeVar("T")

#: A database in which nothing is committed for so long gets a commit of ours.
_IDLE_S, _LEAST_IDLE_S = 1.0, 0.2
_TELL_S = 1.0
#: A stream that begins before somebody wants rows would have to begin anew.
_FIRST_WAIT_S = 1.0
#: How many attempts in a row fail before that is said.
_SAID_FROM = 2


class SlotFeed(Feed):
    """`gather_s`: how long what the server sends waits for more of it. `room`: as Upstream.feed. `scratch`: for large
    transactions.
    """

    def __init__(
        self,
        server: PostgresqlServer,
        slot: str,
        publication: str,
        emit: Callable[[FeedEvent], Awaitable[None]],
        clock: Clock | None = None,
        *,
        scratch: Scratch | None = None,
        room: Callable[[], Awaitable[None]] | None = None,
        gather_s: float = GATHER_SECONDS,
    ) -> None:
        self._slot, self._emit, self._room = slot, emit, room
        self._clock = clock or SystemClock()
        idle_s = max(_LEAST_IDLE_S, min(_IDLE_S, gather_s))
        self._reader = SlotReader(server, slot, publication, idle_s, gather_s, scratch)
        self._thread = ThreadPoolExecutor(1, "slot")
        self._tasks = asyncio.TaskGroup()
        self._subscriptions = SlotSubscriptions()
        self.metrics = FeedMetrics()
        self._changed = asyncio.Event()
        self._copies = InitialCopies(
            TableReader(server, publication),
            self._subscriptions,
            partial(self._in_thread, self._reader.anchor),
            emit,
            self._lost,
            self._has_room,
            self._clock,
            self.metrics,
        )
        self._told = 0  # all changes of schema up to here are
        self._failures = FailuresInARow(_SAID_FROM)

    async def __aenter__(self) -> SlotFeed:
        await self._tasks.__aenter__()
        self._running = [self._tasks.create_task(work) for work in (self._pull(), self._copies.run())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise first_error(group) from group
        finally:
            self._thread.shutdown(wait=False)

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
        """As Feed.subscribe. A table has no parts."""
        self._subscriptions.subscribe(sub_id, span_id, start_ts, copy, reached_ts)
        self.metrics.registrations += 1
        self._look()

    def release(self, sub_id: int) -> None:
        """As Feed.release."""
        self._subscriptions.release(sub_id)
        self._look()

    def hold(self, sub_id: int) -> None:
        """As Feed.hold."""
        self._subscriptions.hold(sub_id)
        self._look()

    def resume(self, sub_id: int) -> None:
        """As Feed.resume."""
        self._subscriptions.resume(sub_id)
        self._look()

    def stopped(self) -> Stopped | None:
        """Why nothing comes, since a while."""
        return self._failures.stopped or self._copies.stopped

    def _look(self) -> None:
        """Subscriptions are other ones than before."""
        self._changed.set()
        self._copies.look()

    async def _pull(self) -> None:
        await until_set(self._changed, self._clock, _FIRST_WAIT_S)
        while True:
            try:
                try:
                    await self._stream()
                finally:  # it is closed even if this is cancelled twice
                    await asyncio.wait({asyncio.ensure_future(self._in_thread(self._reader.close))})
            except (Transient, Unavailable, Refused, ProtocolViolation) as error:
                await self._failed(error)
            except NeedsHuman as error:
                await self._given_up(error)

    async def _stream(self) -> None:
        """One, until it must begin anew."""
        await self._in_thread(self._reader.open)
        while await self._in_thread(self._reader.look):
            pass
        self._subscriptions.begin()
        self._copies.passed(0)
        while not self._subscriptions.settle():
            if self._subscriptions.all_rest:
                self._changed.clear()
                await self._telling(self._changed.wait())
                continue
            await self._telling(self._has_room())
            wanted = self._subscriptions.tables()
            needed_ts = self._subscriptions.needed_ts(is_crossed=self._reader.common_ts is None)
            taken = await self._in_thread(self._reader.read, wanted, needed_ts)
            if await self._telling(self._crosses(taken)):
                return
            await self._telling(self._hand_on(taken))

    async def _crosses(self, taken: SlotArrival) -> bool:
        """Another server has taken over: nothing of its own is told if it lacks what has been read (timelines).

        True: it has that, and the WAL says so now. The stream begins anew, so nothing is told until that has come back.
        """
        common_ts, reached_ts = self._reader.common_ts, self._subscriptions.reached_ts
        if common_ts is None or reached_ts is None:
            return False
        if reached_ts > common_ts:
            raise _not_here(common_ts, reached_ts)
        if taken.position is None or taken.position <= common_ts:
            return False
        await self._in_thread(self._reader.cross)
        return True

    async def _hand_on(self, taken: SlotArrival) -> None:
        if taken.first_ts is not None:
            for sub_id in self._subscriptions.below(taken.first_ts):
                await self._lost(sub_id, self._no_history(sub_id, taken.first_ts))
        await self._news(taken)
        for ts, content in taken.news:
            if not isinstance(told := read_content(content), Relation):
                self._copies.emptied(ts, told)
        if taken.position is not None:
            self._subscriptions.handing_on(taken.position)
        while found := await self._in_thread(_some, taken.rows):
            for rows in found:
                await self._rows(rows)
                self._copies.take(rows)
                await self._has_room()
        if taken.position is None:
            return
        self._subscriptions.position = taken.position
        self._copies.passed(taken.lsn)
        for sub_id in self._subscriptions.behind(taken.position):
            if self._subscriptions.sent(sub_id, taken.position):
                await self._emit(Resolved(sub_id, taken.position))

    async def _news(self, taken: SlotArrival) -> None:
        """What a stream that begins anew tells again is left out."""
        if taken.position is None or taken.position <= self._told:
            return
        for ts, content in taken.news:
            if ts > self._told:
                await self._emit(SchemaNews(ts, content))
        await self._emit(SchemaNews(taken.position, b""))
        self._told = taken.position
        self._failures.end()

    async def _rows(self, rows: SlotRows) -> None:
        if rows.error is not None:
            for copying in self._subscriptions.copiers(rows.table):
                if _above(rows.batch, copying.copy.ts).num_rows:
                    await self._lost(copying.sub_id, rows.error)
        for sub_id in self._subscriptions.takers(rows.table):
            sent_ts = self._subscriptions.sent_ts(sub_id)
            if sent_ts is None:
                continue
            batch = _above(rows.batch, sent_ts)
            if not batch.num_rows:
                continue
            if rows.error is not None:
                await self._lost(sub_id, rows.error)
                continue
            data = Data(sub_id, rows.table, batch)
            self.metrics.count(batch, data.bytes)
            await self._emit(data)

    async def _failed(self, error: ChangefeedError) -> None:
        """The stream is begun again in a while."""
        self.metrics.errors[type(error).__name__] += 1
        await self._clock.sleep(self._failures.add(error))

    async def _given_up(self, error: NeedsHuman) -> None:
        """Nobody gets anything any more; without subscriptions there is nobody to be told."""
        self.metrics.errors[type(error).__name__] += 1
        if not (lost := self._subscriptions.ids()):
            raise error
        for sub_id in lost:
            await self._lost(sub_id, error)
        while not self._subscriptions.ids():
            self._changed.clear()
            await self._changed.wait()

    async def _lost(self, sub_id: int, error: ChangefeedError) -> None:
        self._subscriptions.release(sub_id)
        await self._emit(SubscriptionFailed(sub_id, error))

    def _no_history(self, sub_id: int, first_ts: int) -> SnapshotLostByGC:
        sent_ts = self._subscriptions.sent_ts(sub_id) or 0
        return SnapshotLostByGC(
            f"Slot {self._slot} has history from ts {first_ts} ({to_datetime(first_ts):%Y-%m-%d %H:%M:%S} UTC) on, and "
            f"changes after {sent_ts} ({to_datetime(sent_ts):%Y-%m-%d %H:%M:%S} UTC) are needed: somebody else has "
            "read from it, or has made it anew.",
            "Start a new changefeed, and leave its slot to it.",
        )

    async def _has_room(self) -> None:
        if self._room is not None:
            await self._room()

    async def _telling(self, waited: Awaitable[T]) -> T:
        """Wait for something else, while the server is told that we live."""
        task = asyncio.ensure_future(waited)
        try:
            while not (await asyncio.wait({task}, timeout=_TELL_S))[0]:
                await self._in_thread(self._reader.tell)
            return await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _in_thread(self, function: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *values))


def _some(rows: Iterator[SlotRows]) -> list[SlotRows]:
    """The next ones: those of many tables at once if they are few."""
    found, count = [], 0
    for each in rows:
        found.append(each)
        count += each.batch.num_rows
        if count >= FEW_ROWS:
            break
    return found


def _not_here(common_ts: int, reached_ts: int) -> NeedsHuman:
    return NeedsHuman(
        f"Another server has taken over. It has the changes of the one before it up to ts {common_ts} "
        f"({to_datetime(common_ts):%Y-%m-%d %H:%M:%S} UTC), and those up to {reached_ts} "
        f"({to_datetime(reached_ts):%Y-%m-%d %H:%M:%S} UTC) have been read: the sink may have changes that are lost.",
        "Start a new changefeed with an empty sink. Name the slots of standbys in synchronized_standby_slots, then "
        "nothing is read that they lack.",
    )


def _above(batch: pa.RecordBatch, ts: int) -> pa.RecordBatch:
    """Its rows with a higher commit_ts."""
    chosen = batch["commit_ts"].to_numpy() > np.uint64(ts)
    return batch if chosen.all() else batch.filter(pa.array(chosen))
