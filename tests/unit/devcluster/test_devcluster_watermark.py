"""How far a range is settled while large transactions are open: the scenarios of the proposal, and a naive model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from changefeed_devcluster.store.store import MvccStore
from changefeed_devcluster.store.txn import MAX_TS, Mutation, Op, StoreChange, TxnError
from changefeed_devcluster.watermark.advancer import LargeTransactionStatus, WatermarkAdvancer
from changefeed_devcluster.watermark.gate import VersionGate
from changefeed_devcluster.watermark.ranges import advancer_of, locks_of, track
from changefeed_devcluster.watermark.statuses import Statuses
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

OPEN = LargeTransactionStatus(min_commit_ts=150)


# --- the advancer ---


def test_a_normal_transaction_holds_its_range_until_its_last_lock_is_gone() -> None:
    advancer = WatermarkAdvancer(spares_large=True)
    advancer.locked(100, [b"a", b"b"])
    advancer.locked(120, [b"c"])
    advancer.unlocked(100, [b"a", b"never locked"])
    assert advancer.lowest == 100
    advancer.unlocked(100, [b"b"])
    assert advancer.lowest == 120
    advancer.unlocked(120, [b"c"])
    assert (advancer.lowest, advancer.tracked) == (MAX_TS, 0)


def test_a_large_one_holds_it_below_what_it_has_promised_and_its_first_end_frees_it() -> None:
    advancer = WatermarkAdvancer(spares_large=True)
    advancer.locked(100, [b"a"], b"p")
    assert advancer.lowest == 100  # nobody has asked its primary
    advancer.learn({100: LargeTransactionStatus()})
    assert advancer.lowest == 100  # nobody knows it there
    advancer.learn({100: OPEN})
    assert advancer.lowest == 149
    advancer.learn({100: LargeTransactionStatus(min_commit_ts=140), 99: LargeTransactionStatus(min_commit_ts=10)})
    assert advancer.lowest == 149
    advancer.learn({100: LargeTransactionStatus(commit_ts=160)})
    assert advancer.lowest == 159  # none of its rows has been seen here
    advancer.unlocked(100, [b"b"])
    assert advancer.lowest == MAX_TS
    advancer.unlocked(100, [b"a"])
    assert advancer.lowest == MAX_TS


def test_one_that_is_rolled_back_holds_nothing() -> None:
    advancer = WatermarkAdvancer(spares_large=True)
    advancer.locked(100, [b"a"], b"p")
    advancer.learn({100: LargeTransactionStatus(is_rolled_back=True)})
    assert advancer.lowest == MAX_TS


def test_a_large_one_costs_the_memory_of_one_key_however_many_it_locks() -> None:
    spares, counts = WatermarkAdvancer(spares_large=True), WatermarkAdvancer(spares_large=False)
    for generation in range(10):
        keys = [b"%d" % number for number in range(generation * 900, generation * 900 + 1000)]
        for advancer in (spares, counts):
            advancer.locked(100, keys, b"p")
    assert (spares.tracked, counts.tracked) == (1, 9100)


def test_by_the_old_mechanism_a_large_one_is_like_all_others() -> None:
    advancer = WatermarkAdvancer(spares_large=False)
    advancer.locked(100, [b"a"], b"p")
    advancer.locked(100, [b"a", b"b"], b"p")
    advancer.learn({100: OPEN})
    advancer.unlocked(100, [b"a"])
    assert (advancer.lowest, dict(advancer.large)) == (100, {})
    advancer.unlocked(100, [b"b"])
    assert advancer.lowest == MAX_TS


# --- the gate ---


def test_a_gate_opens_when_the_last_store_is_new_and_without_one_each_store_goes_by_itself() -> None:
    shut, none = VersionGate([1, 2, 3], proposed=1), VersionGate([1, 2, 3], proposed=1, is_shut=False)
    assert [[gate.spares_large(store) for store in (1, 2, 3)] for gate in (shut, none)] == [
        [False, False, False],
        [True, False, False],
    ]
    shut.upgrade(3)
    assert not shut.spares_large(1)
    shut.upgrade(2)
    assert all(shut.spares_large(store) for store in (1, 2, 3))
    assert [none.version(store) for store in (1, 2)] == ["9.0.0", "8.5.3"]
    with pytest.raises(ValueError, match="4 of 3 stores"):
        VersionGate([1, 2, 3], proposed=4)


# --- what stores ask one another ---


class Stores:
    """Five stores that lead the regions of keys 1 to 5, all of them new; time stands until `later`."""

    def __init__(self, gate: VersionGate | None = None) -> None:
        self.now = 0.0
        self.store = MvccStore()
        ids = [1, 2, 3, 4, 5]
        gate = gate or VersionGate(ids, proposed=5)
        self.statuses = Statuses(self.store, lambda key: int(key[:1]), gate, lambda: self.now)
        self.advancers = {id_: [WatermarkAdvancer(spares_large=True) for _ in range(20)] for id_ in ids}

    def flush(self, start_ts: int, primary: bytes) -> None:
        """In every range of every store."""
        self.store.flush([Mutation(Op.PUT, primary, b"v")], primary, start_ts, 1)
        for advancer in (each for own in self.advancers.values() for each in own):
            advancer.locked(start_ts, [b"k"], primary)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.statuses.ask(self.advancers)

    def lowest(self) -> set[int]:
        return {advancer.lowest for own in self.advancers.values() for advancer in own}


def test_stores_ask_once_a_second_for_all_their_ranges_and_transactions() -> None:
    stores = Stores()
    for start_ts in range(100, 120):
        stores.flush(start_ts, b"2.%d" % start_ts)
    for _ in range(40):
        stores.later(0.1)
    assert stores.statuses.requests == {2: 4 * 4}  # four rounds, and the fifth store asks itself
    stores.flush(130, b"3.130")
    stores.later(1.0)
    assert stores.statuses.requests == {2: 5 * 4, 3: 4}


def test_what_is_decided_is_asked_once() -> None:
    stores = Stores()
    stores.flush(100, b"2")
    stores.later(1.0)
    stores.store.txn_heart_beat(b"2", 100, 0, 200)
    assert stores.lowest() == {100}
    stores.later(1.0)
    assert stores.lowest() == {199}
    stores.store.commit([b"2"], 100, 210)
    stores.later(1.0)
    assert stores.lowest() == {209}
    asked = stores.statuses.requests.total()
    stores.later(1.0)
    late = WatermarkAdvancer(spares_large=True)
    late.locked(100, [b"k"], b"2")
    stores.advancers[4].append(late)
    stores.later(1.0)
    assert (late.lowest, stores.statuses.requests.total()) == (209, asked)


def test_a_primary_that_is_not_locked_yet_is_no_rollback() -> None:
    stores = Stores()
    stores.advancers[1][0].locked(100, [b"k"], b"2")
    stores.later(1.0)
    assert stores.advancers[1][0].lowest == 100
    stores.flush(100, b"2")
    stores.store.txn_heart_beat(b"2", 100, 0, 200)
    stores.later(1.0)
    assert stores.lowest() == {199}
    stores.store.rollback([b"2"], 100)
    stores.later(1.0)
    assert stores.lowest() == {MAX_TS}


def test_an_old_store_has_no_answer() -> None:
    stores = Stores(VersionGate([1, 2, 3, 4, 5], proposed=2, is_shut=False))
    stores.flush(100, b"3")
    stores.store.txn_heart_beat(b"3", 100, 0, 200)
    stores.later(1.0)
    assert stores.lowest() == {100}
    assert not stores.statuses.requests


# --- all of it against a naive model ---


@dataclass
class Written:
    """A transaction as its client sees it."""

    start_ts: int
    is_large: bool
    primary: bytes
    keys: set[bytes] = field(default_factory=set)
    wrote: int = 0  # the ts of its last write; that of its commit is fetched afterwards
    commit_ts: int = 0
    is_over: bool = False


RANGES = [(b"a", b"c"), (b"c", b"e"), (b"b", b"d")]  # two regions, and a subscriber of a part of both
KEYS = [b"a", b"b", b"c", b"d"]


class Watched(RuleBasedStateMachine):
    """A store and the advancers of some ranges. A watermark that was told is never at or above what is still to come:
    the commit ts of a transaction that may be committed, or of one whose first commit in the range is not told yet."""

    @initialize(new=st.integers(0, 2), is_shut=st.booleans())
    def begin(self, new: int, is_shut: bool) -> None:
        self.ts = 10
        self.time = 0.0
        self.store = MvccStore()
        self.gate = VersionGate([1, 2], new, is_shut)
        self.statuses = Statuses(self.store, lambda key: 1 if key < b"c" else 2, self.gate, lambda: self.time)
        self.stores = [1, 2, 1]
        self.advancers = [WatermarkAdvancer(self.gate.spares_large(store)) for store in self.stores]
        self.told = [0, 0, 0]
        self.transactions: list[Written] = []
        self.store.observe(self.changed)

    def changed(self, change: StoreChange) -> None:
        for number, (start, end) in enumerate(RANGES):
            rows = [row for row in change.rows if start <= row.key < end]
            if not rows:
                continue
            track(self.advancers[number], change, rows)
            if not change.commit_ts:
                continue
            (written,) = [each for each in self.transactions if each.start_ts == change.start_ts]
            open_still = self.locked(written) | {row.key for row in rows}
            decided = written.is_large and any(start <= key < end for key in written.keys - open_still)
            spares = self.gate.spares_large(self.stores[number])
            assert (decided and spares) or self.told[number] < written.commit_ts

    def locked(self, written: Written) -> set[bytes]:
        return {lock.key for lock in self.store.scan_locks(MAX_TS - 1) if lock.start_ts == written.start_ts}

    def next(self) -> int:
        self.ts += 1
        return self.ts

    def open(self) -> list[Written]:
        return [each for each in self.transactions if not each.commit_ts and not each.is_over]

    def unfinished(self) -> list[Written]:
        return [each for each in self.transactions if not each.commit_ts]

    def chosen(self, data: st.DataObject, among: list[Written]) -> Written:
        return data.draw(st.sampled_from(among))

    @rule(is_large=st.booleans(), primary=st.sampled_from(KEYS))
    def start(self, is_large: bool, primary: bytes) -> None:
        self.transactions.append(Written(self.next(), is_large, primary))

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def write(self, data: st.DataObject, key: bytes) -> None:
        """Others may be in the way; what comes too late for its transaction's rollback locks all the same."""
        written = self.chosen(data, self.unfinished())
        row = [Mutation(Op.PUT, key, b"v")]
        try:
            if written.is_large:
                self.store.flush(row, written.primary, written.start_ts, len(written.keys) + 1)
            else:
                self.store.prewrite(row, written.primary, written.start_ts)
        except TxnError:
            return
        written.keys.add(key)
        written.wrote = self.next()

    @precondition(lambda self: any(each.primary in each.keys for each in self.open()))
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        written = self.chosen(data, [each for each in self.open() if each.primary in each.keys])
        self.store.txn_heart_beat(written.primary, written.start_ts, 0, self.next())

    @precondition(lambda self: any(each.primary in each.keys for each in self.open()))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        written = self.chosen(data, [each for each in self.open() if each.primary in each.keys])
        written.commit_ts = data.draw(st.sampled_from([self.lowest(written), self.next()]))
        self.store.commit([written.primary], written.start_ts, written.commit_ts)

    @precondition(lambda self: any(each.commit_ts and self.locked(each) for each in self.transactions))
    @rule(data=st.data())
    def commit_another(self, data: st.DataObject) -> None:
        written = self.chosen(data, [each for each in self.transactions if each.commit_ts and self.locked(each)])
        key = data.draw(st.sampled_from(sorted(self.locked(written))))
        self.store.commit([key], written.start_ts, written.commit_ts)

    @precondition(lambda self: any(each.keys for each in self.open()))
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        written = self.chosen(data, [each for each in self.open() if each.keys])
        written.is_over = True
        self.store.rollback([written.primary], written.start_ts)

    @precondition(lambda self: any(each.is_over and self.locked(each) for each in self.transactions))
    @rule(data=st.data())
    def roll_another_back(self, data: st.DataObject) -> None:
        written = self.chosen(data, [each for each in self.transactions if each.is_over and self.locked(each)])
        key = data.draw(st.sampled_from(sorted(self.locked(written))))
        self.store.rollback([key], written.start_ts)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0]))
    def tick(self, seconds: float) -> None:
        self.time += seconds
        ts = self.next()
        for number, (store, (start, end)) in enumerate(zip(self.stores, RANGES, strict=True)):
            if self.advancers[number].spares_large != self.gate.spares_large(store):
                locks = locks_of(self.store, start, end)
                self.advancers[number] = advancer_of(locks, self.gate.spares_large(store))
        by_store = {1: [self.advancers[0], self.advancers[2]], 2: [self.advancers[1]]}
        self.statuses.ask(by_store)
        self.told = [max(t, min(ts, a.lowest)) for t, a in zip(self.told, self.advancers, strict=True)]

    @rule(store=st.sampled_from([1, 2]))
    def upgrade(self, store: int) -> None:
        self.gate.upgrade(store)

    @rule(number=st.integers(0, 2))
    def subscribe_again(self, number: int) -> None:
        """In the middle of whatever is going on."""
        locks = locks_of(self.store, *RANGES[number])
        self.advancers[number] = advancer_of(locks, self.gate.spares_large(self.stores[number]))

    def lowest(self, written: Written) -> int:
        """It may have fetched its commit ts long ago."""
        primary = self.store.flushed(written.primary, written.start_ts)
        return max(written.wrote + 1, primary.min_commit_ts if primary else 0)

    @invariant()
    def nothing_open_may_commit_below(self) -> None:
        for written in self.open():
            for told, (start, end) in zip(self.told, RANGES, strict=True):
                if any(start <= key < end for key in written.keys):
                    assert told < self.lowest(written)


TestWatched = Watched.TestCase
TestWatched.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
