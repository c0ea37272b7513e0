"""Registrations that a store refuses, and those that it ends with an error: the change data core, step by step."""

from __future__ import annotations

from typing import Literal

import pytest
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed_devcluster.cdc import subscriptions as core
from changefeed_devcluster.cdc.cdc import parse_version
from changefeed_devcluster.pd.regions import BORDERS
from devcluster_rig import CLUSTER, Rig, put


def test_a_wrong_cluster_is_told_only_from_version_5_3_on() -> None:
    rig = Rig()
    request = rig.request()
    request.header.cluster_id = 8
    assert rig.subscriptions.register(rig.connection, request) is None
    error = rig.error()
    assert (error.cluster_id_mismatch.current, error.cluster_id_mismatch.request) == (CLUSTER, 8)
    old = Rig("5.2.9")
    request.region_id = old.regions.all()[0].id
    assert old.subscriptions.register(old.connection, request) is not None


def test_registration_errors_leave_nothing_registered() -> None:
    rig = Rig()
    wrong: list[tuple[dict[str, object], Literal["compatibility", "region_not_found"]]] = [
        ({"kv_api": 1}, "compatibility"),
        ({"region_id": 99}, "region_not_found"),
    ]
    for changed, name in wrong:
        assert rig.subscriptions.register(rig.connection, rig.request(**changed)) is None
        assert rig.error().HasField(name)
        assert rig.connection.subscriptions == {}


def test_a_second_registration_is_refused_and_the_first_lives_on() -> None:
    rig = Rig()
    rig.subscribe()
    assert rig.subscriptions.register(rig.connection, rig.request()) is None
    assert rig.error().HasField("duplicate_request")
    rig.store.one_pc([put("a", "1")], 10)
    assert rig.rows() == [(cdcpb.Event.COMMITTED, "a", "1")]


def test_a_stale_epoch_is_answered_with_the_current_region() -> None:
    rig = Rig()
    request = rig.request()
    request.region_epoch.version += 1
    subscription = rig.subscriptions.register(rig.connection, request)
    assert subscription is not None
    assert rig.subscriptions.attach(subscription) is None
    assert list(rig.error().epoch_not_match.current_regions) == [rig.regions.all()[0].message]
    request.region_epoch.version -= 1
    request.region_epoch.conf_ver += 5
    subscription = rig.subscriptions.register(rig.connection, request)
    assert subscription is not None
    assert rig.subscriptions.attach(subscription) is not None, "only the version counts"


def test_a_split_ends_registrations_with_both_children() -> None:
    rig = Rig()
    rig.store.one_pc([put("a", "1")], 10)
    scanning = rig.register(request_id=2)
    snapshot = rig.subscriptions.attach(scanning)
    assert snapshot is not None
    rig.subscribe()
    left, right = rig.regions.split(b"m")
    rig.store.one_pc([put("a", "2"), put("z", "2")], 20)
    list(rig.subscriptions.scan(scanning, snapshot))
    events = rig.events()
    assert sorted(event.request_id for event in events) == [1, 2]
    for event in events:
        assert list(event.error.epoch_not_match.current_regions) == [left.message, right.message]
    assert left.version == right.version == 2
    assert rig.resolved() == []


def test_a_merge_ends_registrations_with_an_empty_list() -> None:
    rig = Rig()
    left, right = rig.regions.split(b"m")
    rig.subscribe()
    merged = rig.regions.merge(left.id, right.id)
    error = rig.error()
    assert error.HasField("epoch_not_match")
    assert list(error.epoch_not_match.current_regions) == []
    assert (merged.id, merged.version, merged.start, merged.end) == (right.id, 4, b"", BORDERS[0])


def test_a_transfer_ends_registrations_with_the_new_leader() -> None:
    rig = Rig()
    subscription = rig.subscribe()
    rig.regions.transfer(subscription.region_id, 2)
    error = rig.error()
    assert (error.not_leader.region_id, error.not_leader.leader.store_id) == (subscription.region_id, 2)
    again = rig.register()
    assert rig.subscriptions.attach(again) is None
    assert rig.error().not_leader.leader.store_id == 2


def test_deregister_is_acknowledged_and_final() -> None:
    rig = Rig()
    for request_id in (1, 2, 3):
        rig.subscribe(request_id=request_id)
    region_id = rig.regions.all()[0].id
    rig.subscriptions.deregister(rig.connection, 1, region_id)
    rig.subscriptions.deregister(rig.connection, 2, 0)
    rig.subscriptions.deregister(rig.connection, 9, 0)
    acknowledged = [(event.request_id, event.error.region_not_found.region_id) for event in rig.events()]
    assert acknowledged == [(1, region_id), (2, region_id)]
    rig.store.one_pc([put("a", "1")], 10)
    assert [event.request_id for event in rig.events()] == [3]


def test_deregister_ends_a_scan_that_is_under_way() -> None:
    rig = Rig()
    rig.store.one_pc([put("a", "1")], 10)
    subscription = rig.register()
    snapshot = rig.subscriptions.attach(subscription)
    assert snapshot is not None
    rig.subscriptions.deregister(rig.connection, 1, 0)
    list(rig.subscriptions.scan(subscription, snapshot))
    assert rig.error().HasField("region_not_found")


def test_a_reader_that_never_reads_is_congested_and_delays_nobody() -> None:
    rig = Rig(sink_quota=10_000)
    rig.subscribe()
    for number in range(20):
        rig.store.one_pc([put("a", "x" * 1000)], 10 + 10 * number)
    events = rig.events()
    assert events[-1].error.HasField("congested")
    assert 5 < len(events) < 11
    assert rig.connection.subscriptions == {}


def test_who_does_not_read_congests_all_that_hear_of_a_region_and_scans_of_the_store() -> None:
    rig = Rig(sink_quota=10_000)
    rig.regions.split(b"m")
    for region in rig.regions.all():
        rig.regions.transfer(region.id, 1)
    left, right = rig.regions.locate(b"a"), rig.regions.locate(b"n")
    rig.subscribe(region_id=left.id)
    slow = rig.connection
    reads = rig.connection = rig.connect()
    for request_id, region in ((1, left), (2, left), (3, right)):
        rig.subscribe(region_id=region.id, request_id=request_id)
    for number in range(20):
        rig.store.one_pc([put("a", "x" * 1000)], 10 + 10 * number)
        rig.drain()
    assert (slow.subscriptions, [request for request, _ in reads.subscriptions]) == ({}, [3])
    rig.run_scan(rig.register(region_id=left.id, request_id=4))
    assert rig.error().congested.region_id == left.id
    rig.store.one_pc([put("n", "x" * 4000)], 1000)
    assert rig.error().congested.region_id == right.id
    assert reads.subscriptions == {}
    rig.connection = slow
    assert rig.events()[-1].error.congested.region_id == left.id
    rig.connection = reads
    rig.subscribe(region_id=right.id)
    rig.store.one_pc([put("n", "again")], 2000)
    assert rig.rows() == [(cdcpb.Event.COMMITTED, "n", "again")]


def test_scans_are_counted_by_store_and_busy_says_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "PENDING_SCANS", 2)
    rig = Rig()
    first = rig.register(request_id=1)
    other = rig.connection = rig.connect()
    rig.register(request_id=2)
    assert rig.subscriptions.register(rig.connection, rig.request(request_id=3)) is None
    busy = rig.error().server_is_busy
    assert (busy.reason, busy.backoff_ms) == ("too many pending incremental scans", 0)
    rig.run_scan(first)
    rig.register(request_id=3)
    rig.subscriptions.disconnect(other)
    rig.connection = rig.connect()
    for request_id in (4, 5):
        rig.register(request_id=request_id)


def test_a_closed_connection_hears_nothing_more() -> None:
    rig = Rig()
    rig.subscribe()
    rig.subscriptions.disconnect(rig.connection)
    rig.store.one_pc([put("a", "1")], 10)
    rig.subscriptions.advance()
    assert rig.drain() == []


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("8.5.0", (8, 5, 0, 1)),
        ("8.5.0-rc.1+x", (8, 5, 0, 0)),
        ("v8.5.0", (0, 0, 0, 1)),
        ("08.5.0", (0, 0, 0, 1)),
        ("", (0, 0, 0, 1)),
    ],
)
def test_versions_are_strict_semver(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version
