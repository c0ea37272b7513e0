"""The DDL span: pulled by the driver itself, because every minimum waits for it (rule 1).

It is a span like any other, of `mysql.tidb_ddl_job`; its few rows go to schema storage and the barrier.
"""

from __future__ import annotations

from collections.abc import Callable

from changefeed.errors import ChangefeedError
from changefeed.owner.planning.barrier import Barrier
from changefeed.puller.feed import Data, Failed, FeedEvent, Resolved, SpanFeed
from changefeed.schema.job import Job, decode_job
from changefeed.schema.keys import DDL_JOB_TABLE_ID, table_span
from changefeed.schema.storage import SchemaStorage, Touched
from changefeed.upstream.pd import PdClient

SUB_ID = 1


class DdlSpan:
    """Feeds DDL jobs after `start_ts` into `schema` and `barrier`.

    `selects` says whether a DDL that involves these tables concerns the changefeed; `changed` is called after events;
    `failed` once, when a job can't be followed or the span can't be pulled: the barrier stays where it is then.
    """

    def __init__(
        self,
        pd: PdClient,
        schema: SchemaStorage,
        barrier: Barrier,
        start_ts: int,
        selects: Callable[[Touched], bool],
        changed: Callable[[], None],
        failed: Callable[[ChangefeedError], None],
    ) -> None:
        self._schema = schema
        self._barrier = barrier
        self._start_ts = start_ts
        self._selects = selects
        self._changed = changed
        self._failed = failed
        self._feed = SpanFeed(pd, self._on_event)
        self._broken = False

    async def __aenter__(self) -> DdlSpan:
        await self._feed.__aenter__()
        start, end = table_span(DDL_JOB_TABLE_ID)
        self._feed.subscribe(SUB_ID, DDL_JOB_TABLE_ID, start, end, self._start_ts)
        return self

    async def __aexit__(self, *_: object) -> None:
        # What ended the block goes on by itself; the feed adds its own failure, if it has one.
        await self._feed.__aexit__(None, None, None)

    async def _on_event(self, event: FeedEvent) -> None:
        if self._broken:
            return  # a resolved-ts behind a job that was not taken in would let rows pass it (rules 1, 29)
        try:
            self._take(event)
        except ChangefeedError as error:
            self._broken = True
            self._failed(error)
        self._changed()

    def _take(self, event: FeedEvent) -> None:
        match event:
            case Data(batch=batch):
                # A handful of rows a day, each a JSON document: read one by one.
                for ts, value in zip(batch["commit_ts"].to_pylist(), batch["value"].to_pylist(), strict=True):
                    if value:  # else: moved to the history table
                        self._row(ts, value)
            case Resolved(ts=ts):
                self._barrier.on_resolved(ts)
            case Failed(error=error):
                raise error

    def _row(self, commit_ts: int, value: bytes) -> None:
        job = decode_job(value, self._schema.ddl_job_table)
        if job.is_done:
            self._schema.apply(job, commit_ts)
            selected = self._selects(self._schema.touches(job))
            self._barrier.on_ddl(commit_ts, job.id, selected, _describe(job))


def _describe(job: Job) -> str:
    table = f"{job.schema_name}.{job.table_name}".rstrip(".")
    return f"{job.type_name} of {table}: {job.query}" if job.query else f"{job.type_name} of {table}"
