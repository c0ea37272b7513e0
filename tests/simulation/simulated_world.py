"""Drivers, pullers, executors and stores around the real cores of `owner/`, in one thread with virtual time.

Everything here is simulated but `Owner`, `Spans`, `Planner`, `Barrier`, `Checkpoint`, `Log`, `history` and the sink's
`grow` and `create_once`. Whatever blocks (a call to the store, a wait) is a place where the others go on, where the
process can be killed, and where an answer can be lost: so a driver sleeps inside an append while its successor takes
over, and its own pullers and executors talk to it meanwhile.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from changefeed.errors import AlreadyExists, Conflict, Fenced, NotFound, OutcomeUnknown, Transient
from changefeed.model.record import EpochRecord, FileCommitted, StartRecord, Work, WorkEntry
from changefeed.objectstore import FileRange, Object
from changefeed.owner.barrier import Barrier
from changefeed.owner.history import State
from changefeed.owner.log import Log
from changefeed.owner.owner import Action, AppendPlan, Owner, Publish, Run, Stop
from changefeed.owner.planner import Planner, Table
from changefeed.owner.spans import Spans
from changefeed.sink.storage.index import write_index
from changefeed.sink.storage.layout import METADATA, Layout
from changefeed.sink.storage.metadata import write_metadata
from changefeed.sink.storage.once import create_once
from changefeed.wire import owner_pb2 as pb
from simulated_oracles import START_TS, Oracles, Row, Upstream, file_body

T = TypeVar("T")
_DAY_MS = 86_400_000
_MAX_DRIVERS = 3


class Broken(Exception):
    """A seed broke a promise, or surprised a core."""

    def __init__(self, seed: int, error: Exception, trace: list[str]) -> None:
        super().__init__(f"Seed {seed}: {error!r}")
        self.seed = seed
        self.trace = trace


class Killed(BaseException):
    """SIGKILL, inside a call: no code of the process may see it."""


@dataclass(frozen=True)
class Faults:
    """How likely each is, at each place where it can happen."""

    store: float = 0.0  # a call fails, or its outcome is unknown
    crash: float = 0.0  # of a process in a call, and of a driver between two
    leave: float = 0.0  # a puller's stream breaks
    zombie: float = 0.0  # a second driver starts
    drain: float = 0.0
    executor: float = 0.0  # a task fails, a message is lost, doubled or another run's
    freeze: float = 0.0  # a call takes very long

    @classmethod
    def draw(cls, rng: Random) -> Faults:
        """Most seeds have few kinds of faults: many at once hide one another."""

        def some(most: float) -> float:
            return rng.random() * most if rng.random() < 0.5 else 0.0

        return cls(some(0.2), some(0.02), some(0.03), some(0.01), some(0.01), some(0.3), some(0.05))


@dataclass
class ObjectsInMemory:
    """The one store: what stands in it, and what may still land in it."""

    objects: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, int] = field(default_factory=dict)
    under_way: list[Callable[[], object]] = field(default_factory=list)


class View:
    """A process's client of the store; implements ObjectStore."""

    uri = "memory://simulated"

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._store = world.store
        self._process = process

    def create(self, path: str, body: bytes | tuple[FileRange, ...]) -> None:
        assert isinstance(body, bytes)

        def put() -> None:
            if path in self._store.objects:
                raise AlreadyExists(f"{path} is taken.")
            self._store.objects[path] = body
            self._world.say(f"  {path} stands")
            self._world.oracles.on_create(path, body)

        self._write(path, put)

    def swap(self, path: str, body: bytes, etag: str | None) -> str:
        def put() -> str:
            version = self._store.etags.get(path, 0)
            if etag != (str(version) if version else None):
                raise Conflict(f"{path} has changed.")
            self._store.objects[path] = body
            self._store.etags[path] = version + 1
            self._world.say(f"  {path} says {body!r}")
            self._world.oracles.on_swap(path, body)
            return str(version + 1)

        return self._write(path, put)

    def get(self, path: str) -> Object:
        self._before(path)
        if path not in self._store.objects:
            raise NotFound(f"There is no {path}.")
        return Object(self._store.objects[path], str(self._store.etags.get(path, 0)))

    def chunks(self, path: str, size: int = 8 << 20) -> Iterator[bytes]:
        yield self.get(path).body

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        self._before(prefix)
        found = sorted((path, len(body)) for path, body in self._store.objects.items() if path.startswith(prefix + "/"))
        self._world.meanwhile(self._process)  # what was listed is old when it arrives
        return found

    def delete(self, path: str) -> None:
        self._before(path)
        self._store.objects.pop(path, None)

    def _before(self, path: str) -> None:
        self._world.meanwhile(self._process)
        if self._world.happens(self._world.faults.store):
            raise Transient(f"{path} has to be tried again.")

    def _write(self, path: str, put: Callable[[], T]) -> T:
        self._before(path)
        unknown = OutcomeUnknown(f"Nobody knows whether {path} was written.")
        fault = self._world.rng.choice(("lost", "late", "unheard", "", "", ""))
        if not self._world.happens(self._world.faults.store * 2):
            fault = ""
        if fault == "lost":
            raise unknown
        if fault == "late":
            self._store.under_way.append(put)
            raise unknown
        answer = put()
        self._world.meanwhile(self._process)
        if fault == "unheard":
            raise unknown
        return answer


class Process:
    """Something that can be killed; `busy` while it is inside a call."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.busy = False
        self.store = View(world, self)

    def go_on(self) -> None:
        """One step; what ends the process is caught here, anything unexpected ends the run."""
        self.busy = True
        try:
            self.step()
        except Killed:
            self.alive = False
        except (Conflict, OutcomeUnknown, Transient) as error:
            self.end(f"gives up: {error}")
        finally:
            self.busy = False

    def step(self) -> None:
        raise NotImplementedError

    def end(self, why: str) -> None:
        self.world.say(f"{self.name} {why}")
        self.alive = False


@dataclass
class Subscription:
    span_id: int
    todo: list[Row]  # not yet pulled, in order
    pulled: list[Row] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)  # (seq, its lowest commit ts)
    told_ts: int = 0


class Puller:
    """Honest, slow and in no order: rows, segments and resolved-ts of one stream after the other."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver = driver
        self.world = driver.world
        self.number = number
        self.joined = False
        self.incarnation = 0
        self.subscriptions: dict[int, Subscription] = {}
        self.buffer: list[tuple[int, Row]] = []
        self.outbox: deque[pb.Report] = deque()
        self.stale: list[pb.Report] = []  # of earlier streams
        self.seq = 0

    def step(self) -> None:
        rng, faults = self.world.rng, self.world.faults
        if not self.joined:
            self._join()
        elif self.world.happens(faults.leave):
            self._leave()
        elif self.stale and self.world.happens(faults.leave):
            self.driver.require_owner().report(self.world.now, self.number, self.stale.pop())
        else:
            rng.choice((self._pull, self._pull, self._cut, self._claim, self._deliver, self._deliver))()

    def _join(self) -> None:
        self.joined, self.seq, self.incarnation = True, 0, self.incarnation + 1
        for command in self.driver.require_owner().puller_joined(self.number):
            asked = command.subscribe
            rows = self.world.upstream.rows[asked.span_id]
            first = bisect_right(rows, Row.end_of(asked.start_ts))
            before = rows[max(0, first - 2) : first]
            self.subscriptions[asked.sub_id] = Subscription(asked.span_id, rows[first:], before)
        self.world.say(f"{self.driver.name} puller {self.number} joins: {list(self.subscriptions)}")

    def _leave(self) -> None:
        self.world.say(f"{self.driver.name} puller {self.number} leaves")
        self.joined = False
        self.stale += self.outbox
        self.subscriptions.clear()
        self.buffer.clear()
        self.outbox.clear()
        if self.world.rng.random() < 0.5:  # else the owner hears of it by the next stream
            self.driver.require_owner().puller_left(self.number)

    def _pull(self) -> None:
        rng = self.world.rng
        for sub_id, subscription in self.subscriptions.items():
            visible = bisect_right(subscription.todo, Row.end_of(self.world.upstream.now_ts))
            for _ in range(min(visible, rng.randint(0, 5))):
                row = subscription.todo.pop(rng.randrange(min(visible, 4)))
                visible -= 1
                subscription.pulled.append(row)
                self.buffer.append((sub_id, row))
            if subscription.pulled and rng.random() < 0.1:
                self.buffer.append((sub_id, rng.choice(subscription.pulled)))  # TiKV sends it again

    def _cut(self) -> None:
        rng = self.world.rng
        if not self.buffer:
            return
        self.seq += 1
        count = rng.randint(1, len(self.buffer))
        rng.shuffle(self.buffer)
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        uri = f"events/{self.driver.run.name}/{self.number}.{self.incarnation}/{self.seq}"
        batches: list[list[Row]] = []
        shares = []
        for sub_id, subscription in self.subscriptions.items():
            if rows := sorted(row for owner, row in taken if owner == sub_id):
                size = rng.randint(1, 3)
                first = len(batches)
                batches += [rows[i : i + size] for i in range(0, len(rows), size)]
                shares.append(_share(sub_id, subscription.span_id, rows, first, len(batches), rng.randint(1, 6)))
                subscription.segments.append((self.seq, rows[0].commit_ts))
        self.world.segments[uri] = batches
        meta = pb.SegmentMeta(uri=uri, seq=self.seq, bytes=10 * count, spans=shares)
        self._report(pb.Report(puller=self.number, segments=[meta]))

    def _report(self, report: pb.Report) -> None:
        """In no order: a segment may come after the next one, a resolved-ts before its segments."""
        early = self.world.rng.choice((0, 0, 2, 6))
        self.outbox.insert(max(0, len(self.outbox) - early), report)

    def _claim(self) -> None:
        """A resolved-ts for each subscription that has one: all rows <= it stand in segments."""
        claims = []
        for sub_id, subscription in self.subscriptions.items():
            missing = [row.commit_ts for owner, row in self.buffer if owner == sub_id]
            missing += [row.commit_ts for row in subscription.todo[:1]]
            ts = min([self.world.upstream.now_ts, *(ts - 1 for ts in missing)])
            if ts > subscription.told_ts:
                subscription.told_ts = ts
                seqs = [seq for seq, lowest in subscription.segments if lowest <= ts]
                last = max(seqs, default=0)
                first = min(seqs, default=0)
                claims.append(pb.Resolved(sub_id=sub_id, ts=ts, first_segment=first, last_segment=last))
        if claims:
            self._report(pb.Report(puller=self.number, resolved=claims))

    def _deliver(self) -> None:
        if self.outbox:
            report = self.outbox.popleft()
            for _ in range(1 + self.world.happens(0.1)):  # sent again
                self.driver.require_owner().report(self.world.now, self.number, report)


def _share(sub_id: int, span_id: int, rows: list[Row], first: int, end: int, point_every: int) -> pb.SegmentSpan:
    """Each row weighs 10 bytes."""
    places = [pb.Position(commit_ts=row.commit_ts, start_ts=row.start_ts, op=row.op, key=row.key) for row in rows]
    points = [i for i in range(1, len(rows) + 1) if i % point_every == 0 or i == len(rows)]
    return pb.SegmentSpan(
        span_id=span_id,
        sub_id=sub_id,
        rows=len(rows),
        bytes=10 * len(rows),
        min=places[0],
        max=places[-1],
        first_batch=first,
        end_batch=end,
        curve=[pb.CurvePoint(position=places[i - 1], bytes=10 * i) for i in points],
    )


class Executor(Process):
    """The streaming query of one driver; it outlives its driver for a while and writes on."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.world, f"{driver.name}'s executor")
        self.driver = driver
        self.batch = 0
        self.work: Work | None = None
        self.tasks: list[WorkEntry] = []
        self.outbox: list[FileCommitted] = []
        self.sent: list[tuple[int, str, FileCommitted]] = []

    def step(self) -> None:
        rng, faults = self.world.rng, self.world.faults
        if self.tasks and (not self.outbox or rng.random() < 0.5):
            self._write(self.tasks.pop(rng.randrange(len(self.tasks))))
        elif not self.driver.alive:
            self.end("ends: its driver is gone")
        elif self.outbox:
            self._send()
        elif self.world.happens(faults.executor * 0.1):
            self.batch, self.work = 0, None  # the query starts anew
        elif self.sent and self.world.happens(faults.executor):
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
        if self.world.happens(self.world.faults.executor):
            self.tasks.append(task)  # failed, to be tried again
            return
        rows: set[Row] = set()
        for part in task.segments:
            if part.uri not in self.world.segments:
                state = self.world.oracles.state
                needed = state.plan is not None and (state.plan.n, state.epoch.nonce) == (self.batch, self.work.nonce)
                assert not (needed and self.driver.alive), f"{part.uri} was deleted; {entry.path} needs it"
                # Of a committed plan, or of a run that has a successor: Spark tries a few times, then the query fails.
                self.end(f"misses {part.uri}")
                if self.driver.alive:
                    self.driver.end("ends with its query")
                return
            batches = self.world.segments[part.uri][part.first_batch : part.end_batch]
            rows.update(row for batch in batches for row in batch if entry.from_ < row <= entry.to)
        info = self.work.table_infos[entry.table_info]
        body = file_body(self.work.config, self.work.pd_ms, info, sorted(rows))
        digest = hashlib.blake2b(body, digest_size=16).hexdigest()
        try:
            create_once(self.store, entry.path, body, digest, self.world.sleeper(self))
        except (OutcomeUnknown, Transient):
            self.tasks.append(task)
            return
        count = len(rows)
        done = FileCommitted(
            entry=entry.entry, rows=count, raw_rows=count, filtered_rows=0, bytes=len(body), hash=digest
        )
        self.outbox.append(done)

    def _send(self) -> None:
        assert self.work is not None
        rng, faults = self.world.rng, self.world.faults
        done = self.outbox.pop(rng.randrange(len(self.outbox)))
        if self.world.happens(faults.executor):
            self.tasks += [task for task in self.work.entries if task.plan_entry.entry == done.entry]  # lost
            return
        self.sent.append((self.batch, self.driver.run.nonce, done))
        self.driver.require_owner().file_done(self.batch, self.driver.run.nonce, done)


class Driver(Process):
    """One run: as owner/driver.py, whose calls are made here one after another."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"driver {number}")
        self.nonce = f"{world.rng.getrandbits(32):08x}"
        self.log = Log(self.store, "log", world.sleeper(self))
        self.clock_ms = world.rng.choice((0, 0, -_DAY_MS, _DAY_MS))
        self.run = Run(0, self.nonce, "codec")
        self.owner: Owner | None = None
        self.stop: Stop | None = None
        self.pullers: list[Puller] = []
        self.ddls_to = 0  # all of them up to it were handed to the barrier
        self.drained_to: int | None = None
        self.published_ts, self.published_at = 0, 0.0

    def require_owner(self) -> Owner:
        assert self.owner is not None
        return self.owner

    def step(self) -> None:
        try:
            if self.owner is None:
                self._start()
            else:
                self._work(self.owner)
        except Fenced:
            if self.world.oracles.state.epoch.nonce == self.nonce:
                raise
            self.end("is fenced")

    def _start(self) -> None:
        if self.log.read().n == 0:
            self.log.append(StartRecord(n=1, epoch=0, nonce=self.nonce, start_ts=START_TS, cluster_id=7, uid="local"))
        state = self.log.claim_epoch(self._epoch_record)
        self.run = Run(state.epoch.number, self.nonce, "codec")
        for uri in [uri for uri in self.world.segments if int(uri.split("/")[1].split("-")[0]) < self.run.epoch]:
            del self.world.segments[uri]
        tables = self.world.upstream.rows
        world = self.world
        spans = Spans(world.pullers)
        planner = Planner(world.file_size, world.flush_interval, world.plan_bytes, world.entry_cap)
        barrier = Barrier(state.checkpoint_ts, world.upstream.target_ts)
        infos = {str(table): {"name": f"table {table}"} for table in tables}
        known = {table: Table(table, str(table), state.start_ts) for table in tables}
        self.owner = Owner(state, self.run, known, infos, world.layout, spans, barrier, planner)
        for table in tables:
            spans.add_span(table, b"", b"", state.flushed_ts(table))
        self.pullers = [Puller(self, number) for number in range(world.pullers)]
        self.world.say(f"{self.name} is epoch {self.run.epoch} at {state.checkpoint_ts}")
        if state.finished:
            self._finish(self.owner, Stop())

    def _epoch_record(self, before: State) -> EpochRecord:
        return EpochRecord(
            n=before.n + 1,
            epoch=before.epoch.number + 1,
            nonce=self.nonce,
            attempt=0,
            host="h",
            pid=1,
            config={"written by": self.nonce},
            versions={},
        )

    def _work(self, owner: Owner) -> None:
        owner.latest()
        pd_ms = int(self.world.now * 1000 * 1440) + 20_000 * _DAY_MS + self.clock_ms
        action = owner.step(self.world.now, pd_ms)
        if isinstance(action, AppendPlan):
            for entry in action.record.entries:
                known_to = min(owner.spans.resolved_ts(entry.dispatcher), owner.barrier.limit())
                assert entry.to.commit_ts <= known_to, f"{entry.path} ends past {known_to}"
        if action is None:
            if owner.state.checkpoint_ts > self.published_ts and self.world.now - self.published_at >= 2.0:
                self._publish_metadata(owner)
            for uri in owner.unneeded_segments():
                self.world.segments.pop(uri, None)
        elif isinstance(action, Stop):
            self._finish(owner, action)
        else:
            self._record(owner, action)

    def _record(self, owner: Owner, action: Action) -> None:
        assert not isinstance(action, Stop)
        self.world.say(f"{self.name} {type(action).__name__} {action.record.n}")
        if isinstance(action, Publish):
            for directory, index, path in action.indexes:
                self._grow(lambda d=directory, i=index, p=path: write_index(self.store, d, i, p))  # type: ignore[misc]
        self.log.append(action.record)
        owner.recorded(self.world.now, action, self.log.state)
        if self.log.tail > self.world.fold_after and self.log.state.plan is None:
            self.log.fold(self.log.state)

    def _grow(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (Conflict, OutcomeUnknown):
            self.log.poll_fence()
            write()

    def _publish_metadata(self, owner: Owner) -> None:
        ts = owner.state.checkpoint_ts
        self._grow(lambda: write_metadata(self.store, ts))
        self.published_ts, self.published_at = ts, self.world.now

    def _finish(self, owner: Owner, stop: Stop) -> None:
        upstream, state = self.world.upstream, owner.state
        self._publish_metadata(owner)
        if stop.ddl is not None:
            assert upstream.stop is not None
            assert (stop.ddl.job_id, state.checkpoint_ts) == (upstream.stop.job_id, upstream.goal_ts)
            assert all(state.flushed_ts(table) >= stop.ddl.ts or not rows for table, rows in self._last(stop.ddl.ts))
        elif not state.finished:
            assert self.drained_to is not None, f"{self.name} stops for nothing"
            assert state.checkpoint_ts >= min(self.drained_to, owner.barrier.checkpoint_limit()), "not drained"
        self.stop = stop
        self.end(f"ends at {state.checkpoint_ts}: {stop}")

    def _last(self, ts: int) -> list[tuple[int, list[Row]]]:
        upstream = self.world.upstream
        return [(table, upstream.between(table, ts - 1, ts)) for table in upstream.rows]

    def pull_ddls(self) -> None:
        """The driver's own DDL span; it repeats itself when it is pulled anew."""
        rng, upstream, barrier = self.world.rng, self.world.upstream, self.require_owner().barrier
        if self.world.happens(self.world.faults.leave):
            self.ddls_to = 0
        resolved_ts = rng.randint(START_TS, upstream.now_ts)
        known = [ddl for ddl in upstream.ddls if ddl.ts <= resolved_ts]
        early = [ddl for ddl in upstream.ddls if resolved_ts < ddl.ts <= upstream.now_ts and rng.random() < 0.5]
        for ddl in rng.sample(known + early, len(known + early)):
            if ddl.ts > self.ddls_to:
                barrier.on_ddl(ddl.ts, ddl.job_id, ddl.touches, "a DDL")
        self.ddls_to = max(self.ddls_to, resolved_ts)
        barrier.on_resolved(resolved_ts)

    def drain(self) -> None:
        owner = self.require_owner()
        self.drained_to = owner.resolved_ts()
        owner.drain()
        self.world.say(f"{self.name} drains to {self.drained_to}")


class World:
    """One seed's world; `trace` says what has happened in it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.trace: deque[str] = deque(maxlen=400)
        self.now = 0.0
        self.upstream = Upstream(rng, range(1, rng.randint(2, 5)))
        self.faults = Faults.draw(rng)
        self.pullers = rng.randint(1, 3)
        self.flush_interval = rng.uniform(0.2, 4.0)
        self.file_size = rng.choice((10, 30, 100, 1000))
        self.plan_bytes = rng.choice((50, 200, 10_000))
        self.fold_after = rng.choice((3, 12))
        self.entry_cap = rng.choice((40, 300, 10_000))
        self.layout = Layout(rng.choice(("none", "day")), 20, ".csv", {t: f"s/t{t}/100" for t in self.upstream.rows})
        self.store = ObjectsInMemory()
        self.oracles = Oracles(self.upstream, self.store.objects, self.layout.data_file)
        self.segments: dict[str, list[list[Row]]] = {}  # the event store: batches by URI
        self.drivers: list[Driver] = []
        self.executors: list[Executor] = []
        self.started = 0
        self.depth = 0
        self.stop: Stop | None = None  # how the changefeed ended, if it did by itself
        self.reader = Process(self, "reader")

    def run(self) -> None:
        """Faults for a while, then none. Raises Broken."""
        try:
            self._run()
        except Exception as error:
            raise Broken(self.seed, error, list(self.trace)) from error

    def _run(self) -> None:
        for _ in range(self.rng.randint(50, 700)):
            self.step()
        self.heal()
        for _ in range(12_000):  # the checkpoint must reach its goal (promise 7)
            if self.reached():
                break
            self.step()
        assert self.reached(), f"stuck at {self.oracles.state.checkpoint_ts} on the way to {self.upstream.goal_ts}"
        self.check()

    def heal(self) -> None:
        self.say("no more faults")
        self.faults = Faults()
        for land in self.store.under_way:
            self._land(land)
        self.store.under_way.clear()

    def reached(self) -> bool:
        ends_by_itself = self.upstream.stop is not None or self.upstream.target_ts is not None
        if ends_by_itself:
            return self.stop is not None and not any(driver.alive for driver in self.drivers)
        published = self.oracles.state.checkpoint_ts == self.upstream.goal_ts
        return published and self.store.etags.get(METADATA, 0) > 0

    def check(self) -> None:
        """The whole store, by a reader without faults."""
        faults, self.faults = self.faults, Faults()
        self.depth += 100
        self.oracles.check_store(Log(self.reader.store, "log").read)
        self.depth -= 100
        self.faults = faults

    def say(self, what: str) -> None:
        self.trace.append(f"{self.now:8.2f} {what}")

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def step(self) -> None:
        self.now += self.rng.random() * 0.1
        self._faults()
        actions = self._actions()
        if actions:
            self.rng.choice(actions)()
        self._bury()

    def _actions(self) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = [self._reveal]
        if self.store.under_way:
            actions.append(lambda: self._land(self.store.under_way.pop(self.rng.randrange(len(self.store.under_way)))))
        for driver in self.drivers:
            if not driver.busy:
                actions += [driver.go_on] * 3
            if driver.owner is not None:
                actions += [driver.pull_ddls]
                actions += [puller.step for puller in driver.pullers] * 3
        actions += [executor.go_on for executor in self.executors if not executor.busy] * 2
        return actions

    def _faults(self) -> None:
        restart = 0.3 if self.stop is None else 0.005  # what has ended by itself is seldom started again
        likely = self.faults.zombie if self.drivers else restart
        if len(self.drivers) < _MAX_DRIVERS and self.happens(likely):
            self.started += 1
            self.drivers.append(Driver(self, self.started))
        for victim in [*self.drivers, *self.executors]:
            if self.happens(self.faults.crash / 4):
                victim.end("is killed")
        for driver in self.drivers:
            if driver.owner is not None and driver.drained_to is None and self.happens(self.faults.drain):
                driver.drain()

    def _bury(self) -> None:
        """A driver's end is when the store is looked at; the others go on."""
        for driver in [driver for driver in self.drivers if not driver.alive and not driver.busy]:
            self.drivers.remove(driver)
            if driver.stop is not None and (driver.stop.ddl is not None or driver.require_owner().state.finished):
                self.stop = driver.stop
            self.check()
        self.executors = [executor for executor in self.executors if executor.alive]
        served = [executor.driver for executor in self.executors]
        self.executors += [Executor(driver) for driver in self.drivers if driver.owner and driver not in served]

    def _reveal(self) -> None:
        self.upstream.now_ts = min(self.upstream.end_ts, self.upstream.now_ts + self.rng.randint(0, 5))

    def _land(self, put: Callable[[], object]) -> None:
        try:
            put()
        except Conflict:  # AlreadyExists too: it came too late
            self.say("  a late write is refused")

    def meanwhile(self, process: Process) -> None:
        """`process` waits for an answer: the others go on, and it may be killed."""
        if self.depth < _MAX_DRIVERS and self.happens(0.15):
            count = self.rng.randint(1, 4)
            if self.happens(self.faults.freeze):
                self.say(f"{process.name} is frozen")
                count = self.rng.randint(50, 300)
            self.depth += 1
            for _ in range(count):
                self.step()
            self.depth -= 1
        if process.alive and process is not self.reader and self.happens(self.faults.crash):
            process.end("is killed in a call")
        if not process.alive:
            raise Killed

    def sleeper(self, process: Process) -> Callable[[float], None]:
        def sleep(seconds: float) -> None:
            self.now += seconds
            self.meanwhile(process)

        return sleep


def failing_seed(seeds: Iterable[int]) -> Broken | None:
    """What the first seed that breaks something breaks."""
    for seed in seeds:
        try:
            World(seed).run()
        except Broken as broken:
            return broken
    return None
