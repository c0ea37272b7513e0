"""Drivers, pullers, executors and stores around the real cores of `owner/`, in one thread with virtual time.

Everything here is simulated but `Owner`, `Spans`, `Planner`, `Barrier`, `Checkpoint`, `Log`, `history` and the sink's
`grow` and `create_once`. Whatever blocks (a call to the store, a wait) is a place where the others go on, where the
process can be killed, and where an answer can be lost: so a driver sleeps inside an append while its successor takes
over, and its own pullers and executors talk to it meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random

from changefeed.errors import Conflict, Fenced, OutcomeUnknown
from changefeed.model.record import EpochRecord, StartRecord
from changefeed.owner.barrier import Barrier
from changefeed.owner.history import State
from changefeed.owner.log import Log
from changefeed.owner.owner import AppendPlan, Owner, Publish, Recorded, Run, Stop
from changefeed.owner.planner import Planner, Table
from changefeed.owner.quota import Quota
from changefeed.owner.spans import Spans
from changefeed.sink.storage.index import write_index
from changefeed.sink.storage.layout import METADATA, Layout
from changefeed.sink.storage.metadata import write_metadata
from simulated_oracles import START_TS, Oracles, Row, Upstream
from simulated_store import Faults, Killed, ObjectsInMemory, Process
from simulated_tasks import Executor, Puller

_DAY_MS = 86_400_000
_MAX_DRIVERS = 3
_PLENTY = 1 << 40


class Broken(Exception):
    """A seed broke a promise, or surprised a core."""

    def __init__(self, seed: int, error: Exception, trace: list[str]) -> None:
        super().__init__(f"Seed {seed}: {error!r}")
        self.seed = seed
        self.trace = trace


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
        quota = Quota(world.quota, lead=5)
        self.owner = Owner(state, self.run, known, infos, world.layout, spans, barrier, planner, quota)
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

    def _record(self, owner: Owner, action: Recorded) -> None:
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
        resolved_ts = max(rng.randint(START_TS, upstream.now_ts), rng.randint(START_TS, upstream.now_ts + 50))
        resolved_ts = min(resolved_ts, upstream.now_ts)
        known = [ddl for ddl in upstream.ddls if ddl.ts <= resolved_ts]
        early = [ddl for ddl in upstream.ddls if resolved_ts < ddl.ts <= upstream.now_ts and rng.random() < 0.5]
        for ddl in rng.sample(known + early, len(known + early)):
            if ddl.ts > self.ddls_to:
                barrier.on_ddl(ddl.ts, ddl.job_id, ddl.touches, "a DDL")
        self.ddls_to = max(self.ddls_to, resolved_ts)
        barrier.on_resolved(resolved_ts)

    def tend(self) -> None:
        owner = self.require_owner()
        for puller, command in owner.tend(self.world.now):
            self.world.say(f"{self.name} tells puller {puller} " + " ".join(str(command).split()))
            self.pullers[puller].obey(command)
        most = self.world.quota + sum(puller.most_in_flight for puller in self.pullers)
        assert owner.spans.files.bytes <= most, f"{owner.spans.files.bytes} bytes of segments, {most} at most"

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
        # A small quota for much data, or one that is never short.
        self.quota = rng.choice((400, 600, 1000, _PLENTY, _PLENTY, _PLENTY))
        self.upstream = Upstream(rng, range(1, rng.randint(2, 5)), 40 if self.quota == _PLENTY else 150)
        self.faults = Faults.draw(rng)
        self.pullers = rng.randint(1, 3)
        self.flush_interval = rng.uniform(0.2, 4.0)
        self.file_size = rng.choice((10, 30, 100, 1000))
        self.plan_bytes = min(rng.choice((50, 200, 10_000)), self.quota // 4)
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
                actions += [driver.pull_ddls, driver.tend]
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
