"""A changefeed under load on an S3 server that fails says what is wrong, waits, and heals by itself: every row once.

State and sink stand on a real server behind a proxy that makes its faults. Each test ends with `verify`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from changefeed.metrics import Registry
from changefeed.objectstore.patience import LATE_WRITES, REQUESTS
from changefeed.owner import driver as driver_module
from changefeed.owner.pulling.quota import Quota
from changefeed.puller.task import Limits
from integration_failing_store import ROLL_S, SINK, STATE, Feed, everything, new_feed, running_feed, surround, writes
from integration_inprocess import Run
from integration_s3_proxy import (
    AWAY,
    BROKEN,
    CONFLICT,
    CUT,
    FORBIDDEN,
    FULL,
    LATE,
    LOST,
    REFUSED,
    REPEATED,
    SHORTENED,
    FaultyProxy,
)
from integration_s3_servers import S3Server

pytestmark = pytest.mark.timeout(1800)  # the first run builds the server


EVENT_QUOTA = 512 << 10
MEMORY_QUOTA = 128 << 10


def registry_of(run: Run) -> Registry:
    assert run.driver is not None
    return run.driver.registry


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    versitygw: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Feed, FaultyProxy, Run]]:
    """One that runs on from test to test: whatever the one before has done to it, it has healed."""
    with (
        pytest.MonkeyPatch.context() as patched,
        new_feed(versitygw, tmp_path_factory.mktemp("shared")) as (feed, proxy),
    ):
        surround(patched)
        patched.setattr(driver_module, "Quota", lambda _: Quota(EVENT_QUOTA))
        patched.setattr("integration_inprocess.LIMITS", Limits(MEMORY_QUOTA, roll_interval=ROLL_S))
        async with running_feed(feed) as run:
            yield feed, proxy, run
        assert run.execution.puller_attempts == [(0, 0)], "no puller died"


in_shared_loop = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def harmed(shared: tuple[Feed, FaultyProxy, Run], strike: Callable[[str, str], str]) -> AsyncIterator[None]:
    """Requests are struck inside; afterwards it heals by itself, and all is right."""
    feed, proxy, run = shared
    proxy.struck.clear()
    await feed.caught_up(run)
    proxy.strike = strike
    try:
        yield
    finally:
        proxy.heal()
    await feed.caught_up(run)
    await feed.holds()


LASTING = {
    "500": (BROKEN, "500 InternalError"),
    "503_slow_down": (REFUSED, "503 SlowDown"),
    "a_time_out_after_success": (LATE, "no answer in time"),
    "an_answer_lost_after_success": (LOST, "It is unknown whether"),
    "409": (CONFLICT, "409 ConditionalRequestConflict"),
    "an_upload_cut_off": (CUT, "It is unknown whether"),
    "an_upload_shortened_on_its_way": (SHORTENED, ""),
    "permission_lost_and_returned": (FORBIDDEN, "403 AccessDenied"),
    "a_full_disk_of_the_store": (FULL, "507 XMinioStorageFull"),
}


def counted(run: Run) -> defaultdict[tuple[str, str], float]:
    """Its metrics, by name and label."""
    return defaultdict(float, registry_of(run).snapshot())


@in_shared_loop
@pytest.mark.parametrize(("fault", "says"), LASTING.values(), ids=LASTING)
async def test_rule_16_each_write_meets(shared: tuple[Feed, FaultyProxy, Run], fault: str, says: str) -> None:
    """... until that is over: records, segments, files, indexes and `metadata` alike."""
    feed, proxy, run = shared
    before = counted(run)
    async with harmed(shared, writes(fault)):
        await feed.troubled(run, says)
        await run.until(lambda: proxy.struck[fault] >= 3, "several were struck")
    if fault != SHORTENED:  # the server may answer, or wait for the rest
        outcome = "refused" if says[0].isdigit() else "away"
        await run.until(lambda: counted(run)[REQUESTS, outcome] > before[REQUESTS, outcome], "they are counted")
    if fault in (LATE, LOST):
        await run.until(lambda: counted(run)[LATE_WRITES, ""] > before[LATE_WRITES, ""], "they were found done")
    else:
        assert counted(run)[LATE_WRITES, ""] == before[LATE_WRITES, ""]


@in_shared_loop
async def test_rule_16_each_write_is_sent_twice_and_meets_itself(shared: tuple[Feed, FaultyProxy, Run]) -> None:
    """412 to one's own retry: nothing is wrong, and nothing is said to be."""
    feed, proxy, run = shared
    said = len(feed.said.statuses)
    async with harmed(shared, writes(REPEATED)):
        await run.until(lambda: proxy.struck[REPEATED] >= 40, "40 writes have met themselves")
        await feed.caught_up(run)
    assert not [each for each in feed.said.statuses[said:] if each["conditions"][0]["status"] == "False"]


@in_shared_loop
async def test_rule_17_an_outage_of_the_sink_fills_the_event_store_to_its_quota(
    shared: tuple[Feed, FaultyProxy, Run],
) -> None:
    """Minutes of outage in seconds: the quota is small, not the time long. bench/outage.py takes the time."""
    feed, _, run = shared
    registry, used = registry_of(run), []

    def held() -> bool:
        used.append(registry.total("changefeed_event_store_used_bytes"))
        return registry.total("changefeed_owner_held_spans_count") > 0

    async with harmed(shared, everything(AWAY, SINK)):
        await feed.troubled(run, "the request failed")
        segments = registry.total("changefeed_event_store_segments_total")
        with feed.more():
            await run.until(held, "the event store is as full as it may be")
        assert registry.total("changefeed_event_store_segments_total") > segments, "pullers went on"
    # Who is told to hold has a segment on its way, at most what the pullers may have in memory.
    assert EVENT_QUOTA // 2 <= max(used) <= EVENT_QUOTA + MEMORY_QUOTA


@in_shared_loop
async def test_rule_17_an_outage_of_the_state_fills_the_pullers_to_their_quota(
    shared: tuple[Feed, FaultyProxy, Run],
) -> None:
    feed, _, run = shared
    registry, inflight = registry_of(run), []

    def held() -> bool:
        inflight.append(registry.total("changefeed_puller_span_pipeline_inflight_bytes"))
        return registry.total("changefeed_puller_held_subscriptions_count") > 0

    async with harmed(shared, everything(AWAY, STATE)):
        await feed.troubled(run, "the request failed")
        with feed.more():
            await run.until(held, "the pullers hold as much as they may")
    # The rows that fill it are taken.
    assert MEMORY_QUOTA // 2 <= max(inflight) <= MEMORY_QUOTA + MEMORY_QUOTA // 8


@in_shared_loop
async def test_segments_that_cannot_be_deleted_count_and_are_deleted_in_the_end(
    shared: tuple[Feed, FaultyProxy, Run],
) -> None:
    feed, _, run = shared
    registry = registry_of(run)
    async with harmed(shared, lambda method, _: FORBIDDEN if method in ("DELETE", "POST") else ""):
        await feed.troubled(run, "403 AccessDenied")
        segments = registry.total("changefeed_event_store_segments_total")
        await run.until(
            lambda: registry.total("changefeed_event_store_segments_total") > segments + 10, "more were written"
        )
        left = dict(feed.state.list("events"))
        assert registry.total("changefeed_event_store_used_bytes") >= 0.5 * sum(left.values()) > 0
    assert not left.keys() & dict(feed.state.list("events")).keys(), "they are gone"
