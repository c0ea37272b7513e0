"""A changefeed's hold on history is its slot; how far it holds is said in the WAL.

The slot's position is the business of its reader, which is another process and need not run: a driver that holds
history from a ts on writes that there, and the reader finds it (chain). So nothing is confirmed which a driver has not
said out of a durable checkpoint, and the order of the WAL is that of what was said.
"""

from __future__ import annotations

import asyncio
from contextlib import closing

from changefeed.upstream.contract import HeldUntil, HistoryLease
from changefeed.upstream.postgresql.server import PostgresqlServer, PostgresqlSession
from changefeed.upstream.postgresql.slot import slots
from changefeed.upstream.postgresql.slot.anchors import EMIT, EMIT_HELD
from changefeed.upstream.postgresql.slot.kept_log import Row, kept_log


class SlotLease(HistoryLease):
    """`name`: of the hold, which the server lists its connections by.

    A slot goes on after its TTL: that only says for how long the slot is believed to be there when nobody looks.
    """

    def __init__(self, server: PostgresqlServer, slot: str, name: str, ttl_seconds: int = 0) -> None:
        self._server, self._slot, self._name = server, slot, name
        self.ttl_seconds = ttl_seconds
        self._held: HeldUntil | None = None

    @property
    def held(self) -> HeldUntil | None:
        return self._held

    async def begin(self, lead: int = 0) -> int:
        """As HistoryLease.begin: makes the slot if it is not there. Below the ts there is nothing to be held."""
        return await asyncio.to_thread(self._begin)

    async def hold(self, ts: int) -> None:
        """As HistoryLease.hold. Raises SnapshotLostByGC where the slot is gone; it never makes one."""
        await asyncio.to_thread(self._hold, ts)

    async def remove(self) -> None:
        """As HistoryLease.remove: ends the slot's reader, and drops it."""
        await asyncio.to_thread(self._remove)

    def _begin(self) -> int:
        with self._session() as session:
            found = slots.make(session, self._slot)
            # The first in the slot may be another's that was made after ours, and is below the second.
            for _ in range(2):
                ((ts, _),) = session.rows(EMIT)
        self._held = self._until(int(ts), found)
        return int(ts)

    def _hold(self, ts: int) -> None:
        with self._session() as session:
            found = slots.check_there(session, self._slot)
            if self._held is None or self._held.ts < ts:
                session.rows(EMIT_HELD, held=str(ts), slot=self._slot)
        held_ts = ts if self._held is None else max(ts, self._held.ts)
        self._held = self._until(held_ts, found)

    def _until(self, ts: int, found: Row) -> HeldUntil:
        return HeldUntil(ts, found["now_ms"] + self.ttl_seconds * 1000, kept_log(found, ts))

    def _remove(self) -> None:
        with self._session() as session:
            slots.drop(session, self._slot)

    def _session(self) -> closing[PostgresqlSession]:
        return closing(PostgresqlSession(self._server, name=self._name))
