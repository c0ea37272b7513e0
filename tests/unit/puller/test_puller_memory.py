"""What a puller task keeps in memory is bounded (rule 17), with a feed and an owner that do what they are told."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from changefeed.eventstore import writer as segment_writer
from changefeed.eventstore.run_folder import RunFolder
from changefeed.puller.task import Limits
from changefeed.upstream.contract import Data, Resolved
from changefeed.wire import owner_pb2
from puller_fake_owner import DEADLINE, HOST, FakeCall, FakeFeed, heard, pulling, rows
from puller_fake_store import ManualClock


async def test_rule_17_no_more_is_written_than_the_owner_has_heard_of_and_four_segments(tmp_path: Path) -> None:
    """The owner, which holds the store's quota, holds nobody back for what it does not know."""
    call, feed = FakeCall(silent=True), FakeFeed()
    segment = 10_000
    running = pulling(call, feed, tmp_path, Limits(roll_bytes=segment, roll_interval=0.01))
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 2")
        for number in range(40):
            await feed.emit(Data(1, 1, rows(30 + number, 900, count=10)))
        await feed.emit(Resolved(1, 80))
        said = 0
        while call.resolved.get(1) != 80:
            await call.until(lambda said=said: len(call.segments) > said)
            unheard = call.segments[said:]
            assert all(meta.spans[0].bytes <= 2 * segment for meta in unheard), "a large batch is divided"
            assert sum(meta.spans[0].bytes for meta in unheard) <= 4 * segment
            said = len(call.segments)
            call.commands.put_nowait(heard(said))
        call.commands.put_nowait(None)
        await running


async def test_rule_17_memory_is_bounded_by_holding_subscriptions_and_no_event_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = segment_writer.write_segment

    def slow(*arguments: Any) -> owner_pb2.SegmentMeta:
        gate.wait(DEADLINE)
        return write(*arguments)

    monkeypatch.setattr(segment_writer, "write_segment", slow)
    call, feed = FakeCall(), FakeFeed()
    running = pulling(call, feed, tmp_path, Limits(quota_bytes=10_000, roll_bytes=1_000, roll_interval=0.01))
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 2")
        for number in range(6):
            for sub_id in (1, 2):
                await feed.emit(Data(sub_id, sub_id, rows(30 + number, 900)))  # never waits
                await feed.emit(Resolved(sub_id, 30 + number))
        assert feed.said[2:] == ["hold 2", "hold 1"]
        call.commands.put_nowait(owner_pb2.Command(release=owner_pb2.Release(sub_id=2)))
        await feed.until("release 2")
        gate.set()
        await call.until(lambda: call.resolved.get(1) == 35)
        assert feed.said[-1] == "resume 1"
        assert {span.sub_id for meta in call.segments for span in meta.spans} == {1}, "the other one was released"
        assert all(meta.host == HOST for meta in call.segments if meta.uri)
        assert sorted(meta.seq for meta in call.segments) == list(range(1, len(call.segments) + 1))
        call.commands.put_nowait(None)
        await running


async def test_rule_17_what_comes_fast_waits_for_segments_but_not_for_a_store_that_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, begun, may_write = segment_writer.write_segment, list[int](), threading.Semaphore(0)

    def slow(run_folder: RunFolder, task: str, seq: int, spans: Any) -> owner_pb2.SegmentMeta:
        begun.append(seq)
        may_write.acquire(timeout=DEADLINE)
        return write(run_folder, task, seq, spans)

    monkeypatch.setattr(segment_writer, "write_segment", slow)
    call, feed, clock = FakeCall(), FakeFeed(), ManualClock()
    running = pulling(call, feed, tmp_path, Limits(roll_bytes=1_000), clock)
    async with asyncio.timeout(DEADLINE):
        await feed.until("subscribe 2")
        for seq in (1, 2):
            await feed.room()  # at once: there is little to write
            await feed.emit(Data(1, 1, rows(30, 450, count=2)))
            await clock.run_until(lambda seq=seq: len(begun) == seq)
        for _ in range(4):
            await feed.emit(Data(1, 1, rows(30, 900)))
        waiting = asyncio.ensure_future(feed.room())
        for written in (1, 2):
            await clock.run(4.0)
            assert not waiting.done()
            may_write.release()
            await call.until(lambda written=written: len(call.segments) == written)
        await clock.run(4.0)
        assert not waiting.done()
        may_write.release()
        await waiting
        for _ in range(4):
            await feed.emit(Data(1, 1, rows(40, 900)))
        stuck = asyncio.ensure_future(feed.room())
        await clock.run(4.0)
        assert not stuck.done()
        await clock.run(3.5)
        assert stuck.done(), "the quota is for that"
        may_write.release(9)
        call.commands.put_nowait(None)
        await running
