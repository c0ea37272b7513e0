"""The dev cluster as a client sees it: gRPC to PD and to the stores, harm, and a second life from the data folder."""

from __future__ import annotations

import errno
import itertools
import json
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from changefeed.wire import cdcpb_pb2 as cdcpb
from changefeed.wire import kvrpcpb_pb2 as kvrpcpb
from changefeed.wire import pdpb_pb2 as pdpb
from changefeed_devcluster.codec import encode_bytes
from changefeed_devcluster.control import HARM_METHOD
from changefeed_devcluster.journal import Journal, JournalRecord
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.store.txn import Mutation, Op
from devcluster_feed import DEADLINE, Feed, call, failure, kv, pd, rows


def put(key: bytes, value: bytes) -> Mutation:
    return Mutation(Op.PUT, key, value)


@pytest.fixture(scope="module")
def shared() -> Iterator[DevCluster]:
    with DevCluster(min_ts_interval=0.02) as cluster:
        yield cluster


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(min_ts_interval=0.02) as cluster:
        yield cluster


# --- PD ---


def test_members_are_told_without_a_cluster_id(shared: DevCluster) -> None:
    got = call(shared.pd_address, "/pdpb.PD/GetMembers", pdpb.GetMembersRequest(), pdpb.GetMembersResponse)
    assert got.header.cluster_id == shared.cluster_id
    assert list(got.leader.client_urls) == [f"http://{shared.pd_address}"]
    assert list(got.members) == [got.leader]


def test_another_cluster_id_is_a_failed_precondition(shared: DevCluster) -> None:
    wrong = pdpb.RequestHeader(cluster_id=5)
    expected = grpc.StatusCode.FAILED_PRECONDITION, f"mismatch cluster id, need {shared.cluster_id} but got 5"
    request = pdpb.ScanRegionsRequest(header=wrong)
    method = "/pdpb.PD/ScanRegions"
    assert failure(lambda: call(shared.pd_address, method, request, pdpb.ScanRegionsResponse)) == expected
    with grpc.insecure_channel(shared.pd_address) as channel:
        assert failure(lambda: next(tso(channel, pdpb.TsoRequest(header=wrong, count=1)))) == expected


def tso(channel: grpc.Channel, *requests: pdpb.TsoRequest) -> Iterator[pdpb.TsoResponse]:
    stub = channel.stream_stream(
        "/pdpb.PD/Tso",
        request_serializer=pdpb.TsoRequest.SerializeToString,
        response_deserializer=pdpb.TsoResponse.FromString,
    )
    return iter(stub(iter(requests), timeout=DEADLINE))


def test_tso_gives_the_largest_of_each_block(shared: DevCluster) -> None:
    header = pdpb.RequestHeader(cluster_id=shared.cluster_id)
    with grpc.insecure_channel(shared.pd_address) as channel:
        answers = list(tso(channel, *(pdpb.TsoRequest(header=header, count=10) for _ in range(50))))
    ends = [answer.timestamp.physical << 18 | answer.timestamp.logical for answer in answers]
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(ends))
    assert {answer.count for answer in answers} == {10}
    assert shared.oracle.next() > ends[-1]


@pytest.mark.parametrize("count", [0, 300_000])
def test_so_many_timestamps_are_not_given(shared: DevCluster, count: int) -> None:
    request = pdpb.TsoRequest(header=pdpb.RequestHeader(cluster_id=shared.cluster_id), count=count)
    with grpc.insecure_channel(shared.pd_address) as channel:
        assert failure(lambda: next(tso(channel, request)))[0] is grpc.StatusCode.UNKNOWN


def test_regions_are_found_by_encoded_keys(cluster: DevCluster) -> None:
    cluster.split(b"b")
    cluster.split(b"c")
    first, second, third, *borders = cluster.regions.all()
    ids = [region.id for region in (first, second, third, *borders)]
    everything = pd(cluster, "ScanRegions")
    assert [region.region.id for region in everything.regions] == ids
    assert [region.id for region in everything.region_metas] == ids
    assert list(everything.leaders) == [region.leader for region in everything.regions]
    assert everything.regions[1].region.start_key == encode_bytes(b"b")
    assert everything.regions[1].region.end_key == encode_bytes(b"c") == everything.regions[2].region.start_key
    part = pd(cluster, "ScanRegions", start_key=encode_bytes(b"bb"), end_key=encode_bytes(b"c"))
    assert [region.region.id for region in part.regions] == [second.id]
    assert len(pd(cluster, "ScanRegions", limit=2).regions) == 2
    assert not pd(cluster, "ScanRegions", start_key=encode_bytes(b"c"), end_key=encode_bytes(b"b")).regions
    assert pd(cluster, "GetRegion", region_key=encode_bytes(b"bx")).region.id == second.id
    assert pd(cluster, "GetPrevRegion", region_key=encode_bytes(b"c")).region.id == second.id
    assert not pd(cluster, "GetPrevRegion", region_key=b"").HasField("region")
    assert pd(cluster, "GetRegionByID", region_id=third.id).leader == third.leader
    assert not pd(cluster, "GetRegionByID", region_id=9).HasField("region")
    ranges = [
        pdpb.KeyRange(start_key=b"", end_key=encode_bytes(b"a")),
        pdpb.KeyRange(start_key=encode_bytes(b"a"), end_key=third.message.end_key),
    ]
    batch = pd(cluster, "BatchScanRegions", ranges=ranges, contain_all_key_range=True)
    assert [region.region.id for region in batch.regions] == [first.id, second.id, third.id]
    assert pd(cluster, "BatchScanRegions", ranges=ranges[::-1]).header.error.type == pdpb.UNKNOWN


def test_a_fresh_cluster_has_the_borders_of_the_default_keyspace(shared: DevCluster) -> None:
    keys = [(region.region.start_key, region.region.end_key) for region in pd(shared, "ScanRegions").regions]
    low, high = encode_bytes(b"x\0\0\0"), encode_bytes(b"x\0\0\1")
    assert keys == [(b"", low), (low, high), (high, b"")]


def test_a_split_leaves_both_parts_to_their_leader_until_they_are_scattered(cluster: DevCluster) -> None:
    cluster.transfer(cluster.regions.locate(b"m").id, 2)
    left, right = cluster.split(b"m")
    assert (left.leader_store, right.leader_store) == (2, 2)
    assert (left.version, right.version) == (2, 2)
    pd(cluster, "ScatterRegion", regions_id=[left.id])
    assert cluster.regions.locate(b"a").leader_store == 3


def test_stores_are_known_by_address(shared: DevCluster) -> None:
    stores = pd(shared, "GetAllStores").stores
    assert {store.id: store.address for store in stores} == shared.store_addresses
    assert pd(shared, "GetStore", store_id=2).store == stores[1]
    assert pd(shared, "GetStore", store_id=9).header.error.type == pdpb.UNKNOWN
    assert pd(shared, "GetClusterConfig").cluster.id == shared.cluster_id
    assert pd(shared, "IsBootstrapped").bootstrapped
    assert pd(shared, "AllocID").id < pd(shared, "AllocID", count=5).id


# --- transactions ---


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_pd_and_stores_are_at_the_host_that_was_given() -> None:
    with DevCluster(stores=1, host="127.0.0.2") as cluster, grpc.insecure_channel(cluster.pd_address) as channel:
        assert cluster.pd_address.startswith("127.0.0.2:")
        assert cluster.store_addresses[1].startswith("127.0.0.2:")
        grpc.channel_ready_future(channel).result(10)
        with socket.socket() as elsewhere:
            port = int(cluster.pd_address.rpartition(":")[2])
            assert elsewhere.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_a_transaction_over_grpc_is_read_back(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    start = cluster.oracle.next()
    mutations = [kvrpcpb.Mutation(op="Put", key=key, value=b"v") for key in (b"a", b"b")]
    assert not kv(cluster, "Prewrite", region, mutations=mutations, primary_lock=b"a", start_version=start).errors
    now = cluster.oracle.next()
    assert kv(cluster, "Get", region, key=b"b", version=now).error.locked.lock_version == start
    pairs = kv(cluster, "Scan", region, start_key=b"", version=now, limit=10).pairs
    assert [pair.error.locked.key for pair in pairs] == [b"a", b"b"]
    blocked = kv(cluster, "Prewrite", region, mutations=mutations, primary_lock=b"a", start_version=now)
    assert [error.locked.primary_lock for error in blocked.errors] == [b"a", b"a"]
    assert [lock.key for lock in kv(cluster, "ScanLock", region, max_version=now, limit=9).locks] == [b"a", b"b"]
    commit_ts = cluster.oracle.next()
    assert not kv(cluster, "Commit", region, keys=[b"a"], start_version=start, commit_version=commit_ts).HasField(
        "error"
    )
    fate = kv(cluster, "CheckTxnStatus", region, primary_key=b"a", lock_ts=start, current_ts=now)
    assert fate.commit_version == commit_ts
    kv(cluster, "ResolveLock", region, start_version=start, commit_version=commit_ts, keys=[b"b"])
    later = cluster.oracle.next()
    assert kv(cluster, "Get", region, key=b"b", version=later).value == b"v"
    assert kv(cluster, "Get", region, key=b"x", version=later).not_found
    assert [p.key for p in kv(cluster, "BatchGet", region, keys=[b"a", b"x", b"b"], version=later).pairs] == [
        b"a",
        b"b",
    ]
    conflict = kv(cluster, "Prewrite", region, mutations=mutations, primary_lock=b"a", start_version=now).errors[0]
    assert (conflict.conflict.conflict_commit_ts, conflict.conflict.reason) == (commit_ts, 1)
    error = kv(cluster, "Commit", region, keys=[b"c"], start_version=now, commit_version=later).error
    assert error.txn_lock_not_found.key == b"c"
    assert kv(cluster, "BatchRollback", region, keys=[b"a"], start_version=start).error.abort
    one = kv(cluster, "Prewrite", region, mutations=mutations, primary_lock=b"a", start_version=later, try_one_pc=True)
    assert one.one_pc_commit_ts > later


@pytest.mark.parametrize(
    ("context", "name"),
    [
        ({"region_id": 9}, "region_not_found"),
        ({"peer": kvrpcpb.Context().peer}, "store_not_match"),
        ({"region_epoch": kvrpcpb.Context().region_epoch}, "epoch_not_match"),
    ],
)
def test_a_wrong_context_is_a_region_error(shared: DevCluster, context: dict[str, Any], name: str) -> None:
    region = shared.regions.all()[0]
    assert kv(shared, "Get", region, context, key=b"k", version=1).region_error.HasField(name)


def test_keys_leaders_and_clusters_are_checked(cluster: DevCluster) -> None:
    left, right = cluster.split(b"m")
    outside = kv(cluster, "BatchGet", left, keys=[b"z"], version=1).region_error.key_not_in_region
    assert (outside.key, outside.end_key) == (encode_bytes(b"z"), encode_bytes(b"m"))
    cluster.transfer(right.id, 3)
    assert kv(cluster, "Get", right, key=b"z", version=1).region_error.not_leader.leader.store_id == 3
    code, _ = failure(lambda: kv(cluster, "Get", left, {"cluster_id": 5}, key=b"a", version=1))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


# --- change data ---


def test_a_feed_scans_then_streams_then_resolves(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    cluster.store.one_pc([put(b"a", b"1")], cluster.oracle.next())
    with Feed(cluster) as feed:
        feed.register(region, register=cdcpb.ChangeDataRequest.Register())
        assert [(row.type, row.key) for row in feed.until_initialized()] == [(4, b"a"), (5, b"")]
        start = cluster.oracle.next()
        cluster.store.prewrite([put(b"a", b"2")], b"a", start)
        commit_ts = cluster.oracle.next()
        cluster.store.commit([b"a"], start, commit_ts)
        messages = feed.until(lambda message: message.resolved_ts.ts >= commit_ts)
        assert [(row.type, row.old_value, row.commit_ts) for row in rows(messages)] == [
            (1, b"1", 0),
            (2, b"", commit_ts),
        ]
        assert [message.resolved_ts.ts for message in messages if message.HasField("resolved_ts")][:-1] == sorted(
            message.resolved_ts.ts for message in messages[:-1] if message.HasField("resolved_ts")
        )


def test_resolved_ts_never_passes_a_later_commit_under_load() -> None:
    enough = threading.Event()
    written: list[bytes] = []

    def transactions(cluster: DevCluster, name: bytes) -> None:
        for number in itertools.count():
            if enough.is_set():
                return
            start = cluster.oracle.next()
            key = name + number.to_bytes(4, "big")
            if number % 3:
                cluster.store.prewrite([put(key, b"v")], key, start)
                cluster.store.commit([key], start, cluster.oracle.next())
            else:
                cluster.store.one_pc([put(key, b"v")], start)
            written.append(key)

    with DevCluster(min_ts_interval=0.001) as cluster, Feed(cluster) as feed:
        feed.register(cluster.regions.all()[0])
        writers = [threading.Thread(target=transactions, args=(cluster, name)) for name in (b"a", b"b")]
        for writer in writers:
            writer.start()
        try:
            messages = [feed.next()]
            while len({message.resolved_ts.ts for message in messages}) < 20:
                messages.append(feed.next())
        finally:
            enough.set()
            for writer in writers:
                writer.join()
        last = cluster.oracle.next()
        messages += feed.until(lambda message: message.resolved_ts.ts > last)
    resolved, committed = 0, []
    for message in messages:
        for row in rows([message]):
            assert not row.commit_ts or row.commit_ts > resolved
            if row.commit_ts:
                committed.append(row.key)
        resolved = max(resolved, message.resolved_ts.ts)
    assert sorted(committed) == sorted(written)


def test_a_split_a_transfer_and_a_deregister_are_error_events(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    with Feed(cluster) as feed:
        feed.register(region)
        feed.until_initialized()
        left, right = cluster.split(b"m")
        assert [r.id for r in feed.error().error.epoch_not_match.current_regions] == [left.id, right.id]
        feed.register(region)
        assert feed.error().error.epoch_not_match.current_regions[0] == right.message
        feed.register(right)
        feed.until_initialized()
        feed.register(right)
        assert feed.error().error.duplicate_request.region_id == right.id
        feed.register(right, deregister=cdcpb.ChangeDataRequest.Deregister())
        assert feed.error().error.region_not_found.region_id == right.id
        feed.register(right)
        feed.until_initialized()
        cluster.transfer(right.id, 2)
        assert feed.error().error.not_leader.leader == cluster.regions.locate(b"m").leader


def test_a_cut_breaks_the_streams_of_its_store_only(cluster: DevCluster) -> None:
    left, right = cluster.split(b"m")
    left = cluster.transfer(left.id, 2)
    with Feed(cluster, left.leader_store) as one, Feed(cluster, right.leader_store) as other:
        one.register(left)
        other.register(right)
        one.until_initialized()
        other.until_initialized()
        cluster.cut(left.leader_store)
        code, _ = failure(lambda: one.until(lambda message: False))
        assert code is grpc.StatusCode.UNAVAILABLE
        cluster.store.one_pc([put(b"r", b"1")], cluster.oracle.next())
        other.until(lambda message: bool(rows([message])))
    with Feed(cluster, left.leader_store) as again:
        again.register(left)
        again.until_initialized()


def test_a_cut_reaches_a_client_that_does_not_read(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    for block in range(40):
        keys = [f"{block:02}{number:05}".encode() for number in range(1000)]
        cluster.store.one_pc([put(key, b"x" * 1000) for key in keys], cluster.oracle.next())
    options = [("grpc.max_receive_message_length", 1 << 28)]
    with grpc.insecure_channel(cluster.store_addresses[1], options=options) as channel:
        request = cdcpb.ChangeDataRequest(region_id=region.id, region_epoch=region.message.region_epoch, request_id=1)
        stub: Any = channel.stream_stream(
            "/cdcpb.ChangeData/EventFeedV2", request_serializer=cdcpb.ChangeDataRequest.SerializeToString
        )
        requests: queue.Queue[cdcpb.ChangeDataRequest | None] = queue.Queue()
        requests.put(request)
        stream = stub(iter(requests.get, None))
        next(stream)
        cluster.cut(1)
        assert failure(lambda: list(stream))[0] is grpc.StatusCode.UNAVAILABLE
        requests.put(None)


def test_a_request_that_the_protocol_does_not_mean_ends_the_stream(shared: DevCluster) -> None:
    with Feed(shared) as feed:
        feed.register(shared.regions.all()[0], request_id=0)
        code, details = failure(feed.next)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith("request_id ")


def test_an_unknown_feature_is_unimplemented(shared: DevCluster) -> None:
    with Feed(shared, metadata=(("features", "stream-multiplexing,time-travel"),)) as feed:
        code, details = failure(feed.next)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "time-travel" in details
    assert "multiplexing" not in details


def test_a_large_scan_comes_whole_in_messages_below_the_limit(cluster: DevCluster) -> None:
    region = cluster.regions.all()[0]
    for block in range(10):
        keys = [f"{block:02}{number:05}".encode() for number in range(2000)]
        cluster.store.one_pc([put(key, b"x" * 1000) for key in keys], cluster.oracle.next())
    with Feed(cluster) as feed:
        feed.register(region)
        messages = feed.until(lambda message: any(row.type == 5 for row in rows([message])))
    found = [row.key for row in rows(messages)][:-1]
    assert found == sorted(found)
    assert len(set(found)) == 20_000
    assert max(message.ByteSize() for message in messages) <= 6 << 20


def test_harm_from_another_process(cluster: DevCluster) -> None:
    def harm(**request: Any) -> dict[str, Any]:
        with grpc.insecure_channel(cluster.pd_address) as channel:
            stub: Any = channel.unary_unary(HARM_METHOD)
            body: bytes = stub(json.dumps(request).encode(), timeout=DEADLINE)
        answer: dict[str, Any] = json.loads(body)
        return answer

    split = harm(action="split", key=b"m".hex())
    assert [region["id"] for region in split["regions"]] == [region.id for region in cluster.regions.all()[:2]]
    moved = harm(action="transfer", region=split["regions"][0]["id"], store=3)
    assert moved["regions"][0]["leader_store"] == cluster.regions.locate(b"a").leader_store == 3
    lock_ts = int(harm(action="lock", key=b"k".hex())["start_ts"])
    assert [lock.start_ts for lock in cluster.store.scan_locks(cluster.oracle.next())] == [lock_ts]
    assert harm(action="cut")["ok"]
    assert harm(action="stall", seconds=0.01)["ok"]
    assert len(harm(action="regions")["regions"]) == 4
    assert "one of" in harm(action="melt")["error"]
    assert "key" in harm(action="split")["error"]


# --- life ---


def test_a_busy_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = DevCluster(pd_port=port)
        with pytest.raises(OSError, match=str(port)):
            cluster.start()
        cluster.stop()


def test_a_second_start_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    with DevCluster(data_dir=tmp_path) as first:
        first.split(b"m")
        layout = first.regions.all()
        start = first.oracle.next()
        first.store.prewrite([put(b"a", b"1"), put(b"z", b"2")], b"a", start)
        first.store.commit([b"a"], start, first.oracle.next())
        pd(first, "UpdateServiceGCSafePoint", service_id=b"gc_worker", TTL=(1 << 63) - 1, safe_point=start)
        pd(first, "UpdateServiceGCSafePoint", service_id=b"feed", TTL=100, safe_point=start + 5)
        pd(first, "UpdateGCSafePoint", safe_point=start)
        new_id = pd(first, "AllocID").id
        last = first.oracle.next()
        cluster_id = first.cluster_id
    with DevCluster(data_dir=tmp_path) as second:
        assert second.cluster_id == cluster_id
        assert second.regions.all() == layout
        assert second.oracle.next() > last
        assert second.store.get(b"a", last) == b"1"
        assert [lock.key for lock in second.store.scan_locks(last)] == [b"z"]
        assert pd(second, "AllocID").id > new_id
        assert pd(second, "GetGCSafePoint").safe_point == start
        lowest = pd(second, "UpdateServiceGCSafePoint", service_id=b"x", TTL=0, safe_point=0)
        assert (lowest.service_id, lowest.min_safe_point) == (b"gc_worker", start)
        advanced = pd(
            second, "UpdateServiceGCSafePoint", service_id=b"gc_worker", TTL=(1 << 63) - 1, safe_point=start + 9
        )
        assert (advanced.service_id, advanced.min_safe_point) == (b"feed", start + 5)
    with pytest.raises(ValueError, match="3 stores"):
        DevCluster(stores=1, data_dir=tmp_path)


def test_no_ts_is_given_out_twice_when_the_clock_goes_back(tmp_path: Path) -> None:
    tomorrow = (DevCluster().oracle.next() >> 18) + 86_400_000
    journal = Journal(tmp_path)
    journal.append(JournalRecord.TSO, pdpb.Timestamp(physical=tomorrow))
    journal.close()
    cluster = DevCluster(data_dir=tmp_path)
    assert cluster.oracle.next() > tomorrow << 18
    assert cluster.store.max_ts > tomorrow << 18
    cluster.stop()
