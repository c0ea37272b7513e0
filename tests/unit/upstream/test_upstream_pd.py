from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc.aio
import pytest
from changefeed.errors import InvalidSpec, NeedsHuman, Transient, Unavailable
from changefeed.model.tso import compose
from changefeed.upstream.tikv.client import leader, timestamps
from changefeed.upstream.tikv.client import pd as pd_module
from changefeed.upstream.tikv.client.channels import parse_address
from changefeed.upstream.tikv.client.kv import Snapshot
from changefeed.upstream.tikv.client.pd import PdClient
from changefeed.upstream.tikv.client.requests import to_pd
from changefeed.upstream.tikv.client.safepoint import Safepoint, check_held
from changefeed.upstream.tikv.tidb.memcomparable import encode_bytes
from changefeed.wire import errorpb_pb2
from changefeed.wire import kvrpcpb_pb2 as kv
from upstream_fake import CLUSTER, FakeCluster, region


async def test_connect_learns_the_cluster(pd: PdClient, cluster: FakeCluster) -> None:
    assert pd.cluster_id == CLUSTER
    bare = await PdClient.connect([cluster.address])
    assert bare.cluster_id == CLUSTER
    await bare.close()


async def test_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Unavailable) as caught:
            await PdClient.connect([address], deadline=0.3)
    assert caught.value.message == f"PD at {address} does not answer: connection refused."
    assert "Check spec.upstream.pdAddresses" in caught.value.next_step


async def test_an_unknown_host() -> None:
    with pytest.raises(Unavailable, match=r"PD at pd\.invalid:2379 does not answer: its host name is not known"):
        await PdClient.connect(["pd.invalid:2379"], deadline=0.2)


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"J\0\0\0\n8.0.11-TiDB-v8.5.3 some handshake....."],
)
async def test_something_that_is_no_grpc_server(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NeedsHuman, match=f"What answers at 127.0.0.1:{port} is not a PD") as caught:
        await PdClient.connect([f"127.0.0.1:{port}"], deadline=5.0)
    assert "2379" in caught.value.next_step
    server.close()
    await server.wait_closed()


async def test_a_grpc_server_that_is_not_a_pd() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with pytest.raises(NeedsHuman, match="is not a PD"):
        await PdClient.connect([f"127.0.0.1:{port}"])
    await server.stop(None)


async def test_silence_ends_at_the_deadline() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with pytest.raises(Unavailable, match="no reply in time"):
            await PdClient.connect([f"127.0.0.1:{mute.getsockname()[1]}"], deadline=0.2)


async def test_one_good_address_is_enough(cluster: FakeCluster) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        client = await PdClient.connect([dead, cluster.address])
    assert await client.tso() == compose(1000, 1)
    await client.close()


async def test_connect_waits_for_an_election(cluster: FakeCluster) -> None:
    cluster.leader_url = ""
    with pytest.raises(Unavailable, match="knows no leader"):
        await PdClient.connect([cluster.address], deadline=0.2)
    connecting = asyncio.create_task(PdClient.connect([cluster.address], deadline=20.0))
    await asyncio.sleep(0)
    cluster.leader_url = None
    await (await connecting).close()


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("http://h:1", ("h:1", False)),
        ("https://h:1/", ("h:1", True)),
        ("h:1", ("h:1", False)),
        ("[::1]:1", ("[::1]:1", False)),
    ],
)
def test_addresses(address: str, parsed: tuple[str, bool]) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize("address", ["", "h", "h:", ":1", "ftp://h:1", "http://h:x", "http://me:pw@h:1"])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.upstream\.pdAddresses: ") as caught:
        parse_address(address)
    assert "pw" not in str(caught.value)


async def test_calls_follow_the_leader(pd: PdClient, cluster: FakeCluster) -> None:
    assert await pd.tso() == compose(1000, 1)
    other = FakeCluster(physical=2000)
    server = await other.start()
    cluster.is_leader, cluster.leader_url = False, f"http://{other.address}"
    assert await pd.tso() == compose(2000, 1)
    assert [r.id for r in await pd.scan_regions(b"", b"")] == [1]
    assert other.scans == [(b"", b"")]
    await server.stop(None)


async def test_another_cluster_is_refused(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.cluster_id = 5
    with pytest.raises(NeedsHuman, match=f"not of cluster {CLUSTER}"):
        await pd.scan_regions(b"", b"")
    with pytest.raises(NeedsHuman, match="cluster"):
        await pd.tso()
    with pytest.raises(NeedsHuman, match=f"belongs to cluster 5, not to {CLUSTER}"):
        await pd.leader.find()
    cluster.cluster_id = CLUSTER
    assert await pd.tso() > 0  # a failure does not end the stream for good


async def test_timestamps_are_shared_out_once_each_over_one_stream(pd: PdClient, cluster: FakeCluster) -> None:
    stamps = await asyncio.gather(*(pd.tso() for _ in range(50)))
    assert sorted(stamps) == [compose(1000, n) for n in range(1, 51)]
    assert stamps == sorted(stamps)
    assert len(cluster.tso_counts) < 50
    assert await pd.pd_ms() == 1000
    assert cluster.tso_streams == 1


async def test_a_cut_stream_is_opened_again(pd: PdClient, cluster: FakeCluster) -> None:
    await pd.tso()
    cluster.break_tso = 2
    cancelled = asyncio.create_task(pd.tso())
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await asyncio.gather(pd.tso(), pd.tso()) == [compose(1000, 2), compose(1000, 3)]
    assert cluster.tso_streams == 3


async def test_tso_gives_up_and_recovers(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "PATIENCE", 0.2)
    pd = await PdClient.connect([cluster.address])
    cluster.break_tso = 1_000_000
    with pytest.raises(Transient, match=r"PD's Tso did not succeed in 0\.2 s: PD at .* transport is closing"):
        await pd.tso()
    cluster.break_tso = 0
    assert await pd.tso() == compose(1000, 1)
    await pd.close()


async def test_a_mute_stream_is_replaced(pd: PdClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps, "REPLY_TIMEOUT", 0.05)
    answer, mute = FakeCluster.tso, [True]

    async def once_mute(self: FakeCluster, requests: object, context: object) -> object:
        if mute.pop() if mute else False:
            await asyncio.Event().wait()
        async for response in answer(self, requests, context):  # type: ignore[arg-type]
            yield response

    other = FakeCluster()
    monkeypatch.setattr(FakeCluster, "tso", once_mute)
    server = await other.start()
    client = await PdClient.connect([other.address])
    assert await client.tso() == compose(1000, 1)
    assert mute == []
    await client.close()
    await server.stop(None)


async def test_a_stream_that_ends_while_nobody_asks_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, ask, streams = FakeCluster.tso, timestamps.Timestamps.one_request, []

    async def once(self: FakeCluster, requests: object, context: object) -> object:
        async for response in answer(self, requests, context):  # type: ignore[arg-type]
            yield response
            return

    async def noted(self: timestamps.Timestamps, stream: Any) -> None:
        streams.append(stream)
        await ask(self, stream)

    monkeypatch.setattr(FakeCluster, "tso", once)
    monkeypatch.setattr(timestamps.Timestamps, "one_request", noted)
    other = FakeCluster()
    server = await other.start()
    client = await PdClient.connect([other.address])
    async with asyncio.timeout(10):
        for n in (1, 2):
            assert await client.tso() == compose(1000, n)
            await streams[-1].code()  # until it has ended
    await client.close()
    await server.stop(None)


async def test_close_ends_what_waits(cluster: FakeCluster) -> None:
    pd = await PdClient.connect([cluster.address])
    cluster.break_tso = 1_000_000
    waiting = asyncio.create_task(pd.tso())
    await asyncio.sleep(0.01)
    await pd.close()
    with pytest.raises(Transient, match="closed"):
        await waiting


async def test_regions_are_whole_and_in_order(
    pd: PdClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_pd, "MOST_REGIONS", 2)
    cluster.regions = [[region(1, b"", b"b"), region(2, b"b", b"d"), region(3, b"d", b"f"), region(4, b"f", b"")]]
    found = await pd.scan_regions(b"c", b"e")
    assert [(r.id, r.start_key, r.end_key) for r in found] == [
        (2, encode_bytes(b"b"), encode_bytes(b"d")),
        (3, encode_bytes(b"d"), encode_bytes(b"f")),
    ]
    assert (found[0].conf_ver, found[0].version, found[0].leader_peer_id, found[0].leader_store_id) == (1, 1, 20, 1)
    assert [r.id for r in await pd.scan_regions(b"", b"")] == [1, 2, 3, 4]
    assert [r.id for r in await pd.scan_regions(b"", b"b")] == [1]


async def test_holes_and_missing_leaders_are_waited_for(pd: PdClient, cluster: FakeCluster) -> None:
    whole = [region(1, b"", b"b"), region(2, b"b", b"d"), region(3, b"d", b"")]
    cluster.regions = [
        [whole[0], whole[2]],
        [],
        [region(2, b"b", b"d", leader=False), whole[2]],
        [whole[1]],
        whole,
    ]
    assert [r.id for r in await pd.scan_regions(b"a", b"z")] == [1, 2, 3]


async def test_a_merge_between_two_pages_starts_over(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.regions = [[region(1, b"", b"b")], [region(2, b"", b"d", version=2), region(3, b"d", b"")]]
    assert [r.id for r in await pd.scan_regions(b"", b"")] == [2, 3]


async def test_a_hole_that_stays_is_transient(
    pd: PdClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pd_module, "LEADERS_PATIENCE", 0.1)
    cluster.regions = [[region(1, b"", b"b"), region(3, b"d", b"")]]
    with pytest.raises(Transient, match=r"regions of \[61, 7a\) .* no region covers"):
        await pd.scan_regions(b"a", b"z")


async def test_leaders_that_a_restarted_pd_does_not_know_yet_are_waited_for(
    pd: PdClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns of them from heartbeats, up to a minute later: longer than it may take to answer a call."""
    monkeypatch.setattr(leader, "PATIENCE", 0.3)
    leaderless, led = [region(1, b"", b"", leader=False)], [region(1, b"", b"")]
    cluster.regions = [*[leaderless] * 9, led]
    assert [r.id for r in await pd.scan_regions(b"a", b"z")] == [1]
    answers = [kv.GetResponse(region_error=errorpb_pb2.Error(message="later")), kv.GetResponse(value=b"v")]
    cluster.kv["KvGet"] = lambda _: answers.pop(0)
    cluster.regions = [*[leaderless] * 9, led]
    assert await Snapshot(pd, 1, patience=0.3).get(b"k") == b"v", "a read has its own patience after that"
    assert pd_module.LEADERS_PATIENCE > 64


async def test_store_addresses_are_remembered(pd: PdClient, cluster: FakeCluster) -> None:
    assert [await pd.store_address(1), await pd.store_address(1)] == [cluster.address] * 2
    assert cluster.store_asks == 1
    pd.forget_store(1)
    pd.forget_store(2)
    await pd.store_address(1)
    assert cluster.store_asks == 2
    with pytest.raises(Transient, match="invalid store ID 99"):
        await pd.store_address(99)


@pytest.fixture(params=["services", "txn_safe_point"])
def both_answers(request: pytest.FixtureRequest, cluster: FakeCluster) -> None:
    """An older PD answers the least safepoint of all services, the newest its own txn safe point."""
    cluster.answers_txn_safe_point = request.param == "txn_safe_point"


@pytest.mark.usefixtures("both_answers")
async def test_rule_14_history_is_held_one_below_the_ts(pd: PdClient, cluster: FakeCluster) -> None:
    name = "changefeed-shop-orders-uid-1"
    hold = Safepoint(pd, name, 86_400)
    await hold.hold(500)
    assert cluster.safepoints == {b"changefeed-shop-orders-uid-1": (499, 86_400)}
    assert hold.held is not None
    assert hold.held.ts == 500
    assert 0 <= await pd.pd_ms() + 86_400_000 - hold.held.until_ms < 60_000, "the TTL, from before it was asked for"
    await hold.remove()
    assert cluster.safepoints == {}


async def test_rule_14_a_first_start_begins_at_what_it_holds(pd: PdClient, cluster: FakeCluster) -> None:
    hold = Safepoint(pd, "s", 60)
    ts = await hold.begin()
    assert cluster.safepoints == {b"s": (ts - 1, 60)}
    assert hold.held is not None
    assert hold.held.ts == ts


@pytest.mark.usefixtures("both_answers")
async def test_rule_14_a_hold_is_taken_whatever_others_hold(pd: PdClient, cluster: FakeCluster) -> None:
    """A service that holds less, or more, does not show in whether ours is taken."""
    for others in (10, 10_000):
        cluster.safepoints = {b"other": (others, 60)}
        await Safepoint(pd, "s", 60).hold(500)
        assert cluster.safepoints[b"s"] == (499, 60)


@pytest.mark.usefixtures("both_answers")
async def test_rule_14_a_hold_that_gc_has_passed_needs_a_human(pd: PdClient, cluster: FakeCluster) -> None:
    hold = Safepoint(pd, "s", 60)
    cluster.txn_safe_point = 499
    await hold.hold(500)
    cluster.txn_safe_point = compose(1_700_000_000_000)
    cluster.safepoints = {}  # it had lapsed
    released = r"SnapshotLostByGC: .* since 500 .* released its history up to .*2023-11-14 22:13:20 UTC\) to GC, "
    with pytest.raises(NeedsHuman, match=released + "which has removed nothing so far") as caught:
        await hold.hold(500)
    assert "later startTs" in caught.value.next_step
    cluster.gc_safe_point = 400
    with pytest.raises(NeedsHuman, match=released + r"which has removed what is older than 400 \(.* so far"):
        await hold.hold(500)
    cluster.gc_safe_point = 600
    with pytest.raises(NeedsHuman, match=r"since 500 .* are not all there any more: .* GC safepoint is 600 "):
        await hold.hold(500)


def test_rule_14_one_ts_too_late_is_too_late() -> None:
    check_held(500, 499, 0)
    with pytest.raises(NeedsHuman):
        check_held(500, 500, 500)


async def test_rule_14_a_start_below_what_gc_has_done_is_refused(pd: PdClient, cluster: FakeCluster) -> None:
    """Whatever the services' safepoints say: who ran GC may have asked none of them."""
    cluster.gc_safe_point = 500
    with pytest.raises(NeedsHuman, match=r"SnapshotLostByGC: .* since 500 "):
        await Safepoint(pd, "s", 60).hold(500)
    await Safepoint(pd, "s", 60).hold(501)


@pytest.mark.parametrize("calls", [("GetGCSafePoint",), ("GetGCState",), ("GetGCSafePoint", "GetGCState")])
async def test_gc_safepoint_of_old_and_new_pds(pd: PdClient, cluster: FakeCluster, calls: tuple[str, ...]) -> None:
    cluster.gc_safe_point, cluster.gc_calls = 77, calls
    assert await pd.gc_safepoint() == 77


async def test_pd_without_a_gc_safepoint_is_too_old(pd: PdClient, cluster: FakeCluster) -> None:
    cluster.gc_calls = ()
    with pytest.raises(NeedsHuman, match="does not know GetGCState"):
        await pd.gc_safepoint()
