"""A pipeline task's sign of life: while it works, it tells the owner so every two seconds.

A task's rows are read in one worker and put in another. Each says so only while it works itself, not while it waits for
the other: so when either freezes nothing is said any more, and the owner has the task killed (owner.serving.vigilance).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from changefeed.errors import ChangefeedError, Fenced, Unavailable
from changefeed.spark.owner_client import OwnerClient
from changefeed.wire.owner import OwnerAddress

T = TypeVar("T")

SAY_EVERY_S = 2.0
STUCK_S = 300.0  # one step, such as a piece of a file, takes seconds at most
_END = object()


def at_work(owner: OwnerAddress) -> AtWork:
    """Of the Spark task that this process runs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return AtWork(owner, None if context is None else context.taskAttemptId())


class AtWork:
    """Around a worker's share of a task; most tasks are over before there is anything to say."""

    def __init__(self, owner: OwnerAddress, task: int | None) -> None:
        """`task`: Spark's id of the attempt; None: there is no Spark, and nobody to tell."""
        self._owner = owner
        self._task = task
        self._step_since: float | None = time.monotonic()  # None: it waits for the other worker
        self._ended = threading.Event()

    def __enter__(self) -> AtWork:
        if self._task is not None:
            threading.Thread(target=self._say, args=(self._task,), name="at-work", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def making(self, made: Iterable[T]) -> Iterator[T]:
        """Hand on what this worker makes: it waits while the other one takes it."""
        self._step()
        for each in made:
            self._step_since = None
            yield each
            self._step()

    def taking(self, given: Iterable[T]) -> Iterator[T]:
        """Take what the other worker makes: this one waits for it."""
        iterator = iter(given)
        while True:
            self._step_since = None
            each = next(iterator, _END)
            self._step()
            if each is _END:
                return
            yield each  # type: ignore[misc]

    def waits(self, error: ChangefeedError) -> None:
        """For a store that fails; the owner is told, and how long that may last is its decision."""
        self._step()
        with OwnerClient(self._owner) as client:
            client.wait(error)

    def _step(self) -> None:
        self._step_since = time.monotonic()

    def _say(self, task: int) -> None:
        if self._ended.wait(SAY_EVERY_S):
            return
        with OwnerClient(self._owner) as client:
            while True:
                since = self._step_since
                if since is not None and time.monotonic() - since < STUCK_S:
                    with suppress(Fenced, Unavailable):  # the task itself finds out
                        client.working(task)
                if self._ended.wait(SAY_EVERY_S):
                    return
