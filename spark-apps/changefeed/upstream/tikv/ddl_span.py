"""The DDL span: an ordinary span, of `mysql.tidb_ddl_job`, whose rows become changes of schema.

The meaning of a DDL depends on those before it, so rows are held until the span is resolved up to them, then handed on
in order. A job has a row for each of its states; `tidb.effects` decides at which it takes effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from changefeed.errors import ChangefeedError, ProtocolViolation, Transient
from changefeed.schema.history import SchemaHistory
from changefeed.upstream.contract import (
    WHOLE_TABLE,
    Data,
    FeedEvent,
    Resolved,
    SchemaEvent,
    SchemaFeed,
    SchemaStep,
    Stopped,
    SubscriptionFailed,
)
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.upstream.tikv.tidb.effects import EARLY, Effects
from changefeed.upstream.tikv.tidb.job import Job, decode_job
from changefeed.upstream.tikv.tidb.keys import DDL_JOB_TABLE_ID

_LOG = logging.getLogger(__name__)

SUB_ID = 1
#: No table is written beyond the span's resolved-ts, so it waits for nothing that may come; it is a message a second.
_GATHER_SECONDS = 0.0


class DdlSpan(SchemaFeed):
    """Hands on DDL jobs after `schema.snapshot_ts`, each of which `emit` applies to `schema`.

    SubscriptionFailed is the last event: a job can't be followed, or the span can't be pulled.
    """

    def __init__(self, pd: PdClient, schema: SchemaHistory, emit: Callable[[SchemaEvent], Awaitable[None]]) -> None:
        assert schema.ddl_job_table is not None, "it is of this upstream"
        self._ddl_job_table = schema.ddl_job_table
        self._begins_at = schema.snapshot_ts
        self._emit = emit
        self._feed = SpanFeed(pd, self.on_event, gather_s=_GATHER_SECONDS)
        self._effects = Effects(schema, lambda ts: Snapshot(pd, ts))
        self._waiting: dict[tuple[int, int], Job] = {}  # by commit ts and job id
        self._upto: dict[int, int] = {}  # by job id: the commit ts up to which its rows are processed
        self._resolved_ts = 0
        self._broken = False
        self._turn = asyncio.Lock()  # the streams of two stores may have an event each while meta keys are read

    async def __aenter__(self) -> DdlSpan:
        await self._feed.__aenter__()
        self._feed.subscribe(SUB_ID, DDL_JOB_TABLE_ID, *WHOLE_TABLE, self._begins_at)
        return self

    async def __aexit__(self, *_: object) -> None:
        # What ended the block goes on by itself; the feed adds its own failure, if it has one.
        await self._feed.__aexit__(None, None, None)

    def stopped(self) -> Stopped | None:
        """As SpanFeed.stopped."""
        return self._feed.stopped()

    async def on_event(self, event: FeedEvent) -> None:
        """From the span's feed."""
        async with self._turn:
            if self._broken:
                return  # a resolved-ts behind a job that was not taken in would let rows pass it (rules 1, 29)
            try:
                await self._take(event)
            except ChangefeedError as error:
                self._broken = True
                await self._emit(SubscriptionFailed(SUB_ID, error))

    async def _take(self, event: FeedEvent) -> None:
        match event:
            case Data(batch=batch):
                # A handful of rows a day, each a JSON document: read one by one.
                for ts, value in zip(batch["commit_ts"].to_pylist(), batch["value"].to_pylist(), strict=True):
                    if value:  # else: moved to the history table
                        self._row(ts, value)
            case Resolved(ts=ts):
                try:
                    await self._go_on(ts)
                except Transient as error:
                    _LOG.warning("%s It is read again with the next resolved-ts.", error.message)
                else:
                    self._resolved_ts = ts
                    await self._emit(event)
            case SubscriptionFailed(error=error):
                raise error

    def _row(self, commit_ts: int, value: bytes) -> None:
        job = decode_job(value, self._ddl_job_table)
        is_of_no_effect = not job.is_done and job.type not in EARLY
        if is_of_no_effect or commit_ts <= max(self._upto.get(job.id, 0), self._begins_at):
            return
        if commit_ts <= self._resolved_ts:
            raise ProtocolViolation(
                f"{job} at {commit_ts} came after the DDL span resolved to {self._resolved_ts}.",
                "Restart the changefeed; if this happens again, report it as a bug.",
            )
        self._waiting[commit_ts, job.id] = job

    async def _go_on(self, resolved_ts: int) -> None:
        for ts, job_id in sorted(row for row in self._waiting if row[0] <= resolved_ts):
            job = await self._effects.of(self._waiting[ts, job_id], ts)
            if job is not None:
                await self._emit(SchemaStep(job, ts))
            self._upto[job_id] = ts
            del self._waiting[ts, job_id]
