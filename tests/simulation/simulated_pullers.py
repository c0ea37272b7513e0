"""Puller tasks: the product's own, each on an event loop of its own, and their streams to the owner.

A stream brings reports and commands late, but in order; what was on its way when it broke may still come, of which the
owner must believe nothing. Some pullers stand on machines whose segments nobody else can read; others let tasks of all
machines fetch what they have in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from changefeed.clock import Clock
from changefeed.errors import ChangefeedError
from changefeed.owner.pulling.spans import AWAY_S
from changefeed.puller.task import Limits, PullerTask
from changefeed.upstream.contract import FeedEvent
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.wire import owner_pb2 as pb
from simulated_pd import SimulatedPd, broken
from simulated_segments import MemoryFile
from simulated_time import Loop, LoopClock, Mailbox

if TYPE_CHECKING:
    from simulated_driver import Driver

_LATENCY_S = 0.1
_OVERTAKEN_S = 2.0
_CHECKED_EVERY = 20  # reports
_METRICS_S = 60.0  # nobody looks at them


class OwnerCall:
    """A stream of one task to the owner, both its ends; `open` is what the owner thinks."""

    def __init__(self, puller: Puller, loop: Loop) -> None:
        self._puller = puller
        self._world = puller.world
        self.mailbox = Mailbox(loop)
        self.open = True
        self._to_owner: deque[pb.Report] = deque()
        self._heard: deque[pb.Report] = deque(maxlen=8)
        self._last_command = 0.0

    def __aiter__(self) -> OwnerCall:
        return self

    async def __anext__(self) -> pb.Command:
        command: pb.Command | None = await self.mailbox.get(None)
        if command is None:
            raise StopAsyncIteration
        return command

    async def write(self, report: pb.Report) -> None:
        if not self.open:
            raise asyncio.InvalidStateError("the stream is over")
        rng = self._world.network
        early = rng.randint(0, 3) if self._world.happens("disorder") else 0
        self._to_owner.insert(max(0, len(self._to_owner) - early), report)
        late = _OVERTAKEN_S if early else _LATENCY_S  # what was overtaken comes when this one would have
        for _ in range(1 + self._world.happens("disorder")):
            self._world.time.after(rng.random() * late, self._deliver)

    def _deliver(self) -> None:
        if not self._to_owner:
            return
        report = self._to_owner.popleft()
        if self.open:
            self._heard.append(report)
            self._puller.heard(self, report)
            if self._world.happens("disorder"):
                self._puller.heard(self, report)  # sent again
        else:
            self._come_late(report)

    def send(self, command: pb.Command) -> None:
        self._puller.driver.commands(command)
        late = _LATENCY_S / 2 if command.HasField("heard") else self._world.network.random() * _LATENCY_S
        self._last_command = max(self._last_command, self._world.time.now + late)
        self._world.time.at(self._last_command, lambda: self.mailbox.put(command))

    def end(self, error: BaseException | None) -> None:
        """What was sent may have been heard or not, and may come once more."""
        self.open = False
        self.mailbox.close(error)
        for report in self._heard:
            self._come_late(report)

    def _come_late(self, report: pb.Report) -> None:
        if self._world.happens("late_report"):
            later = self._world.network.uniform(0.0, _OVERTAKEN_S)  # the next stream may be there by then
            self._world.time.after(later, lambda: self._puller.heard_late(report))


class Puller:
    """One of a driver's puller tasks: one attempt after the other."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver = driver
        self.world = driver.world
        self.number = number
        self.attempt = 0
        self.task: PullerTask | None = None
        self.feed: SpanFeed
        self._call: OwnerCall | None = None
        self._loop: Loop | None = None
        self._pd: SimulatedPd | None = None
        self._main: asyncio.Task[None] | None = None
        self._host = ""
        self._joined: OwnerCall | None = None  # whose reports the owner takes
        self._reports = 0
        self.world.time.after(self.world.network.random() * self.world.network.choice((0.2, 0.2, 0.2, 2.0)), self.start)

    @property
    def name(self) -> str:
        return f"{self.driver.name}'s puller {self.number}.{self.attempt}"

    def start(self) -> None:
        if not self.driver.alive or self.task is not None:
            return
        world, rng = self.world, self.world.network
        self.attempt += 1
        loop = self._loop = Loop(world.time, rng, world.is_slow)  # type: ignore[abstract]
        self._pd = SimulatedPd(world.cdc, world.upstream, loop)
        self._call = OwnerCall(self, loop)
        roll_s = rng.choice((0.05, 0.25))
        limits = Limits(
            world.memory_quota, world.roll_bytes, roll_s, buffer_bytes=world.buffer_bytes, metrics_s=_METRICS_S
        )
        name, run_folder, clock = f"{self.number}-{self.attempt}", self.driver.run_folder, LoopClock(loop)
        self._host = rng.choice(("", "", "owner's", "gone", "another's"))
        serve = None
        if world.flight.is_used:
            self._host, serve = "", world.flight.serve

        def feed(emit: Callable[[FeedEvent], Awaitable[None]], clock: Clock, **given: Any) -> SpanFeed:
            del given["scratch_folder"]
            self.feed = SpanFeed(self._pd, emit, clock, rng, scratch=MemoryFile, chunks_at_once=2, **given)
            return self.feed

        self.task = PullerTask(self.number, name, feed, run_folder, limits, clock, host=self._host, serve=serve)
        self._main = loop.create_task(self._run(self.task, self._call))
        world.tasks.append(self)
        world.say(f"{self.name} starts")

    async def _run(self, task: PullerTask, call: Any) -> None:
        try:
            await task.run(call)
        except ChangefeedError as error:
            self.world.say(f"{self.name} ends: {error.message}")
        except ExceptionGroup as group:
            if not all(isinstance(error, ChangefeedError) for error in group.exceptions):
                self.world.surprised(group)
        except Exception as error:  # noqa: BLE001 - no task may end so
            self.world.surprised(error)

    # The owner's side of the stream.

    def heard(self, call: OwnerCall, report: pb.Report) -> None:
        if not self.driver.alive:
            return
        owner = self.driver.require_owner()
        if self._joined is not call:
            self._joined = call
            for command in owner.puller_joined(self.world.time.now, self.number):
                call.send(command)
        owner.report(self.world.time.now, self.number, report)
        for failure in report.failures:
            self.driver.failed_by(failure)
        self.driver.hand_out()
        self._reports += 1
        if self._reports % _CHECKED_EVERY == 0:
            self._check()

    def _check(self) -> None:
        """The cores of the task that runs now."""
        if self.task is not None:
            self.feed.check()

    def heard_late(self, report: pb.Report) -> None:
        """Hand in a report of a stream that is over: the service drops it, the cores have to as well."""
        if self.driver.alive:
            self.driver.require_owner().report(self.world.time.now, self.number, report)

    def command(self, command: pb.Command) -> None:
        if self._joined is not None and self._joined.open:
            self._joined.send(command)

    def has_written(self, uri: str) -> bool:
        """Whether the task that runs now has written a segment."""
        return self.task is not None and f"/{self.number}-{self.attempt}/" in uri

    def check_forgotten(self) -> None:
        """Once everything is resolved, no transaction is open, and none is remembered as such."""
        if self.task is not None and self.feed.resolved():
            lowest, kept = min(self.feed.resolved().values()), self.feed.pending_rows
            assert not kept or lowest < self.world.upstream.quiet_since, f"{self.name} keeps {kept} rows"

    # Ends.

    def leave(self) -> None:
        """The task is killed; Spark starts another one."""
        rng = self.world.network
        away = rng.uniform(0.0, 2 * AWAY_S) if rng.random() < 0.3 else rng.random()
        self.world.say(f"{self.name} is killed, away for {away:.1f} s")
        self.kill()
        if rng.random() < 0.5:  # else the owner hears of it by the next stream
            self.world.time.after(rng.random(), self._left)
        self.world.time.after(away, self.start)

    def _left(self) -> None:
        if self.driver.alive and self._joined is not None and not self._joined.open:
            self._joined = None
            self.driver.require_owner().puller_left(self.world.time.now, self.number)

    def freeze(self, seconds: float) -> None:
        if self._loop is not None:
            self.world.say(f"{self.name} is frozen for {seconds:.1f} s")
            self._loop.frozen_until = self.world.time.now + seconds

    def lose_owner(self) -> None:
        """The driver is gone: its streams break, and the task ends by itself after a while."""
        self.world.time.after(self.world.network.random() * 2.0, lambda: self.kill(broken()))

    def kill(self, error: BaseException | None = None) -> None:
        if self.task is None or self._call is None or self._loop is None or self._pd is None or self._main is None:
            return
        violations = self.feed.metrics.errors["protocol_violation"]
        if violations:
            self.world.surprised(AssertionError(f"{self.name} saw {violations} violations of the protocol"))
        lost = self._host == "gone"
        self._loop.frozen_until = 0.0
        if error is None:
            self._main.cancel()
        self._call.end(error)
        self._loop.run_through()
        if not self._main.done():
            self._main.cancel()
            self._loop.run_through()
        if not self._main.done():
            self.world.surprised(AssertionError(f"{self.name} does not end"))
        self._loop.over = True
        self._pd.die()
        if lost:
            self.world.lose_segments(f"{self.driver.run.name}/{self.number}-{self.attempt}/")
        self.task = None
        self.world.tasks.remove(self)
