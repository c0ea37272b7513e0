"""The DDL span: pulled by the driver itself, because every minimum waits for it (rule 1).

It is a span like any other, of `mysql.tidb_ddl_job`; its few rows go to schema storage and the barrier.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from changefeed.errors import ChangefeedError
from changefeed.owner.barrier import Barrier
from changefeed.puller.feed import Data, Failed, FeedEvent, Resolved, SpanFeed
from changefeed.schema.job import Job, decode_job
from changefeed.schema.keys import DDL_JOB_TABLE_ID, table_span
from changefeed.schema.storage import SchemaStorage, Touched
from changefeed.upstream.pd import PdClient

SUB_ID = 1


class DdlSpan:
    """Feeds DDL jobs after `start_ts` into `schema` and `barrier`.

    `selects` says whether a DDL that involves these tables concerns the changefeed; `changed` is called after events.
    """

    def __init__(
        self,
        pd: PdClient,
        schema: SchemaStorage,
        barrier: Barrier,
        start_ts: int,
        selects: Callable[[Touched], bool],
        changed: Callable[[], None],
    ) -> None:
        self._schema = schema
        self._barrier = barrier
        self._start_ts = start_ts
        self._selects = selects
        self._changed = changed
        self._feed = SpanFeed(pd, self._on_event)
        self.failure: ChangefeedError | None = None

    async def __aenter__(self) -> DdlSpan:
        await self._feed.__aenter__()
        start, end = table_span(DDL_JOB_TABLE_ID)
        self._feed.subscribe(SUB_ID, DDL_JOB_TABLE_ID, start, end, self._start_ts)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._feed.__aexit__(None, None, None)

    async def _on_event(self, event: FeedEvent) -> None:
        match event:
            case Data(batch=batch):
                self._take(batch)
            case Resolved(ts=ts):
                self._barrier.on_resolved(ts)
            case Failed(error=error):
                self.failure = error
        self._changed()

    def _take(self, batch: pa.RecordBatch) -> None:
        # A handful of rows a day, each a JSON document: read one by one.
        for commit_ts, value in zip(batch["commit_ts"].to_pylist(), batch["value"].to_pylist(), strict=True):
            if not value:
                continue  # moved to the history table
            job = decode_job(value, self._schema.ddl_job_table)
            if job.is_done:
                try:
                    self._apply(job, commit_ts)
                except ChangefeedError as error:
                    self.failure = error
                    return

    def _apply(self, job: Job, commit_ts: int) -> None:
        touched = self._schema.touches(job)
        self._schema.apply(job, commit_ts)
        table = f"{job.schema_name}.{job.table_name}".rstrip(".")
        description = f"{job.type_name} of {table}: {job.query}" if job.query else f"{job.type_name} of {table}"
        self._barrier.on_ddl(commit_ts, job.id, self._selects(touched), description)
