"""When a subscriber is told which resolved-ts: the change data core, driven step by step."""

from __future__ import annotations

import pytest
from changefeed_devcluster.codec import encode_bytes
from changefeed_devcluster.store.txn import Mutation, Op
from devcluster_rig import Rig, put


def test_resolved_ts_comes_with_the_second_tick_after_initialized() -> None:
    rig = Rig()
    subscription = rig.register()
    snapshot = rig.subscriptions.attach(subscription)
    assert snapshot is not None
    assert rig.resolved() == []
    list(rig.subscriptions.scan(subscription, snapshot))
    rig.drain()
    assert rig.resolved() == []
    assert rig.resolved() == [([subscription.region_id], rig.oracle.next() - 1, 1)]


def test_who_joins_a_region_that_others_hear_of_is_told_with_the_first_tick() -> None:
    rig = Rig()
    rig.subscribe()
    joining = rig.register(request_id=2)
    snapshot = rig.subscriptions.attach(joining)
    assert snapshot is not None
    list(rig.subscriptions.scan(joining, snapshot))
    rig.drain()
    assert [request_id for _, _, request_id in rig.resolved()] == [1, 2]


def test_resolved_ts_stops_at_the_oldest_lock_of_the_span() -> None:
    rig = Rig()
    start = rig.oracle.next()
    rig.store.prewrite([put("a", "1"), put("b", "1")], b"a", start)
    rig.subscribe(start_key=encode_bytes(b"b"))
    other = rig.oracle.next()
    rig.store.prewrite([put("c", "1"), Mutation(Op.LOCK, b"d")], b"c", other)
    region_id = rig.regions.all()[0].id
    assert rig.resolved() == [([region_id], start, 1)]
    commit_ts = rig.oracle.next()
    rig.store.commit([b"b"], start, commit_ts)
    rig.drain()
    assert rig.resolved() == [([region_id], other, 1)]
    rig.store.rollback([b"c", b"d"], other)
    rig.store.rollback([b"e"], other)
    rig.drain()
    ((_, resolved, _),) = rig.resolved()
    assert resolved > commit_ts


def test_no_commit_comes_at_or_below_a_told_resolved_ts() -> None:
    rig = Rig()
    rig.subscribe()
    start = rig.oracle.next()
    ((_, resolved, _),) = rig.resolved()
    assert resolved > start
    assert rig.store.one_pc([put("a", "1")], start) > resolved
    rig.store.prewrite([put("b", "1")], b"b", start)
    with pytest.raises(Exception, match="below the lock's minimum"):
        rig.store.commit([b"b"], start, resolved)
    rig.drain()
    ((_, again, _),) = rig.resolved()
    assert again == resolved, "a late lock below the last resolved-ts must not pull it back"


def test_resolved_ts_goes_slowest_first_in_growing_groups() -> None:
    rig = Rig()
    for number in range(300):
        rig.regions.split(f"{number:03}".encode())
    for region in rig.regions.all():
        rig.regions.transfer(region.id, 1)
        request = rig.request(region_id=region.id)
        request.region_epoch.CopyFrom(region.message.region_epoch)
        subscription = rig.subscriptions.register(rig.connection, request)
        assert subscription is not None
        rig.run_scan(subscription)
    locked = rig.regions.locate(b"005x")
    start = rig.oracle.next()
    rig.store.prewrite([put("005x", "1")], b"005x", start)
    rig.drain()
    groups = rig.resolved()
    assert [len(regions) for regions, _, _ in groups] == [8, 32, 128, 128, 7]
    assert groups[0][0][0] == locked.id
    assert groups[0][1] == start < groups[1][1] == groups[3][1]


@pytest.mark.parametrize(
    ("version", "multiplexing", "batches", "single"),
    [
        ("8.5.0", True, 1, 0),
        ("8.5.0", False, 1, 0),
        ("4.0.8", False, 1, 0),
        ("4.0.8-rc", False, 0, 1),
        ("v8.5.0", False, 0, 1),
        ("v8.5.0", True, 0, 0),
    ],
)
def test_version_and_multiplexing_decide_the_form_of_resolved_ts(
    version: str, multiplexing: bool, batches: int, single: int
) -> None:
    rig = Rig(version, multiplexing)
    rig.subscribe()
    rig.subscriptions.advance()
    got = rig.drain()
    assert [message.HasField("resolved_ts") for message in got].count(True) == batches
    assert [event.WhichOneof("event") for message in got for event in message.events] == ["resolved_ts"] * single
    for message in got:
        assert message.resolved_ts.request_id == (1 if multiplexing else 0)
