"""A frozen history is told like any other: rows as protobuf reads them, resolved-ts, restarts, splits, snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed_devcluster import keys
from changefeed_devcluster.cdc.connection import CdcRegistration
from changefeed_devcluster.cdc.scans import ScanSnapshot
from changefeed_devcluster.frozen import TXN_ROWS, FrozenHistory
from changefeed_devcluster.pd.oracle import compose
from changefeed_devcluster.store.frozen_store import FrozenStore
from changefeed_devcluster.store.txn import MAX_TS, Mutation, Op
from changefeed_devcluster.tidb.rows import encode_rows
from devcluster_rig import Rig, entries

TABLE = 100
ROWS = 1000
BASE = compose(1_700_000_000_000)
PREWRITE, COMMIT, COMMITTED, INITIALIZED = 1, 2, 4, 5
Rows = dict[int, tuple[int, bytes]]


def source(first: int, count: int) -> list[tuple[int, npt.NDArray[Any]]]:
    """Integers of several widths, and a text."""
    handles = np.arange(first, first + count, dtype=np.int64)
    texts = np.full((count, 20), ord("x"), np.uint8)
    texts[:, 0] = handles % 26 + ord("a")
    return [(2, handles**3), (3, texts)]


VALUES = dict(zip(range(1, ROWS + 1), encode_rows(source(1, ROWS)), strict=True))


def frozen(live: bool = False) -> FrozenHistory:
    """Two shards of one table, written side by side."""
    history = FrozenHistory(live)
    history.add([(TABLE, 1, 600, source), (TABLE, 601, ROWS, source)], BASE)
    return history


def rig(history: FrozenHistory) -> Rig:
    made = Rig(frozen=history)
    made.oracle.raise_to(BASE * 2)
    return made


def told(rows: list[cdcpb.Event.Row]) -> Rows:
    """Handle → (commit ts, value) of COMMITTED rows and of PREWRITE and COMMIT pairs; each row once."""
    prewritten: dict[tuple[int, bytes], bytes] = {}
    found: Rows = {}
    for row in rows:
        if row.type == PREWRITE:
            prewritten[row.start_ts, row.key] = row.value
        elif row.type in (COMMIT, COMMITTED):
            assert row.op_type == cdcpb.Event.Row.PUT
            assert row.start_ts < row.commit_ts
            value = row.value
            assert row.type == COMMITTED or value == prewritten.pop((row.start_ts, row.key))
            assert keys.handle_of(row.key) not in found
            found[keys.handle_of(row.key)] = row.commit_ts, value
    assert not prewritten
    return found


def values(rows: Rows) -> dict[int, bytes]:
    return {handle: value for handle, (_, value) in rows.items()}


@pytest.fixture(params=["scan", "live"])
def history(request: pytest.FixtureRequest) -> FrozenHistory:
    return frozen(live=request.param == "live")


def attached(rig: Rig, **changed: object) -> tuple[CdcRegistration, ScanSnapshot]:
    subscription = rig.register(**changed)
    snapshot = rig.subscriptions.attach(subscription)
    assert snapshot is not None
    return subscription, snapshot


def steps(rig: Rig, subscription: CdcRegistration, snapshot: ScanSnapshot) -> Iterator[list[cdcpb.Event.Row]]:
    """What each step of the scan and of the delivery after it queues."""
    for _ in rig.subscriptions.scan(subscription, snapshot):
        yield entries(rig.events())
    yield entries(rig.events())
    for _ in rig.subscriptions.play(subscription, snapshot):
        yield entries(rig.events())


def all_rows(rig: Rig, **changed: object) -> list[cdcpb.Event.Row]:
    return [row for rows in steps(rig, *attached(rig, **changed)) for row in rows]


def test_every_row_is_told_once_with_its_value(history: FrozenHistory) -> None:
    rows = all_rows(rig(history))
    assert values(told(rows)) == VALUES
    kinds = [row.type for row in rows]
    assert [int(kind) for kind in kinds].index(INITIALIZED) == (0 if history.live else ROWS)
    assert all(keys.record_prefix(TABLE) == row.key[:-8] for row in rows if row.type != INITIALIZED)


def test_a_transaction_has_one_start_ts_and_commit_ts_and_no_two_share_them(history: FrozenHistory) -> None:
    rows = [row for row in all_rows(rig(history)) if row.commit_ts]
    by_transaction: dict[tuple[int, int], int] = {}
    for row in rows:
        by_transaction[row.start_ts, row.commit_ts] = by_transaction.get((row.start_ts, row.commit_ts), 0) + 1
    assert len({start for start, _ in by_transaction}) == len({commit for _, commit in by_transaction})
    assert sorted(by_transaction.values()) == sorted([TXN_ROWS] * 7 + [600 % TXN_ROWS, 400 % TXN_ROWS])


def test_a_scan_comes_in_key_order_and_starts_above_the_checkpoint() -> None:
    everything = told(all_rows(rig(frozen())))
    assert list(everything) == sorted(everything)
    middle = sorted(commit_ts for commit_ts, _ in everything.values())[ROWS // 2]
    later = told(all_rows(rig(frozen()), checkpoint_ts=middle))
    assert later == {handle: row for handle, row in everything.items() if row[0] > middle}


def test_all_of_it_can_be_one_transaction() -> None:
    history = FrozenHistory(one=True)
    history.add([(TABLE, 1, 600, source), (TABLE, 601, ROWS, source)], BASE)
    made = rig(history)
    everything = told(all_rows(made))
    (commit_ts,) = {commit_ts for commit_ts, _ in everything.values()}
    assert list(everything) == list(range(1, ROWS + 1))
    assert told(all_rows(rig(history), checkpoint_ts=commit_ts)) == {}
    assert told(all_rows(rig(history), checkpoint_ts=commit_ts - 1)) == everything


def test_events_stay_below_32_kib() -> None:
    assert all(len(body) < 32 << 10 for shard in frozen().shards for body in shard.encoded)


def test_no_row_comes_at_or_below_a_told_resolved_ts() -> None:
    made = rig(frozen(live=True))
    resolved = 0
    last = 0
    subscription, snapshot = attached(made)
    for rows in steps(made, subscription, snapshot):
        commits = [row.commit_ts for row in rows if row.commit_ts]
        assert min(commits, default=MAX_TS) > resolved
        last = max(last, *commits, 0)
        for _, ts, _ in made.resolved():
            resolved = max(resolved, ts)
            assert resolved < last + (1 << 18) or not commits
    ((_, final, _),) = made.resolved()
    assert final > last > BASE


def test_resolved_ts_goes_on_while_the_history_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changefeed_devcluster.cdc.scans.BATCH_BYTES", 1)
    made = rig(frozen(live=True))
    seen = []
    for rows in steps(made, *attached(made)):
        ((_, ts, _),) = made.resolved() or [([], 0, 0)]
        if any(row.commit_ts for row in rows):
            seen.append((max(row.commit_ts for row in rows), ts))
    commits, resolved = zip(*seen, strict=True)
    assert commits == resolved
    assert list(resolved) == sorted(set(resolved))
    assert len(resolved) == 9


def test_what_was_told_live_is_scanned_by_the_next_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changefeed_devcluster.cdc.scans.BATCH_BYTES", 1)
    history = frozen(live=True)
    made = rig(history)
    first = steps(made, *attached(made, request_id=1))
    before: list[cdcpb.Event.Row] = []
    while sum(row.type == COMMIT for row in before) < 3 * TXN_ROWS:
        before += next(first)
    again = all_rows(made, request_id=2)
    scanned = [row for row in again if row.type == COMMITTED]
    assert told(scanned) == told(before) != {}
    assert values(told(again)) == VALUES
    assert {row.type for row in all_rows(made, request_id=3)} == {COMMITTED, INITIALIZED}


def test_a_resumed_registration_is_told_nothing_at_or_below_its_checkpoint() -> None:
    everything = told(all_rows(rig(frozen(live=True))))
    middle = sorted(commit_ts for commit_ts, _ in everything.values())[ROWS // 2]
    resumed = told(all_rows(rig(frozen(live=True)), checkpoint_ts=middle))
    assert resumed == {handle: row for handle, row in everything.items() if row[0] > middle}


def test_split_regions_tell_their_own_rows(history: FrozenHistory) -> None:
    made = rig(history)
    for handle in (77, 300, 601, 999):
        made.regions.split(keys.record_key(TABLE, handle))
    parts = []
    for region in made.regions.all():
        made.regions.transfer(region.id, 1)
        rows = told(all_rows(made, region_id=region.id))
        assert all(region.contains(keys.record_key(TABLE, handle)) for handle in rows)
        parts.append(rows)
    assert [len(part) for part in parts] == [76, 223, 301, 398, 2, 0, 0]
    assert values({handle: row for part in parts for handle, row in part.items()}) == VALUES
    assert {handle: row for part in parts for handle, row in part.items()} == told(all_rows(rig(frozen())))


def test_what_was_told_live_is_scanned_whole_in_the_parts_of_a_later_split() -> None:
    made = rig(frozen(live=True))
    everything = told(all_rows(made))
    made.drain()
    for handle in (77, 300):
        made.regions.split(keys.record_key(TABLE, handle))
    parts = []
    for region in made.regions.all():
        made.regions.transfer(region.id, 1)
        made.drain()
        rows = all_rows(made, region_id=region.id, request_id=2)
        assert {row.type for row in rows} == ({COMMITTED, INITIALIZED} if len(parts) < 3 else {INITIALIZED})
        parts.append(told(rows))
    assert [len(part) for part in parts] == [76, 223, 701, 0, 0]
    assert {handle: row for part in parts for handle, row in part.items()} == everything


def test_a_closed_registration_is_told_nothing_more(monkeypatch: pytest.MonkeyPatch, history: FrozenHistory) -> None:
    monkeypatch.setattr("changefeed_devcluster.cdc.scans.BATCH_BYTES", 1)
    made = rig(history)
    coming = steps(made, *attached(made))
    for _ in range(3):
        next(coming)
    made.subscriptions.deregister(made.connection, 1, 0)
    made.drain()
    assert not [row for rows in coming for row in rows]


def test_other_rows_of_the_region_come_too() -> None:
    made = rig(frozen())
    made.store.one_pc([Mutation(Op.PUT, key, b"v") for key in (b"a", keys.record_key(TABLE - 1, 1), b"w")], 10)
    rows = all_rows(made)
    assert len(rows) == ROWS + 4
    assert [row.key for row in rows[:-1]] == sorted(row.key for row in rows[:-1])


def test_a_lock_on_a_frozen_row_holds_the_watermark_and_is_told() -> None:
    made = rig(frozen())
    start_ts = made.oracle.next()
    made.store.prewrite([Mutation(Op.PUT, keys.record_key(TABLE, 5), b"v")], keys.record_key(TABLE, 5), start_ts)
    rows = all_rows(made)
    assert [row.start_ts for row in rows if row.type == PREWRITE] == [start_ts]
    made.resolved()
    assert [ts for _, ts, _ in made.resolved()] == [start_ts]


def test_snapshots_show_what_was_committed_at_their_ts() -> None:
    history = frozen()
    store = FrozenStore(None, history)
    commits = {handle: commit_ts for handle, (commit_ts, _) in told(all_rows(rig(frozen()))).items()}
    start, end = keys.record_range(TABLE)
    for ts in (BASE, commits[1], commits[1] - 1, commits[300], commits[ROWS] + 1):
        expected = [(keys.record_key(TABLE, handle), VALUES[handle]) for handle in VALUES if commits[handle] <= ts]
        assert store.scan(start, end, ts) == expected
        assert store.read_range(start, end, ts, 10) == expected[:10]
        assert store.read_range(start, end, ts, 10, reverse=True) == expected[::-1][:10]
    assert store.get(keys.record_key(TABLE, 7), commits[7]) == VALUES[7]
    assert store.get(keys.record_key(TABLE, 7), commits[7] - 1) is None
    assert store.get(keys.record_key(TABLE, ROWS + 1), commits[ROWS] + 1) is None


def test_what_is_encoded_to_be_read_is_what_is_read_otherwise() -> None:
    history = FrozenHistory(read=True)
    history.add([(TABLE, 1, 600, source), (TABLE, 601, ROWS, source)], BASE)
    store, slow = FrozenStore(None, history), FrozenStore(None, frozen())
    start, end = keys.record_range(TABLE)
    middle, late = keys.record_key(TABLE, 598), BASE * 2
    ranges = [(start, end), (b"", b""), (middle, end), (middle + b"\0", end), (start, middle), (b"", b"a")]
    for low, high in ranges:
        for limit in (1, 5, 700, 5000):
            answer = kvrpcpb.ScanResponse.FromString(store.encoded_range(low, high, late, limit) or b"")
            assert [(pair.key, pair.value) for pair in answer.pairs] == slow.read_range(low, high, late, limit)
    assert told(all_rows(rig(history))) == told(all_rows(rig(frozen())))


def test_what_is_not_as_it_was_encoded_is_not_read_so() -> None:
    history = FrozenHistory(read=True)
    history.add([(TABLE, 1, ROWS, source)], BASE)
    store = FrozenStore(None, history)
    start, end = keys.record_range(TABLE)
    assert store.encoded_range(start, end, history.shards[0].commit_of(0), 10) is None  # not all of it
    late = BASE * 2
    store.prewrite([Mutation(Op.PUT, keys.record_key(TABLE, 5), b"v")], keys.record_key(TABLE, 5), late)
    assert store.encoded_range(start, end, late + 1, 10) is None
    assert store.encoded_range(keys.record_key(TABLE, 6), end, late + 1, 10) is not None
    assert FrozenStore(None, frozen()).encoded_range(start, end, late, 10) is None


def test_shards_are_written_side_by_side() -> None:
    first, second = frozen().shards
    starts = [shard.start_of(number) for number in range(3) for shard in (first, second)]
    assert all(earlier < later for earlier, later in pairwise(starts))
