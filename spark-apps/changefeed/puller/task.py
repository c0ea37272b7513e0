"""The body of a long-running puller task: takes commands from the owner, produces segments and reports.

It lives as long as its stream to the owner. If the stream breaks, the task raises, and its successor pulls everything
again: nothing outlives a puller except its segments, which only the owner can credit.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio
import pyarrow as pa

from changefeed.clock import Clock, SystemClock, until_set
from changefeed.errors import Refused, Unavailable, first_error
from changefeed.eventstore.buffer import EventBuffer, Roll
from changefeed.eventstore.flight import ArenaServer
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.writer import SegmentWriter, Serve
from changefeed.model.rows import raw_bytes
from changefeed.model.table_copy import TableCopy
from changefeed.objectstore import Location
from changefeed.objectstore.patience import Patience, Tally
from changefeed.puller.pipeline_metrics import CaptureMetrics, MetricDeltas
from changefeed.puller.reports import Reports
from changefeed.puller.span_pipeline import Action, Advance, HoldBack, Resume, SpanPipeline
from changefeed.upstream.contract import (
    GATHER_SECONDS,
    Access,
    BlockedRegion,
    Data,
    Feed,
    FeedEvent,
    Resolved,
    SchemaNews,
    SubscriptionFailed,
    Upstream,
)
from changefeed.wire import owner_pb2
from changefeed.wire.owner import PULLER, OwnerAddress, owner_lost

_WRITERS = 2
_UNHEARD_ROLLS = 2
_ROOM_ROLLS = 2
_ROOM_SECONDS = 5.0

_Token = tuple[int, int]  # sub_id, data seq


class OwnerStream(Protocol):
    """Reports to the owner, and its commands; it ends with one that says so."""

    async def write(self, report: owner_pb2.Report) -> None: ...

    def __aiter__(self) -> AsyncIterator[owner_pb2.Command]: ...


@dataclass(frozen=True)
class Limits:
    """When subscriptions are held, and when a segment is cut.

    quota_bytes: raw bytes pulled and not yet written, from 80 % of which on subscriptions are held (rule 17).
    roll_bytes, roll_interval (seconds): a segment is due. No other is begun while twice as much is in segments that the
    owner has not heard of. gather_s: how long what a store sends waits for more of it, if it is little.
    buffer_bytes: of the realtime buffer. scan_rate: bytes a second of initial copies, None: no bound. metrics_s:
    between two reports of metrics.
    """

    quota_bytes: int = 1 << 30
    roll_bytes: int = 32 << 20
    roll_interval: float = 0.25
    gather_s: float = GATHER_SECONDS
    buffer_bytes: int = 0
    scan_rate: float | None = None
    metrics_s: float = 1.0


@dataclass(frozen=True)
class PullerJob:
    """What the puller tasks need beyond the owner's address."""

    count: int
    upstream: Access
    state: Location  # the changefeed's own
    limits: Limits


def run_puller(
    owner: OwnerAddress,
    puller: int,
    task: str,
    upstream: Access,
    state: Location,
    limits: Limits | None = None,
    attempt: int | None = None,
) -> None:
    """Pull until the owner ends the stream. `puller`: its number; `task`: the attempt's name, unique in the run;
    `attempt`: Spark's id of it, for the owner.

    `state`: the changefeed's own. Raises Fenced (a newer driver), Unavailable (PD, the owner, the disk), NeedsHuman
    (PD is another cluster's).
    """

    async def pull() -> None:
        connected = await _connect(upstream)
        try:
            run_folder = RunFolder(state, owner.epoch, owner.nonce)
            # A folder can be read by whoever is on its machine; what is in a store, by everybody (rule 21).
            host, serve = "", None
            if state.uri.startswith("file:"):
                host = socket.gethostname()
            else:
                serve = partial(ArenaServer, key=owner.run_key, host=address_towards(owner.target))
            async with owner.aio_channel() as channel:
                method: Any = channel.stream_stream(
                    PULLER,
                    request_serializer=owner_pb2.Report.SerializeToString,
                    response_deserializer=owner_pb2.Command.FromString,
                )
                task_body = PullerTask(
                    puller,
                    task,
                    connected.feed,
                    run_folder,
                    limits or Limits(),
                    attempt=attempt,
                    host=host,
                    serve=serve,
                )
                await task_body.run(method(metadata=owner.metadata))
        finally:
            await connected.close()

    asyncio.run(pull())


def address_towards(target: str) -> str:
    """This machine's address on the way to the owner (`host:port`): the owner's other tasks reach it there as well."""
    host, _, port = target.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as nothing_sent:
            nothing_sent.connect(address)
            return str(nothing_sent.getsockname()[0])
    except OSError as error:
        raise Unavailable(
            f"Cannot reach the owner at {target}: {error}.", "Check the network of this machine."
        ) from error


async def _connect(upstream: Access) -> Upstream:
    try:
        return await upstream.connect()
    except Refused as refused:  # a run waits, as it may be mended meanwhile
        raise Unavailable(refused.message, refused.next_step) from refused


class PullerTask:
    def __init__(
        self,
        puller: int,
        task: str,
        feed: Callable[..., Feed],
        run_folder: RunFolder,
        limits: Limits,
        clock: Clock | None = None,
        attempt: int | None = None,
        host: str = "",
        serve: Serve | None = None,
    ) -> None:
        """`host`: the one machine that can read what is written; "": all can.

        `serve`: to other machines what is in memory; with neither there is nothing in memory. `feed`: as Upstream.feed.
        """
        self._ending = threading.Event()
        self._limits = limits
        self._clock = clock or SystemClock()
        self._feed = feed(
            self._on_event,
            self._clock,
            scratch_folder=run_folder.spool_folder,
            room=self._room,
            gather_s=limits.gather_s,
            scan_rate=limits.scan_rate,
        )
        self._pipeline = SpanPipeline(limits.quota_bytes)
        self._buffer: EventBuffer[_Token] = EventBuffer(limits.roll_bytes, limits.roll_interval)
        self._reports = Reports(puller, attempt)
        self._requests = Tally()
        # It waits for the event store until the owner, which is told why, ends it; the quota bounds what piles up.
        patience = Patience(
            math.inf,
            failed=lambda error: self._reports.troubled(error.message, error.answered),
            # What another writer does at once says nothing of the segment that can't be written.
            works=lambda at_once: None if at_once else self._reports.troubled(""),
            ending=self._ending,
            count=self._requests.add,
        )
        self._run_folder = replace(run_folder, patience=patience)
        memory = limits.buffer_bytes if host or serve else 0
        self._segments = SegmentWriter(
            self._run_folder, task, host, memory, self._clock, self._ending, self._archived, serve
        )
        self._capture = CaptureMetrics(self._segments.buffer)
        self._deltas = MetricDeltas(self._pipeline.metrics, self._feed.metrics, self._capture, puller)
        self._flush = False
        self._writing = 0  # segments that are taken and not yet written
        self._buffered = asyncio.Event()
        self._persisted = asyncio.Event()
        self._reportable = asyncio.Event()

    async def run(self, call: OwnerStream) -> None:
        """Until the owner ends the stream. Raises Fenced, Unavailable."""
        try:
            async with self._feed, asyncio.TaskGroup() as tasks:
                helpers = [
                    self._segments.begin(tasks),
                    tasks.create_task(self._roll(tasks)),
                    tasks.create_task(self._report(call)),
                    tasks.create_task(self._measure()),
                ]
                try:
                    await self._obey(call)
                finally:
                    self._ending.set()
                    self._segments.end()
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as group:
            raise first_error(group) from group

    async def _obey(self, call: OwnerStream) -> None:
        try:
            async for command in call:
                if command.HasField("end"):
                    return
                self._command(command)
        except grpc.aio.AioRpcError as error:
            raise owner_lost(error, "the puller's stream") from error

    def _command(self, command: owner_pb2.Command) -> None:
        match command.WhichOneof("command"):
            case "subscribe":
                asked = command.subscribe
                self._pipeline.register(asked.sub_id, asked.start_ts)
                self._reports.subscribed(asked.sub_id)
                copy = TableCopy(asked.copy.from_ts, tuple(asked.copy.bounds)) if asked.HasField("copy") else None
                self._feed.subscribe(
                    asked.sub_id,
                    asked.span_id,
                    asked.start_key,
                    asked.end_key,
                    asked.start_ts,
                    copy,
                    asked.reached_ts,
                )
            case "release":
                self._feed.release(command.release.sub_id)
                self._let_go(command.release.sub_id)
            case "heard":
                self._reports.heard(command.heard.segment)
                self._buffered.set()
            case "free":
                self._segments.free(command.free.segments)
            case "archive":
                self._segments.archive(command.archive.segments)
            case "drain":
                self._flush = True
                self._buffered.set()

    def _let_go(self, sub_id: int) -> None:
        self._reports.released(sub_id)
        self._act(self._pipeline.unregister(sub_id, self._clock.monotonic()))

    async def _on_event(self, event: FeedEvent) -> None:
        match event:
            case Data(sub_id, span_id):
                now = self._clock.monotonic()
                for part, size in _parts(event, self._limits.roll_bytes):
                    seq, actions = self._pipeline.data(sub_id, size, now)
                    if seq:
                        self._buffer.append(sub_id, span_id, part, size, (sub_id, seq), now)
                        self._buffered.set()
                    self._act(actions)
            case Resolved(sub_id, ts):
                self._act(self._pipeline.resolved(sub_id, ts))
            case SchemaNews(ts, content):
                self._reports.news(ts, content)
                self._reportable.set()
            case SubscriptionFailed(sub_id, error):
                self._let_go(sub_id)
                self._reports.failed(sub_id, error)
                self._reportable.set()

    async def _room(self) -> None:
        """Waits until few bytes are left to be written, or until nothing has been written for _ROOM_SECONDS.

        A store's stream calls it before it takes in more of a scan or of a large transaction. Only that stream's
        processing waits: the stream is still read, up to its last bound, and reports, metrics, commands and other
        streams continue. The wait always ends (rule 17):

        1. *Segments are written, but more slowly than rows arrive.* The wait ends with one of these writes. Memory
           holds a few segments, and no subscription is held for that.
        2. *No segment can be written: the disk is full, the store is away, or the owner does not answer.* The next part
           is taken in after _ROOM_SECONDS all the same. From 80 % of the quota on, subscriptions are held. A held
           subscription has no registration: the rest of its rows is dropped, and pulled again when there is room.
        3. *The owner's store is full, and only a subscription whose rows come later in the same stream can make room.*
           As in 2, one part passes at a time, until those rows are through or this subscription is held.
        """
        while self._pipeline.metrics.inflight_bytes > _ROOM_ROLLS * self._limits.roll_bytes:
            self._persisted.clear()
            await until_set(self._persisted, self._clock, _ROOM_SECONDS)
            if not self._persisted.is_set():
                return

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case HoldBack(sub_id):
                    self._feed.hold(sub_id)
                case Resume(sub_id):
                    self._feed.resume(sub_id)
                case Advance(sub_id, ts):
                    self._reports.advanced(sub_id, ts)
                    self._reportable.set()

    async def _roll(self, tasks: asyncio.TaskGroup) -> None:
        """Cut segments when they are due; several are written at once.

        One that is not full waits for a writer, and grows meanwhile: there is no use in many small ones.
        """
        while True:
            await self._buffered.wait()
            self._buffered.clear()
            deadline = self._buffer.next_deadline()
            if deadline is None:
                self._flush = False
            elif self._writing < _WRITERS and self._reports.unheard_bytes < _UNHEARD_ROLLS * self._limits.roll_bytes:
                if self._flush or self._buffer.due(self._clock.monotonic()):
                    self._writing += 1
                    roll = self._buffer.take()
                    self._reports.begun(roll.seq, roll.bytes)
                    tasks.create_task(self._write(roll))
                else:
                    await until_set(self._buffered, self._clock, deadline - self._clock.monotonic())
                self._buffered.set()

    async def _write(self, roll: Roll[_Token]) -> None:
        spans = [span for span in roll.spans if self._pipeline.is_active(span.sub_id)]
        if not spans:
            # Nobody wants its rows any more, but its number is told, and whose they were, by which the owner knows it.
            shares = [owner_pb2.SegmentSpan(span_id=span.span_id, sub_id=span.sub_id) for span in roll.spans]
            meta = owner_pb2.SegmentMeta(seq=roll.seq, spans=shares)
        else:
            try:
                meta = await self._segments.write(roll.seq, spans)
            except Unavailable:
                if self._ending.is_set():
                    return  # nobody waits for it any more
                raise
            self._capture.captured(meta, time.time() * 1000)
        self._writing -= 1
        self._buffered.set()
        self._reports.written(meta)
        self._reports.measured(self._deltas.take())  # what is written must not be seen before what was pulled
        self._reportable.set()
        for sub_id, seq in roll.tokens:
            self._act(self._pipeline.persisted(sub_id, seq, self._clock.monotonic()))
        self._persisted.set()

    def _archived(self, seq: int, uri: str) -> None:
        self._reports.archived(seq, uri)
        self._reportable.set()

    async def _report(self, call: OwnerStream) -> None:
        try:
            await call.write(self._reports.first())
            while True:
                await self._reportable.wait()
                self._reportable.clear()
                report = self._reports.take()
                if report is not None:
                    await call.write(report)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The stream is over; who reads the commands learns why.
            return

    async def _measure(self) -> None:
        while True:
            await self._clock.sleep(self._limits.metrics_s)
            self._feed.metrics.cpu_seconds = time.process_time()
            self._feed.metrics.congested_stores = len(self._feed.congested())
            requests = self._requests.take().items()
            counted = [owner_pb2.MetricDelta(name=name, label=label, value=n) for (name, label), n in requests]
            self._reports.measured(self._deltas.take() + counted)
            self._reports.blocked(_oldest(self._feed.blocked()))
            stopped = self._feed.stopped()
            self._reports.stopped(owner_pb2.Stopped(**asdict(stopped)) if stopped else None)
            self._reportable.set()


def _oldest(blocked: list[tuple[int, BlockedRegion]]) -> owner_pb2.Blocked | None:
    if not blocked:
        return None
    span_id, oldest = min(blocked, key=lambda each: each[1].start_ts)
    return owner_pb2.Blocked(span_id=span_id, start_ts=oldest.start_ts, ttl_ms=oldest.ttl_ms)


def _parts(data: Data, most: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """With their sizes. A large transaction comes as one batch; a segment of it must not be much larger than others."""
    batch = data.batch
    if data.bytes <= most:
        yield batch, data.bytes
        return
    step = max(1, batch.num_rows * most // data.bytes)
    for first in range(0, batch.num_rows, step):
        part = batch.slice(first, step)
        yield part, raw_bytes(part)
