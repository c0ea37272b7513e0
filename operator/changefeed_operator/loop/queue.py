"""The work queue: which changefeed is reconciled next, and when again.

`Queue` is a plain object: times go in, keys come out. A key added several times is processed once, never twice
concurrently; one added during its pass is processed again. Failures back off exponentially; events shorten the delay to
no less than `EAGER`, because a pass's own writes cause events and must not turn a failure into a hot loop. `Workers` is
the thin asyncio shell that runs passes. No key is ever lost: every pass schedules the next one or ends with `Gone`.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

#: A changefeed: (namespace, name).
Key = tuple[str, str]

#: Seconds before the first retry, and at most; the delay doubles each time.
FIRST_RETRY = 0.5
LONGEST_RETRY = 60.0

#: Seconds after which an event may bring back a failed key, at the earliest.
EAGER = 3.0

#: Minimum seconds between the starts of two passes of a key, so that a burst of events causes one pass.
APART = 0.2

#: Seconds after which a key is reconciled again without an event, with jitter.
RESYNC = 300.0


@dataclass(frozen=True)
class Requeue:
    """Outcome of a pass: reconcile again after `seconds`, None for the resync."""

    seconds: float | None = None


@dataclass(frozen=True)
class Retry:
    """Outcome of a pass: retry with back-off, after at least `retry_after` seconds."""

    retry_after: float = 0.0


@dataclass(frozen=True)
class Gone:
    """Outcome of a pass: nothing is left of this key."""


Outcome = Requeue | Retry | Gone


@dataclass
class Queue:
    """Keys and the times at which they are due; `now` is a monotonic clock, in seconds.

    `chance` returns numbers in [0, 1) for the jitter.
    """

    limit: int
    chance: Callable[[], float] = random.random
    retries: int = 0
    _ready: OrderedDict[Key, float] = field(default_factory=OrderedDict)  # since when
    _running: dict[Key, float] = field(default_factory=dict)  # since when
    _due: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, Key]] = field(default_factory=list)  # may hold times no longer in `_due`
    _again: set[Key] = field(default_factory=set)  # added while running
    _failures: dict[Key, int] = field(default_factory=dict)
    _not_before: dict[Key, float] = field(default_factory=dict)

    def add(self, key: Key, now: float) -> None:
        """Something changed: reconcile it soon."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._ready:
            self._schedule(key, min(max(now, self._not_before.get(key, now)), self._due.get(key, float("inf"))), now)

    def add_after(self, key: Key, seconds: float, now: float) -> None:
        """Reconcile it after this many seconds, or when it is due if that is sooner."""
        if key not in self._running and key not in self._ready:
            self._schedule(key, min(now + seconds, self._due.get(key, float("inf"))), now)

    def take(self, now: float) -> Key | None:
        """The next key to reconcile, the longest-waiting first; `done` must follow. None: nothing is due, or the limit
        is reached."""
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._ready[key] = now
        if not self._ready or len(self._running) >= self.limit:
            return None
        key, _ = self._ready.popitem(last=False)
        self._running[key] = now
        self._not_before[key] = now + APART
        return key

    def done(self, key: Key, outcome: Outcome, now: float) -> None:
        """The pass of a key from `take` has ended."""
        del self._running[key]
        added = key in self._again
        self._again.discard(key)
        if isinstance(outcome, Retry):
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self.retries += 1
            delay = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(failures - 1, 20)) * (0.75 + 0.5 * self.chance())
            delay = max(delay, outcome.retry_after)
            self._not_before[key] = now + max(min(delay, EAGER), outcome.retry_after)
            self._schedule(key, now + delay, now)
        else:
            self._failures.pop(key, None)
        if isinstance(outcome, Requeue):
            resync = RESYNC * (0.8 + 0.4 * self.chance())
            self._schedule(key, now + min(resync, resync if outcome.seconds is None else outcome.seconds), now)
        if added:
            self.add(key, now)
        elif isinstance(outcome, Gone):
            self._not_before.pop(key, None)

    def wait(self, now: float) -> float | None:
        """Seconds until the next key is due; None: only `add` or `done` changes anything."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - now) if self._heap else None

    def failures(self, key: Key) -> int:
        """Consecutive failed passes of a key."""
        return self._failures.get(key, 0)

    def failing(self) -> dict[Key, int]:
        """Consecutive failed passes of every key whose last pass failed."""
        return dict(self._failures)

    @property
    def depth(self) -> int:
        """Keys that are due and waiting for a pass."""
        return len(self._ready)

    @property
    def running(self) -> int:
        """Keys whose pass is running."""
        return len(self._running)

    def oldest_age(self, now: float) -> float:
        """Seconds that the longest-waiting due key has waited."""
        return now - next(iter(self._ready.values())) if self._ready else 0.0

    def longest_pass(self, now: float) -> float:
        """Seconds that the longest-running pass has taken so far."""
        return now - min(self._running.values()) if self._running else 0.0

    def known(self) -> set[Key]:
        """Every key that is scheduled, due or running."""
        return {*self._ready, *self._running, *self._due}

    def _schedule(self, key: Key, due: float, now: float) -> None:
        if due <= now:
            self._due.pop(key, None)
            self._ready[key] = now
        elif self._due.get(key) != due:
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))


class Workers:
    """Runs the passes of a queue until stopped, at most `queue.limit` at a time.

    `work` must not raise: an exception ends `run`, and with it the operator.
    """

    def __init__(self, queue: Queue, work: Callable[[Key], Awaitable[Outcome]]) -> None:
        self.queue = queue
        self._work = work
        self._news = asyncio.Event()
        self._stopping = False

    def add(self, key: Key) -> None:
        """Something changed: reconcile it soon."""
        self.queue.add(key, time.monotonic())
        self._news.set()

    def stop(self) -> None:
        """Let running passes finish and start no others; `run` then returns."""
        self._stopping = True
        self._news.set()

    async def run(self) -> None:
        """Run passes until `stop`."""
        async with asyncio.TaskGroup() as passes:
            while not self._stopping:
                self._news.clear()
                while (key := self.queue.take(time.monotonic())) is not None:
                    passes.create_task(self._pass(key), name=f"pass of {key[0]}/{key[1]}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.queue.wait(time.monotonic())):
                        await self._news.wait()

    async def _pass(self, key: Key) -> None:
        outcome = await self._work(key)
        self.queue.done(key, outcome, time.monotonic())
        self._news.set()
