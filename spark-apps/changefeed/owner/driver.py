"""The driver: one process's run of a changefeed, from its resource to its end.

A shell: it connects the owner's decisions to PD, the log, the sink, the pullers and Spark, and turns what ends a run
(finished, drained, stopped by a DDL, fenced, failed) into an Outcome or an error. It decides nothing about data.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from changefeed import errors
from changefeed.errors import ChangefeedError, Conflict, NeedsHuman, OutcomeUnknown, Unavailable
from changefeed.metrics import Registry, View
from changefeed.model.record import FileCommitted
from changefeed.owner.barrier import Barrier, Ddl
from changefeed.owner.ddl_span import DdlSpan
from changefeed.owner.owner import Action, AppendCheckpoint, AppendPlan, Owner, Publish, Run, Stop
from changefeed.owner.places import sink_uri
from changefeed.owner.planner import Planner
from changefeed.owner.prepare import Prepared, open_places, prepare
from changefeed.owner.progress import Meter
from changefeed.owner.service import OwnerService
from changefeed.owner.spans import Spans
from changefeed.puller.task import PullerJob
from changefeed.schema.keys import table_span
from changefeed.schema.storage import Touched
from changefeed.sink.storage.index import write_index
from changefeed.sink.storage.metadata import write_metadata
from changefeed.spec.model import Changefeed
from changefeed.upstream.pd import PdClient
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import OwnerAddress

_METADATA_INTERVAL_S = 2.0
_SAFEPOINT_INTERVAL_S = 60.0
_IDLE_STEP_S = 0.2
_LINGER_S = 0.02
_VIEW_INTERVAL_S = 0.25
_FOLD_AFTER = 2000


@dataclass(frozen=True)
class RunOptions:
    """What the command line adds to the resource."""

    metrics_port: int = 9464  # 0: any free one
    pd_deadline_s: float = 10.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended well: `state` is finished or drained."""

    state: str
    checkpoint_ts: int


class Execution(Protocol):
    """Spark, as the driver sees it. All calls block; one thread makes them, but for `failure`, which any may."""

    def start_session(self) -> None: ...

    def run(self, owner: OwnerAddress, sink_uri: str, pullers: PullerJob) -> None: ...

    def failure(self) -> str | None: ...

    def stop(self) -> None: ...


def run(changefeed: Changefeed, options: RunOptions, execution: Execution, view: View) -> Outcome:
    """Run until the changefeed is finished, or drained after SIGTERM or SIGINT. Raises ChangefeedError."""
    return asyncio.run(_run(changefeed, options, execution, view))


async def _run(changefeed: Changefeed, options: RunOptions, execution: Execution, view: View) -> Outcome:
    state_store, sink = await asyncio.to_thread(open_places, changefeed)
    async with AsyncExitStack() as stack:
        pd = await PdClient.connect(changefeed.spec.upstream.pd_addresses, options.pd_deadline_s)
        stack.push_async_callback(pd.close)
        prepared = await prepare(changefeed, pd, state_store, sink)
        if prepared.finished:
            return Outcome("finished", prepared.state.checkpoint_ts)
        driver = Driver(prepared, options, execution, view)
        return await driver.run(stack)


class Driver:
    """One claimed run. Implements service.Handler; everything happens on one event loop, what blocks in threads."""

    def __init__(self, prepared: Prepared, options: RunOptions, execution: Execution, view: View) -> None:
        spec = prepared.changefeed.spec
        self._prepared = prepared
        self._options = options
        self._execution = execution
        self._view = view
        self._barrier = Barrier(prepared.state.checkpoint_ts, spec.target_ts)
        spans = Spans(spec.spark.pullers.count)
        storage = prepared.changefeed.storage
        self._owner = Owner(
            state=prepared.state,
            run=Run(prepared.epoch, prepared.nonce, prepared.codec),
            tables=prepared.planned_tables(),
            table_infos=prepared.table_infos(),
            names=prepared.layout,
            spans=spans,
            barrier=self._barrier,
            planner=Planner(storage.file_size, storage.flush_interval),
        )
        for dispatcher in sorted(prepared.tables):
            spans.add_span(dispatcher, *table_span(dispatcher), prepared.state.flushed_ts(dispatcher))
        self._service = OwnerService(self, prepared.epoch, prepared.nonce)
        self._wake = asyncio.Event()
        self._failure: ChangefeedError | None = None
        self._stop: Stop | None = None
        self._published: int | None = None  # checkpoint in `metadata`
        self._published_at = 0.0
        self._registry = Registry(prepared.changefeed.metadata.namespace, prepared.changefeed.metadata.name)
        self._meter = Meter(self._owner, self._registry, len(prepared.tables))

    async def run(self, stack: AsyncExitStack) -> Outcome:
        self._catch_signals(stack)
        self._registry.serve(self._options.metrics_port)
        stack.callback(self._registry.close)
        # Spark knows its active session by thread, so one thread makes all calls.
        spark = stack.enter_context(ThreadPoolExecutor(1, "spark"))
        loop = asyncio.get_running_loop()
        session = loop.run_in_executor(spark, self._execution.start_session)
        stack.push_async_callback(loop.run_in_executor, spark, self._execution.stop)
        address = await self._service.start()
        stack.push_async_callback(self._service.stop)
        prepared = self._prepared
        ddl_span = await stack.enter_async_context(
            DdlSpan(
                prepared.pd,
                prepared.schema,
                self._barrier,
                prepared.state.checkpoint_ts,
                self._selects,
                self._wake.set,
            )
        )
        await session
        spec = prepared.changefeed.spec
        pullers = PullerJob(
            spec.spark.pullers.count,
            tuple(spec.upstream.pd_addresses),
            prepared.state_uri,
            spec.spark.pullers.memory_quota,
        )
        await loop.run_in_executor(spark, self._execution.run, address, sink_uri(prepared.changefeed), pullers)
        watchers = [
            asyncio.create_task(self._watch(ddl_span)),
            asyncio.create_task(self._keep_safepoint()),
            asyncio.create_task(self._show()),
        ]
        try:
            await self._work()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            self._show_once()
        return self._outcome()

    # What the owner decides is done here, one thing after another.

    async def _work(self) -> None:
        while self._stop is None:
            self._check()
            self._owner.latest()
            self._meter.pd_ms = await self._prepared.pd.pd_ms()
            action = self._owner.step(time.monotonic(), self._meter.pd_ms)
            if action is None:
                await self._publish_metadata(force=False)
                await self._delete_unneeded()
                await self._wait()
            else:
                await self._do(action)
        await self._publish_metadata(force=True)

    async def _do(self, action: Action) -> None:
        log = self._prepared.log
        match action:
            case Stop():
                self._stop = action
                return
            case Publish(indexes=indexes):
                await asyncio.to_thread(self._write_indexes, indexes)
            case AppendPlan() | AppendCheckpoint():
                pass
        await asyncio.to_thread(log.append, action.record)
        self._owner.recorded(time.monotonic(), action, log.state)
        self._meter.recorded(action)
        await self._publish_metadata(force=False)
        if log.tail > _FOLD_AFTER and log.state.plan is None:
            await asyncio.to_thread(log.fold, log.state)

    def _write_indexes(self, indexes: Iterable[tuple[str, int, str]]) -> None:
        for directory, index, path in indexes:
            self._grow(write_index, directory, index, path)

    def _grow(self, write: Callable[..., None], *what: object) -> None:
        """One of the objects that only this driver writes: when somebody else has, the log says who (rule 8)."""
        try:
            write(self._prepared.sink, *what)
        except (Conflict, OutcomeUnknown):
            self._prepared.log.poll_fence()
            write(self._prepared.sink, *what)

    async def _publish_metadata(self, force: bool) -> None:
        """At most every two seconds, as TiCDC, and at the end; only what is in the log (rules 8, 11)."""
        ts = self._owner.state.checkpoint_ts
        due = force or time.monotonic() - self._published_at >= _METADATA_INTERVAL_S
        if ts == self._published or not due:
            return
        await asyncio.to_thread(self._grow, write_metadata, ts)
        self._published, self._published_at = ts, time.monotonic()

    async def _delete_unneeded(self) -> None:
        uris = self._owner.unneeded_segments()
        if uris:
            await asyncio.to_thread(self._delete, uris)

    def _delete(self, uris: Iterable[str]) -> None:
        for uri in uris:
            self._prepared.house.delete_segment(uri)

    async def _wait(self) -> None:
        deadline = self._owner.planner.next_deadline()
        timeout = _IDLE_STEP_S
        if deadline is not None:
            timeout = min(timeout, max(0.0, deadline - time.monotonic()))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(timeout, _LINGER_S))
            await asyncio.sleep(_LINGER_S)  # what comes together is looked at together
        self._wake.clear()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _outcome(self) -> Outcome:
        assert self._stop is not None
        if self._stop.ddl is not None:
            raise _stopped_by(self._stop.ddl, self._owner.state.checkpoint_ts)
        state = "finished" if self._owner.state.finished else "drained"
        return Outcome(state, self._owner.state.checkpoint_ts)

    # What goes on beside it.

    def _catch_signals(self, stack: AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
            stack.callback(loop.remove_signal_handler, number)

    def _drain(self) -> None:
        if self._meter.draining:
            raise SystemExit(130)
        self._meter.draining = True
        self._owner.drain()
        seconds = self._prepared.changefeed.spec.drain_timeout
        asyncio.get_running_loop().call_later(seconds, self._drained_too_late, seconds)
        self._wake.set()

    def _drained_too_late(self, seconds: float) -> None:
        self._fail(
            Unavailable(
                f"Not drained within {seconds:g} s; the checkpoint is {self._owner.state.checkpoint_ts}.",
                "Nothing is lost: a later start goes on from there. Raise spec.drainTimeout for large plans.",
            )
        )

    async def _watch(self, ddl_span: DdlSpan) -> None:
        while True:
            await asyncio.sleep(_IDLE_STEP_S)
            if ddl_span.failure is not None:
                self._fail(ddl_span.failure)
            if why := await asyncio.to_thread(self._execution.failure):
                self._fail(Unavailable(why, "A later start goes on from the checkpoint."))

    async def _keep_safepoint(self) -> None:
        while True:
            await asyncio.sleep(_SAFEPOINT_INTERVAL_S)
            try:
                await self._prepared.safepoint.hold(self._owner.state.checkpoint_ts)
            except ChangefeedError as error:
                self._fail(error)

    async def _show(self) -> None:
        while True:
            self._show_once()
            await asyncio.sleep(_VIEW_INTERVAL_S)

    def _show_once(self) -> None:
        self._view.update(self._meter.progress(time.monotonic()))

    def _fail(self, error: ChangefeedError) -> None:
        self._failure = self._failure or error
        self._wake.set()

    def _selects(self, touched: Touched) -> bool:
        """Whether a DDL involves a selected table, or one that it would make so."""
        table_filter = self._prepared.changefeed.spec.filter.table_filter()
        return bool(touched.table_ids & self._prepared.tables.keys()) or any(
            table_filter.matches(schema, table) for schema, table in touched.tables
        )

    # service.Handler

    def puller_joined(self, puller: int) -> list[pb.Command]:
        return self._owner.puller_joined(puller)

    def puller_left(self, puller: int) -> None:
        self._owner.puller_left(puller)
        self._meter.puller_left(puller)
        self._wake.set()

    def report(self, puller: int, report: pb.Report) -> None:
        try:
            self._owner.report(time.monotonic(), puller, report)
            self._meter.report(puller, report)
        except ChangefeedError as error:
            self._fail(error)
        for failure in report.failures:
            self.fail(failure)
        self._wake.set()

    def latest(self) -> int:
        return self._owner.latest()

    def plan(self, record: int) -> bytes:
        return self._owner.work(record).model_dump_json(by_alias=True).encode()

    async def commit(self, done: pb.Done) -> None:
        for file in done.files:
            committed = FileCommitted(
                entry=file.entry,
                rows=file.rows,
                raw_rows=file.raw_rows,
                filtered_rows=file.filtered_rows,
                bytes=file.bytes,
                hash=file.hash,
            )
            self._owner.file_done(done.record, done.nonce, committed)
        self._wake.set()

    def fail(self, failure: pb.Failure) -> None:
        kind = getattr(errors, failure.reason, NeedsHuman)
        known = isinstance(kind, type) and issubclass(kind, ChangefeedError)
        self._fail(kind(failure.message, failure.next_step) if known else NeedsHuman(failure.message))


def _stopped_by(ddl: Ddl, checkpoint_ts: int) -> NeedsHuman:
    return NeedsHuman(
        f"Stopped at {ddl.ts} by a DDL on a selected table: {ddl.description} (job {ddl.job_id}). "
        f"Everything up to that ts is written; the checkpoint is {checkpoint_ts}.",
        "DDLs are not replicated yet: apply it downstream, then start a new changefeed with that ts as startTs.",
    )
