"""A real owner service for tasks of a test's: it keeps what they say and orders what the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from changefeed.owner.serving.service import OwnerService
from changefeed.pipeline.work import Work
from changefeed.wire import owner_pb2 as pb
from changefeed.wire.owner import OwnerAddress

DEADLINE_S = 20.0
SILENCE_S = 0.3  # what does not come in it is taken not to come: a right program can't fail by it

EPOCH, NONCE = 3, "ab"
ATTEMPT = 17  # Spark's id of a task

Begin = Callable[..., Future[int | None]]  # of the fixture `begin`


@dataclass
class Heard:
    """By number of the task, in order. Implements service.Handler."""

    joined: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    written_by: dict[int, list[pb.Written]] = field(default_factory=dict)
    failures: list[pb.Failure] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def puller_joined(self, puller: int) -> list[pb.Command]:
        raise AssertionError(f"puller {puller}")

    def puller_left(self, puller: int) -> None:
        raise AssertionError(f"puller {puller}")

    def report(self, puller: int, report: pb.Report) -> None:
        raise AssertionError(report)

    def task_joined(self, task: int) -> list[pb.Order]:
        self._keep(self.joined, task)
        return []

    def task_left(self, task: int) -> None:
        self._keep(self.left, task)

    def written(self, task: int, written: pb.Written) -> None:
        self._keep(self.written_by.setdefault(task, []), written)

    def fail(self, failure: pb.Failure) -> None:
        self._keep(self.failures, failure)

    def _keep(self, kept: list[Any], what: Any) -> None:
        with self.changed:
            kept.append(what)
            self.changed.notify_all()


class Owner:
    """Its loop is a thread's own: tasks are not asynchronous."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.heard = Heard()
        self._loop = loop
        self._service = self._do(self._made())
        self.address: OwnerAddress = self._do(self._service.start())

    def order(self, order: pb.Order, task: int = 0) -> None:
        """Once the task is there."""
        self.until(lambda: self.heard.joined.count(task) > self.heard.left.count(task))
        self._loop.call_soon_threadsafe(self._service.order, task, order)

    def write(self, work: Work, task: int = 0) -> None:
        self.order(pb.Order(write=pb.Write(work=work.model_dump_json(by_alias=True).encode())), task)

    def end(self) -> None:
        """Tell every task to leave, and go on listening."""
        self._loop.call_soon_threadsafe(self._service._tasks.end_all)

    def stop(self) -> None:
        """Tell every task to leave, and listen no more."""
        self._do(self._service.stop())

    def vanish(self) -> None:
        """Streams end without a word."""
        server: Any = self._service._server
        self._do(server.stop(None))

    def until(self, condition: Callable[[], bool]) -> None:
        """It has heard what the condition looks for."""
        with self.heard.changed:
            assert self.heard.changed.wait_for(condition, DEADLINE_S), self._said

    def files(self, task: int = 0) -> list[tuple[int, int]]:
        """(plan, entry) of each that a task has told."""
        return [(file.plan, file.entry) for file in self.done(task)]

    def done(self, task: int = 0) -> list[pb.FileDone]:
        return [file for written in self.heard.written_by.get(task, []) for file in written.files]

    def hears(self, task: int = 0) -> None:
        """Three more words from now on, of which the first may have been on its way."""
        words = self.heard.written_by.setdefault(task, [])
        known = len(words)
        self.until(lambda: len(words) >= known + 3)

    def hears_nothing(self, task: int = 0) -> None:
        """More; what was on its way has come."""
        assert not all(self._hears_more(task) for _ in range(3))

    @property
    def _said(self) -> str:
        counts = {task: len(words) for task, words in self.heard.written_by.items()}
        return f"joined {self.heard.joined}, left {self.heard.left}, words {counts}, {self.heard.failures[-1:]}"

    def _hears_more(self, task: int) -> bool:
        words = self.heard.written_by.setdefault(task, [])
        with self.heard.changed:
            known = len(words)
            return self.heard.changed.wait_for(lambda: len(words) > known, SILENCE_S)

    async def _made(self) -> OwnerService:
        return OwnerService(self.heard, EPOCH, NONCE)

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(DEADLINE_S)


@contextmanager
def listening() -> Iterator[Owner]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="owner", daemon=True)
    thread.start()
    try:
        owner = Owner(loop)
        try:
            yield owner
        finally:
            owner.stop()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()
