"""An upstream that is a list of transactions in memory: no more than docs/adding-an-upstream.md asks for."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pyarrow as pa
from changefeed.errors import ChangefeedError, InvalidSpec, first_error
from changefeed.model.position import OP_DELETE, OP_INSERT, OP_UPDATE
from changefeed.model.rows import RAW_SCHEMA
from changefeed.model.tso import compose, physical_ms
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import ColumnInfo, DatabaseInfo, TableInfo
from changefeed.schema.values import arrow_type
from changefeed.upstream import contract
from changefeed.upstream.contract import Data, HeldUntil, Resolved, SchemaNews, SchemaStep, SubscriptionFailed

DATABASE = DatabaseInfo(1, "shop", "", "", 5)
TICK_S = 0.01
Emit = Callable[[Any], Awaitable[None]]


class JsonRows(contract.Decoder):
    def rows(self, table: TableInfo, keys: pa.Array, values: pa.Array, *args: Any, **_: Any) -> list[pa.Array]:
        columns = args[1] if len(args) > 1 and args[1] is not None else table.output_columns
        found = [json.loads(value) for value in values.to_pylist()]
        return [pa.array([row.get(column.name) for row in found], arrow_type(column)) for column in columns]

    def absent_value(self, column: ColumnInfo, time_zone: str) -> pa.Array:
        return pa.nulls(1, arrow_type(column))


class Looking:
    """Looks every moment whether there is more; an error of its own ends the `async with` block."""

    async def __aenter__(self) -> Any:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._task = self._tasks.create_task(self._go_on())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._task.cancel()
        try:
            await self._tasks.__aexit__(*error)
        except BaseExceptionGroup as group:
            raise first_error(group) from group

    async def _go_on(self) -> None:
        while True:
            if not await self.look():
                return
            await asyncio.sleep(TICK_S)

    async def look(self) -> bool:
        """Whether to go on."""
        raise NotImplementedError


class RowFeed(Looking, contract.Feed):
    def __init__(self, upstream: InMemory, emit: Emit) -> None:
        self.metrics = contract.FeedMetrics()
        self._told = 0  # all changes of schema up to it
        self._upstream, self._emit = upstream, emit
        self._reached: dict[int, tuple[int, int]] = {}  # by subscription: table, ts
        self._held: set[int] = set()

    def subscribe(
        self, sub_id: int, span_id: int, start: bytes, end: bytes, start_ts: int, copy: Any = None, reached_ts: int = 0
    ) -> None:
        self._reached[sub_id] = (span_id, start_ts)

    def release(self, sub_id: int) -> None:
        self._reached.pop(sub_id, None)

    def hold(self, sub_id: int) -> None:
        self._held.add(sub_id)

    def resume(self, sub_id: int) -> None:
        self._held.discard(sub_id)

    async def look(self) -> bool:
        for sub_id in self._reached.keys() - self._held:
            table, after = self._reached[sub_id]
            resolved, rows = self._upstream.rows_after(table, after)
            if self._upstream.is_among_rows:
                await self._tell(resolved)
            if rows:
                await self._emit(Data(sub_id, table, pa.RecordBatch.from_pylist(rows, RAW_SCHEMA)))
            self._reached[sub_id] = (table, resolved)
            await self._emit(Resolved(sub_id, resolved))
        return True

    async def _tell(self, upto: int) -> None:
        for number, (ts, _) in enumerate(self._upstream.changes):
            if self._told < ts <= upto:
                await self._emit(SchemaNews(ts, str(number).encode()))
        await self._emit(SchemaNews(upto, b""))
        self._told = upto


class ChangeFeed(Looking, contract.SchemaFeed):
    def __init__(self, upstream: InMemory, after: int, emit: Emit) -> None:
        self._upstream, self._after, self._emit = upstream, after, emit

    async def look(self) -> bool:
        resolved = await self._upstream.now()
        for ts, change in self._upstream.changes:
            if self._after < ts <= resolved:
                try:
                    await self._emit(SchemaStep(change, ts))
                except ChangefeedError as error:  # nothing may pass a change that is not followed
                    await self._emit(SubscriptionFailed(0, error))
                    return False
        self._after = resolved
        await self._emit(Resolved(0, resolved))
        return True


class HeardChanges(contract.SchemaFeed):
    """Those that feeds of rows have met."""

    def __init__(self, upstream: InMemory, after: int, emit: Emit) -> None:
        self._upstream, self._resolved, self._emit = upstream, after, emit
        self._heard = after  # another feed may have told it
        self._news: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

    async def __aenter__(self) -> Any:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    def hear(self, ts: int, content: bytes) -> None:
        self._news.put_nowait((ts, content))

    async def _listen(self) -> None:
        while True:
            ts, content = await self._news.get()
            if ts <= (self._heard if content else self._resolved):
                continue
            try:
                if content:
                    self._heard = ts
                    await self._emit(SchemaStep(self._upstream.changes[int(content)][1], ts))
                else:
                    self._resolved = ts
                    await self._emit(Resolved(0, ts))
            except ChangefeedError as error:
                await self._emit(SubscriptionFailed(0, error))
                return


class Forever(contract.HistoryLease):
    """Nothing is ever removed."""

    held: HeldUntil | None = None

    def __init__(self, upstream: InMemory) -> None:
        self._upstream = upstream

    async def begin(self, lead: int = 0) -> int:
        ts = await self._upstream.now()
        await self.hold(ts - lead)
        return ts

    async def hold(self, ts: int) -> None:
        self.held = HeldUntil(ts, 1 << 60)


class InMemory(contract.Upstream, contract.Access):
    """The database "shop". It is its own `Access`, as all tasks are in this process."""

    cluster_id, address = 7, "memory"
    has_old_definitions = True

    async def tables_now(self) -> None:
        """Every change is in the feed."""

    def __init__(self, *, is_among_rows: bool = False) -> None:
        """`is_among_rows`: changes of schema are, and feeds of rows tell of them. Then only the newest are kept."""
        self.is_among_rows = is_among_rows
        self.has_old_definitions = not is_among_rows
        self.known: list[Mapping[int, TableInfo]] = []  # at each start
        self.changes: list[tuple[int, SchemaChange]] = []
        self._rows: list[dict[str, Any]] = []
        self._now: dict[tuple[int, str], bytes | None] = {}  # by table and key
        self._lock, self._last_ts = threading.Lock(), 0

    def change(self, change: SchemaChange) -> int:
        with self._lock:
            self.changes.append((self._tick(), change))
            return self._last_ts

    def commit(self, table: int, **rows: dict[str, Any] | None) -> int:
        """`rows` by key; None: it is deleted."""
        with self._lock:
            ts = self._tick()
            for key, row in rows.items():
                old, new = self._now.get((table, key)), None if row is None else json.dumps(row).encode()
                op = OP_DELETE if new is None else OP_INSERT if old is None else OP_UPDATE
                raw = (table, ts, ts - 1, op, key.encode(), new or b"", old, 0)
                self._rows.append(dict(zip(RAW_SCHEMA.names, raw, strict=True)))
                self._now[table, key] = new
            return ts

    def rows_after(self, table: int, after: int) -> tuple[int, list[dict[str, Any]]]:
        with self._lock:
            return self._tick(), [row for row in self._rows if row["span_id"] == table and row["commit_ts"] > after]

    def _tick(self) -> int:
        self._last_ts = max(self._last_ts + 1, compose(time.time_ns() // 1_000_000))
        return self._last_ts

    def of_cluster(self, cluster_id: int) -> InMemory:
        return self

    async def connect(self, deadline: float = 10.0) -> InMemory:
        return self

    async def now(self) -> int:
        with self._lock:
            return self._tick()

    async def now_ms(self) -> int:
        return physical_ms(await self.now())

    def history_lease(self, name: str, ttl_seconds: int) -> Forever:
        return Forever(self)

    async def schema(self, ts: int, known: Mapping[int, TableInfo] | None = None) -> SchemaHistory:
        self.known.append(known or {})
        made = SchemaHistory(0, [DATABASE], [])
        for at, change in [each for each in self.changes if each[0] <= ts or not self.has_old_definitions]:
            made.apply(change, at)
        if self.has_old_definitions:
            return SchemaHistory(ts, [DATABASE], made.tables_at(ts))
        now = made.tables_at(self._last_ts)
        return SchemaHistory(ts, [DATABASE], [(known or {}).get(table.id, table) for table in now])

    def check_can_copy(self) -> None:
        raise InvalidSpec("spec.initialCopy", "not possible from memory", "Leave it out.")

    async def bounds(self, table_id: int, most: int) -> tuple[bytes, ...]:
        return b"", b"~"

    def schema_feed(self, schema: SchemaHistory, emit: Emit) -> contract.SchemaFeed:
        return (HeardChanges if self.is_among_rows else ChangeFeed)(self, schema.snapshot_ts, emit)

    def feed(self, emit: Emit, *_: object, **__: object) -> RowFeed:
        return RowFeed(self, emit)
