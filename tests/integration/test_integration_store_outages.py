"""Stores that fail at a run's start or until its end, and listings that are stale or long.

Each test has a changefeed of its own and ends with `verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from changefeed import errors
from changefeed.log.log import Log
from changefeed.log.records import EpochRecord
from changefeed.objectstore.open import Store, open_store
from changefeed.owner.reporting import meter as meter_module
from changefeed.sink.storage.layout import METADATA, parse_index_path
from integration_failing_store import SINK, STATE, Feed, everything, new_feed, run_once, running_feed, surround, writes
from integration_s3_proxy import AWAY, FORBIDDEN, REFUSED, STALE, FaultyProxy
from integration_s3_servers import S3Server

pytestmark = pytest.mark.timeout(1800)  # the first run builds the server


@pytest.fixture
def own(versitygw: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Feed, FaultyProxy]]:
    """One of its own, not yet started."""
    surround(monkeypatch)
    with new_feed(versitygw, tmp_path) as made:
        yield made


async def test_a_bad_store_is_refused_at_once_at_start(own: tuple[Feed, FaultyProxy]) -> None:
    feed, proxy = own
    proxy.strike = everything(FORBIDDEN, STATE)
    with pytest.raises(errors.NeedsHuman, match=r"spec\.state\.uri: the state can't be used.*403 AccessDenied"):
        await feed.start().outcome()
    proxy.strike = everything(REFUSED, SINK)
    with pytest.raises(errors.Unavailable, match=r"spec\.sink\.storage\.uri: the sink can't be used.*503 SlowDown"):
        await feed.start().outcome()


@pytest.mark.parametrize("below", ["CDC0", "/log/", "/events/"])
async def test_a_store_that_stays_away_ends_the_run_and_a_later_one_goes_on(
    own: tuple[Feed, FaultyProxy], below: str
) -> None:
    feed, proxy = own
    with feed.load(), pytest.MonkeyPatch.context() as patched:
        run = feed.start()
        await feed.caught_up(run)
        patched.setattr(meter_module, "RUN_S", 1.0)
        assert run.driver is not None
        run.driver.publication.patience.limit_s = 1.0
        run.driver.prepared.log.patience.limit_s = 1.0
        proxy.strike = writes(REFUSED, below)
        with pytest.raises(errors.Unavailable, match=r"has failed for 1 s\. .*503 SlowDown") as caught:
            await run.outcome()
        assert caught.value.exit_code == 69
    proxy.heal()
    await run_once(feed)
    await feed.holds()


async def test_a_drain_during_an_outage_ends_when_its_time_is_over(own: tuple[Feed, FaultyProxy]) -> None:
    feed, proxy = own
    with feed.load():
        run = feed.start(drainTimeout="1s")
        await feed.caught_up(run)
        # Not of the event store too: were nothing resolved that is not in the sink yet, the drain would have ended.
        proxy.strike = writes(REFUSED, SINK)
        await feed.troubled(run, "503 SlowDown")
        with pytest.raises(errors.Unavailable, match="Not drained within 1 s"):
            await run.drained()
    proxy.heal()
    await run_once(feed)
    await feed.holds()


async def test_rule_6_a_driver_that_was_taken_over_while_it_waited_is_fenced(
    own: tuple[Feed, FaultyProxy], versitygw: S3Server, tmp_path: Path
) -> None:
    feed, proxy = own
    with feed.load():
        run = feed.start()
        await feed.caught_up(run)
        proxy.strike = everything(AWAY)
        await feed.troubled(run, "")
        state = open_store(versitygw.uri(tmp_path.name + STATE + "/default/test/local"))
        log = Log(state)
        mine = EpochRecord.model_validate_json(state.get("log/00000000000000000002.json").body)
        log.claim_epoch(
            lambda before: mine.model_copy(
                update={"n": before.n + 1, "epoch": before.epoch.number + 1, "nonce": "another"}
            )
        )
        sink = open_store(versitygw.uri(tmp_path.name + SINK))
        there = published_in(sink)
        records = state.list("log")
        proxy.heal()
        with pytest.raises(errors.Fenced):
            await run.outcome()
    assert state.list("log") == records, "no record after the other's epoch"
    changed = {path for path, body in published_in(sink).items() if there.get(path) != body}
    # A request may have been on its way: the index of a plan in the log, whose files stand (rule 8).
    assert all(map(parse_index_path, changed)), "no metadata"
    await feed.holds(1)


def published_in(sink: Store) -> dict[str, bytes]:
    """What only a driver writes."""
    return {path: sink.get(path).body for path, _ in sink.list() if path == METADATA or parse_index_path(path)}


def listings(fault: str) -> Callable[[str, str], str]:
    return lambda method, path: fault if method == "GET" and "list-type=2" in path else ""


async def test_rule_5_a_run_whose_listings_are_stale_loses_nothing(own: tuple[Feed, FaultyProxy]) -> None:
    """It lists to clean up only: what it does not see is left over."""
    feed, proxy = own
    feed.pace["fold_after"] = 6
    proxy.freeze()
    proxy.strike = listings(STALE)
    await run_once(feed)
    await run_once(feed)
    assert proxy.struck[STALE] >= 6
    proxy.heal()
    assert feed.state.list("log")[0][0].endswith("01.json")
    await feed.holds()


async def test_rule_5_a_start_that_sees_an_old_listing_of_the_log_is_refused(own: tuple[Feed, FaultyProxy]) -> None:
    """It would not see the newest snapshot, take the log for one that has just begun, and write everything again."""
    feed, proxy = own
    feed.pace["fold_after"] = 6
    proxy.freeze()  # what is listed first, when there is nothing, is what the second start will see
    await run_once(feed)
    assert any("snapshot" in path for path, _ in feed.state.list("log"))
    before = feed.sink.list()
    proxy.strike = listings(STALE)
    with pytest.raises(errors.Unavailable, match=r"says that everything up to \d+ is written, but s3://.* says \d+"):
        await feed.start().outcome()
    proxy.heal()
    assert feed.sink.list() == before
    await run_once(feed)
    await feed.holds()


async def test_more_than_a_thousand_objects_in_a_folder(
    own: tuple[Feed, FaultyProxy], versitygw: S3Server, tmp_path: Path
) -> None:
    """The log of a driver that was restarted a thousand times, whose newest snapshot is listed last; old segments."""
    feed, proxy = own
    await run_once(feed)
    store = open_store(versitygw.uri(tmp_path.name + STATE + "/default/test/local"))
    log = Log(store)
    state = log.read()
    mine = EpochRecord.model_validate_json(store.get("log/00000000000000000002.json").body)
    for _ in range(1010):
        numbers = {"n": log.state.n + 1, "epoch": log.state.epoch.number + 1, "nonce": f"n{log.state.n}"}
        log.append(mine.model_copy(update=numbers))
    log.fold(log.state)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.create(f"events/1-old/puller-0-0/{n:020}.arrow", b""), range(1010)))
    async with running_feed(feed) as run:
        assert run.driver is not None
        assert run.driver.prepared.epoch == state.epoch.number + 1011
        assert not [path for path, _ in feed.state.list("events") if "1-old" in path]
        assert proxy.pages >= 4, "in pages"
    await feed.holds()
