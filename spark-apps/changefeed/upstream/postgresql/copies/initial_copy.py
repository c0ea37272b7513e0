"""Initial copies of a slot's subscriptions: the rows of their tables as of a ts, though PostgreSQL has them as of now.

A chunk is read in a transaction that sees whatever was committed up to the copy's ts, and maybe more. The stream has
that, too: what a row was before its first change above the copy's ts, it was as of that ts, whatever has been read.
All other rows are as they have been read. So a chunk is

1. a transaction whose snapshot has all up to the copy's ts (TableReader.begin): a transaction is in the WAL, and in the
   stream, a moment before others see what it has done;
2. a position that is behind all that the snapshot has, which the stream must have passed: the chunks of a moment share
   it, and the transaction;
3. the rows that are read, but for those whose keys the stream has changed above the copy's ts;
4. of those keys the rows that were there before.

Nothing is emitted of a subscription that was held, or of a stream that has begun anew, while its chunk was read: the
chunk is begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from changefeed.clock import Clock
from changefeed.errors import ChangefeedError, NeedsHuman, ProtocolViolation, Refused, Transient, Unavailable
from changefeed.model.position import OP_INSERT
from changefeed.model.rows import RAW_SCHEMA
from changefeed.model.table_copy import CopyChunk, TableCopy
from changefeed.upstream.contract import Data, FeedEvent, FeedMetrics, Resolved, Stopped
from changefeed.upstream.postgresql.copies.cuts import digest
from changefeed.upstream.postgresql.copies.first_changes import FirstChanges, FormerRows
from changefeed.upstream.postgresql.copies.key_ranges import definition_of
from changefeed.upstream.postgresql.copies.table_reader import TableReader
from changefeed.upstream.postgresql.failures import FailuresInARow
from changefeed.upstream.postgresql.schema.catalog import ReadableTable
from changefeed.upstream.postgresql.schema.relation_columns import has_columns
from changefeed.upstream.postgresql.slot.slot_reader import SlotRows
from changefeed.upstream.postgresql.slot.subscriptions import Copying, SlotSubscriptions

T = TypeVar("T")
_Rows = tuple[pa.BinaryArray, pa.BinaryArray]

#: How many attempts in a row fail before that is said.
SAID_FROM = 8
#: No chunk begins in a transaction that is so old: who alters the table waits for it, and so does VACUUM.
TRANSACTION_S = 2.0


@dataclass(frozen=True)
class _PassedSnapshot:
    """Chunks of `whose`, a subscription and its turn, begin in its transaction `until` then."""

    whose: tuple[int, int]
    until: float
    table: ReadableTable


class InitialCopies:
    """One chunk at a time. `anchor`: puts an anchor into the WAL, and gives a position between all before and it.

    `failed`: ends a subscription with an error. `room`: as Upstream.feed.
    """

    def __init__(
        self,
        reader: TableReader,
        subscriptions: SlotSubscriptions,
        anchor: Callable[[], Awaitable[int]],
        emit: Callable[[FeedEvent], Awaitable[None]],
        failed: Callable[[int, ChangefeedError], Awaitable[None]],
        room: Callable[[], Awaitable[None]],
        clock: Clock,
        metrics: FeedMetrics,
    ) -> None:
        self._reader, self._subscriptions, self._anchor = reader, subscriptions, anchor
        self._emit, self._failed, self._room, self._clock, self._metrics = emit, failed, room, clock, metrics
        self._thread = ThreadPoolExecutor(1, "copy")
        self._changed = asyncio.Event()
        self._lsn = 0  # all commits before it have been looked at
        self._changes: dict[int, tuple[int, FirstChanges]] = {}  # by subscription, with its turn
        self._emptied: dict[int, int] = {}  # subscription and turn of tables without old rows
        self._seen: dict[int, int] = {}  # by subscription: what `TableReader.begin` must see
        self._snapshot: _PassedSnapshot | None = None
        self._failures = FailuresInARow(SAID_FROM)

    @property
    def stopped(self) -> Stopped | None:
        """Why no chunk is whole, since a while."""
        return self._failures.stopped

    # -- what the stream has

    def take(self, rows: SlotRows) -> None:
        """Rows of a table, which may be copied."""
        for copying in self._subscriptions.copiers(rows.table):
            assert rows.relation is not None, "the stream describes tables"
            self._changes_of(copying).add(rows.batch, rows.relation)

    def emptied(self, ts: int, tables: Sequence[int]) -> None:
        """By a commit above `ts`."""
        for table in tables:
            for copying in self._subscriptions.copiers(table):
                if ts >= copying.copy.ts:
                    self._emptied[copying.sub_id] = copying.turn

    def passed(self, lsn: int) -> None:
        """All commits before a position have been taken."""
        self._lsn = lsn
        self._changed.set()

    def look(self) -> None:
        """Subscriptions are other ones than before."""
        self._changed.set()

    def _changes_of(self, copying: Copying) -> FirstChanges:
        turn, changes = self._changes.get(copying.sub_id, (-1, None))
        if changes is None or turn != copying.turn:
            changes = FirstChanges(copying.copy.ts)
            self._changes[copying.sub_id] = copying.turn, changes
        return changes

    def _forget(self) -> None:
        """Subscriptions that are gone."""
        for gone in self._changes.keys() - self._subscriptions.ids():
            del self._changes[gone]

    # -- chunks

    async def run(self) -> None:
        """For as long as there is a feed."""
        try:
            while True:
                self._changed.clear()
                self._forget()
                if (copying := self._subscriptions.next_copy()) is None:
                    if self._snapshot is not None:
                        await self._close()
                    await self._changed.wait()
                else:
                    await self._try(copying)
        finally:
            self._reader.cut()
            self._thread.submit(self._reader.close)
            self._thread.shutdown(wait=False)

    async def _try(self, copying: Copying) -> None:
        try:
            is_whole = await self._go_on(copying)
        except (Transient, Unavailable, Refused, ProtocolViolation) as error:
            await self._close()
            await self._pause(error)
        except ChangefeedError as error:
            await self._close()
            if self._subscriptions.is_copying(copying):
                await self._failed(copying.sub_id, error)
        else:
            self._failures.end()
            if not is_whole:
                await self._close()

    async def _pause(self, error: ChangefeedError) -> None:
        self._metrics.errors["copy"] += 1
        await self._clock.sleep(self._failures.add(error))

    async def _go_on(self, copying: Copying) -> bool:
        """Whether the next chunk is whole, or the end is."""
        chunks = copying.copy.chunks(copying.sent_ts)
        if not chunks:
            await self._end()
            self._subscriptions.sent(copying.sub_id, copying.copy.ts)
            self._subscriptions.copied(copying.sub_id)
            self._changes.pop(copying.sub_id, None)
            await self._emit(Resolved(copying.sub_id, copying.copy.ts))
            return True
        if await self._chunk(copying, chunks[0]) and self._subscriptions.sent(copying.sub_id, chunks[0].ts):
            await self._emit(Resolved(copying.sub_id, chunks[0].ts))
            return True
        return False

    async def _chunk(self, copying: Copying, chunk: CopyChunk) -> bool:
        if (table := await self._begin(copying)) is None:
            return False
        _check_defined(table, copying.copy)
        former = self._changes_of(copying).of(chunk.start, chunk.end)
        self._check_known(copying, table, former)
        parts = self._reader.rows(chunk.start, chunk.end)
        while (rows := await self._in_thread(_next_of, parts, former)) is not None:
            if not await self._hand_on(copying, chunk, rows):
                return False
        return await self._hand_on(copying, chunk, former.there())

    async def _begin(self, copying: Copying) -> ReadableTable | None:
        """Its table in a transaction that the stream has passed; None: it is not its turn any more."""
        whose = copying.sub_id, copying.turn
        last, now = self._snapshot, self._clock.monotonic()
        if last is not None and last.whose == whose and now < last.until:
            return last.table
        await self._end()
        if copying.sub_id not in self._seen:
            self._seen[copying.sub_id] = await self._in_thread(self._reader.xid)
        table = await self._in_thread(self._reader.begin, copying.table, self._seen[copying.sub_id])
        behind = await self._anchor()
        while self._subscriptions.is_copying(copying) and self._lsn < behind:
            self._changed.clear()
            await self._changed.wait()
        if not self._subscriptions.is_copying(copying):
            return None
        self._snapshot = _PassedSnapshot(whose, now + TRANSACTION_S, table)
        return table

    async def _end(self) -> None:
        """The transaction, if there is one."""
        if self._snapshot is not None:
            self._snapshot = None
            await self._in_thread(self._reader.end)

    async def _close(self) -> None:
        self._snapshot = None
        await self._in_thread(self._reader.close)

    def _check_known(self, copying: Copying, table: ReadableTable, former: FormerRows) -> None:
        if self._emptied.get(copying.sub_id) == copying.turn:
            raise _not_known(table, "was emptied by TRUNCATE, and nobody knows any more which rows it had")
        for relation in former.relations:
            if relation.replica_identity != "f":
                raise _not_known(table, "has lost its REPLICA IDENTITY FULL for a while, so old rows are not known")
            if not has_columns(table.info, relation, table.domains):
                raise _not_known(table, "was altered, and its rows of before have other columns")

    async def _hand_on(self, copying: Copying, chunk: CopyChunk, rows: _Rows) -> bool:
        await self._room()
        if not self._subscriptions.is_copying(copying):
            return False
        if len(rows[0]):
            data = Data(copying.sub_id, copying.table, _inserted(copying.table, chunk.ts, *rows))
            self._metrics.count(data.batch, data.bytes)
            await self._emit(data)
        return self._subscriptions.is_copying(copying)

    async def _in_thread(self, function: Callable[..., T], *values: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *values))


def _next_of(parts: Iterator[_Rows], former: FormerRows) -> _Rows | None:
    """The rows of the next part that are as they were."""
    rows = next(parts, None)
    return None if rows is None else former.without(*rows)


def _check_defined(table: ReadableTable, copy: TableCopy) -> None:
    if digest(table) != definition_of(copy.bounds[-1]):
        raise _not_known(table, "was altered")


def _not_known(table: ReadableTable, why: str) -> NeedsHuman:
    return NeedsHuman(
        f"Table {table.info.full_name} can't be copied to its end: since the copy began, it {why}.",
        "Start a new changefeed, and leave the table's definition as it is until it is copied.",
    )


def _inserted(table: int, ts: int, keys: pa.BinaryArray, values: pa.BinaryArray) -> pa.RecordBatch:
    same = {"span_id": table, "commit_ts": ts, "start_ts": 0, "op": OP_INSERT, "txn_source": 0}
    columns = {name: pa.array(np.full(len(keys), value), RAW_SCHEMA.field(name).type) for name, value in same.items()}
    columns |= {"key": keys, "value": values, "old_value": pa.nulls(len(keys), pa.binary())}
    return pa.RecordBatch.from_arrays([columns[name] for name in RAW_SCHEMA.names], schema=RAW_SCHEMA)
