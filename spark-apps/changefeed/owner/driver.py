"""The driver: one process's run of a changefeed, from its resource to its end.

A shell: it connects the owner's decisions to PD, the log, the sink, the pullers and Spark, and turns the end of a run
(finished, drained, stopped by a DDL, fenced, failed) into an Outcome or an error. It decides nothing about data, and
none of its effects outlives `run`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from changefeed.errors import ChangefeedError, SnapshotLostByGC, Unavailable
from changefeed.filter.ddl import ignores_ddl
from changefeed.metrics import Registry
from changefeed.owner.alive import REFRESH_S
from changefeed.owner.deletion import Deletion
from changefeed.owner.execution import Execution, watch_tasks
from changefeed.owner.expiry import Expiry
from changefeed.owner.owner import Owner
from changefeed.owner.pace import Pace, pace_of
from changefeed.owner.patience import answered, in_thread, patience_of
from changefeed.owner.planning.actions import Publish, Recorded, Stop
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.ddls import Ddls
from changefeed.owner.planning.planner import Planner
from changefeed.owner.planning.routed import RoutedDdls
from changefeed.owner.planning.timeline import Timeline
from changefeed.owner.pod import OWNER_PORT, Pod, check_pod
from changefeed.owner.preparation.prepare import check_attempt, open_state_and_sink, prepare
from changefeed.owner.preparation.prepared import Prepared
from changefeed.owner.publication import Publication, act
from changefeed.owner.pulling.load import MOST_BORDERS, borders
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.reporting.driver_status import driver_status
from changefeed.owner.reporting.live_settings import LiveSettings
from changefeed.owner.reporting.meter import Meter
from changefeed.owner.reporting.snapshot import RunSnapshot, View
from changefeed.owner.reporting.status import Status
from changefeed.owner.reporting.status_writer import StatusReports, StatusWriter
from changefeed.owner.reporting.unmatched import UnmatchedRules
from changefeed.owner.serving.calls import Calls
from changefeed.owner.serving.http_server import Health, Inquiry, served
from changefeed.owner.serving.service import OwnerService
from changefeed.owner.serving.vigilance import StandIn
from changefeed.owner.writing.writing import Run
from changefeed.pipeline.task import PipelineJob
from changefeed.routing.routes import Routes
from changefeed.sink.claim import identity_downstream
from changefeed.spec.driver_status import TABLES_MAX
from changefeed.spec.model import Changefeed
from changefeed.spec.parse import effective
from changefeed.upstream import choice
from changefeed.upstream.contract import WHOLE_TABLE, SchemaEvent, SchemaFeed
from changefeed.upstream.written_rows import MaskKeys
from changefeed.wire import owner_pb2 as pb

_IDLE_STEP_S = 0.2
_WATCH_S = 0.5
_LINGER_S = 0.02
_TEND_INTERVAL_S = 0.1
_VIEW_INTERVAL_S = 0.25
_PLANS_IN_QUOTA = 4  # what a plan names can't be deleted before its commit
_INTERRUPTED = 130


@dataclass(frozen=True)
class RunOptions:
    """What the command line adds to the resource."""

    metrics_port: int = 9464  # 0: any free one
    pd_deadline_s: float = 10.0
    secrets_dir: Path | None = None  # None: the environment's own credentials
    take_over: bool = False  # also from a driver that says it is alive
    attempt: int = 0  # docs/design/layouts.md, Epoch and attempt; 0 where nobody counts
    pod: Pod | None = None  # None: on a laptop
    status: StatusWriter | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended well: `state` is finished or drained."""

    state: str
    checkpoint_ts: int
    sink_uri: str = ""  # of the newest generation


def run(changefeed: Changefeed, options: RunOptions, execution: Execution, view: View) -> Outcome:
    """Run until the changefeed is finished, or drained after SIGTERM or SIGINT. Raises ChangefeedError.

    A second one of these signals ends the process at once with code 130: as after a crash, a later run goes on.
    """
    gc.freeze()  # what is loaded stays: the collector need not look at it
    return asyncio.run(run_on_loop(changefeed, options, execution, view))


async def run_on_loop(changefeed: Changefeed, options: RunOptions, execution: Execution, view: View) -> Outcome:
    if options.pod:
        check_pod(options.pod, changefeed)
    if options.attempt:
        await asyncio.to_thread(check_attempt, changefeed, options.attempt, options.secrets_dir)
    state_store, sink = await asyncio.to_thread(open_state_and_sink, changefeed, options.secrets_dir)
    async with AsyncExitStack() as stack:
        stack.callback(state_store.release)
        stack.callback(sink.release)
        upstream = await choice.access_of(changefeed, options.secrets_dir).connect(options.pd_deadline_s)
        stack.push_async_callback(upstream.close)
        prepared = await prepare(changefeed, upstream, state_store, sink, options.take_over, options.attempt)
        if prepared.alive:
            stack.push_async_callback(in_thread, prepared.alive.end)
        stack.callback(prepared.run_folder.clear_spool)
        driver = Driver(prepared, options, execution, view)
        if prepared.finished:
            return await driver.publish_finished()
        return await driver.run(stack)


class Driver:
    """One claimed run; everything happens on one event loop, what blocks in threads."""

    def __init__(
        self, prepared: Prepared, options: RunOptions, execution: Execution, view: View, pace: Pace | None = None
    ) -> None:
        """`pace`: None: what the resource asks for."""
        spec = prepared.changefeed.spec
        self.prepared = prepared
        self._options = options
        self._execution = execution
        self._view = view
        self._pace = pace or pace_of(prepared.changefeed)
        self._barrier = Barrier(prepared.schema.snapshot_ts, spec.target_ts, prepared.syncpoints())
        spans = Spans(spec.spark.pullers.count, socket.gethostname(), split_bytes=self._pace.split_bytes)
        quota = spec.event_store.quota
        plan_bytes = min(self._pace.plan_bytes, quota // _PLANS_IN_QUOTA)
        self.owner = Owner(
            state=prepared.state,
            run=Run(prepared.epoch, prepared.nonce, prepared.codec, prepared.sink.in_order),
            tables=prepared.planned_tables(),
            table_infos=prepared.table_infos(),
            outputs=prepared.sink.outputs,
            spans=spans,
            barrier=self._barrier,
            planner=Planner(prepared.sink.file_size, self._pace.flush_s, plan_bytes),
            quota=Quota(quota),
            expiration_days=spec.sink.expiration_days,
        )
        copies = prepared.state.copies()
        for dispatcher in sorted(prepared.tables):
            flushed_ts = prepared.state.flushed_ts(dispatcher)
            spans.add_span(dispatcher, *WHOLE_TABLE, flushed_ts, copies.get(dispatcher))
        self._wake = asyncio.Event()
        self._failure: asyncio.Future[ChangefeedError] = asyncio.get_running_loop().create_future()
        self._schema_feed: SchemaFeed | None = None
        self._deadline: asyncio.TimerHandle | None = None  # of the drain
        self._ending = threading.Event()  # nobody waits for a store any more
        self.registry = Registry(prepared.changefeed.metadata.namespace, prepared.changefeed.metadata.name)
        self.meter = Meter(self.owner, self.registry, spec.upstream.server, spec.upstream.source)
        prepared.log.patience = patience_of("log", self.meter, self._ending)
        patience = patience_of("publication", self.meter, self._ending)
        self.publication = Publication(prepared, patience, self._pace)
        self._deletion = Deletion(prepared.run_folder, spans.files, self.meter)
        self._expiry = Expiry(prepared.sink, self.meter, self._ending)
        self._saying_alive = asyncio.Lock()
        self._unmatched = UnmatchedRules(prepared.changefeed, prepared.upstream, prepared.schema)
        self._reports: StatusReports | None = None
        self._settings_changed = asyncio.Event()
        self._settings = LiveSettings(prepared.changefeed, self._settings_changed.set)
        if options.status:
            self._reports = StatusReports(
                Status(version("changefeed-operator")),
                options.status,
                self._snapshot,
                self.say_alive,
                self.meter.status_failed,
                self._settings.told,
                self._pace.report_s,
            )
        self._calls = Calls(self.owner, self.meter, self.registry, self._changed, self.fail, self._hear)
        self._service = OwnerService(self._calls, prepared.epoch, prepared.nonce)

    async def publish_finished(self) -> Outcome:
        """There is nothing left to do, unless the last run died between its last record and `metadata`."""
        await self._pd_ms()
        await self.publication.open()
        await self.publication.checkpoint(self.owner.state.checkpoint_ts, force=True)
        if self._reports:
            await self._reports.last()
        return Outcome("finished", self.owner.state.checkpoint_ts, self.prepared.sink.uri)

    async def run(self, stack: AsyncExitStack) -> Outcome:
        """Everything, from the first puller to the last `metadata`. `stack` closes what is opened here."""
        self._catch_signals(stack)
        pod = self._options.pod
        host = pod.every_address if pod else "127.0.0.1"
        health = Health(lambda: self._execution.silent_s)
        stack.callback(health.close)
        asked = Inquiry(self.status)
        stack.enter_context(served(self.registry, self._options.metrics_port, host, health.ill, asked.ask))
        self.owner.begin(await self._pd_ms())
        await self.publication.open()
        stack.callback(self.publication.close)
        spark = stack.enter_context(ThreadPoolExecutor(1, "spark"))
        loop = asyncio.get_running_loop()
        started = loop.run_in_executor(spark, self._execution.start)
        stack.push_async_callback(loop.run_in_executor, spark, self._execution.stop)
        address = await self._service.start(host, OWNER_PORT if pod else 0, pod.ip if pod else host)
        stack.push_async_callback(self._service.stop)
        prepared = self.prepared
        filter_ = prepared.changefeed.spec.filter
        tables = filter_.table_filter()
        ignores = partial(ignores_ddl, filter_)
        timeline = Timeline(tables.matches, tables.matches_schema, ignores, prepared.tables)
        routed = RoutedDdls(Routes.of(effective(prepared.changefeed)), prepared.tables.values())
        ddls = Ddls(prepared.schema, timeline, self._barrier, self._wake.set, self.fail, routed.ddl)

        async def take(event: SchemaEvent) -> None:
            await ddls.take(event)
            self._unmatched.heard(event)

        feed = prepared.upstream.schema_feed(prepared.schema, take)
        self._schema_feed = await stack.enter_async_context(feed)

        if self._reports:
            await stack.enter_async_context(self._reports.ended())

        async def execute() -> None:
            await started
            pullers = prepared.puller_job(choice.access_of(prepared.changefeed, self._options.secrets_dir))
            pipeline = PipelineJob(
                identity_downstream(prepared.state),
                prepared.state_location,
                prepared.sink.job(),
                MaskKeys(self._options.secrets_dir),
            )
            await loop.run_in_executor(spark, self._execution.run, address, pullers, pipeline)
            await self._work()

        try:
            await self._until_ended(
                execute(),
                self._tend_pullers(),
                self._split_large_spans(),
                self._watch_execution(),
                watch_tasks(self._execution, self._calls.vigilance, lambda: self.owner.spans.complete, self._stand_in),
                self._keep_safepoint(),
                self._unmatched.keep(self._pace.safepoint_s),
                self._expiry.keep(lambda: self.owner.state.expired_before),
                self._keep_alive(),
                self._show(),
                self._watch_stores(self._schema_feed),
                self._service.crashed(),
                *([self._reports.keep()] if self._reports else []),
            )
        finally:
            self._show_once()
        return self._outcome()

    async def _until_ended(self, work: Coroutine[None, None, None], *beside: Coroutine[None, None, None]) -> None:
        """Until `work` is done. What fails beside it, or `fail`, ends it with that error, whatever it waits for."""
        tasks = [asyncio.ensure_future(each) for each in (work, *beside)]
        ends: list[asyncio.Future[Any]] = [*tasks, self._failure]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in tasks if task.done()]
            for task in ended:
                task.result()
            if not ended:
                raise await self._judged(self._failure.result())
        finally:
            self._ending.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _judged(self, error: ChangefeedError) -> ChangefeedError:
        """Why the run ends.

        A puller that misses history began where its span stood then: what it misses may be written by now.
        """
        if not isinstance(error, SnapshotLostByGC):
            return error
        checkpoint_ts = self.owner.state.checkpoint_ts
        await answered(lambda: self.prepared.history.hold(checkpoint_ts), self.meter)
        return Unavailable(
            error.message,
            f"Nothing is lost: everything up to {checkpoint_ts} is written, and the next start resumes from there.",
        )

    # What the owner decides is done here, one thing after another.

    async def _work(self) -> None:
        while not isinstance(action := self.owner.step(time.monotonic(), await self._pd_ms()), Stop):
            await act(action, self.owner, self.publication, self._deletion, self._recorded)
            if action is None:
                await self._wait()
        await self.publication.checkpoint(self.owner.state.checkpoint_ts, force=True)

    def _recorded(self, action: Recorded) -> None:
        now = time.monotonic()
        self.owner.recorded(now, action, self.prepared.log.state)
        self._hand_out()
        self.meter.recorded(now, action)
        if isinstance(action, Publish):
            self._calls.task_error = None

    async def _wait(self) -> None:
        deadline = self.owner.next_deadline()
        timeout = _IDLE_STEP_S
        if deadline is not None:
            timeout = min(timeout, max(0.0, deadline - time.monotonic()))
        # Not wait_for: it forgets a cancellation that comes together with the news, and the run would not end.
        with suppress(TimeoutError):
            async with asyncio.timeout(max(timeout, _LINGER_S)):
                await self._wake.wait()
            await asyncio.sleep(_LINGER_S)  # what comes together is looked at together
        self._wake.clear()

    def _outcome(self) -> Outcome:
        state = "finished" if self.owner.state.finished else "drained"
        return Outcome(state, self.owner.state.checkpoint_ts, self.prepared.sink.uri)

    # What goes on beside it.

    def _catch_signals(self, stack: AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
            stack.callback(loop.remove_signal_handler, number)
        stack.callback(self._cancel_deadline)

    def drain(self) -> None:
        """Write what is resolved, then end the run; asked a second time, end the process."""
        if self.meter.draining:
            # Spark's end takes seconds, and a thread may hang in a store. Nothing is lost: all is as after a crash.
            self._view.close()
            os._exit(_INTERRUPTED)
        self.meter.draining = True
        self.owner.drain()
        seconds = self._settings.spec.drain_timeout
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._drained_too_late, seconds)
        self._wake.set()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _drained_too_late(self, seconds: float) -> None:
        self.fail(
            Unavailable(
                f"Not drained within {seconds:g} s; the checkpoint is {self.owner.state.checkpoint_ts}.",
                "Nothing is lost: the next start resumes from there. Raise spec.drainTimeout for large plans.",
            )
        )

    def _changed(self) -> None:
        """Something was heard: there may be files to write, or something for `_work` to do."""
        self._hand_out()
        self._wake.set()

    def _hand_out(self) -> None:
        for task, work in self.owner.hand_out():
            write = pb.Write(work=work.model_dump_json(by_alias=True).encode())
            self._service.order(task, pb.Order(write=write))

    def _stand_in(self, task: StandIn) -> None:
        self._service.order(task.number, pb.Order(pull=pb.Pull(puller=task.puller)))

    async def _tend_pullers(self) -> None:
        while True:
            for puller, command in self.owner.tend(time.monotonic()):
                self._service.command(puller, command)
            await asyncio.sleep(_TEND_INTERVAL_S)

    async def _split_large_spans(self) -> None:
        spans, upstream = self.owner.spans, self.prepared.upstream
        while True:
            await asyncio.sleep(self._pace.split_s)
            if (large := spans.too_large(time.monotonic())) is not None:
                span_id, parts = large
                keys = spans.sampled_keys(span_id)
                bounds = await answered(partial(upstream.bounds, span_id, MOST_BORDERS), self.meter)
                self.owner.split(time.monotonic(), span_id, borders(bounds, keys, parts))

    async def _watch_execution(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if why := await asyncio.to_thread(self._execution.failure):
                raise self._calls.task_error or Unavailable(why, "The next start resumes from the checkpoint.")
            if error := self.meter.given_up(time.monotonic()):
                raise error

    async def _keep_safepoint(self) -> None:
        history = self.prepared.history
        while True:
            with suppress(TimeoutError):  # another TTL holds at once
                async with asyncio.timeout(self._pace.safepoint_s):
                    await self._settings_changed.wait()
            self._settings_changed.clear()
            history.ttl_seconds = int(self._settings.spec.upstream.safepoint_ttl)
            await answered(lambda: history.hold(self.owner.state.checkpoint_ts), self.meter)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            if self.prepared.alive:
                await self._pd_ms()
                await self.say_alive()

    async def say_alive(self) -> None:
        """Raises Fenced when a newer driver has said so."""
        if alive := self.prepared.alive:
            async with self._saying_alive:
                await in_thread(alive.refresh, self.prepared.epoch, self.meter.pd_ms)

    async def _pd_ms(self) -> int:
        if self.meter.pd_age(time.monotonic()) < self._pace.pd_s:
            return self.meter.pd_ms
        pd_ms = await answered(self.prepared.upstream.now_ms, self.meter)
        self.meter.pd_answered(time.monotonic(), pd_ms)
        return pd_ms

    def _snapshot(self, tables: int = 0) -> RunSnapshot:
        """`tables`: how many of them it shows."""
        return replace(
            self.meter.snapshot(time.monotonic(), tables),
            published_ts=self.publication.checkpoint_ts,
            history=self.prepared.history.held,
            sink_uri=self.prepared.sink.uri,
            rules=self._unmatched.found,
            lag_threshold=self._settings.spec.lag_threshold,
            settings=self._settings.by_path,
        )

    def status(self) -> bytes:
        """What `/status` answers."""
        seen, product = self._snapshot(TABLES_MAX), version("changefeed-operator")
        return driver_status(self.prepared.changefeed, seen, product).model_dump_json(by_alias=True).encode()

    async def _show(self) -> None:
        while True:
            self._show_once()
            await asyncio.sleep(_VIEW_INTERVAL_S)

    def _hear(self, ts: int, content: bytes) -> None:
        assert self._schema_feed is not None, "no puller is started before it"
        self._schema_feed.hear(ts, content)

    async def _watch_stores(self, schema_feed: SchemaFeed) -> None:
        while True:
            stopped = schema_feed.stopped()
            self.meter.tikv_stopped("ddl span", (stopped.reason, stopped.message) if stopped else None)
            await asyncio.sleep(_WATCH_S)

    def _show_once(self) -> None:
        self._view.update(self._snapshot())

    def fail(self, error: ChangefeedError) -> None:
        """End the run with `error`; the first one counts."""
        if not self._failure.done():
            self._failure.set_result(error)
