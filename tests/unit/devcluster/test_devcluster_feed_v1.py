"""`EventFeed` without multiplexing, and the clients that use it (docs/design/tikv.md, Streams)."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed_devcluster.codec import encode_bytes
from changefeed_devcluster.keys import record_key, record_range
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op
from devcluster_feed import MULTIPLEXING, Feed, failure


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(min_ts_interval=0.02) as cluster:
        yield cluster


def put(cluster: DevCluster, *keys: bytes) -> int:
    return cluster.store.one_pc([Mutation(Op.PUT, key, b"v") for key in keys], cluster.oracle.next())


def test_the_java_client_is_served_without_cluster_id_and_with_raw_keys(cluster: DevCluster) -> None:
    """It says 5.0.0 and sends raw bounds, which are no encoded keys: it gets the whole region, as from a real store."""
    region = cluster.regions.all()[0]
    put(cluster, record_key(7, 1), record_key(8, 1))
    start, end = record_range(7)
    with Feed(cluster, metadata=(), method="EventFeed", version="5.0.0") as feed:
        header = cdcpb.Header(ticdc_version="5.0.0")
        feed.register(region, header=header, start_key=start, end_key=end, request_id=77)
        found = [row.key for row in feed.until_initialized()]
        assert found == [record_key(7, 1), record_key(8, 1), b""]
        commit_ts = put(cluster, record_key(7, 2))
        told = feed.until(lambda message: message.resolved_ts.ts >= commit_ts)
        assert {(m.resolved_ts.request_id, *m.resolved_ts.regions) for m in told if m.HasField("resolved_ts")} == {
            (0, region.id)
        }
        assert {event.request_id for message in told for event in message.events} == {77}


def test_one_stream_carries_many_regions_and_batches_their_resolved_ts(cluster: DevCluster) -> None:
    left, right = cluster.split(b"m")
    cluster.transfer(left.id, 1)
    cluster.transfer(right.id, 1)
    with Feed(cluster, metadata=(), method="EventFeed") as feed:
        feed.register(left, request_id=1)
        feed.register(right, request_id=2)
        told = feed.until(lambda message: len(message.resolved_ts.regions) == 2)
        assert told[-1].resolved_ts.request_id == 0


def test_a_region_that_is_registered_twice_is_listed_once_with_the_lower_ts(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    start_ts = cluster.oracle.next()
    cluster.store.prewrite([Mutation(Op.PUT, b"a", b"v")], b"a", start_ts)
    with Feed(cluster, metadata=(), method="EventFeed") as feed:
        feed.register(region, request_id=2, start_key=encode_bytes(b"b"))
        feed.until(lambda message: message.HasField("resolved_ts"))
        feed.register(region, request_id=1)
        told = feed.until(lambda message: message.resolved_ts.ts == start_ts)[-1].resolved_ts
        assert (list(told.regions), told.request_id) == ([region.id], 0)
        assert {feed.next().resolved_ts.ts for _ in range(5)} == {start_ts}


def test_a_version_before_batches_gets_a_resolved_ts_event_a_region(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with Feed(cluster, metadata=(), method="EventFeed", version="4.0.7") as feed:
        feed.register(region, request_id=3)
        told = feed.until(lambda message: any(event.resolved_ts for event in message.events))
        event = next(event for event in told[-1].events if event.resolved_ts)
        assert (event.region_id, event.request_id, event.WhichOneof("event")) == (region.id, 3, "resolved_ts")
        assert not any(message.HasField("resolved_ts") for message in told)


def test_multiplexing_is_no_feature_of_the_first_event_feed(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with Feed(cluster, metadata=MULTIPLEXING, method="EventFeed") as feed:
        feed.register(region, request_id=9)
        told = feed.until(lambda message: message.HasField("resolved_ts"))
        assert told[-1].resolved_ts.request_id == 0


def test_a_wrong_cluster_id_is_an_error_from_5_3_on(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with Feed(cluster, metadata=(), method="EventFeed", version="5.3.0") as feed:
        feed.register(region, header=cdcpb.Header(ticdc_version="5.3.0"))
        assert feed.error().error.cluster_id_mismatch.current == cluster.cluster_id


def test_a_merge_and_a_transfer_end_registrations_of_both_feeds(cluster: DevCluster) -> None:
    left, right = cluster.split(b"m")
    for region in (left, right):
        cluster.transfer(region.id, 1)
    with Feed(cluster, metadata=(), method="EventFeed") as old, Feed(cluster) as new:
        for feed in (old, new):
            feed.register(left)
            feed.until_initialized()
        merged = cluster.merge(left.id, right.id)
        for feed in (old, new):
            event = feed.error()
            assert (event.region_id, event.error.HasField("epoch_not_match")) == (left.id, True)
            assert not event.error.epoch_not_match.current_regions
            feed.register(left)
            assert feed.error().error.region_not_found.region_id == left.id
            feed.register(right, request_id=2)
            assert [one.id for one in feed.error().error.epoch_not_match.current_regions] == [merged.id]
            feed.register(merged, request_id=3)
            feed.until_initialized()
        cluster.transfer(merged.id, 2)
        for feed in (old, new):
            assert feed.error().error.not_leader.leader.store_id == 2


def test_an_unknown_feature_ends_only_the_second_feed(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    unknown = (("features", "stream-multiplexing,time-travel"),)
    with Feed(cluster, metadata=unknown) as feed:
        feed.register(region)
        assert failure(feed.next) == (grpc.StatusCode.UNIMPLEMENTED, "time-travel")
    for features, names in (("", ""), (" stream-multiplexing , ", ""), ("foo, bar", "foo,bar")):
        with Feed(cluster, metadata=(("features", features),)) as feed:
            assert failure(feed.next) == (grpc.StatusCode.UNIMPLEMENTED, names)
    with Feed(cluster, metadata=unknown, method="EventFeed") as feed:
        feed.register(region)
        feed.until_initialized()
