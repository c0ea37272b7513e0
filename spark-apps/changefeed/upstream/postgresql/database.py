"""A PostgreSQL database as an upstream: one slot, read by one puller."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changefeed.clock import Clock
from changefeed.errors import ChangefeedError
from changefeed.schema.history import SchemaHistory
from changefeed.schema.table_info import TableInfo
from changefeed.upstream.contract import GATHER_SECONDS, PATIENCE_S, FeedEvent, Hold, SchemaEvent
from changefeed.upstream.postgresql.checks import Needs, findings, read, refuse
from changefeed.upstream.postgresql.patience import patiently
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession
from changefeed.upstream.postgresql.slot import slots
from changefeed.upstream.postgresql.slot.anchors import EMIT

if TYPE_CHECKING:
    from changefeed.upstream.postgresql.feed import SlotFeed
    from changefeed.upstream.postgresql.reading.snapshot import DatabaseSnapshot
    from changefeed.upstream.postgresql.schema.catalog import PublishedTables
    from changefeed.upstream.postgresql.schema.relation_feed import RelationFeed
    from changefeed.upstream.postgresql.slot.lease import SlotLease

# What reads and pulls is loaded where it is used: a Job that renews a hold every few minutes has no use for it.

_IDENTITY = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, oid::bigint FROM pg_database
WHERE datname = current_database()"""
_SLOTS = """
SELECT slot_name, active FROM pg_replication_slots WHERE database = current_database() AND NOT temporary
ORDER BY slot_name"""
_CLOCK_MS = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def cluster_id_of(server: PostgresqlServer) -> int:
    """Give the number of a database, the same on each server that has its WAL. Raises what PostgresqlSession does."""
    with closing(PostgresqlSession(server)) as session:
        ((system_id, oid),) = session.rows(_IDENTITY)
    return int(hashlib.sha256(f"{system_id}/{oid}".encode()).hexdigest()[:15], 16) or 1


class PostgresqlDatabase:
    """Implements Upstream. What it asks goes over one connection; feeds and leases have their own."""

    has_old_definitions = False

    def __init__(self, server: PostgresqlServer, slot: str, publication: str, cluster_id: int) -> None:
        self._server, self._slot, self._publication, self._cluster_id = server, slot, publication, cluster_id
        self._session: PostgresqlSession | None = None
        self._asking = threading.Lock()

    @property
    def cluster_id(self) -> int:
        return self._cluster_id

    async def now(self) -> int:
        """It is that of a message which is put into the WAL: commits behind it have a higher one."""
        return int(await self._asked(lambda session: session.rows(EMIT)[0][0]))

    async def now_ms(self) -> int:
        return int(await self._asked(lambda session: session.rows(_CLOCK_MS)[0][0]))

    def history_lease(self, name: str, ttl_seconds: int) -> SlotLease:
        """As Upstream.history_lease. A slot keeps history for as long as it is there."""
        from changefeed.upstream.postgresql.slot.lease import SlotLease

        return SlotLease(self._server, self._slot, name, ttl_seconds)

    async def holds(self) -> list[Hold]:
        """The database's logical slots, of whomever. None says from which ts on, nor ends by itself."""
        found = await self._asked(lambda session: session.rows(_SLOTS))
        return [Hold(str(name), ts=0, until_ms=None, is_read=bool(active)) for name, active in found]

    async def release(self, name: str) -> None:
        """As Upstream.release: the slot is dropped."""
        await self._asked(lambda session: slots.drop(session, name))

    async def check(self, selects: Callable[[str, str], bool]) -> list[str]:
        """Every sink is given all columns of a deleted row, so old rows are needed whole."""
        facts = await self._asked(lambda session: read(session, self._slot, self._publication))
        found = findings(facts, Needs(selects, old_rows=True))
        refuse(str(self._server), found)
        return [f"{self._server}: {finding}" for finding in found]

    async def schema(self, ts: int, known: Mapping[int, TableInfo] | None = None) -> SchemaHistory:
        from changefeed.upstream.postgresql.schema.definitions import read_schema

        return await read_schema(self._server, self._publication, ts, known or {})

    def schema_feed(self, schema: SchemaHistory, emit: Callable[[SchemaEvent], Awaitable[None]]) -> RelationFeed:
        from changefeed.upstream.postgresql.schema.relation_feed import RelationFeed

        return RelationFeed(self._server, self._publication, schema, emit)

    def feed(
        self,
        emit: Callable[[FeedEvent], Awaitable[None]],
        clock: Clock | None = None,
        *,
        scratch_folder: Path | None = None,
        room: Callable[[], Awaitable[None]] | None = None,
        gather_s: float = GATHER_SECONDS,
        scan_rate: float | None = None,
    ) -> SlotFeed:
        from changefeed.upstream.postgresql.feed import SlotFeed
        from changefeed.upstream.scratch import scratch_in

        scratch = None if scratch_folder is None else scratch_in(scratch_folder)
        where = (self._server, self._slot, self._publication)
        return SlotFeed(*where, emit, clock, scratch=scratch, room=room, gather_s=gather_s)

    def snapshot(self, selects: Callable[[str, str], bool]) -> DatabaseSnapshot:
        """The selected tables as they are now, once it is entered."""
        from changefeed.upstream.postgresql.reading.snapshot import DatabaseSnapshot

        return DatabaseSnapshot(self._server, self._publication, selects)

    async def tables_now(self) -> tuple[TableInfo, ...]:
        """The publication's. The stream says nothing of one that is dropped, or that has no rows yet."""
        from changefeed.upstream.postgresql.schema.catalog import read_published

        published: PublishedTables = await self._asked(lambda session: read_published(session, self._publication))
        return published.tables

    def check_can_copy(self) -> None:
        """The stream has what rows were before they were changed, so they can be had as of any ts that it has."""

    async def bounds(self, table_id: int, most: int) -> tuple[bytes, ...]:
        """A slot has all tables whole."""
        return ()

    async def copy_bounds(self, table: TableInfo, table_id: int, most: int) -> tuple[bytes, ...]:
        from changefeed.upstream.postgresql.copies.cuts import bounds

        return tuple(await self._asked(lambda session: bounds(session, self._publication, table, most)))

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._asking:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    async def _asked(self, question: Callable[[PostgresqlSession], Any]) -> Any:
        return await patiently(partial(self._ask, question), PATIENCE_S)

    def _ask(self, question: Callable[[PostgresqlSession], Any]) -> Any:
        with self._asking:
            try:
                self._session = self._session or PostgresqlSession(self._server)
                return question(self._session)
            except ChangefeedError:
                session, self._session = self._session, None
                if session is not None:
                    session.close()
                raise
