"""Changes of schema, out of what the reader of the stream tells of tables.

The server is asked only for a table whose definition is not what the reader tells: `evolution` needs the catalog then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

from changefeed.errors import ChangefeedError, NeedsHuman, Refused, Transient, Unavailable, first_error
from changefeed.schema.ddl.change import SchemaChange
from changefeed.schema.history import SchemaHistory
from changefeed.upstream.contract import Resolved, SchemaEvent, SchemaFeed, SchemaStep, Stopped, SubscriptionFailed
from changefeed.upstream.postgresql.failures import stopped
from changefeed.upstream.postgresql.pgoutput.messages import Relation
from changefeed.upstream.postgresql.schema import evolution
from changefeed.upstream.postgresql.schema.catalog import PublishedTables
from changefeed.upstream.postgresql.schema.definitions import read_catalog
from changefeed.upstream.postgresql.schema.news import TICKS, read_content
from changefeed.upstream.postgresql.schema.relation_columns import fits
from changefeed.upstream.postgresql.server import PostgresqlServer

_SUB_ID = 0
_RETRY_S = 1.0


class RelationFeed(SchemaFeed):
    """Changes after `schema.snapshot_ts`, each of which `emit` applies to `schema`.

    All that one commit has done is heard at one ts, ahead of its rows. Each change has a ts of its own at or below it:
    of a driver that dies between two of them the next one does the rest, each at the same ts as before. A stream that
    begins anew tells again what was heard.
    """

    def __init__(
        self,
        server: PostgresqlServer,
        publication: str,
        schema: SchemaHistory,
        emit: Callable[[SchemaEvent], Awaitable[None]],
    ) -> None:
        self._server = server
        self._publication = publication
        self._schema = schema
        self._emit = emit
        self._news: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._resolved_ts = schema.snapshot_ts
        self._heard_ts = schema.snapshot_ts
        self._before: dict[int, Relation] = {}  # what the stream has said last, by table, of rows up to there
        self._heard: list[bytes] = []  # at that ts, of which more may come
        self._now = PublishedTables((), (), {})  # the catalog when it was last read
        self._stopped: Stopped | None = None

    async def __aenter__(self) -> RelationFeed:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._task = self._tasks.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise first_error(group) from group

    def stopped(self) -> Stopped | None:
        return self._stopped

    def hear(self, ts: int, content: bytes) -> None:
        self._news.put_nowait((ts, content))

    async def _listen(self) -> None:
        try:
            while True:
                await self._take(*await self._news.get())
        except ChangefeedError as error:
            await self._emit(SubscriptionFailed(_SUB_ID, error))

    async def _take(self, ts: int, content: bytes) -> None:
        if ts <= self._resolved_ts or (content and ts < self._heard_ts):
            if content and self._heard_ts == self._schema.snapshot_ts:
                self._keep(read_content(content))
            return
        if ts > self._heard_ts:  # nothing more comes of the commit before
            if self._heard:
                await self._follow()
            self._heard_ts = ts
        if content:
            self._heard.append(content)
        else:
            if ts == self._heard_ts:
                await self._follow()
            self._resolved_ts = ts
            await self._emit(Resolved(_SUB_ID, ts))

    async def _follow(self) -> None:
        """What one commit has done. Tables are emptied first: so it is known at which ts each is, and if it was."""
        told = [read_content(content) for content in self._heard]
        self._heard = []
        emptied = dict.fromkeys(oid for each in told if not isinstance(each, Relation) for oid in each)
        await self._begin(told)
        first = self._heard_ts - TICKS + 2
        for ts, oid in enumerate(emptied, first):
            if ts > self._resolved_ts and (change := evolution.truncation(ts, oid, self._schema)) is not None:
                await self._step(change, ts)
        ts = max(first + len(emptied), self._resolved_ts + 1)
        for relation in told:
            if not isinstance(relation, Relation) or self._is_known(relation):
                continue
            ts = await self._define(relation, ts)

    def _keep(self, said: Relation | tuple[int, ...]) -> None:
        if isinstance(said, Relation):
            self._before[said.oid] = said

    async def _begin(self, told: list[Relation | tuple[int, ...]]) -> None:
        """Rows come of tables that the stream has described before, and not again. The log need not know how they were,
        and the catalog has them as they are now. Names are left as they are: others may have them by now.
        """
        before, self._before = self._before, {}
        is_half_done = self._resolved_ts > self._heard_ts - TICKS  # what the next commit does: no row is in between
        again = {each.oid for each in told if isinstance(each, Relation)} if is_half_done else set()
        ts = self._resolved_ts + 1
        for relation in before.values():
            known = self._schema.newest(relation.oid)
            is_there = known is not None and known.qualified == (relation.schema_name, relation.name)
            if is_there and relation.oid not in again and not self._is_known(relation):
                ts = await self._define(relation, ts)

    async def _define(self, relation: Relation, ts: int) -> int:
        """Change by change, until the table is as it is told; gives the ts behind."""
        self._now = await self._catalog()
        while (change := evolution.next_change(ts, relation, self._schema, self._now)) is not None:
            await self._step(change, ts)
            ts += 1
        return ts

    def _is_known(self, relation: Relation) -> bool:
        known = self._schema.newest(relation.oid)
        is_as_told = known is not None and fits(known, relation, self._now.domains)
        return is_as_told or relation.oid in self._now.parts

    async def _step(self, change: SchemaChange, ts: int) -> None:
        if ts > self._heard_ts:
            raise NeedsHuman(
                f"a transaction makes more than {TICKS - 2} changes of schema, {change} among them.",
                "Start a new changefeed behind it; make them in several transactions.",
            )
        await self._emit(SchemaStep(change, ts))

    async def _catalog(self) -> PublishedTables:
        """It waits for a server that is away: nothing can be told ahead of what waits."""
        while True:
            try:
                found = await read_catalog(self._server, self._publication)
            except (Transient, Unavailable, Refused) as error:
                self._stopped = stopped(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self._stopped = None
                return found
