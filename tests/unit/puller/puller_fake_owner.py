"""A feed and an owner at the two ends of a puller task, which do what a test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from changefeed.clock import Clock
from changefeed.eventstore.run_folder import RunFolder
from changefeed.model.rows import RAW_SCHEMA
from changefeed.objectstore import Location
from changefeed.puller.task import Limits, PullerTask
from changefeed.upstream.contract import BlockedRegion, FeedEvent, FeedMetrics, Stopped
from changefeed.wire import owner_pb2

DEADLINE = 30.0


HOST = "here"


def heard(segment: int) -> owner_pb2.Command:
    return owner_pb2.Command(heard=owner_pb2.Heard(segment=segment))


class FakeFeed:
    """Does what it is told, and remembers; given as Upstream.feed, it keeps what a feed would call."""

    emit: Callable[[FeedEvent], Awaitable[None]]
    room: Callable[[], Awaitable[None]]
    scratch_folder: Path

    def __init__(self) -> None:
        self.said: list[str] = []
        self.told = asyncio.Event()
        self.metrics = FeedMetrics()

    def __call__(self, emit: Callable[[FeedEvent], Awaitable[None]], clock: object, **given: Any) -> Any:
        self.emit, self.room, self.scratch_folder = emit, given["room"], given["scratch_folder"]
        return self

    async def __aenter__(self) -> FakeFeed:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def subscribe(self, sub_id: int, *_: object) -> None:
        self._say(f"subscribe {sub_id}")

    def release(self, sub_id: int) -> None:
        self._say(f"release {sub_id}")

    def hold(self, sub_id: int) -> None:
        self._say(f"hold {sub_id}")

    def resume(self, sub_id: int) -> None:
        self._say(f"resume {sub_id}")

    def blocked(self) -> list[tuple[int, BlockedRegion]]:
        return []

    def stopped(self) -> None:
        return None

    def congested(self) -> list[Stopped]:
        return []

    def _say(self, what: str) -> None:
        self.said.append(what)
        self.told.set()

    async def until(self, what: str) -> None:
        while what not in self.said:
            self.told.clear()
            await self.told.wait()


class FakeCall:
    """An owner that says what it is told to, and reads reports; `silent`: it does not say what it has heard."""

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent
        self.commands: asyncio.Queue[owner_pb2.Command | None] = asyncio.Queue()
        self.segments: list[owner_pb2.SegmentMeta] = []
        self.archived: dict[int, str] = {}
        self.resolved: dict[int, int] = {}
        self.troubles: list[str] = []
        self.changed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[owner_pb2.Command]:
        while (command := await self.commands.get()) is not None:
            yield command

    async def write(self, report: owner_pb2.Report) -> None:
        self.troubles.append(report.trouble)
        self.segments += report.segments
        self.archived |= {archived.segment: archived.uri for archived in report.archived}
        self.resolved |= {resolved.sub_id: resolved.ts for resolved in report.resolved}
        if report.segments and not self.silent:
            self.commands.put_nowait(heard(len(self.segments)))
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


def rows(commit_ts: int, size: int, count: int = 1) -> pa.RecordBatch:
    values = [0, commit_ts, commit_ts - 1, 2, b"k", bytes(size), None, 0]
    columns = [pa.array([value] * count, field.type) for value, field in zip(values, RAW_SCHEMA, strict=True)]
    return pa.record_batch(columns, RAW_SCHEMA)


def pulling(
    call: FakeCall, feed: FakeFeed, state: Path, limits: Limits, clock: Clock | None = None
) -> asyncio.Future[None]:
    """The run of a task that is told to pull two spans."""
    run_folder = RunFolder(Location(state.as_uri()), 1, "ab")
    task = PullerTask(0, "puller-0-0", feed, run_folder, limits, clock, host=HOST)
    for sub_id, start_ts in ((1, 10), (2, 20)):
        asked = owner_pb2.Subscribe(sub_id=sub_id, span_id=sub_id, start_key=b"a", end_key=b"b", start_ts=start_ts)
        call.commands.put_nowait(owner_pb2.Command(subscribe=asked))
    return asyncio.ensure_future(task.run(call))  # type: ignore[arg-type]
