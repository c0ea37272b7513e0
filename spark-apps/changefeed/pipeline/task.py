"""A pipeline task: writes the entries that the owner orders, for as long as the run lasts.

One thread makes rows of segments and hands them to the sink, one entry after the other; the sink's threads write. What
stands downstream is told on the stream. Any failure ends the task: Spark starts it again, and the owner hands its
entries out anew. What it has written by then is written again, and counts once (rule 16).
"""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import pyarrow as pa

from changefeed.errors import ChangefeedError, Unavailable
from changefeed.eventstore.flight import RemoteArenas
from changefeed.eventstore.reader import KeptSegments, MemoryGone, check_slice, read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.slices import SegmentSlice
from changefeed.objectstore import Location
from changefeed.objectstore.patience import Patience, Tally
from changefeed.pipeline.recipe import Recipe, Recipes
from changefeed.pipeline.run import EntryRows
from changefeed.pipeline.together import MadeRows, make_together
from changefeed.pipeline.work import Work, WorkEntry
from changefeed.sink.contract import Claim, Entry, EntryId, EventSink, SinkJob, Surroundings, Written
from changefeed.sink.records import Records
from changefeed.sink.table_sink import TableSink
from changefeed.upstream.written_rows import NO_KEYS, MaskKeys
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import PIPELINE, OwnerAddress, owner_lost
from changefeed.wire.owner_client import OwnerClient

SAY_EVERY_S = 2.0
STUCK_S = 300.0  # one entry takes seconds
_HEARD_S = 2.0
_GATHER_S = 0.02  # of a stream of small files: a message costs the owner more than a file in it
_READERS = 16


@dataclass(frozen=True)
class PipelineJob:
    """What a task needs besides the owner's address. `changefeed`: see sink.contract.Claim.

    `mask_keys`: of hashed columns.
    """

    changefeed: str
    state: Location  # the changefeed's own: segments
    sink: SinkJob
    mask_keys: MaskKeys = NO_KEYS


def write_files(owner: OwnerAddress, number: int, job: PipelineJob, attempt: int | None = None) -> int | None:
    """Write until the owner ends the stream, or gives the task another one's place: the number of a puller.

    `attempt`: Spark's id of the task. Raises Fenced (a newer driver), Unavailable (the owner), Transient (a segment is
    lost), OutputConflict, NeedsHuman.
    """
    with owner.channel() as channel:
        return PipelineTask(owner, number, job, attempt).run(channel)


class PipelineTask:
    """One attempt."""

    def __init__(self, owner: OwnerAddress, number: int, job: PipelineJob, attempt: int | None) -> None:
        self._owner = owner
        self._number = number
        self._attempt = attempt
        self._over = threading.Event()  # it was told to leave
        self._ending = threading.Event()  # it was, or something has failed: no store is waited for any more
        self._requests = Tally()
        count = self._requests.add
        self._disk = Patience(math.inf, failed=self._waits, ending=self._ending)  # of the one that makes rows
        self._reading = Patience(math.inf, failed=self._waits, ending=self._ending, count=count)  # of the same
        self._writing = Patience(math.inf, failed=self._tell, ending=self._ending, count=count)
        self._remote = RemoteArenas(owner.run_key, socket.gethostname())
        self._run_folder = RunFolder(job.state, owner.epoch, owner.nonce, self._reading)
        self._segments = KeptSegments()
        self._job = job
        self._recipes = Recipes(job.sink.mounting, job.mask_keys)
        self._tables: dict[int, tuple[int, TableSink]] = {}  # by dispatcher, with the writer whose it is
        self._broken: dict[int, tuple[int, str]] = {}  # by dispatcher: the writer that gave back, and why
        self._rows: dict[EntryId, EntryRows | MadeRows] = {}  # of entries that are not known to be written
        self._orders: queue.SimpleQueue[pb.Order] = queue.SimpleQueue()
        # What the owner is to be told; None: nothing more.
        self._written: queue.SimpleQueue[pb.FileDone | pb.GivenBack | None] = queue.SimpleQueue()
        self._cpu: Counter[str] = Counter()  # seconds by stage that are not told yet
        self._lock = threading.Lock()  # of the one above
        self._sink: EventSink | None = None
        self._failure: BaseException | None = None  # the first one of another thread
        self._busy_since: float | None = None  # None: it waits for an order

    def run(self, channel: grpc.Channel) -> int | None:
        """See `write_files`."""
        stream = channel.stream_stream(
            PIPELINE, request_serializer=pb.Written.SerializeToString, response_deserializer=pb.Order.FromString
        )(self._said(), metadata=self._owner.metadata)
        reader = threading.Thread(target=self._read, args=(stream,), name="orders", daemon=True)
        reader.start()
        try:
            return self._run()
        finally:
            self._written.put(None)
            reader.join(_HEARD_S)  # the owner ends its side when it has heard all: files were put up to now
            stream.cancel()
            reader.join()

    def _run(self) -> int | None:
        around = Surroundings(
            self._job.changefeed,
            self._run_folder.spool_folder,
            self._writing,
            self._disk,
            self.fail,
            self._waiting,
        )
        sink = self._sink = self._job.sink.open(around)
        try:
            with ThreadPoolExecutor(_READERS, "read") as readers:
                try:
                    return self._work(sink, readers)
                except Unavailable:
                    if self._over.is_set():
                        return None  # whatever waits for a store then gives up
                    self._check()  # the same, for another's failure
                    raise
                finally:
                    self._ending.set()
        finally:
            sink.close()

    def _work(self, sink: EventSink, readers: ThreadPoolExecutor) -> int | None:
        while True:
            order = self._orders.get()
            self._check()
            match order.WhichOneof("order"):
                case "write":
                    self._write(sink, Work.model_validate_json(order.write.work), readers)
                case "pull":
                    return order.pull.puller
                case _:
                    return None

    def _write(self, sink: EventSink, work: Work, readers: ThreadPoolExecutor) -> None:
        self._busy_since = time.monotonic()
        at_once = self._readers_for(work.entries, readers)
        made = make_together(work, self._recipes, self._read_slice, self._check_slice, at_once)
        self._busy_since = None
        for entry in work.entries:
            dispatcher, number = entry.plan_entry.dispatcher, entry.plan_entry.entry
            writer, uri = self._broken.get(dispatcher, (None, ""))
            if writer == entry.writer and entry.writer:  # it comes behind one that was given back
                self._written.put(pb.GivenBack(plan=work.record, entry=number, segment=uri))
                continue
            self._busy_since = time.monotonic()
            try:
                rows = made.get(number) or self._rows_of(work, entry, readers)
                self._append(self._table_of(sink, entry), work, entry, rows)
            except MemoryGone as gone:
                self._broken[dispatcher] = entry.writer, gone.uri
                self._written.put(pb.GivenBack(plan=work.record, entry=number, segment=gone.uri))
            finally:
                self._busy_since = None
            self._check()

    def _rows_of(self, work: Work, entry: WorkEntry, readers: ThreadPoolExecutor) -> EntryRows:
        recipe = self._recipes.of(work, entry.plan_entry.table_info)
        return EntryRows(recipe, entry, self._read_slice, self._readers_for([entry], readers))

    def _table_of(self, sink: EventSink, entry: WorkEntry) -> TableSink:
        """One for each assignment of a dispatcher. Where nobody counts these, each entry is one of its own."""
        dispatcher = entry.plan_entry.dispatcher
        writer, table = self._tables.get(dispatcher, (None, None))
        if table is None or writer != entry.writer or not writer:
            table = TableSink(sink, self._is_written)
            self._tables[dispatcher] = entry.writer, table
        return table

    def _readers_for(self, entries: Iterable[WorkEntry], readers: ThreadPoolExecutor) -> ThreadPoolExecutor | None:
        """To hand a read to another thread costs more than the read, unless a store is asked."""
        if self._run_folder.is_mapped:
            return None
        at_hand = all(self._segments.is_at_hand(piece) for entry in entries for piece in entry.segments)
        return None if at_hand else readers

    def _append(self, table: TableSink, work: Work, entry: WorkEntry, rows: EntryRows | MadeRows) -> None:
        target = entry_of(self._job.changefeed, work, entry, rows.recipe)
        self._rows[target.id] = rows
        table.append(target, rows if isinstance(rows, MadeRows) else self._checked(rows, entry))

    def _checked(self, rows: EntryRows, entry: WorkEntry) -> Iterator[Records]:
        """The rows. Raises MemoryGone if what they were read from may have been something else (realtime buffer)."""
        for records in rows:
            self._check_memory(entry)
            yield records
        self._check_memory(entry)

    def _check_memory(self, entry: WorkEntry) -> None:
        for piece in entry.segments:
            self._check_slice(piece)

    def _read_slice(self, piece: SegmentSlice) -> pa.Table:
        return read_slice(self._run_folder, piece, self._remote, self._segments)

    def _check_slice(self, piece: SegmentSlice) -> None:
        check_slice(piece, self._remote)

    def _is_written(self, entry: Entry, written: Written) -> None:
        rows = self._rows.pop(entry.id)
        with self._lock:
            self._cpu.update(rows.cpu.seconds)
        self._written.put(
            pb.FileDone(
                plan=entry.id.plan,
                entry=entry.id.entry,
                rows=rows.rows,
                raw_rows=rows.raw_rows,
                filtered_rows=rows.filtered_rows,
                bytes=written.bytes,
                hash=written.digest,
            )
        )

    def _read(self, stream: Iterator[pb.Order]) -> None:
        try:
            for order in stream:
                if order.HasField("end"):
                    break
                self._orders.put(order)
            self._over.set()
            self._ending.set()
            self._orders.put(pb.Order(end=pb.End()))
        except grpc.RpcError as error:
            if not self._ending.is_set():
                self.fail(owner_lost(error, "the pipeline task's stream"))

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._ending.set()
        self._orders.put(pb.Order(end=pb.End()))  # who waits for one looks

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _said(self) -> Iterator[pb.Written]:
        """What the owner is told: who this is, files soon after they are put, and every two seconds that it works."""
        yield pb.Written(task=self._number, attempt=self._attempt)
        said_at = -math.inf
        while True:
            news = []
            try:
                news.append(self._written.get(timeout=SAY_EVERY_S))
                if time.monotonic() - said_at < _GATHER_S:
                    time.sleep(_GATHER_S)
                while True:
                    news.append(self._written.get_nowait())
            except queue.Empty:
                pass
            since = self._busy_since
            if any(news) or since is None or time.monotonic() - since < STUCK_S:
                said_at = time.monotonic()
                yield pb.Written(
                    task=self._number,
                    attempt=self._attempt,
                    files=[each for each in news if isinstance(each, pb.FileDone)],
                    given_back=[each for each in news if isinstance(each, pb.GivenBack)],
                    metrics=self._metrics(),
                )
            if None in news:
                return

    def _metrics(self) -> list[pb.MetricDelta]:
        with self._lock:
            spent, self._cpu = self._cpu, Counter()
        if self._sink is not None:
            spent.update(self._sink.cpu_seconds())
        return [
            pb.MetricDelta(name="changefeed_pipeline_cpu_seconds_total", label=stage, value=seconds)
            for stage, seconds in spent.items()
        ] + [
            pb.MetricDelta(name=name, label=label, value=times)
            for (name, label), times in self._requests.take().items()
        ]

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._busy_since = None  # a downstream that takes nothing more says so itself
        try:
            yield
        finally:
            self._busy_since = time.monotonic()

    def _waits(self, error: ChangefeedError) -> None:
        """For the disk or the event store: that takes as long as it takes."""
        self._busy_since = time.monotonic()
        self._tell(error)

    def _tell(self, error: ChangefeedError) -> None:
        """Tell the owner of a store that fails; how long that may last is the owner's decision."""
        with OwnerClient(self._owner) as client:
            client.wait(error)


def entry_of(changefeed: str, work: Work, entry: WorkEntry, recipe: Recipe) -> Entry:
    """One of the entries that the owner has ordered."""
    plan = entry.plan_entry
    return Entry(
        claim=Claim(changefeed, plan.dispatcher, work.epoch, work.nonce, entry.writer),
        id=EntryId(work.record, plan.entry),
        upto=plan.to.commit_ts,
        output=plan.output,
        table=recipe.table,
        table_version=plan.table_version,
        columns=recipe.selection.columns,
        pd_ms=work.pd_ms,
        time_zone=recipe.mounting.time_zone,
        options=recipe.options,
    )
