"""The one thread in which all servers of a cluster run, with its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

_PATIENCE_S = 30.0


class ServerThread:
    """Runs `opening`, then calls `tick` every `interval` seconds, then runs `closing`."""

    def __init__(
        self,
        opening: Callable[[], Coroutine[Any, Any, None]],
        tick: Callable[[], None],
        interval: float,
        closing: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._opening = opening
        self._tick = tick
        self._interval = interval
        self._closing = closing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Returns when it has opened. Raises OSError if it could not."""
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="devcluster", daemon=True)
        self._thread.start()
        started.result(_PATIENCE_S)

    def stop(self) -> None:
        if self._loop is not None and self._stopping is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop = None

    def do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a call in that thread, and wait for its end."""
        asyncio.run_coroutine_threadsafe(coroutine, self._running()).result(_PATIENCE_S)

    def soon(self, do: Callable[..., object], *arguments: object) -> None:
        self._running().call_soon_threadsafe(do, *arguments)

    def later(self, seconds: float, do: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        """Calls it after so long, and runs the coroutine that it gives, if it gives one."""

        def now() -> None:
            coroutine = do()
            if coroutine is not None:
                task = asyncio.ensure_future(coroutine)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        loop = self._running()
        loop.call_soon_threadsafe(loop.call_later, seconds, now)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the dev cluster is not running")
        return self._loop

    def _run(self, started: Future[None]) -> None:
        asyncio.run(self._serve(started))

    async def _serve(self, started: Future[None]) -> None:
        self._stopping = asyncio.Event()
        try:
            await self._opening()
        except OSError as error:
            await self._closing()
            started.set_exception(error)
            return
        self._loop = asyncio.get_running_loop()
        started.set_result(None)
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._interval)
            self._tick()
        await self._closing()
