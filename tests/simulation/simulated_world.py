"""A whole changefeed in one thread with virtual time: its upstream, its store, its drivers, pullers and
pipeline tasks.

Simulated are the clock, the stores, the network and what goes wrong. The cores are the product's own: `puller/` from
the bytes of a stream on (feed, matcher, range lock, span pipeline, reports), segments and their reader, the sorter, and
of `owner/` all that decides. Whatever blocks is a place where the others go on and where a process can be killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol
from unittest.mock import patch

import grpc.aio
from changefeed.errors import Conflict
from changefeed.eventstore import writer as segment_writer
from changefeed.log.log import Log
from changefeed.owner.planning import checkpoint, planner
from changefeed.owner.planning.actions import Stop
from changefeed.owner.writing.dispatch import Ahead
from changefeed.sink.storage.layout import Layout
from changefeed.upstream.tikv.feed import initial_copy, store_stream
from changefeed.upstream.tikv.matching import matcher, spilled
from changefeed.wire import owner_pb2 as pb
from simulated_cdc import ChangeData
from simulated_database import Database
from simulated_driver import OFTEN_S, Driver
from simulated_faults import ANYTHING, REGIONS, ROWS, TAKEOVERS, Faults
from simulated_flight import Network
from simulated_oracles import Oracles
from simulated_past import Past
from simulated_pd import broken
from simulated_pipeline_task import PipelineTask
from simulated_pullers import Puller
from simulated_segments import MemorySegments
from simulated_snapshot import SimulatedSnapshot
from simulated_store import ObjectsInMemory, Process, Steady
from simulated_time import Timeline
from simulated_transactions import START_TS, Shape, Transaction
from simulated_upstream import Upstream

_MAX_DRIVERS = 3
_PLENTY = 1 << 40
_LONGEST_S = 400.0
_LOOK_S = 0.25
_TO_DISK = ("write_segment", "create_segment", "_write_slot")
_AT_ONCE = 4  # segments of a puller on their way
_ON_ITS_WAY = 9_000  # bytes of so many as a rule; the more spans are in one, the larger it is


class Broken(Exception):
    """A seed broke a promise, or surprised a core."""

    def __init__(self, story: Story, error: BaseException, trace: list[str]) -> None:
        super().__init__(f"{story}: {error!r}")
        self.story = story
        self.error = error
        self.trace = trace


@dataclass(frozen=True)
class Story:
    """What makes a world: a seed, kinds of faults that are left out, and seconds after which there are none."""

    seed: int
    without: tuple[str, ...] = ()
    healed_at: float | None = None

    def __str__(self) -> str:
        """As it is given to `make simulate`."""
        said = f"SEED={self.seed}"
        if self.without:
            kinds = Faults(self.seed).kinds
            rest = [kind for kind in self.without if kind not in kinds]  # of what the world is like
            said += f" WITHOUT={','.join(['all', *rest] if set(self.without) >= set(kinds) else self.without)}"
        return said if self.healed_at is None else f"{said} HEALED={self.healed_at:g}"


class Runs(Protocol):
    def run(self) -> None:
        """Raises Broken."""


class World:
    """`trace` says what has happened in it. `past`: nothing new comes from upstream, its plan is to be done."""

    def __init__(self, story: Story, past: Past | None = None) -> None:
        self.story = story
        rng = Random(f"{story.seed} world")
        self.network = Random(f"{story.seed} network")
        # Most have memory for all rows, as in life; dice of its own, so that the others stay as they are.
        self.spill_bytes = Random(f"{story.seed} spill").choice((0, 150, *[matcher.SPILL_BYTES] * 4))
        # Of a puller, the same way: no shared memory, room for one or two segments, or for all; and for how long.
        buffers = Random(f"{story.seed} buffer")
        self.buffer_bytes = buffers.choice((0, 3_000, 6_000, 1 << 20))
        self.archive_after_s = buffers.choice((0.2, 1.0, 5.0))
        self.borders = Random(f"{story.seed} borders")
        self.time = Timeline()
        self.flight = Network(story.seed, lambda: self.time.now >= self.healed_at)
        self.trace: deque[str] = deque(maxlen=600)
        self.faults = Faults(story.seed, story.without)
        takeovers, regions, rows = (self.faults.focus == focus for focus in (TAKEOVERS, REGIONS, ROWS))
        busy_s = rng.choice((5.0, 7.0) if takeovers else (3.0, 5.0) if rows else (2.0, 3.0, 5.0)) * (0.5 + rng.random())
        self.healed_at = busy_s + rng.choice((0.5, 4.0, 12.0)) if story.healed_at is None else story.healed_at
        # A small quota for much data, or one that is never short.
        self.quota = _PLENTY if self.faults.focus != ANYTHING else rng.choice((8_000, 12_000, 20_000, _PLENTY, _PLENTY))
        self.memory_quota = rng.choice((200, 400, _PLENTY, _PLENTY, *[200] * regions))  # of a puller
        self.roll_bytes = 150 if self.quota < _PLENTY else rng.choice((150, 300, 1 << 20))
        counts = (15, 20) if rows else (9, 14, 20) if takeovers or self.quota < _PLENTY else (2, 5, 9)
        shape = Shape(
            tables=rng.choice((1, 1, 2) if takeovers or regions else (1, 2, 2) if rows else (1, 2, 3)),
            keys=rng.choice((4, 5) if regions else (1, 2, 4)),
            transactions=rng.choice(counts),
            regions=rng.choice((3, 4) if regions else (1, 1, 2)),
            stores=1 if takeovers or rows else rng.choice((1, 2) if regions else (1, 1, 1, 2)),
            busy_s=busy_s,
            one_phase=rng.choice((0.0, 0.5, 0.8) if rows else (0.0, 0.2, 0.4)),
        )
        if past is not None:
            shape = replace(shape, tables=past.shape.tables, keys=past.shape.keys, transactions=0)
        self.shape = shape
        # Dice of its own, as above: without them the world is what it was when found.json was written.
        large = None if "large" in story.without else Random(f"{story.seed} large")
        copied = "copy" not in story.without and Random(f"{story.seed} copy").random() < 0.2
        # In every third world, and with dice of their own, live changes overtake scans that have older ones.
        overtakes = story.seed % 3 == 0 and "overtaking" not in story.without
        again, slow_scans = (Random(f"{story.seed} {what}") if overtakes else None for what in ("again", "slow scans"))
        self.upstream = Upstream(self.time, Random(f"{story.seed} upstream"), self.shape, large, copied, again)
        proposed_watermark = large.choice(((), (1,), (2,), (1, 2))) if large else ()
        self.cdc = ChangeData(
            self.time,
            Random(f"{story.seed} stores"),
            self.upstream,
            self.faults.happens,
            proposed_watermark,
            slow_scans,
            Random(f"{story.seed} wire"),
        )
        self.pullers = 1 if takeovers or rows else rng.choice((1, 1, 2) if regions else (1, 2, 2, 3))
        self.flush_interval = rng.choice((0.05, 0.3) if takeovers else (0.05, 0.3, 2.0))
        self.file_size = rng.choice((30, 60) if takeovers else (30, 60, 200, 1000))
        self.plan_bytes = min(rng.choice((150, 1_000, 10_000)), self.quota // 4)
        self.fold_after = rng.choice((1, 1, 2) if takeovers else (1, 2, 8))
        self.entry_cap = rng.choice((150, 500, 10_000))
        self.layout = Layout(rng.choice(("none", "day", "day")), 20, ".csv")
        self.tasks_of_a_driver = rng.choice((1, 2, 2, 3))
        self.task_every = rng.choice((0.2, 0.5, 1.5))  # a task takes a step
        # Dice of its own, as above.
        order = Random(f"{story.seed} order")
        self.database = Database() if order.random() < 0.2 else None
        if self.database is not None and past is None:
            self.database.syncpoint_ms = order.choice((None, 1_000, 3_000))
        # Dice of its own, as above. A dispatcher a turn, or as many as there are.
        turns = Random(f"{story.seed} turns")
        self.turn_files = 1 if "turns" not in story.without and turns.random() < 0.2 else planner.TURN_FILES
        self.ahead = Ahead(*rng.choice(((1, 1), (1, 2), (2, 64))), bytes=200)  # of a pipeline task
        if past is not None:
            self.layout = past.layout
            self.upstream.go_on_from(past.upstream)
        self.store = ObjectsInMemory()
        self.oracles = Oracles(self.upstream, self.store.objects, self.layout.data_file)
        self.upstream.on_decided = self._decided
        self.segments = MemorySegments()
        self.drivers: list[Driver] = []
        self.pipeline_tasks: list[PipelineTask] = []  # of all drivers, those that are gone included
        self.tasks: list[Puller] = []  # of pullers, that run
        self.lost = False  # the upstream has forgotten what was still needed, and a driver has said so
        self.stop: Stop | None = None  # how the changefeed ended, if it did by itself
        self._started = 0
        self._depth = 0
        self._late: list[Callable[[], object]] = []  # writes that have not landed yet
        self._surprise: BaseException | None = None
        self._end_ts: int | None = None
        if past is not None:
            self._go_on_from(past)

    def _go_on_from(self, past: Past) -> None:
        self.store.objects.update(past.before)
        for n, body in enumerate(past.records, start=1):
            path = f"log/{n:020}.json"
            self.store.objects[path] = body
            self.oracles.on_create(path, body)

    def run(self) -> None:
        """Faults for a while, then none. Raises Broken."""
        often = patch.object(checkpoint, "RECORD_INTERVAL_S", OFTEN_S)
        try:
            try:
                with often, self._scratch():
                    self._run()
            finally:
                self._end()
            self._raise_surprise()
        except Exception as error:
            raise Broken(self.story, error, list(self.trace)) from error

    @contextmanager
    def _scratch(self) -> Iterator[None]:
        with (
            patch.object(matcher, "SPILL_BYTES", self.spill_bytes),
            patch.object(spilled, "BATCH_BYTES", 150),
            patch.object(segment_writer, "ARCHIVE_AFTER_S", self.archive_after_s),
            patch.object(initial_copy, "Snapshot", SimulatedSnapshot),
            patch.object(store_stream, "give_back_memory", lambda: None),
        ):
            yield

    def _run(self) -> None:
        self.time.at(self.healed_at, self._heal)
        self.time.at(0.0, self._keep_driven)
        self.faults.begin(self)
        looked_at = 0.0
        while self.time.happens_before(_LONGEST_S):  # the checkpoint must reach its goal (promise 7)
            self._raise_surprise()
            if self.time.now - looked_at >= _LOOK_S:
                looked_at = self.time.now
                if self.time.now > self.healed_at and self._reached():
                    break
        else:
            raise AssertionError(f"stuck at {self.named(self.oracles.state.checkpoint_ts)}")
        self.check()
        if self.upstream.quiet:  # when history is lost a run ends before
            for puller in self.running_pullers():
                puller.check_forgotten()

    def _reached(self) -> bool:
        upstream = self.upstream
        if self.lost:
            return True
        if not upstream.quiet:
            return False
        if upstream.target_ts is not None:
            return self.stop is not None and not self.drivers
        if self._end_ts is None:
            self._end_ts = upstream.tso()
        return self.oracles.published_ts >= self._end_ts

    def _heal(self) -> None:
        self.say("no more faults")
        self.faults.heal()
        for land in self._late:
            self._land(land)

    def _end(self) -> None:
        """Nothing of it lives on."""
        for driver in self.drivers:
            driver.alive = False
        for puller in list(self.tasks):
            puller.kill()

    def _raise_surprise(self) -> None:
        if self._surprise is not None:
            raise self._surprise

    def surprised(self, error: BaseException) -> None:
        """A task ended as none may."""
        self._surprise = self._surprise or error

    def check(self) -> None:
        """The whole store, by a reader to whom nothing happens."""
        self.oracles.check_store(Log(Steady(self.store)).read)  # type: ignore[arg-type]
        if self.database is not None:
            self.database.check_syncpoints(self.oracles.state.checkpoint_ts)

    def _decided(self, transaction: Transaction) -> None:
        keys = ", ".join(f"{key[8]}.{key[-1]}" for key in transaction.writes)
        self.say(f"upstream: {self.named(transaction.start_ts)} commits at {self.named(transaction.commit_ts)}: {keys}")
        self.oracles.on_decided(transaction.commit_ts)

    # What the simulated ask for.

    def say(self, what: str) -> None:
        self.trace.append(f"{self.time.now:8.2f} {what}")

    def named(self, ts: int) -> str:
        """A ts as milliseconds since the start."""
        ms, logical = divmod(ts - START_TS, 1 << 18)
        return f"@{ms}.{logical}" if logical < 1 << 17 else f"@{ms + 1}-{(1 << 18) - logical}"

    def named_command(self, command: pb.Command) -> str:
        if command.HasField("release"):
            return f"release {command.release.sub_id}"
        if command.HasField("archive"):
            return f"archive {list(command.archive.segments)}"
        asked = command.subscribe
        return f"subscribe {asked.sub_id} to {asked.span_id} from {self.named(asked.start_ts)}"

    def happens(self, kind: str) -> bool:
        return self.faults.happens(kind)

    def is_slow(self, what: str) -> bool:
        return what in _TO_DISK and self.happens("slow_disk")

    def let_others(self, seconds: float) -> None:
        """Time passes for one who waits. If too many do, each inside the other's call, the last is answered at once."""
        if self._depth == _MAX_DRIVERS:
            return
        until = self.time.now + seconds
        self._depth += 1
        while self.time.happens_before(until):
            self._raise_surprise()
        self._depth -= 1
        self.time.now = max(self.time.now, until)

    def lands_later(self, put: Callable[[], object]) -> None:
        self._late.append(put)
        self.time.after(self.network.expovariate(0.3), lambda: self._land(put))

    def _land(self, put: Callable[[], object]) -> None:
        if put not in self._late:
            return
        self._late.remove(put)
        try:
            put()
        except Conflict:  # AlreadyExists too: it came too late
            self.say("  a late write is refused")

    def start_driver(self) -> None:
        if len(self.drivers) < _MAX_DRIVERS:
            self._started += 1
            driver = Driver(self, self._started)
            self.drivers.append(driver)
            self.time.after(0.0, lambda: driver.begin(0.15))

    def _keep_driven(self) -> None:
        likely = 0.7 if self.stop is None else 0.01  # what has ended by itself is seldom started again
        if not self.drivers and self.network.random() < likely:
            self.start_driver()
        self.time.after(0.3, self._keep_driven)

    def served(self, driver: Driver) -> None:
        """It has its epoch: its tasks start."""
        for number in range(self.tasks_of_a_driver):
            self._start_task(driver, number)
        self._again(driver, driver.tend, 0.3)
        self._again(driver, driver.pull_ddls, 0.6)

    def _again(self, driver: Driver, do: Callable[[], None], every: float) -> None:
        def now() -> None:
            if driver.alive:
                do()
                self.time.after(every * (0.5 + self.network.random()), now)

        self.time.after(every * self.network.random(), now)

    def over(self, process: Process) -> None:
        """A process has ended: a driver's end is when the store is looked at, another task takes a task's number."""
        if isinstance(process, PipelineTask):
            self.pipeline_tasks.remove(process)
            self._start_task(process.driver, process.number)
            return
        assert isinstance(process, Driver)
        self.drivers.remove(process)
        if process.stop is not None and process.require_owner().state.finished:
            self.stop = process.stop
        self.time.after(0.0, self.check)

    def _start_task(self, driver: Driver, number: int) -> None:
        """In a moment."""

        def start() -> None:
            if driver.alive:
                task = PipelineTask(driver, number)
                self.pipeline_tasks.append(task)
                task.begin(self.task_every)

        self.time.after(self.network.random(), start)

    def running_pullers(self) -> list[Puller]:
        return [puller for puller in self.tasks if puller.driver.alive]

    def cut_store(self, rng: Random) -> None:
        store = rng.choice([region.store for region in self.upstream.regions])
        error: grpc.aio.AioRpcError | None = broken() if rng.random() < 0.7 else None
        self.say(f"store {store}: its streams break")
        for stream in list(self.cdc.streams):
            if stream.store == store:
                stream.cut(error)

    def storm(self, patience: int = 15) -> None:
        """Best when a transaction has been half committed for a while: then its regions have got unequally far."""
        long_ago = self.upstream.ahead(self.time.now - 0.5)
        half = [key for key, lock in self.upstream.locks.items() if 0 < lock.transaction.commit_ts < long_ago]
        if self.time.now > self.healed_at:
            return
        if not half and patience:
            self.time.after(_LOOK_S, lambda: self.storm(patience - 1))
            return
        self.say("storm: all streams break, regions merge")
        for stream in list(self.cdc.streams):
            stream.cut(broken())
        self.upstream.merge(half[0] if half else None)

    def collect(self, rng: Random) -> None:
        """The hold is the newest checkpoint's; now and then it has lapsed."""
        held_ts = self.oracles.state.checkpoint_ts - 1
        ts = held_ts if rng.random() < 0.5 else max(held_ts, self.upstream.ahead(self.time.now * rng.random()))
        if ts > self.upstream.gc_ts:
            self.say(f"GC to {self.named(ts)}")
            self.upstream.collect(ts)

    def lose_segments(self, folder: str) -> None:
        self.segments.lose(folder)

    def check_store_size(self, driver: Driver) -> None:
        """The quota is passed by what is on its way, or by a span that runs alone."""
        owner = driver.require_owner()
        used = owner.spans.files.bytes
        if used <= self.quota:
            driver.passed_alone = 0
        elif owner.quota.alone is not None:
            driver.passed_alone = max(driver.passed_alone, used)
        elif len(owner.spans.running) == 1:
            (only,) = owner.spans.running
            driver.passed_alone = max(driver.passed_alone, sum(each.size for each in owner.spans.segments(only)))
        newest = (owner.spans.files.sizes(puller)[-_AT_ONCE:] for puller in range(self.pullers))
        on_its_way = sum(max(_ON_ITS_WAY, sum(sizes)) for sizes in newest)
        most = max(driver.passed_alone, self.quota) + on_its_way
        assert used <= most, f"{used} bytes of segments, {most} at most"


def failing(stories: Iterable[Story], world: Callable[[Story], Runs] | None = None) -> Broken | None:
    """What the first story that breaks something breaks. `world`: makes one of it, by default a World."""
    for story in stories:
        try:
            (world or World)(story).run()
        except Broken as broken:
            return broken
    return None


def shrunk(found: Broken) -> Broken:
    """The same failure with fewer kinds of faults and an earlier end of them, as far as it still fails so."""

    def tried(story: Story) -> bool:
        nonlocal found
        again = failing([story])
        if again is None or type(again.error) is not type(found.error):
            return False
        found = again
        return True

    for kind in World(found.story).faults.kinds:
        tried(replace(found.story, without=(*found.story.without, kind)))
    healed_at = World(found.story).healed_at
    for _ in range(6):
        healed_at = round(healed_at / 2, 2)
        if not tried(replace(found.story, healed_at=healed_at)):
            break
    return found


def told(found: Broken, lines: int = 80) -> str:
    """What a person needs to find the fault: the end of the shrunken story, what broke, how to see it all."""
    found = shrunk(found)
    story = "\n".join(found.trace[-lines:])
    return f"{story}\n\n{found}\n\n`make simulate {found.story}` replays it."
