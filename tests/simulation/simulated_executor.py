"""The streaming query of one driver: the product's reader and sorter between segments and files; it outlives its driver
for a while and writes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from changefeed.errors import Transient, Unavailable
from changefeed.eventstore.reader import read_slice
from changefeed.model.record import FileCommitted, PlanEntry, SegmentSlice, Work, WorkEntry
from changefeed.objectstore.digest import Digest
from changefeed.objectstore.once import create_once
from changefeed.objectstore.patience import Patience
from changefeed.pipeline.mounter import drop_unseen
from changefeed.pipeline.sorter import sort_rows
from simulated_oracles import file_body
from simulated_store import Process
from simulated_upstream import Row

if TYPE_CHECKING:
    from simulated_driver import Driver

_NO_TABLE: Any = None  # updates aren't split here


class Executor(Process):
    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.world, f"{driver.name}'s executor")
        self.driver = driver
        self.batch = 0
        self.stalled_until = 0.0  # the sink stands still
        self.work: Work | None = None
        self.tasks: list[WorkEntry] = []
        self.outbox: list[FileCommitted] = []
        self.sent: list[tuple[int, str, FileCommitted]] = []

    def step(self) -> None:
        world, rng = self.world, self.world.network
        if world.happens("stall"):
            self.stalled_until = world.time.now + rng.uniform(1.0, 8.0)
        if world.time.now < self.stalled_until:
            return
        if self.tasks and (not self.outbox or rng.random() < 0.5):
            self._write(self.tasks.pop(rng.randrange(len(self.tasks))))
        elif not self.driver.alive:
            self.end("ends: its driver is gone")
        elif self.outbox:
            self._send()
        elif world.happens("query"):
            self.batch, self.work = 0, None  # the query starts anew
        elif self.sent and world.happens("executor"):
            record, nonce, done = rng.choice(self.sent)  # it comes twice, or is another run's of the plan to be done
            plan = self.driver.require_owner().state.plan
            if plan is not None and rng.random() < 0.3:
                record, nonce = plan.n, "another run"
            self.driver.require_owner().file_done(record, nonce, done)
        else:
            self._next_batch()

    def _next_batch(self) -> None:
        owner = self.driver.require_owner()
        if (latest := owner.latest()) > self.batch:
            self.batch, self.work = latest, owner.work(latest)
            self.tasks = list(self.work.entries)

    def _write(self, task: WorkEntry) -> None:
        assert self.work is not None
        entry = task.plan_entry
        if self.world.happens("executor"):
            self.tasks.append(task)  # failed, to be tried again
            return
        try:
            slices = [(piece, read_slice(self.driver.house, piece)) for piece in task.segments]
        except Transient as error:
            self._misses(entry, task.segments, error)
            return
        rows = _rows(slices, entry)
        body = file_body(self.work.config, self.work.pd_ms, self.work.table_infos[entry.table_info], rows)
        digest = Digest(body).hexdigest()
        try:
            create_once(self.store, entry.path, body, digest, Patience(sleep=self.sleep))
        except Unavailable:
            self.tasks.append(task)
            return
        count = len(rows)
        done = FileCommitted(
            entry=entry.entry, rows=count, raw_rows=count, filtered_rows=0, bytes=len(body), hash=digest
        )
        self.outbox.append(done)

    def _misses(self, entry: PlanEntry, pieces: tuple[SegmentSlice, ...], error: Transient) -> None:
        """Spark tries a few times, then the query fails, and the driver with it."""
        assert self.work is not None
        state = self.world.oracles.state
        needed = state.plan is not None and (state.plan.n, state.epoch.nonce) == (self.batch, self.work.nonce)
        lost = any(piece.uri in self.world.segments.lost for piece in pieces)
        assert lost or not (needed and self.driver.alive), f"{entry.path} needs what was deleted: {error.message}"
        self.end(f"misses a segment of {entry.path}")
        self.driver.end("ends with its query")

    def _send(self) -> None:
        assert self.work is not None
        rng = self.world.network
        done = self.outbox.pop(rng.randrange(len(self.outbox)))
        if self.world.happens("executor"):
            self.tasks += [task for task in self.work.entries if task.plan_entry.entry == done.entry]  # lost
            return
        self.sent.append((self.batch, self.driver.run.nonce, done))
        self.driver.require_owner().file_done(self.batch, self.driver.run.nonce, done)


def _rows(slices: list[tuple[SegmentSlice, pa.Table]], entry: PlanEntry) -> list[Row]:
    found = drop_unseen(sort_rows(slices, _NO_TABLE, entry.from_, entry.to, split=False).rows)
    columns = [found.column(name).to_pylist() for name in ("commit_ts", "start_ts", "op", "key", "value", "old_value")]
    return [Row(*values) for values in zip(*columns, strict=True)]
