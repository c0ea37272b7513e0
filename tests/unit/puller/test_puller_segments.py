"""Segments of a puller task: where they are stored, served and archived, and a store that takes one of them only."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from changefeed.errors import Transient
from changefeed.eventstore import writer as segment_writer
from changefeed.eventstore.arena import can_share_memory
from changefeed.eventstore.flight import ArenaServer, RemoteArenas
from changefeed.eventstore.reader import MemoryGone, read_slice
from changefeed.eventstore.run_folder import RunFolder
from changefeed.eventstore.slices import SegmentSlice
from changefeed.objectstore import Location
from changefeed.owner.pulling.known_files import Memory
from changefeed.owner.serving.certificate import self_signed
from changefeed.puller.task import Limits, PullerTask
from changefeed.upstream.contract import Data
from changefeed.wire import owner_pb2
from changefeed.wire.owner import TASK_NAME, RunKey
from puller_fake_owner import DEADLINE, FakeCall, FakeFeed, pulling, rows
from puller_fake_store import ManualClock


@pytest.mark.skipif(not can_share_memory(), reason="this system has no memory without a name to share")
async def test_where_all_read_the_files_what_is_in_memory_is_served_and_archived_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store's segments are compressed; the owner is told one size, of the slot and of the file."""
    monkeypatch.setattr(RunFolder, "compression", "lz4")
    run_folder, key = RunFolder(Location(tmp_path.as_uri()), 1, "ab"), RunKey(*self_signed(TASK_NAME))
    serve, elsewhere = partial(ArenaServer, key=key, host="127.0.0.1"), RemoteArenas(key, "elsewhere")
    call, feed, limits = FakeCall(), FakeFeed(), Limits(roll_interval=0.01, buffer_bytes=1 << 20)
    task = PullerTask(0, "puller-0-0", feed, run_folder, limits, serve=serve)
    call.commands.put_nowait(owner_pb2.Command(subscribe=owner_pb2.Subscribe(sub_id=1, span_id=1, start_ts=10)))
    running = asyncio.ensure_future(task.run(call))  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 1")
        await feed.emit(Data(1, 1, rows(30, 900, count=10)))
        await call.until(lambda: bool(call.segments))
        [meta] = call.segments
        assert meta.host == "", "its file can be read by all"
        assert meta.bytes < 9000, "compressed"
        memory = Memory.from_proto(0, meta)
        assert memory is not None
        piece = SegmentSlice(
            uri=meta.uri,
            size=meta.bytes,
            slot=memory.address,
            run=run_folder.run,
            seq=1,
            first_batch=0,
            end_batch=1,
            rows=10,
        )
        fetched = await asyncio.to_thread(read_slice, run_folder, piece, elsewhere)
        call.commands.put_nowait(owner_pb2.Command(archive=owner_pb2.Archive(segments=[1])))
        await call.until(lambda: call.archived == {1: meta.uri})
        assert read_slice(run_folder, piece.model_copy(update={"slot": None})) == fetched
        call.commands.put_nowait(None)
        await running

        def until_gone() -> None:
            while True:  # nobody waits for the server's end, which is soon
                read_slice(run_folder, piece, elsewhere)

        with pytest.raises(MemoryGone):
            await asyncio.to_thread(until_gone)


async def test_scratch_stands_in_the_folder_that_the_run_clears_on_this_machine(tmp_path: Path) -> None:
    run_folder, feed = RunFolder(Location(tmp_path.as_uri()), 1, "ab"), FakeFeed()
    PullerTask(0, "puller-0-0", feed, run_folder, Limits())
    assert feed.scratch_folder == run_folder.spool_folder


async def test_a_segment_that_is_written_at_once_does_not_hide_another_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, fails = segment_writer.write_segment, threading.Event()
    fails.set()

    def full(run_folder: RunFolder, task: str, seq: int, spans: Any) -> owner_pb2.SegmentMeta:
        def attempt() -> owner_pb2.SegmentMeta:
            if seq == 1 and fails.is_set():
                raise Transient("s3://state answers 503.")
            return write(run_folder, task, seq, spans)

        return run_folder.patience.call("the state", attempt)

    monkeypatch.setattr(segment_writer, "write_segment", full)
    call, feed, clock = FakeCall(), FakeFeed(), ManualClock()
    running = pulling(call, feed, tmp_path, Limits(roll_bytes=1_000), clock)
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 2")
        await feed.emit(Data(1, 1, rows(30, 900)))
        await feed.emit(Data(1, 1, rows(30, 900)))
        await clock.run_until(lambda: "s3://state answers 503." in call.troubles)
        await feed.emit(Data(2, 2, rows(30, 900, count=2)))  # another writer's
        stored = tmp_path.rglob
        await clock.run_until(lambda: any(stored("*2.arrow")))
        call.troubles.clear()
        await clock.run_until(lambda: len(call.troubles) >= 2)
        assert set(call.troubles) == {"s3://state answers 503."}
        fails.clear()
        await clock.run_until(lambda: "" in call.troubles)
        call.commands.put_nowait(None)
        await running
