"""Virtual time: one line of events for the whole world, and event loops for the processes that are made with asyncio.

Nothing here sleeps and nothing runs at the same time as something else: a world is its seed's, and nobody's clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from random import Random
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: How long what runs in a thread takes, at most; and when it is slow.
_THREAD_S, _SLOW_THREAD_S = 0.1, 4.0
_WAKE_S = 0.005


class Timeline:
    """What happens next, and when. Virtual seconds, from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def at(self, when: float, what: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        self.at(self.now + seconds, what)

    def happens_before(self, when: float) -> bool:
        """Let the next event happen, if there is one by then."""
        if not self._events or self._events[0][0] > when:
            return False
        at, _, what = heapq.heappop(self._events)
        self.now = max(self.now, at)
        what()
        return True


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process. `frozen_until`: SIGSTOP; what is due then happens afterwards."""

    def __init__(self, time: Timeline, rng: Random, is_slow: Callable[[str], bool]) -> None:
        self._time = time
        self._rng = rng
        self._is_slow = is_slow
        self._ready: deque[asyncio.Handle] = deque()
        self._turn_is_due = False
        self.frozen_until = 0.0
        self.surprises: list[BaseException] = []  # of tasks that nobody awaits
        self.over = False

    def run_through(self) -> None:
        """Everything that can be done now, and what follows from it."""
        self._turn_is_due = False
        if self._time.now < self.frozen_until:
            self._wake(self.frozen_until - self._time.now)
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(before)

    def _wake(self, seconds: float) -> None:
        if not self._turn_is_due and not self.over:
            self._turn_is_due = True
            self._time.after(seconds, self.run_through)

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._time.now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake(self._rng.random() * _WAKE_S)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)

        def fire() -> None:
            if not timer.cancelled() and not self.over:
                self._ready.append(timer)
                self._wake(0.0)

        self._time.at(when, fire)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if done.done() or self.over:
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - it is the awaiter's
                done.set_exception(error)
            else:
                done.set_result(result)

        asked = func.args[0].__name__ if isinstance(func, partial) else ""  # by asyncio.to_thread
        self._time.after(self._rng.random() * (_SLOW_THREAD_S if self._is_slow(asked) else _THREAD_S), work)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), BaseException):
            self.surprises.append(error)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.over


class LoopClock:
    """The product's clock in a process of the simulation."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Mailbox:
    """What comes to a process by a connection: messages in order, then its end."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._messages: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._end: BaseException | None = None
        self._closed = False

    def put(self, message: Any) -> None:
        if not self._closed:
            self._messages.append(message)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """No more comes; `error`: why, else it is an orderly end."""
        if not self._closed:
            self._closed, self._end = True, error
            self._wake()

    async def get(self, at_end: T) -> Any | T:
        while not self._messages:
            if self._closed:
                if self._end is not None:
                    raise self._end
                return at_end
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._messages.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
