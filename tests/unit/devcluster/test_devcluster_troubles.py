"""What lasts, ends; and what is put in another order keeps the orders that the protocol promises."""

from __future__ import annotations

import random

from changefeed_devcluster.cdc.cdc import messages
from changefeed_devcluster.cdc.troubles import InjectedTrouble, InjectedTroubles, interleaved
from devcluster_rig import Rig, entries, put
from hypothesis import given, settings
from hypothesis import strategies as st

ITEMS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers()))


def test_a_trouble_lasts_its_time_or_until_it_is_healed() -> None:
    now = [0.0]
    troubles = InjectedTroubles(lambda: now[0])
    troubles.begin(InjectedTrouble.DELAY, 2, seconds=5, amount=0.5)
    troubles.begin(InjectedTrouble.STALL)
    assert [troubles.amount(InjectedTrouble.DELAY, store) for store in (1, 2)] == [0.0, 0.5]
    assert [troubles.amount(InjectedTrouble.STALL, store) for store in (1, 2)] == [1.0, 1.0]
    now[0] = 5.0
    assert (troubles.amount(InjectedTrouble.DELAY, 2), troubles.amount(InjectedTrouble.STALL, 2)) == (0.0, 1.0)
    troubles.heal()
    assert troubles.amount(InjectedTrouble.STALL, 2) == 0.0


@settings(deadline=None)
@given(ITEMS, st.integers())
def test_lanes_keep_their_order_and_nothing_crosses_an_item_without_lane(
    items: list[tuple[str | None, int]], seed: int
) -> None:
    numbered = [(lane, (lane, number)) for number, (lane, _) in enumerate(items)]
    mixed = interleaved(numbered, random.Random(seed))
    assert sorted(number for _, number in mixed) == list(range(len(items)))
    for lane in ("a", "b", "c"):
        kept = [number for one, number in mixed if one == lane]
        assert kept == sorted(kept)
    assert all((number == place) for place, (lane, number) in enumerate(mixed) if lane is None)


def test_lanes_do_change_places() -> None:
    items = [(lane, lane) for lane in "ab" * 10]
    assert any(interleaved(items, random.Random(seed)) != [lane for lane, _ in items] for seed in range(3))


def test_a_stalled_region_tells_no_resolved_ts_but_its_rows() -> None:
    rig = Rig()
    subscription = rig.subscribe()
    rig.troubles.begin(InjectedTrouble.STALL_REGION, subscription.region_id)
    rig.store.one_pc([put("a", "1")], rig.oracle.next())
    rig.subscriptions.advance()
    (message,) = rig.drain()
    assert [row.key for row in entries(list(message.events))] == [b"a"]
    rig.troubles.heal()
    assert len(rig.resolved()) == 1


def test_repeated_resolved_ts_goes_back_and_to_zero() -> None:
    rig = Rig()
    rig.oracle.raise_to(10_000 << 18)
    rig.subscribe()
    rig.troubles.begin(InjectedTrouble.REPEAT)
    told = [ts for _, ts, _ in rig.resolved()]
    assert told == [told[0], told[0], told[0] - (1000 << 18), 0]


def test_a_second_look_repeats_live_rows_and_old_ones_but_never_a_lock_twice() -> None:
    rig = Rig()
    rig.oracle.raise_to(10_000 << 18)
    old = rig.store.one_pc([put("old", "1")], rig.oracle.next())
    subscription = rig.register(checkpoint_ts=old)
    snapshot = rig.subscriptions.attach(subscription)
    assert snapshot is not None
    rig.store.one_pc([put("live", "1")], rig.oracle.next())
    rig.store.prewrite([put("open", "1")], b"open", rig.oracle.next())
    for _ in rig.subscriptions.scan(subscription, rig.subscriptions.look_again(subscription, snapshot)):
        pass
    subscription.is_ripe = True
    told = [(row.type, row.key) for row in entries(rig.events())]
    assert told == [(4, b"live"), (1, b"open"), (4, b"live"), (4, b"old"), (1, b"open"), (5, b"")]
    (lock,) = rig.store.scan_locks(1 << 63)
    rig.store.commit([b"open"], lock.start_ts, rig.oracle.next())
    ((_, ts, _),) = rig.resolved()
    assert ts == rig.store.resolved_floor


def test_reordered_messages_hold_the_same_rows_and_initialized_after_the_scan() -> None:
    rig = Rig()
    rig.store.one_pc([put(f"k{number:05}", "v" * 100) for number in range(3000)], 10)
    subscription = rig.register()
    snapshot = rig.subscriptions.attach(subscription)
    assert snapshot is not None
    for number, _ in enumerate(rig.subscriptions.scan(subscription, snapshot)):
        rig.store.one_pc([put(f"live{number}", "v")], 20)
    items = rig.connection.drain()
    orders = set()
    for seed in range(5):
        mixed = interleaved(((item.lane, item) for item in items), random.Random(seed))
        bodies = list(messages(rig.connection, mixed))
        keys = [row.key for row in entries(rig.parsed(bodies))]
        orders.add(tuple(keys))
        scanned = [key for key in keys if not key.startswith(b"live")]
        assert scanned == [*(f"k{number:05}".encode() for number in range(3000)), b""]
        live = [key for key in keys if key.startswith(b"live")]
        assert live == sorted(live) != []
    assert len(orders) > 1
