"""State in a store, tasks on other machines than the pullers: they fetch what they read from the pullers' memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changefeed import errors
from changefeed.eventstore import writer as segment_writer
from changefeed.eventstore.arena import SlotGone, can_share_memory
from changefeed.eventstore.flight import RemoteArenas
from changefeed.eventstore.slices import SegmentSlice
from changefeed.pipeline import task as pipeline_task
from changefeed.puller.task import Limits
from changefeed.wire.owner import RunKey
from integration_failing_store import ROLL_S, Feed, new_feed, running_feed, surround
from integration_s3_proxy import FaultyProxy
from integration_s3_servers import S3Server

BUFFER_BYTES = 64 << 20

pytestmark = [
    pytest.mark.skipif(not can_share_memory(), reason="this system has no memory without a name to share"),
    pytest.mark.timeout(1800),  # the first run builds the server
]


class Network:
    """Between a puller's machine and all others. Every `fails`-th segment that it carries is lost; 0: none."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.fails = 0

    def arenas(self, key: RunKey, _: str) -> RemoteArenas:
        """Return the arenas of a task whose machine has no puller."""
        remote = RemoteArenas(key, "elsewhere")
        fetch = remote.fetch

        def fetch_if_it_works(piece: SegmentSlice) -> list[pa.RecordBatch]:
            found = fetch(piece)
            self.fetched.append(piece.uri)
            if self.fails and len(self.fetched) % self.fails == 0:
                raise SlotGone("the network is broken")
            return found

        remote.fetch = fetch_if_it_works  # type: ignore[method-assign]
        return remote


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(pipeline_task, "RemoteArenas", made.arenas)
    return made


@pytest.fixture
def feed(
    server: S3Server, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Feed, FaultyProxy]]:
    surround(monkeypatch)
    monkeypatch.setattr(segment_writer, "ARCHIVE_AFTER_S", math.inf)  # however slow this machine is
    monkeypatch.setattr("integration_inprocess.LIMITS", Limits(roll_interval=ROLL_S, buffer_bytes=BUFFER_BYTES))
    with new_feed(server, tmp_path) as made:
        yield made


def count_segments(proxy: FaultyProxy) -> list[str]:
    """Those that the store is given from now on."""
    put: list[str] = []

    def look(method: str, path: str) -> str:
        if method == "PUT" and "/events/" in path:
            put.append(path)
        return ""

    proxy.strike = look
    return put


async def test_the_event_store_is_given_no_segment_that_is_written_out_in_time(
    feed: tuple[Feed, FaultyProxy], network: Network
) -> None:
    changefeed, proxy = feed
    put = count_segments(proxy)
    async with running_feed(changefeed) as run:
        await run.until(lambda: len(set(network.fetched)) > 20, "segments are fetched")
    assert put == []
    await changefeed.holds()


async def test_rule_3_what_cannot_be_fetched_is_archived_and_what_a_dead_puller_had_is_pulled_again(
    feed: tuple[Feed, FaultyProxy], network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    changefeed, proxy = feed
    network.fails = 7
    deaths: list[bool] = []
    real = segment_writer.sort_segment

    def sort_segment(*arguments: Any) -> Any:
        if deaths:
            deaths.pop()
            raise errors.Unavailable("The machine is gone.")
        return real(*arguments)

    monkeypatch.setattr(segment_writer, "sort_segment", sort_segment)
    put = count_segments(proxy)
    async with running_feed(changefeed) as run:
        await run.until(lambda: len(put) > 2, "segments are archived")
        deaths.append(True)
        await run.until(lambda: not deaths, "the puller dies")
        fetched = len(network.fetched)
        await run.until(lambda: len(network.fetched) > fetched + 10, "the next one's are fetched")
    assert run.execution.puller_attempts == [(0, 0), (0, 1)]
    assert len(put) < len(set(network.fetched)) / 2, "the others were released in memory"
    await changefeed.holds()
