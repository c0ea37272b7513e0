"""One run of a driver: what `owner/driver.py` does with the cores, its calls made one after another.

What becomes of an action of the owner's, and in which order, is the product's own: `act`, `carry_out`, `has_grown`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from changefeed.errors import Fenced, SnapshotLostByGC
from changefeed.eventstore.run_folder import RunFolder
from changefeed.log.log import Log
from changefeed.log.records import CommitRecord, EpochRecord, FileCommitted, PlanEntry, StartRecord
from changefeed.log.state import State
from changefeed.model.tso import compose, physical_ms
from changefeed.objectstore.patience import Patience
from changefeed.owner.owner import Owner
from changefeed.owner.planning.actions import (
    AppendCheckpoint,
    AppendPlan,
    Publish,
    Recorded,
    Stop,
    WriteSyncpoint,
)
from changefeed.owner.planning.barrier import Barrier
from changefeed.owner.planning.plan_entries import Table
from changefeed.owner.planning.planner import Planner
from changefeed.owner.planning.syncpoints import Syncpoints
from changefeed.owner.preparation.copying import copy_record, tables_to_copy
from changefeed.owner.publication import act, carry_out, has_grown
from changefeed.owner.pulling.quota import Quota
from changefeed.owner.pulling.spans import Spans
from changefeed.owner.writing.open_entries import EntryKey
from changefeed.owner.writing.writing import Run
from changefeed.sink.contract import Ddl, Notice
from changefeed.sink.storage.driver import StorageDriver
from changefeed.upstream.tikv.cluster import TikvCluster
from changefeed.upstream.tikv.tidb.keys import table_prefix, table_span
from changefeed.wire import owner_pb2 as pb
from simulated_pipeline_task import Stream
from simulated_pullers import Puller
from simulated_snapshot import Regions, at_once
from simulated_store import Process
from simulated_tables import definition, path_of
from simulated_transactions import START_TS, SimulatedDdl

if TYPE_CHECKING:
    from simulated_world import World

_DAY_MS = 86_400_000
_DAY_S = 60  # a virtual minute is a day of PD's, or no name would change
_CHECKED_EVERY = 3  # events: all of them would take a seventh of the time
_MAX_FAILURES = 8  # of a task, then Spark ends the job, and the driver with it
OFTEN_S = 0.2  # between records of a checkpoint, and between its publications: what matters here comes often


class Sink(StorageDriver):
    """The product's own, whose calls come one after the other, and a database that is told of syncpoints."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.store, driver.log.poll_fence, Patience(sleep=driver.sleep))
        self._driver = driver

    def publish(self, entries: Sequence[PlanEntry], record: CommitRecord) -> None:
        for write in self._index_files(entries):
            self._grow(write)

    def write_syncpoint(self, ts: int) -> None:
        world = self._driver.world
        assert world.database is not None, "nobody has asked for it"
        world.database.reached_syncpoint(self._driver.run.epoch, ts, world.upstream)


class Driver(Process):
    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"driver {number}")
        self.nonce = f"{number:x}{world.network.getrandbits(28):07x}"
        self.log = Log(self.store, self.sleep)
        self.sink = Sink(self)
        self.clock_ms = world.network.choice((0, -_DAY_MS, _DAY_MS))
        self.run = Run(0, self.nonce, "codec", in_order=world.database is not None, ahead=world.ahead)
        self.run_folder: RunFolder = world.segments.run_folder(0, self.nonce, self.wait)
        if number > 1:
            self.takes_over, self.dwells = True, 0.5  # when it matters most
        self.owner: Owner | None = None
        self.stop: Stop | None = None
        self.pullers: list[Puller] = []
        self._streams: dict[int, Stream] = {}  # of pipeline tasks, by their numbers: those that it thinks are open
        self._failures: Counter[int] = Counter()  # of pipeline tasks
        self.ddls_to = (0, 0)  # all of them up to it were handed to the barrier
        self.ddls_stand_until = 0.0
        self.drained_to: int | None = None
        self.passed_alone = 0  # bytes of its segments, while a span that ran alone has them above the quota
        self.planned_to: dict[int, int] = {}  # by sub_id: what the log could say without it, when it was assigned
        self.recording_ts = 0  # the newest checkpoint that it has begun to publish
        self.published_ts, self.published_at = 0, -OFTEN_S
        self._events = 0

    def require_owner(self) -> Owner:
        assert self.owner is not None
        return self.owner

    def step(self) -> None:
        try:
            if self.owner is None:
                self._start()
            else:
                self._work(self.owner)
                self.hand_out()
        except Fenced:
            if self.world.oracles.state.epoch.nonce == self.nonce:
                raise
            self.end("is fenced")

    def end(self, why: str) -> None:
        if self.alive:
            super().end(why)
            for puller in self.pullers:
                puller.lose_owner()

    def commands(self, command: pb.Command) -> None:
        if command.HasField("subscribe"):
            asked = command.subscribe
            # By the log, as the upstream's GC goes: a driver that is frozen knows its own record late.
            planned_ts = self.world.oracles.state.planned_ts(asked.span_id)
            self.planned_to[asked.sub_id] = max(planned_ts, self.recording_ts)

    def failed_by(self, failure: pb.Failure) -> None:
        """It is judged by the checkpoint, which may have got beyond what the puller misses by what was begun before."""
        assert failure.reason == SnapshotLostByGC.__name__, failure.message
        gc_ts, safepoint = self.world.upstream.gc_ts, int(failure.message.partition("safepoint is ")[2].split()[0])
        is_lost = gc_ts > self.require_owner().state.checkpoint_ts
        assert is_lost or safepoint <= self.planned_to[failure.sub_id], "nothing is lost"
        self.world.lost = gc_ts > self.world.oracles.state.checkpoint_ts
        self.end("ends: history is lost")

    def _start(self) -> None:
        world, upstream = self.world, self.world.upstream
        if self.log.read().n == 0:
            self.log.append(
                StartRecord(
                    n=1,
                    epoch=0,
                    nonce=self.nonce,
                    start_ts=upstream.first_ts,
                    cluster_id=7,
                    uid="local",
                    initial_copy=upstream.copied,
                )
            )
        state = self.log.claim_epoch(self._epoch_record)
        self.run = replace(self.run, epoch=state.epoch.number)
        self.run_folder = world.segments.run_folder(self.run.epoch, self.nonce, self.wait)
        self.run_folder.delete_lower_epochs()
        self.takes_over, self.dwells = False, 0.2
        spans = Spans(world.pullers, "owner's")
        planner = Planner(world.file_size, world.flush_interval, world.plan_bytes, world.entry_cap, world.turn_files)
        schema_ts = max(START_TS, state.checkpoint_ts, state.last_ddl[0] if state.last_ddl else 0)
        state = self._copied(state, schema_ts)
        barrier = Barrier(schema_ts, upstream.target_ts, self._syncpoints(state))
        self.ddls_to = (schema_ts, 1 << 62)
        versions = {table: state.table_version(table) for table in sorted(upstream.selected(schema_ts))}
        definitions = [definition(table, version) for table, version in versions.items()]
        infos = {info.hash: info.to_json() for info in definitions}
        known = {table: self._table(table, version) for table, version in versions.items()}
        quota = Quota(world.quota, lead=compose(1000))
        self.owner = Owner(state, self.run, known, infos, world.layout, spans, barrier, planner, quota)
        self.owner.begin(physical_ms(upstream.tso()))
        for table in known:
            spans.add_span(table, *table_span(table), state.flushed_ts(table), state.copies().get(table))
        world.say(f"{self.name} is epoch {self.run.epoch} at {world.named(state.checkpoint_ts)}")
        self.pullers = [Puller(self, number) for number in range(world.pullers)]
        world.served(self)
        if state.finished:
            self._finish(self.owner, Stop())

    def _copied(self, state: State, schema_ts: int) -> State:
        """With the copies of the tables that are selected now."""
        dispatchers = tables_to_copy(state, self.world.upstream.selected(schema_ts))
        if not dispatchers:
            return state
        tables = {table: definition(table, schema_ts) for table in dispatchers}
        cluster = TikvCluster(Regions(self.world.upstream))  # type: ignore[arg-type]
        self.log.append(at_once(copy_record(state, dispatchers, tables, cluster)))
        return self.log.state

    def _syncpoints(self, state: State) -> Syncpoints | None:
        database = self.world.database
        if database is None:
            return None
        database.driven_by(self.run.epoch)
        if database.syncpoint_ms is None:
            return None
        return Syncpoints(database.syncpoint_ms, state.whole_from_ts, state.reached_ts())

    def _epoch_record(self, before: State) -> EpochRecord:
        return EpochRecord(
            n=before.n + 1,
            epoch=before.epoch.number + 1,
            nonce=self.nonce,
            attempt=0,
            host="h",
            pid=1,
            config={"written by": self.nonce, "spec": self._spec()},
            versions={},
        )

    def _spec(self) -> dict[str, str]:
        target_ts = self.world.upstream.target_ts
        return {} if target_ts is None else {"targetTs": str(target_ts)}

    def _work(self, owner: Owner) -> None:
        now = self.world.time.now
        pd_ms = int(now * _DAY_MS / _DAY_S) + 20_000 * _DAY_MS + self.clock_ms
        action = owner.step(now, pd_ms)
        if isinstance(action, AppendPlan):
            for entry in action.record.entries:
                known_to = min(owner.spans.resolved_ts(entry.dispatcher), owner.barrier.limit(entry.dispatcher))
                assert entry.to.commit_ts <= known_to, f"{path_of(entry)} ends past {known_to}"
        if isinstance(action, Stop):
            self._finish(owner, action)
        else:
            at_once(act(action, owner, self, self, self._recorded))  # type: ignore[arg-type]

    def _recorded(self, action: Recorded) -> None:
        self.require_owner().recorded(self.world.time.now, action, self.log.state)
        self.hand_out()

    # What the product's `act` asks of a publication and a deletion.

    async def record(self, action: Recorded) -> None:
        self.world.say(f"{self.name} {type(action).__name__} {action.record.n}")
        if isinstance(action, Publish | AppendCheckpoint | WriteSyncpoint):
            self.recording_ts = action.record.checkpoint_ts
        carry_out(action, self.sink, self.log)

    async def checkpoint(self, ts: int, force: bool = False) -> None:
        now = self.world.time.now
        if force or (ts > self.published_ts and now - self.published_at >= OFTEN_S):
            self.sink.write_checkpoint(ts)
            self.published_ts, self.published_at = ts, self.world.time.now

    async def delete(self, uris: list[str]) -> None:
        for uri in uris:
            self.world.segments.delete(uri.removeprefix(f"{self.world.segments.uri}/"))
            self.require_owner().spans.files.deleted(uri)

    async def fold(self) -> None:
        if has_grown(self.log, self.world.fold_after):
            self.log.fold(self.log.state)

    # What its pipeline tasks are told, and tell.

    def task_joined(self, number: int, stream: Stream) -> None:
        if self.alive:
            self._streams[number] = stream
            self.require_owner().task_joined(number)
            self.hand_out()

    def task_left(self, number: int, stream: Stream) -> None:
        """The service knows whose stream it was: the end of one whose place another has taken is no news."""
        if self.alive and self.knows(number, stream):
            del self._streams[number]
            self.require_owner().task_left(number)
            self.hand_out()

    def told(self, number: int, stream: Stream, news: FileCommitted | pb.GivenBack) -> None:
        """The service hears no stream any more of whose task another is open, or that it knows to be over."""
        if not (self.alive and self.knows(number, stream)):
            return
        owner = self.require_owner()
        if isinstance(news, FileCommitted):
            owner.file_done(number, news)
        else:
            owner.given_back(number, EntryKey(news.plan, news.entry), news.segment)
        self.hand_out()

    def knows(self, number: int, stream: Stream) -> bool:
        """Whether that stream of a task is open, as far as it was told."""
        return self._streams.get(number) is stream

    def task_failed(self, number: int) -> None:
        self._failures[number] += 1
        if self._failures[number] == _MAX_FAILURES:
            self.end("ends with its job")

    def hand_out(self) -> None:
        if not self.alive:
            return
        for number, work in self.require_owner().hand_out():
            for each in work.entries:
                self.world.say(f"{self.name} gives task {number} {path_of(each.plan_entry)} of plan {work.record}")
            self._streams[number].order(work)
        self.check()

    def check(self) -> None:
        """After every few events."""
        self._events += 1
        if self._events % _CHECKED_EVERY == 0:
            self.require_owner().check()

    def _finish(self, owner: Owner, stop: Stop) -> None:
        state = owner.state
        at_once(self.checkpoint(state.checkpoint_ts, force=True))
        if not state.finished:
            assert self.drained_to is not None, f"{self.name} stops for nothing"
            assert state.checkpoint_ts >= min(self.drained_to, owner.barrier.checkpoint_limit()), "not drained"
        self.stop = stop
        self.end(f"ends at {self.world.named(state.checkpoint_ts)}: {stop}")

    def _table(self, table: int, version: int) -> Table:
        info = definition(table, version)
        return Table(table, info.hash, version, self.world.layout.series(info, table, version))

    def pull_ddls(self) -> None:
        """The driver's own DDL span, and what it makes of its jobs once it has resolved to them."""
        now = self.world.time.now
        if self.world.happens("ddl_stall"):
            self.ddls_stand_until = now + self.world.network.uniform(1.0, 6.0)
        if self.owner is None or now < self.ddls_stand_until:
            return
        rng, upstream, barrier = self.world.network, self.world.upstream, self.owner.barrier
        now_ts = upstream.tso()
        resolved_ts = now_ts if rng.random() < 0.7 else rng.randint(START_TS, now_ts)
        for ddl in upstream.ddls_after(self.ddls_to):
            if ddl.ts <= resolved_ts:
                barrier.on_ddl(self._meant(ddl))
        self.ddls_to = max(self.ddls_to, (resolved_ts, 1 << 62))
        barrier.on_resolved(resolved_ts)

    def _meant(self, ddl: SimulatedDdl) -> Ddl:
        tables = {table: definition(table, ddl.ts) for table in sorted(ddl.alters | ddl.joins)}
        return Ddl(
            ddl.ts,
            ddl.job_id,
            query="a DDL",
            involved=ddl.alters | ddl.leaves,
            left=ddl.leaves,
            tables=tables,
            is_told=True,
            notices=tuple(Notice(table.schema_name, table) for table in tables.values()),
        )

    def tend(self) -> None:
        if self.owner is None:
            return
        for puller, command in self.owner.tend(self.world.time.now):
            if not (command.HasField("heard") or command.HasField("free")):
                self.world.say(f"{self.name} tells puller {puller} " + self.world.named_command(command))
            self.pullers[puller].command(command)
        self.check()
        self.world.check_store_size(self)

    def split(self) -> None:
        """A table, anywhere; or have it pulled as one again."""
        if self.owner is None or not self.owner.dispatchers:
            return
        rng = self.world.borders
        table = rng.choice(sorted(self.owner.dispatchers))
        inside = [key for key in self.world.upstream.keys if key.startswith(table_prefix(table))]
        borders = sorted(rng.sample(inside, rng.randint(0, min(3, len(inside)))))
        self.world.say(f"{self.name} splits table {table} into {len(borders) + 1}")
        self.owner.split(self.world.time.now, table, borders)

    def drain(self) -> None:
        if self.owner is not None and self.drained_to is None:
            self.drained_to = self.owner.resolved_ts()
            self.owner.drain()
            self.world.say(f"{self.name} drains to {self.world.named(self.drained_to)}")
