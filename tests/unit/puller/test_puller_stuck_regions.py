"""When locks are looked for (docs/design/tikv.md, Stuck locks), and which transaction a person is told of."""

from __future__ import annotations

import asyncio
import time

import pytest
from changefeed.clock import SystemClock
from changefeed.model.tso import compose
from changefeed.upstream.contract import BlockedRegion, Data, FeedEvent, Resolved, SubscriptionFailed
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.feed.range_lock import LockPart
from changefeed.upstream.tikv.feed.span_feed import SpanFeed
from changefeed.upstream.tikv.feed.stuck_regions import StuckRegions, Sweep
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op

RESOLVED = compose(100_000)
SECOND = 1000 << 18


def at(seconds: float) -> int:
    """PD's time, that many seconds after RESOLVED."""
    return RESOLVED + int(seconds * SECOND)


def test_region_that_stands_still_and_lags_is_swept_up_to_four_seconds_ahead() -> None:
    stuck, piece = StuckRegions(), LockPart(b"a", b"z", RESOLVED, locked=True)
    assert stuck.look([(1, piece)], 0.0, at(60)) == []
    assert stuck.look([(1, piece)], 3.9, at(64)) == []
    assert stuck.look([(1, piece)], 4.0, at(64)) == [Sweep(1, piece, at(4))]


def test_region_is_swept_once_in_ten_seconds_even_when_it_moves_between() -> None:
    stuck, piece = StuckRegions(), LockPart(b"a", b"z", RESOLVED, locked=True)
    due = []
    for second in range(0, 40, 2):
        if second == 8:
            piece.resolved_ts += 1
        if stuck.look([(1, piece)], float(second), at(60 + second)):
            due.append(second)
    assert due == [4, 14, 24, 34]


def test_region_that_moves_or_does_not_lag_is_left_alone() -> None:
    stuck, moves, near = StuckRegions(), LockPart(b"a", b"m", RESOLVED, locked=True), LockPart(b"m", b"z", RESOLVED)
    for second in range(0, 40, 2):
        moves.resolved_ts += 1
        assert stuck.look([(1, moves), (1, near)], float(second), at(4)) == []


def test_sweep_never_reaches_past_the_present() -> None:
    stuck, piece = StuckRegions(), LockPart(b"a", b"z", RESOLVED, locked=True)
    stuck.look([(1, piece)], 0.0, at(0))
    (sweep,) = stuck.look([(1, piece)], 5.0, at(4.1))
    assert sweep.max_version == at(4)
    assert sweep.max_version <= at(4.1)


def test_what_blocks_is_known_until_the_region_moves_or_goes() -> None:
    stuck = StuckRegions()
    low, high = LockPart(b"a", b"m", RESOLVED, locked=True), LockPart(b"m", b"z", RESOLVED + 9, locked=True)
    both = [(1, high), (1, low)]
    stuck.look(both, 0.0, at(60))
    for sweep in stuck.look(both, 4.0, at(64)):
        stuck.found(sweep, [BlockedRegion(1, sweep.piece.resolved_ts, 7, b"k", b"p")])
    assert [blocked.resolved_ts for blocked in stuck.blocked()] == [RESOLVED, RESOLVED + 9]
    stuck.look(both, 6.0, at(66))
    assert len(stuck.blocked()) == 2
    low.resolved_ts += 1
    stuck.look(both, 8.0, at(68))
    assert [blocked.resolved_ts for blocked in stuck.blocked()] == [RESOLVED + 9]
    stuck.look([], 10.0, at(70))
    assert stuck.blocked() == []


class Hurried(SystemClock):
    """Forty times as fast."""

    def monotonic(self) -> float:
        return time.monotonic() * 40

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 40)


@pytest.mark.parametrize("committed", [True, False])
async def test_resolved_ts_goes_on_after_a_transaction_was_abandoned(committed: bool) -> None:
    """A living transaction next to it is waited for, and named."""
    resolved, rows, changed = {}, [], asyncio.Event()

    async def emit(event: FeedEvent) -> None:
        match event:
            case Data(_, _, batch):
                rows.extend(zip(batch["key"].to_pylist(), batch["commit_ts"].to_pylist(), strict=True))
            case Resolved(sub_id, ts):
                resolved[sub_id] = ts
            case SubscriptionFailed(error=error):
                raise error
        changed.set()

    async def until(sub_id: int, ts: int) -> None:
        async with asyncio.timeout(30):
            while resolved.get(sub_id, 0) < ts:
                changed.clear()
                await changed.wait()

    with DevCluster(stores=2, min_ts_interval=0.05) as cluster:
        cluster.split(b"t2")
        start_ts = cluster.oracle.next() - 60 * SECOND
        dead_ts, living_ts = start_ts + 10 * SECOND, start_ts + 20 * SECOND
        cluster.store.prewrite(
            [Mutation(Op.PUT, b"t1a", b"1"), Mutation(Op.PUT, b"t2a", b"2")], b"t1a", dead_ts, ttl_ms=3000
        )
        if committed:
            commit_ts = cluster.oracle.next()
            cluster.store.commit([b"t1a"], dead_ts, commit_ts)
        cluster.store.prewrite([Mutation(Op.PUT, b"t3a", b"3")], b"t3a", living_ts, ttl_ms=600_000)
        pd = await PdClient.connect([cluster.pd_address])
        async with SpanFeed(pd, emit, Hurried()) as feed:
            feed.subscribe(1, 71, b"t1", b"t3", start_ts)
            feed.subscribe(2, 72, b"t3", b"t4", start_ts)
            await until(1, cluster.oracle.next())
            expected = {(b"t1a", commit_ts), (b"t2a", commit_ts)} if committed else set()
            assert set(rows) == expected
            async with asyncio.timeout(30):
                for _ in range(10_000):
                    if feed.blocked():
                        break
                    await asyncio.sleep(0.005)
            ((span_id, blocked),) = feed.blocked()
            assert (span_id, blocked.sub_id, blocked.start_ts, blocked.key) == (72, 2, living_ts, b"t3a")
            assert blocked.ttl_ms == 600_000
            assert feed.metrics.blocking_s > 30
            assert feed.metrics.finished_locks >= 1
            assert resolved[2] <= living_ts
            cluster.store.commit([b"t3a"], living_ts, cluster.oracle.next())
            await until(2, cluster.oracle.next())
        await pd.close()
