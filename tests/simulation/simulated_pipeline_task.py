"""A pipeline task of one driver: the product's reader and sorter between segments and files. It outlives its driver for
a while and writes on.

Its stream brings what to write, and what is done, late but in order. With the stream all that is lost which was on its
way or not begun; but what the task has said may still be heard, once or twice, and what it writes just then it writes
to the end, while another is given it as well.
"""

from __future__ import annotations

import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from changefeed.errors import Fenced, Transient, Unavailable
from changefeed.eventstore.reader import MemoryGone, check_slice, read_slice
from changefeed.eventstore.slices import SegmentSlice
from changefeed.log.records import FileCommitted, PlanEntry
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.once import create_once
from changefeed.objectstore.patience import Patience
from changefeed.pipeline.mounter import drop_unseen
from changefeed.pipeline.sorter import sort_rows
from changefeed.pipeline.work import Work, WorkEntry
from changefeed.wire import owner_pb2 as pb
from simulated_flight import FAILS
from simulated_oracles import file_body
from simulated_store import Process
from simulated_tables import path_of
from simulated_transactions import Row

if TYPE_CHECKING:
    from simulated_driver import Driver

_NO_TABLE: Any = None  # updates aren't split here
_LATENCY_S = 0.1
_LATE_S = 1.5


class Stream:
    """One of a task to the owner. What it has brought or would take along is lost with it."""

    def __init__(self, task: PipelineTask) -> None:
        self._task = task
        self._world = task.world
        self.open = True
        self.to_write: list[tuple[Work, WorkEntry]] = []
        self.to_say: list[FileCommitted] = []
        self.said: list[FileCommitted] = []
        self._saying: deque[FileCommitted | pb.GivenBack] = deque()  # on its way
        self._last_order = 0.0

    def order(self, work: Work) -> None:
        """By the owner, which may not know yet that the stream is over."""
        self._last_order = max(self._last_order, self._world.time.now + self._world.network.random() * _LATENCY_S)
        self._world.time.at(self._last_order, lambda: self._deliver(work))

    def _deliver(self, work: Work) -> None:
        if self.open and self._world.happens("stream"):
            self._task.lose_stream("breaks, with what it brings")
        if self.open:
            self.to_write += [(work, each) for each in work.entries]

    def say(self, news: FileCommitted | pb.GivenBack) -> None:
        self._saying.append(news)
        self._world.time.after(self._world.network.random() * _LATENCY_S, self._heard)

    def _heard(self) -> None:
        if not self._saying:
            return
        if self.open and self._world.happens("task"):
            self._task.lose_stream("breaks, with what it says")
        if self.open:
            self._told(self._saying.popleft())

    def _told(self, news: FileCommitted | pb.GivenBack) -> None:
        self._task.driver.told(self._task.number, self, news)

    def end(self) -> None:
        """What was on its way to the owner may be heard until that knows of the end."""
        self.open = False
        self.to_write.clear()
        self.to_say.clear()
        for news in self._saying:
            if self._world.network.random() < 0.7:
                late = self._world.network.uniform(0.0, _LATE_S)
                self._world.time.after(late, partial(self._told, news))
        self._saying.clear()


class PipelineTask(Process):
    def __init__(self, driver: Driver, number: int) -> None:
        super().__init__(driver.world, f"{driver.name}'s pipeline task {number}")
        self.driver = driver
        self.number = number
        self.stalled_until = 0.0  # the sink stands still
        self.joins_at = 0.0
        self.stream: Stream | None = None
        self._remote = driver.world.flight.arenas()
        self._broken: dict[int, int] = {}  # by dispatcher, in order: the writer that has given back

    def step(self) -> None:
        world, rng, stream = self.world, self.world.network, self.stream
        if world.happens("stall"):
            self.stalled_until = world.time.now + rng.uniform(1.0, 8.0)
        if world.time.now < self.stalled_until:
            return
        if stream is not None and stream.to_write and (not stream.to_say or rng.random() < 0.5):
            self._write(stream, *stream.to_write.pop(self._next(stream)))
        elif not self.driver.alive:
            self.end("ends: its driver is gone")
        elif stream is None:
            self._join_if_due()
        elif stream.to_say:
            self._say(stream, stream.to_say.pop(rng.randrange(len(stream.to_say))))
        elif world.happens("stream"):
            self.lose_stream("breaks")
        elif stream.said and world.happens("task"):
            stream.say(rng.choice(stream.said))  # once more, perhaps long after its plan

    def _next(self, stream: Stream) -> int:
        """Any; in order, the first of a dispatcher."""
        place = self.world.network.randrange(len(stream.to_write))
        if self.world.database is None:
            return place
        dispatchers = [given.plan_entry.dispatcher for _, given in stream.to_write]
        return dispatchers.index(dispatchers[place])

    def _join_if_due(self) -> None:
        if self.world.time.now >= self.joins_at:
            self.stream = Stream(self)
            self.driver.task_joined(self.number, self.stream)

    def _say(self, stream: Stream, done: FileCommitted) -> None:
        stream.said.append(done)
        stream.say(done)

    def _write(self, stream: Stream, work: Work, given: WorkEntry) -> None:
        """What it has written when its stream is over it says to nobody."""
        entry = given.plan_entry
        if self.world.happens("task"):
            stream.to_write.insert(0, (work, given))  # failed, to be tried again
            return
        if self._broken.get(entry.dispatcher) == given.writer > 0:
            stream.say(pb.GivenBack(plan=work.record, entry=entry.entry, segment=given.segments[0].uri))
            return
        try:
            slices = [(piece, read_slice(self.driver.run_folder, piece, self._remote)) for piece in given.segments]
            if any(piece.slot for piece in given.segments):
                self.wait()  # it reads them where they stand
                for piece in given.segments:
                    check_slice(piece, self._remote)
        except MemoryGone as gone:
            self._gives_back(stream, work, given, gone)
            return
        except Transient as error:
            self._misses(stream, work, given, error)
            return
        rows = _rows(slices, entry)
        body = file_body(json.loads(work.config), work.pd_ms, json.loads(work.table_infos[entry.table_info]), rows)
        digest = Digest(body).hexdigest()
        if self.world.database is not None:
            try:
                self.world.database.write(work, given)
            except Fenced as fenced:
                self.lose_stream(f"breaks: {fenced.message}")
                self.driver.task_failed(self.number)
                return
        try:
            create_once(self.store, path_of(entry), body, digest, Patience(sleep=self.sleep))
        except Unavailable:
            if stream.open:
                stream.to_write.insert(0, (work, given))
            return
        if stream.open:
            count = len(rows)
            stream.to_say.append(
                FileCommitted(
                    plan=work.record,
                    entry=entry.entry,
                    rows=count,
                    raw_rows=count,
                    filtered_rows=0,
                    bytes=len(body),
                    hash=digest,
                )
            )

    def _gives_back(self, stream: Stream, work: Work, given: WorkEntry, gone: MemoryGone) -> None:
        """The puller has ended with it, or can't be reached: nobody overwrites what a task reads for the owner."""
        entry = given.plan_entry
        there = any(puller.has_written(gone.uri) for puller in self.driver.pullers)
        overwritten = stream.open and self.driver.alive and there and FAILS not in gone.message
        assert not overwritten, f"it is overwritten while it is read: {gone.message}"
        self.world.say(f"{self.name} gives {path_of(entry)} back: {gone.message}")
        self._broken[entry.dispatcher] = given.writer
        if stream.open:
            stream.say(pb.GivenBack(plan=work.record, entry=entry.entry, segment=gone.uri))

    def _misses(self, stream: Stream, work: Work, given: WorkEntry, error: Transient) -> None:
        """Spark starts the task again, a few times.

        Its driver deletes nothing that it may read: that is lost with a machine, or a later driver has deleted it.
        """
        entry, latest = given.plan_entry, self.world.oracles.state.epoch.nonce == work.nonce
        lost = any(piece.uri in self.world.segments.lost for piece in given.segments)
        assert stream.open, "it reads at once"
        assert lost or not (latest and self.driver.alive), f"{path_of(entry)} needs what was deleted: {error.message}"
        self.lose_stream(f"breaks: it misses a segment of {path_of(entry)}")
        self.driver.task_failed(self.number)

    def lose_stream(self, how: str) -> None:
        """The owner hears of it after a while, or by the next one. It is asked to write again what it was given."""
        rng = self.world.network
        self.world.say(f"{self.name}: the stream {how}")
        self._stream_ended()
        self.joins_at = self.world.time.now + rng.random() * rng.choice((0.2, 3.0))

    def _stream_ended(self) -> None:
        stream, self.stream = self.stream, None
        if stream is None:
            return
        stream.end()
        if self.world.network.random() < 0.7:
            self.world.time.after(self.world.network.random() * 0.5, lambda: self.driver.task_left(self.number, stream))

    def end(self, why: str) -> None:
        if self.alive:
            self._stream_ended()
            super().end(why)


def _rows(slices: list[tuple[SegmentSlice, pa.Table]], entry: PlanEntry) -> list[Row]:
    found = drop_unseen(sort_rows(slices, _NO_TABLE, entry.from_, entry.to, split=False).rows)
    columns = [found.column(name).to_pylist() for name in ("commit_ts", "start_ts", "op", "key", "value", "old_value")]
    return [Row(*values) for values in zip(*columns, strict=True)]
