"""Async commits and one-phase commits in the dev cluster's store, and what change data promises about them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed_devcluster.cdc.cdc import messages, parse_version
from changefeed_devcluster.cdc.subscriptions import CdcConnection, Subscriptions
from changefeed_devcluster.journal import Journal
from changefeed_devcluster.pd.oracle import Oracle
from changefeed_devcluster.pd.regions import Regions
from changefeed_devcluster.store.gc import resolve_locks
from changefeed_devcluster.store.mvcc import LockView
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import (
    MAX_TS,
    AlreadyRolledBack,
    CommitTsExpired,
    KeyIsLocked,
    Lock,
    Mutation,
    Op,
    PessimisticCheck,
    TxnError,
    TxnStatusAction,
    WriteConflict,
)

A, B, C = b"a", b"b", b"c"


def put(key: bytes, value: bytes) -> Mutation:
    return Mutation(Op.PUT, key, value, PessimisticCheck.LOCKED)


def test_min_commit_ts_is_above_every_read_so_far() -> None:
    store = MvccStore()
    assert store.get(C, 100) is None
    assert store.prewrite([put(A, b"1")], A, 50, async_commit=True, secondaries=[B]) == 101
    assert store.get(B, 120) is None, "prewrite against a read at a higher ts: this one comes before it"
    assert store.prewrite([put(B, b"1")], A, 50, async_commit=True) == 121
    assert store.prewrite([put(B, b"1")], A, 50, async_commit=True) == 121, "repeated: the same answer"
    primary, secondary = store.scan_locks(200)
    assert (primary.secondaries, secondary.secondaries) == ((B,), ())
    with pytest.raises(CommitTsExpired):
        store.commit([B], 50, 120)
    store.commit([A, B], 50, 121)
    assert store.get(B, 120) is None
    assert store.get(B, 121) == b"1"


def test_a_reader_below_min_commit_ts_is_not_blocked_and_a_latest_read_is() -> None:
    store = MvccStore()
    store.max_ts = 100
    store.prewrite([put(A, b"1")], A, 50, async_commit=True)
    assert store.get(A, 100) is None
    with pytest.raises(KeyIsLocked):
        store.get(A, 101)
    with pytest.raises(KeyIsLocked):
        store.get(A, MAX_TS)
    assert store.get(A, 200, LockView(committed=[50])) == b"1", "its reader knows that it is committed"
    assert store.get(A, 200, LockView(resolved=[50])) is None
    assert store.get(A, 200, LockView(ignores_locks=True)) is None


def test_too_late_for_max_commit_ts_means_two_phases() -> None:
    store = MvccStore()
    store.max_ts = 100
    assert store.one_pc([put(A, b"1")], 50, max_commit_ts=100) == 0
    assert store.scan_locks(200) == []
    assert store.prewrite([put(A, b"1")], A, 50, async_commit=True, secondaries=[B], max_commit_ts=100) == 0
    (lock,) = store.scan_locks(200)
    assert (lock.async_commit, lock.secondaries, lock.min_commit_ts) == (False, (), 0)
    assert store.one_pc([put(A, b"1")], 50) == 0, "its keys are prewritten: two phases it is"
    assert store.prewrite([put(A, b"1")], A, 50, async_commit=True) == 0
    store.commit([A], 50, 150)
    assert store.one_pc([put(A, b"1")], 50) == 150
    assert store.prewrite([put(A, b"1")], A, 50, async_commit=True) == 150, "a late repeat hears of the commit"


def test_the_keys_decide_an_async_commit_not_its_ttl() -> None:
    store = MvccStore()
    store.prewrite([put(A, b"1")], A, 50, ttl_ms=1, async_commit=True, secondaries=[B, C])
    store.prewrite([put(B, b"1"), put(C, b"1")], A, 50, ttl_ms=1, async_commit=True)
    status = store.check_txn_status(A, 50, MAX_TS)
    assert (status.action, status.ttl_ms) == (TxnStatusAction.NO_ACTION, 1)
    assert status.lock is not None
    assert [lock.key for lock in store.check_secondary_locks(status.lock.secondaries, 50).locks] == [B, C]
    store.commit([B], 50, 60)
    found = store.check_secondary_locks([B, C], 50)
    assert (found.locks, found.commit_ts) == ([], 60)


def test_a_missing_secondary_is_barred_and_ends_the_transaction() -> None:
    store = MvccStore()
    store.prewrite([put(A, b"1")], A, 50, async_commit=True, secondaries=[B])
    assert store.check_secondary_locks([B], 50) == ([], 0)
    with pytest.raises(AlreadyRolledBack):
        store.prewrite([put(B, b"1")], A, 50, async_commit=True)
    assert store.check_secondary_locks([B], 50) == ([], 0)
    store.resolve_lock(50, 0)
    assert store.scan_locks(99) == []


def test_a_pessimistic_secondary_counts_as_missing() -> None:
    store = MvccStore()
    store.pessimistic_lock([A, B], A, 50, 50)
    store.prewrite([put(A, b"1")], A, 50, for_update_ts=50, async_commit=True, secondaries=[B])
    assert store.check_secondary_locks([B], 50) == ([], 0)
    assert [lock.key for lock in store.scan_locks(99)] == [A]


def test_force_sync_commit_decides_by_ttl() -> None:
    store = MvccStore()
    store.prewrite([put(A, b"1")], A, 50, ttl_ms=1, async_commit=True, secondaries=[B])
    status = store.check_txn_status(A, 50, MAX_TS, force_sync_commit=True)
    assert status.action is TxnStatusAction.TTL_EXPIRE_ROLLBACK


@pytest.mark.parametrize(("secondary", "value"), [(True, b"1"), (False, None)])
def test_whoever_resolves_an_async_commit_ends_it_as_its_keys_say(secondary: bool, value: bytes | None) -> None:
    store = MvccStore()
    store.prewrite([put(A, b"1")], A, 50, async_commit=True, secondaries=[B])
    if secondary:
        store.max_ts = 80
        store.prewrite([put(B, b"1")], A, 50, async_commit=True)
    resolve_locks(store, 99)
    assert store.scan_locks(99) == []
    assert store.get(A, 99) == store.get(B, 99) == value
    assert store.get(A, 80) is None, "it commits at the highest of its min_commit_ts"


def test_an_async_commit_outlives_a_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    store = MvccStore(journal)
    store.pessimistic_lock([A], A, 50, 55)
    store.prewrite([put(A, b"1"), put(B, b"1")], A, 50, for_update_ts=55, async_commit=True, secondaries=[B])
    store.pessimistic_lock([C], C, 60, 60)
    before = store.scan_locks(59)
    journal.close()
    again = Journal(tmp_path)
    restored = MvccStore(again)
    for kind, body in again.replay():
        restored.replay(kind, body)
    assert restored.scan_locks(99) == before, "pessimistic locks are in memory only"
    again.close()


# --- change data ---


class Feed:
    """Two regions led by store 1, both subscribed; remembers what it was told."""

    def __init__(self, store: MvccStore | None = None) -> None:
        self.store = store or MvccStore()
        self.oracle = Oracle(clock=lambda: 1.0)
        self.regions = Regions(self.store.lock, [1])
        self.regions.bootstrap()
        self.regions.split(C)
        self.subscriptions = Subscriptions(self.store, self.regions, self.oracle, 7)
        self.connection = CdcConnection(1, True, lambda: None)
        self.connection.version = parse_version("8.5.0")
        self.subscriptions.connect(self.connection)
        self.resolved: dict[int, int] = {}
        self.versions: dict[tuple[bytes, int], bytes] = {}
        self.prewrites: dict[tuple[bytes, int], bytes] = {}
        for region in self.regions.all():
            request = cdcpb.ChangeDataRequest(
                header=cdcpb.Header(cluster_id=7),
                region_id=region.id,
                region_epoch=region.message.region_epoch,
                request_id=1,
            )
            subscription = self.subscriptions.register(self.connection, request)
            assert subscription is not None
            snapshot = self.subscriptions.attach(subscription)
            assert snapshot is not None
            assert list(self.subscriptions.scan(subscription, snapshot)) is not None
            subscription.is_ripe = True
        self.listen()

    def tick(self) -> None:
        self.subscriptions.advance()
        self.listen()

    def listen(self) -> None:
        for body in messages(self.connection, self.connection.drain()):
            message = cdcpb.ChangeDataEvent.FromString(body)
            for event in message.events:
                for row in event.entries.entries:
                    self._take(event.region_id, row)
            for region_id in message.resolved_ts.regions:
                self.resolved[region_id] = max(self.resolved.get(region_id, 0), message.resolved_ts.ts)

    def _take(self, region_id: int, row: cdcpb.Event.Row) -> None:
        kind = cdcpb.Event.LogType.Name(row.type)
        if kind == "PREWRITE":
            self.prewrites[row.key, row.start_ts] = row.value
        if kind == "ROLLBACK":
            self.prewrites.pop((row.key, row.start_ts), None)
        if kind in ("COMMIT", "COMMITTED"):
            assert row.commit_ts > self.resolved.get(region_id, 0), "a commit came at or below the resolved ts"
            value = self.prewrites.pop((row.key, row.start_ts)) if kind == "COMMIT" else row.value
            self.versions[row.key, row.commit_ts] = value


def test_resolved_ts_waits_for_async_commits_and_not_for_pessimistic_locks() -> None:
    feed = Feed()
    feed.store.pessimistic_lock([A], A, feed.oracle.next(), feed.oracle.next())
    feed.tick()
    told = min(feed.resolved.values())
    start = feed.oracle.next()
    feed.store.prewrite([put(B, b"1")], B, start, async_commit=True)
    feed.tick()
    assert told < min(feed.resolved.values()) == start
    (lock,) = (lock for lock in feed.store.scan_locks(MAX_TS) if lock.key == B)
    feed.store.commit([B], start, lock.min_commit_ts)
    feed.tick()
    assert feed.versions == {(B, lock.min_commit_ts): b"1"}
    assert min(feed.resolved.values()) > lock.min_commit_ts


def test_a_scan_shows_no_pessimistic_lock() -> None:
    store = MvccStore()
    store.pessimistic_lock([A], A, 20, 20)
    feed = Feed(store)
    assert feed.prewrites == {}
    feed.tick()
    assert min(feed.resolved.values()) > 20


def test_a_computed_commit_ts_is_above_what_was_resolved() -> None:
    """The in-memory lock rule: prewrites that start below the resolved ts must not commit below it."""
    feed = Feed()
    early = [feed.oracle.next() for _ in range(3)]
    feed.tick()
    told = min(feed.resolved.values())
    assert feed.store.one_pc([put(A, b"1")], early[0]) > told
    assert feed.store.prewrite([put(B, b"1")], B, early[1], async_commit=True) > told
    feed.store.pessimistic_lock([C], C, early[2], early[2])
    assert feed.store.one_pc([put(C, b"1")], early[2], for_update_ts=early[2]) > told
    feed.listen()


class Client:
    """One random transaction over keys a to f, in steps that can be taken between those of others."""

    def __init__(self, feed: Feed, rng: random.Random) -> None:
        self.store, self.oracle, self.rng = feed.store, feed.oracle, rng
        self.start_ts = feed.oracle.next()
        keys = [bytes([byte]) for byte in b"abcdef"]
        self.keys = rng.sample(keys, rng.randint(1, 3))
        self.kind = rng.choice(["2pc", "pessimistic", "async", "1pc"])
        self.for_update_ts = 0
        self.commit_ts = 0
        self.steps: list[Callable[[], None]] = [self._end]
        if self.kind != "1pc":
            self.steps = [self._prewrite_rest, self._end]
            self.steps.insert(0, self._prewrite_primary)
        if self.kind == "pessimistic":
            self.steps.insert(0, self._lock)

    def step(self) -> bool:
        """Takes one step; false when the transaction has ended, committed or not."""
        try:
            self.steps.pop(0)()
        except TxnError:
            if not self.commit_ts:
                self.store.rollback(self.keys, self.start_ts)
            return False
        return bool(self.steps)

    def _mutations(self, keys: list[bytes]) -> list[Mutation]:
        return [put(key, b"%d" % self.start_ts) for key in keys]

    def _lock(self) -> None:
        self.for_update_ts = self.oracle.next()
        self.store.pessimistic_lock(self.keys, self.keys[0], self.start_ts, self.for_update_ts)

    def _prewrite(self, keys: list[bytes]) -> None:
        lowest = self.store.prewrite(
            self._mutations(keys),
            self.keys[0],
            self.start_ts,
            for_update_ts=self.for_update_ts,
            async_commit=self.kind == "async",
            secondaries=self.keys[1:],
        )
        self.commit_ts = max(self.commit_ts, lowest)

    def _prewrite_primary(self) -> None:
        self._prewrite(self.keys[:1])
        self.commit_ts = 0 if self.keys[1:] else self.commit_ts

    def _prewrite_rest(self) -> None:
        if self.keys[1:]:
            self._prewrite(self.keys)
        if self.kind != "async":
            self.commit_ts = 0

    def _end(self) -> None:
        if self.kind == "1pc":
            self.commit_ts = self.store.one_pc(self._mutations(self.keys), self.start_ts)
            return
        commit_ts = self.commit_ts or self.oracle.next()
        self.store.commit(self.keys, self.start_ts, commit_ts)
        self.commit_ts = commit_ts


@pytest.mark.parametrize("seed", range(60))
def test_no_interleaving_breaks_snapshots_or_change_data(seed: int) -> None:
    rng = random.Random(seed)
    feed = Feed()
    running: list[Client] = []
    seen: dict[int, list[tuple[bytes, bytes]]] = {}
    for _ in range(150):
        action = rng.random()
        if action < 0.3 and len(running) < 6:
            running.append(Client(feed, rng))
        elif action < 0.8 and running:
            client = rng.choice(running)
            if not client.step():
                running.remove(client)
        elif action < 0.9:
            feed.tick()
        else:
            ts = feed.oracle.next()
            found = feed.store.read_range(b"", b"", ts)
            if not any(isinstance(value, Lock) for _, value in found):
                seen[ts] = [(key, value) for key, value in found if isinstance(value, bytes)]
    while running:
        running = [client for client in running if client.step()]
    feed.tick()
    assert feed.prewrites == {}
    assert feed.store.scan_locks(MAX_TS) == []
    for ts, pairs in seen.items():
        assert feed.store.scan(b"", b"", ts) == pairs, "a snapshot has changed after it was read"
    for ts in [*seen, feed.oracle.next()]:
        newest = {key: value for (key, at), value in sorted(feed.versions.items()) if at <= ts}
        assert feed.store.scan(b"", b"", ts) == sorted(newest.items()), "change data and snapshot disagree"


def test_a_write_conflict_stays_one_with_async_commit() -> None:
    store = MvccStore()
    store.one_pc([put(A, b"1")], 60)
    with pytest.raises(WriteConflict):
        store.prewrite([Mutation(Op.PUT, A, b"2")], A, 50, async_commit=True)
